/*
 * The supervisor's promises, with the real keeper and a main of this test's own
 * (daemon_run below, in this program executed again): who is started again, who
 * is ended, with which exit code, what a reload changes, and what main may still
 * do. No guest is started. Needs root.
 */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <jansson.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/json.h"
#include "daemon/keeper/cgroup.h"
#include "daemon/keeper/protocol.h"
#include "daemon/main_process.h"
#include "daemon/main_protocol.h"
#include "daemon/run.h"
#include "daemon/supervisor.h"

#define WAIT_MS 30000
#define LONG_DYING_MS 4000 /* over LOCK_WAIT_MS of supervisor.c */
#define BEAT_MS 20
/* In the environment of what this program executes. */
#define KIND_VARIABLE "TEST_SUPERVISOR_MAIN"
#define HELLO_VARIABLE "TEST_SUPERVISOR_HELLO"
#define VERSION_VARIABLE "TEST_SUPERVISOR_VERSION"

/* What a main tells the test when it starts. */
struct hello {
    pid_t pid;
    uid_t uid;
    int no_new_privs;
    int dumpable;
    int death_signal;
    int can_be_root;
    int open_descriptors; /* beyond 0 to 3 and the keeper's socket */
    int version;
    char facts[512];
};

static char dir[64];
static char parent[64];
static char self[512];
static char program[128];
static char config_path[128];
static struct supervisor_options options;
static int hello_fd; /* a FIFO */
static struct config *config;
static struct log quiet;

/* --- the main of this test ------------------------------------------------------------------ */

static bool is_kind(const char *kind)
{
    return strcmp(getenv(KIND_VARIABLE), kind) == 0;
}

static int count_descriptors(int but)
{
    int count = 0;

    for (int fd = 4; fd < 256; fd++)
        count += fd != but && fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void say_hello(const char *facts, int keeper_sock)
{
    struct hello hello = {.pid = getpid(), .uid = getuid()};
    const char *version = getenv(VERSION_VARIABLE);
    int fd;

    hello.open_descriptors = count_descriptors(keeper_sock);
    hello.no_new_privs = prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0);
    hello.dumpable = prctl(PR_GET_DUMPABLE, 0, 0, 0, 0);
    (void)prctl(PR_GET_PDEATHSIG, &hello.death_signal);
    hello.can_be_root = setresuid(0, 0, 0) == 0;
    hello.version = version ? atoi(version) : 1;
    (void)snprintf(hello.facts, sizeof(hello.facts), "%s", facts);
    fd = open(getenv(HELLO_VARIABLE), O_WRONLY | O_CLOEXEC);
    (void)!write(fd, &hello, sizeof(hello));
    close(fd);
}

static void say(int parent_sock, enum main_word word)
{
    const struct main_saying said = {.word = word, .link_version = MAIN_LINK_VERSION};

    (void)!send(parent_sock, &said, sizeof(said), MSG_NOSIGNAL | MSG_DONTWAIT);
}

static int obey(int keeper_sock, int parent_sock)
{
    static struct main_order order;
    struct pollfd fds[2] = {{.fd = keeper_sock, .events = POLLIN},
                            {.fd = parent_sock, .events = POLLIN}};
    struct timespec none = {0, 0};
    char message[1024];
    sigset_t term;

    (void)sigemptyset(&term);
    (void)sigaddset(&term, SIGTERM);
    say(parent_sock, MAIN_READY);
    for (;;) {
        say(parent_sock, MAIN_BEAT);
        if (sigtimedwait(&term, NULL, &none) == SIGTERM)
            return DAEMON_EXIT_DRAINED;
        (void)poll(fds, 2, BEAT_MS);
        if (fds[0].revents && recv(keeper_sock, message, sizeof(message), 0) <= 0)
            return DAEMON_EXIT_LOST;
        if (fds[1].revents && recv(parent_sock, &order, sizeof(order), 0) == sizeof(order) &&
            order.verb == MAIN_LEAVE) {
            close(keeper_sock);
            say(parent_sock, MAIN_LEFT);
            return DAEMON_EXIT_LEFT;
        }
    }
}

int daemon_run(const struct config *cfg, int keeper_sock, int parent_sock, const char *facts_json,
               struct error *err)
{
    sigset_t term;

    (void)cfg;
    (void)sigemptyset(&term);
    (void)sigaddset(&term, SIGTERM);
    (void)sigprocmask(SIG_BLOCK, &term, NULL);
    say_hello(facts_json, keeper_sock);
    if (is_kind("config")) {
        (void)error_set(err, ERR_CONFIG, "not here");
        return DAEMON_EXIT_CONFIG;
    }
    if (is_kind("stubborn"))
        for (;;) {
            say(parent_sock, MAIN_BEAT);
            (void)poll(NULL, 0, BEAT_MS);
        }
    if (is_kind("silent"))
        for (;;)
            pause();
    return obey(keeper_sock, parent_sock);
}

/* This program as main. */
static int run_as_main(const char *path)
{
    struct error err = ERROR_INIT;
    _cleanup_config_ struct config *cfg = config_load(path, &err);
    struct log log;

    log_init(&log, "test_supervisor");
    log.level = LOG_ERROR + 1;
    return cfg ? main_process_run(cfg, &log) : SUPERVISOR_EXIT_FATAL;
}

/* --- the bench ------------------------------------------------------------------------------ */

static void put(const char *name, const char *text)
{
    char path[256];
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    (void)fclose(file);
    ck_assert_int_eq(chmod(path, 0755), 0);
}

static void make(const char *name)
{
    char path[256];

    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    ck_assert_int_eq(mkdir(path, 0755), 0);
}

static void write_config(const char *more)
{
    char text[1024];

    (void)snprintf(text, sizeof(text),
                   "[daemon]\nstate_dir = %s/state\nrun_dir = %s/run\nuser = nobody\n%s"
                   "[guest]\nimages_dir = %s/images\ntemplates = base\nsmoke = no\n"
                   "[cgroup]\nparent = %s\ncgroup_v1 = allow\n",
                   dir, dir, more, dir, parent);
    put("paddock.conf", text);
}

static void load_config(const char *more)
{
    struct error err = ERROR_INIT;

    write_config(more);
    config_free(config);
    config = config_load(config_path, &err);
    ck_assert_msg(config != NULL, "%s", err.detail);
}

static void set_kind(const char *kind)
{
    ck_assert_int_eq(setenv(KIND_VARIABLE, kind, 1), 0);
}

static void setup(void)
{
    char path[128];

    (void)snprintf(dir, sizeof(dir), "/tmp/paddock-super-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    ck_assert_int_eq(chmod(dir, 0755), 0);
    make("images");
    make("images/base");
    make("images/base/rootfs");
    make("images/base/rootfs/sbin");
    put("images/base/rootfs/sbin/paddock-init", "");
    put("images/base/manifest.json", "{\"template\":\"base\",\"key\":\"k1\"}");
    (void)snprintf(config_path, sizeof(config_path), "%s/paddock.conf", dir);
    config = NULL;
    load_config("watchdog = 60s\n");
    (void)snprintf(program, sizeof(program), "%s/program", dir);
    ck_assert_int_eq(symlink(self, program), 0);
    options = (struct supervisor_options){.program = program, .config_path = config_path};
    (void)snprintf(path, sizeof(path), "%s/hello", dir);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    ck_assert_int_eq(chmod(path, 0666), 0);
    hello_fd = open(path, O_RDWR | O_CLOEXEC); /* it never ends */
    ck_assert_int_ge(hello_fd, 0);
    ck_assert_int_eq(setenv(HELLO_VARIABLE, path, 1), 0);
    set_kind("obedient");
    log_init(&quiet, "test_supervisor");
    quiet.level = LOG_ERROR + 1;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

static void teardown(void)
{
    config_free(config);
    close(hello_fd);
    ck_assert_int_eq(nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

static void suite_teardown(void)
{
    static const char *const places[] = {"", "/cpu", "/cpuacct", "/memory", "/pids"};

    for (unsigned i = 0; i < ARRAY_LEN(places); i++) {
        char path[128];

        (void)snprintf(path, sizeof(path), CGROUP_ROOT "%s%s", places[i], parent);
        (void)rmdir(path);
    }
}

static pid_t start_supervisor(void)
{
    pid_t pid = fork();

    if (pid == 0) {
        struct error err = ERROR_INIT;
        int code;

        code = supervisor_run(config, &options, &quiet, &err);
        if (error_is_set(&err))
            log_error_value(&quiet, LOG_ERROR, "start_failed", &err);
        config_free(config);
        _exit(code);
    }
    return pid;
}

/* Waits for the next main. */
static void next_main(struct hello *hello)
{
    struct pollfd wait = {.fd = hello_fd, .events = POLLIN};

    ck_assert_msg(poll(&wait, 1, WAIT_MS) == 1, "nothing happened in %d ms", WAIT_MS);
    ck_assert_int_eq(read(hello_fd, hello, sizeof(*hello)), sizeof(*hello));
}

static void assert_no_main(void)
{
    struct pollfd wait = {.fd = hello_fd, .events = POLLIN};

    ck_assert_int_eq(poll(&wait, 1, 0), 0);
}

static void await_end(pid_t pid)
{
    for (int i = 0; kill(pid, 0) == 0; i++) {
        ck_assert_msg(i < WAIT_MS, "process %d does not end", (int)pid);
        (void)poll(NULL, 0, 1);
    }
}

static int exit_code(pid_t pid)
{
    int status;

    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* A living child of pid other than `other`; 0 for none. */
static pid_t child_of(pid_t pid, pid_t other)
{
    DIR *proc = opendir("/proc");
    const struct dirent *entry;
    pid_t found = 0;

    ck_assert_ptr_nonnull(proc);
    while ((entry = readdir(proc)) != NULL) {
        char path[300];
        FILE *stat;
        int child;
        int its_parent;
        char state;

        if (entry->d_name[0] < '0' || entry->d_name[0] > '9')
            continue;
        (void)snprintf(path, sizeof(path), "/proc/%s/stat", entry->d_name);
        stat = fopen(path, "r");
        if (!stat)
            continue;
        if (fscanf(stat, "%d (%*[^)]) %c %d", &child, &state, &its_parent) == 3 &&
            its_parent == pid && child != other && state != 'Z')
            found = child;
        (void)fclose(stat);
    }
    closedir(proc);
    return found;
}

static void assert_stops(pid_t supervisor)
{
    ck_assert_int_eq(kill(supervisor, SIGTERM), 0);
    ck_assert_int_eq(exit_code(supervisor), 0);
}

/* --- tests ---------------------------------------------------------------------------------- */

START_TEST(main_has_no_privileges_and_knows_the_facts)
{
    struct hello hello;
    pid_t supervisor = start_supervisor();

    next_main(&hello);
    ck_assert_uint_ne(hello.uid, 0);
    ck_assert_int_eq(hello.no_new_privs, 1);
    ck_assert_int_eq(hello.dumpable, 0);
    ck_assert_int_eq(hello.death_signal, SIGKILL);
    ck_assert_int_eq(hello.can_be_root, 0);
    ck_assert_int_eq(hello.open_descriptors, 0);
    _cleanup_json_ json_t *facts = json_loads(hello.facts, JSON_REJECT_DUPLICATES, NULL);
    ck_assert_ptr_nonnull(facts);
    ck_assert_str_eq(
        json_string_value(json_object_get(json_object_get(facts, "templates"), "base")), "k1");
    ck_assert_str_eq(
        json_string_value(json_object_get(json_object_get(facts, "runsc"), "platform")), "systrap");
    ck_assert_int_ge(
        json_integer_value(json_object_get(json_object_get(facts, "cgroup"), "version")), 1);
    assert_stops(supervisor);
}
END_TEST

START_TEST(a_stop_drains_main_and_ends_all)
{
    struct hello hello;
    pid_t supervisor = start_supervisor();
    pid_t keeper;

    next_main(&hello);
    keeper = child_of(supervisor, hello.pid);
    ck_assert_int_gt(keeper, 0);
    assert_stops(supervisor);
    ck_assert_int_eq(kill(keeper, 0), -1);
    ck_assert_int_eq(kill(hello.pid, 0), -1);
}
END_TEST

START_TEST(a_second_stop_waits_for_nobody)
{
    struct hello hello;
    pid_t supervisor;
    pid_t keeper;

    set_kind("stubborn");
    supervisor = start_supervisor();
    next_main(&hello);
    keeper = child_of(supervisor, hello.pid);
    ck_assert_int_eq(kill(supervisor, SIGTERM), 0);
    ck_assert_int_eq(kill(supervisor, SIGINT), 0); /* another number: not merged with the first */
    ck_assert_int_eq(exit_code(supervisor), DAEMON_EXIT_LOST);
    ck_assert_int_eq(kill(keeper, 0), -1);
    ck_assert_int_eq(kill(hello.pid, 0), -1);
}
END_TEST

START_TEST(the_keepers_death_starts_both_again)
{
    struct hello first;
    struct hello second;
    pid_t supervisor = start_supervisor();
    pid_t keepers[2];

    next_main(&first);
    keepers[0] = child_of(supervisor, first.pid);
    ck_assert_int_eq(kill(keepers[0], SIGKILL), 0);
    next_main(&second);
    ck_assert_int_ne(first.pid, second.pid);
    ck_assert_int_eq(kill(first.pid, 0), -1);
    keepers[1] = child_of(supervisor, second.pid);
    ck_assert_int_ne(keepers[0], keepers[1]);
    assert_stops(supervisor);
}
END_TEST

START_TEST(mains_death_is_no_one_elses)
{
    struct hello mains[3];
    pid_t supervisor = start_supervisor();
    pid_t keeper = 0;

    for (int i = 0; i < 3; i++) {
        next_main(&mains[i]);
        if (i == 0)
            keeper = child_of(supervisor, mains[i].pid);
        ck_assert_int_gt(keeper, 0);
        ck_assert_int_eq(child_of(supervisor, mains[i].pid), keeper);
        if (i < 2)
            ck_assert_int_eq(kill(mains[i].pid, SIGKILL), 0);
    }
    assert_stops(supervisor);
    ck_assert_int_eq(kill(keeper, 0), -1);
}
END_TEST

START_TEST(a_stop_while_main_waits_to_be_started_again)
{
    struct hello hello;
    pid_t supervisor;

    supervisor = start_supervisor();
    next_main(&hello);
    ck_assert_int_eq(kill(hello.pid, SIGKILL), 0);
    ck_assert_int_eq(kill(supervisor, SIGTERM), 0);
    (void)exit_code(supervisor); /* 0 if it came up again in between */
}
END_TEST

START_TEST(a_silent_main_is_replaced)
{
    struct hello first;
    struct hello second;
    pid_t supervisor;
    pid_t keeper;

    load_config("watchdog = 1s\n");
    set_kind("silent");
    supervisor = start_supervisor();
    next_main(&first);
    keeper = child_of(supervisor, first.pid);
    next_main(&second);
    ck_assert_int_eq(kill(first.pid, 0), -1);
    ck_assert_int_eq(child_of(supervisor, second.pid), keeper);
    ck_assert_int_eq(kill(supervisor, SIGTERM), 0);
    ck_assert_int_eq(kill(supervisor, SIGINT), 0);
    (void)exit_code(supervisor);
}
END_TEST

START_TEST(a_stopped_main_is_replaced_and_a_beating_one_is_not)
{
    struct hello first;
    struct hello second;
    pid_t supervisor;
    int64_t since_ms;

    load_config("watchdog = 1s\n");
    supervisor = start_supervisor();
    next_main(&first);
    since_ms = clock_mono_ms();
    while (clock_mono_ms() < since_ms + 1500) /* longer than it may be silent */
        ck_assert_int_eq(kill(first.pid, 0), 0);
    assert_no_main();
    ck_assert_int_eq(kill(first.pid, SIGSTOP), 0);
    next_main(&second);
    ck_assert_int_eq(kill(first.pid, 0), -1);
    assert_stops(supervisor);
}
END_TEST

/* A newer program at the same path, which says so. */
static void upgrade(void)
{
    char script[1024];

    (void)snprintf(script, sizeof(script), "#!/bin/sh\n" VERSION_VARIABLE "=2 exec %s \"$@\"\n",
                   self);
    ck_assert_int_eq(unlink(program), 0);
    put("program", script);
}

START_TEST(a_reload_executes_the_program_that_is_there_then)
{
    struct hello first;
    struct hello second;
    pid_t supervisor = start_supervisor();
    pid_t keeper;

    next_main(&first);
    ck_assert_int_eq(first.version, 1);
    keeper = child_of(supervisor, first.pid);
    upgrade();
    ck_assert_int_eq(kill(supervisor, SIGHUP), 0);
    next_main(&second);
    ck_assert_int_eq(second.version, 2);
    await_end(first.pid);
    ck_assert_int_eq(child_of(supervisor, second.pid), keeper);
    assert_stops(supervisor);
}
END_TEST

/* The supervisor's log says so. */
static void assert_reload_fails(pid_t supervisor, int log_fd, const struct hello *now)
{
    char text[8192] = "";
    size_t len = 0;

    ck_assert_int_eq(kill(supervisor, SIGHUP), 0);
    while (!strstr(text, "event=reload_failed")) {
        struct pollfd wait = {.fd = log_fd, .events = POLLIN};
        ssize_t got;

        ck_assert_msg(poll(&wait, 1, WAIT_MS) == 1, "not within %d ms: %s", WAIT_MS, text);
        got = read(log_fd, text + len, sizeof(text) - 1 - len);
        ck_assert_int_gt(got, 0);
        len += (size_t)got;
        text[len] = '\0';
    }
    ck_assert_int_eq(kill(now->pid, 0), 0);
}

START_TEST(a_reload_that_cannot_work_changes_nothing)
{
    struct hello first;
    struct hello second;
    pid_t supervisor;
    int fds[2];

    ck_assert_int_eq(pipe(fds), 0);
    quiet.level = LOG_ERROR;
    quiet.fd = fds[1];
    supervisor = start_supervisor();
    next_main(&first);
    write_config("no_such_key = 1\n");
    assert_reload_fails(supervisor, fds[0], &first);
    write_config("user = no-such-user-here\n");
    assert_reload_fails(supervisor, fds[0], &first);
    write_config("");
    assert_no_main();
    ck_assert_int_eq(kill(supervisor, SIGHUP), 0);
    next_main(&second);
    await_end(first.pid);
    assert_stops(supervisor);
    close(fds[0]);
    close(fds[1]);
}
END_TEST

START_TEST(a_main_that_does_not_leave_is_not_waited_for_by_a_stop)
{
    struct hello hello;
    pid_t supervisor;
    pid_t keeper;

    set_kind("stubborn");
    supervisor = start_supervisor();
    next_main(&hello);
    keeper = child_of(supervisor, hello.pid);
    ck_assert_int_eq(kill(supervisor, SIGHUP), 0);
    while (child_of(supervisor, keeper) == hello.pid)
        continue; /* the next one is not there yet */
    ck_assert_int_eq(kill(supervisor, SIGTERM), 0);
    ck_assert_int_eq(kill(supervisor, SIGINT), 0);
    (void)exit_code(supervisor);
    ck_assert_int_eq(kill(hello.pid, 0), -1);
    assert_no_main();
}
END_TEST

/* Reads until the service manager was told this. */
static void expect_told(int sock, const char *what)
{
    char text[256];
    ssize_t len;

    do {
        struct pollfd wait = {.fd = sock, .events = POLLIN};

        ck_assert_msg(poll(&wait, 1, WAIT_MS) == 1, "%s was not told", what);
        len = recv(sock, text, sizeof(text) - 1, 0);
        ck_assert_int_gt(len, 0);
        text[len] = '\0';
    } while (strcmp(text, what) != 0);
}

START_TEST(the_service_manager_is_told)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct hello hello;
    pid_t supervisor;

    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s/notify", dir);
    ck_assert_int_eq(bind(sock, (const struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(setenv("NOTIFY_SOCKET", address.sun_path, 1), 0);
    supervisor = start_supervisor();
    ck_assert_int_eq(unsetenv("NOTIFY_SOCKET"), 0);
    next_main(&hello);
    expect_told(sock, "READY=1");
    expect_told(sock, "WATCHDOG=1");
    ck_assert_int_eq(kill(supervisor, SIGHUP), 0);
    expect_told(sock, "RELOADING=1");
    next_main(&hello);
    expect_told(sock, "READY=1");
    ck_assert_int_eq(kill(supervisor, SIGTERM), 0);
    expect_told(sock, "STOPPING=1");
    ck_assert_int_eq(exit_code(supervisor), 0);
    close(sock);
}
END_TEST

START_TEST(a_main_that_ignores_its_keepers_death_is_killed)
{
    struct hello first;
    struct hello second;
    pid_t supervisor;

    set_kind("stubborn");
    supervisor = start_supervisor();
    next_main(&first);
    ck_assert_int_eq(kill(child_of(supervisor, first.pid), SIGKILL), 0);
    next_main(&second);
    ck_assert_int_eq(kill(first.pid, 0), -1);
    ck_assert_int_eq(kill(supervisor, SIGTERM), 0);
    ck_assert_int_eq(kill(supervisor, SIGINT), 0);
    (void)exit_code(supervisor);
}
END_TEST

START_TEST(a_main_that_cannot_run_here_is_not_restarted)
{
    struct hello hello;
    pid_t supervisor;

    set_kind("config");
    supervisor = start_supervisor();
    next_main(&hello);
    ck_assert_int_eq(exit_code(supervisor), DAEMON_EXIT_CONFIG);
    assert_no_main(); /* no second one */
}
END_TEST

START_TEST(the_supervisors_death_ends_both_and_frees_the_lock)
{
    struct hello hello;
    pid_t supervisor = start_supervisor();
    int status;

    next_main(&hello);
    ck_assert_int_eq(kill(supervisor, SIGKILL), 0);
    ck_assert_int_eq(waitpid(supervisor, &status, 0), supervisor);
    supervisor = start_supervisor(); /* gets the lock only when the first keeper is dead */
    next_main(&hello);
    assert_stops(supervisor);
}
END_TEST

/* A keeper dies after the last of its guests, which may take longer than anybody waits for a lock
 * that is in use. */
START_TEST(a_dying_keepers_lock_is_waited_for)
{
    struct hello hello;
    char path[128];
    char byte;
    int ready[2];
    int status;
    pid_t dead = fork();

    if (dead == 0)
        _exit(0);
    ck_assert_int_eq(waitpid(dead, &status, 0), dead);
    make("state");
    ck_assert_int_eq(pipe(ready), 0);
    (void)snprintf(path, sizeof(path), "%s/state/lock", dir);
    pid_t keeper = fork();
    if (keeper == 0) {
        int fd = open(path, O_RDWR | O_CREAT, 0600);

        if (flock(fd, LOCK_EX) < 0 || dprintf(fd, "%d\n", (int)dead) < 0 ||
            write(ready[1], "", 1) != 1)
            _exit(1);
        (void)poll(NULL, 0, LONG_DYING_MS);
        _exit(0);
    }
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    pid_t supervisor = start_supervisor();
    next_main(&hello);
    ck_assert_int_eq(waitpid(keeper, &status, 0), keeper);
    ck_assert_int_eq(status, 0);
    assert_stops(supervisor);
    close(ready[0]);
    close(ready[1]);
}
END_TEST

START_TEST(a_second_paddockd_is_refused_and_a_check_is_not)
{
    struct hello hello;
    struct error err = ERROR_INIT;
    pid_t supervisor = start_supervisor();
    FILE *out = tmpfile();
    char line[512];

    next_main(&hello);
    ck_assert_int_eq(supervisor_run(config, &options, &quiet, &err), SUPERVISOR_EXIT_FATAL);
    ck_assert_int_eq(err.code, ERR_PREFLIGHT);
    ck_assert_ptr_nonnull(strstr(err.detail, "another paddockd"));
    err = (struct error)ERROR_INIT;
    ck_assert_msg(supervisor_check(config, &quiet, out, &err) == 0, "%s", err.detail);
    ck_assert_int_eq(fseek(out, 0, SEEK_SET), 0);
    ck_assert_ptr_nonnull(fgets(line, sizeof(line), out));
    ck_assert_ptr_nonnull(strstr(line, "\"base\":\"k1\""));
    (void)fclose(out);
    assert_stops(supervisor);
}
END_TEST

START_TEST(a_failed_preflight_starts_nothing)
{
    struct error err = ERROR_INIT;

    free(config->guest_runsc_versions);
    config->guest_runsc_versions = strdup("1.0 2.0");
    ck_assert_int_eq(supervisor_run(config, &options, &quiet, &err), SUPERVISOR_EXIT_FATAL);
    ck_assert_int_eq(err.code, ERR_PREFLIGHT);
    ck_assert_ptr_nonnull(strstr(err.detail, "known good (1.0 2.0)"));
    ck_assert_int_eq(child_of(getpid(), 0), 0);
}
END_TEST

/* The init system starts it again; what is missing for good it does not. The mount is seen by
 * nobody else, and ends with this test's process. */
START_TEST(a_full_disk_is_worth_another_try)
{
    struct error err = ERROR_INIT;

    make("state");
    ck_assert_int_eq(unshare(CLONE_NEWNS), 0);
    ck_assert_int_eq(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
    ck_assert_int_eq(mount("none", config->daemon_state_dir, "tmpfs", 0, "size=4m,mode=711"), 0);
    ck_assert_int_eq(supervisor_run(config, &options, &quiet, &err), SUPERVISOR_EXIT_AGAIN);
    ck_assert_ptr_nonnull(strstr(err.detail, "free space"));
    ck_assert_int_eq(child_of(getpid(), 0), 0);
    ck_assert_int_eq(umount(config->daemon_state_dir), 0);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite;
    TCase *tcase;
    SRunner *runner;
    int failed;

    /* As main_slot.c executes it. */
    if (argc == 4 && strcmp(argv[1], "--main") == 0)
        return run_as_main(argv[3]);
    suite = suite_create("supervisor");
    tcase = tcase_create("supervisor");
    runner = srunner_create(suite);
    if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0)
        return EXIT_FAILURE;
    (void)snprintf(parent, sizeof(parent), "/paddock-test-super-%d", (int)getpid());
    tcase_set_timeout(tcase, 120);
    tcase_add_unchecked_fixture(tcase, NULL, suite_teardown);
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, main_has_no_privileges_and_knows_the_facts);
    tcase_add_test(tcase, a_stop_drains_main_and_ends_all);
    tcase_add_test(tcase, a_second_stop_waits_for_nobody);
    tcase_add_test(tcase, the_keepers_death_starts_both_again);
    tcase_add_test(tcase, mains_death_is_no_one_elses);
    tcase_add_test(tcase, a_stop_while_main_waits_to_be_started_again);
    tcase_add_test(tcase, a_silent_main_is_replaced);
    tcase_add_test(tcase, a_stopped_main_is_replaced_and_a_beating_one_is_not);
    tcase_add_test(tcase, a_reload_executes_the_program_that_is_there_then);
    tcase_add_test(tcase, a_reload_that_cannot_work_changes_nothing);
    tcase_add_test(tcase, a_main_that_does_not_leave_is_not_waited_for_by_a_stop);
    tcase_add_test(tcase, the_service_manager_is_told);
    tcase_add_test(tcase, a_main_that_ignores_its_keepers_death_is_killed);
    tcase_add_test(tcase, a_main_that_cannot_run_here_is_not_restarted);
    tcase_add_test(tcase, the_supervisors_death_ends_both_and_frees_the_lock);
    tcase_add_test(tcase, a_dying_keepers_lock_is_waited_for);
    tcase_add_test(tcase, a_second_paddockd_is_refused_and_a_check_is_not);
    tcase_add_test(tcase, a_failed_preflight_starts_nothing);
    tcase_add_test(tcase, a_full_disk_is_worth_another_try);
    suite_add_tcase(suite, tcase);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
