/*
 * The supervisor's promises, with the real keeper and a main of this test's own
 * (daemon_run below): who is started again, who is ended, with which exit code,
 * and what main may still do. No guest is started. Needs root.
 */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/json.h"
#include "daemon/keeper/cgroup.h"
#include "daemon/run.h"
#include "daemon/supervisor.h"

#define WAIT_MS 30000
#define LONG_DYING_MS 4000 /* over LOCK_WAIT_MS of supervisor.c */

enum main_kind { MAIN_OBEDIENT, MAIN_STUBBORN, MAIN_CONFIG };

/* What a main tells the test when it starts. */
struct hello {
    pid_t pid;
    uid_t uid;
    int no_new_privs;
    int dumpable;
    int death_signal;
    int can_be_root;
    char facts[512];
};

static char dir[64];
static char parent[64];
static int hello_fds[2];
static enum main_kind main_kind;
static struct config *config;
static struct log quiet;

/* --- the main of this test ------------------------------------------------------------------ */

static void say_hello(const char *facts)
{
    struct hello hello = {.pid = getpid(), .uid = getuid()};

    hello.no_new_privs = prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0);
    hello.dumpable = prctl(PR_GET_DUMPABLE, 0, 0, 0, 0);
    (void)prctl(PR_GET_PDEATHSIG, &hello.death_signal);
    hello.can_be_root = setresuid(0, 0, 0) == 0;
    (void)snprintf(hello.facts, sizeof(hello.facts), "%s", facts);
    (void)!write(hello_fds[1], &hello, sizeof(hello));
}

static int obey(int keeper_sock)
{
    struct pollfd wait = {.fd = keeper_sock, .events = POLLIN};
    struct timespec none = {0, 0};
    sigset_t term;

    (void)sigemptyset(&term);
    (void)sigaddset(&term, SIGTERM);
    for (;;) {
        if (sigtimedwait(&term, NULL, &none) == SIGTERM)
            return DAEMON_EXIT_DRAINED;
        if (poll(&wait, 1, 10) > 0)
            return DAEMON_EXIT_LOST;
    }
}

int daemon_run(const struct config *cfg, int keeper_sock, const char *facts_json, struct error *err)
{
    sigset_t term;

    (void)cfg;
    (void)sigemptyset(&term);
    (void)sigaddset(&term, SIGTERM);
    (void)sigprocmask(SIG_BLOCK, &term, NULL);
    say_hello(facts_json);
    if (main_kind == MAIN_CONFIG) {
        (void)error_set(err, ERR_CONFIG, "not here");
        return DAEMON_EXIT_CONFIG;
    }
    if (main_kind == MAIN_STUBBORN)
        for (;;)
            pause();
    return obey(keeper_sock);
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

static void setup(void)
{
    char text[1024];
    struct error err = ERROR_INIT;
    int len;

    (void)snprintf(dir, sizeof(dir), "/tmp/paddock-super-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    make("images");
    make("images/base");
    make("images/base/rootfs");
    make("images/base/rootfs/sbin");
    put("images/base/rootfs/sbin/paddock-init", "");
    put("images/base/manifest.json", "{\"template\":\"base\",\"key\":\"k1\"}");
    len = snprintf(text, sizeof(text),
                   "[daemon]\nstate_dir = %s/state\nrun_dir = %s/run\nuser = nobody\n"
                   "[guest]\nimages_dir = %s/images\ntemplates = base\nsmoke = no\n"
                   "[cgroup]\nparent = %s\ncgroup_v1 = allow\n",
                   dir, dir, dir, parent);
    config = config_parse(text, (size_t)len, "test", &err);
    ck_assert_msg(config != NULL, "%s", err.detail);
    ck_assert_int_eq(pipe(hello_fds), 0);
    main_kind = MAIN_OBEDIENT;
    log_init(&quiet, "test_supervisor");
    quiet.level = LOG_ERROR;
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
    close(hello_fds[0]);
    close(hello_fds[1]);
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

        close(hello_fds[0]);
        code = supervisor_run(config, &quiet, &err);
        if (error_is_set(&err))
            log_error_value(&quiet, LOG_ERROR, "start_failed", &err);
        config_free(config);
        _exit(code);
    }
    return pid;
}

/* Waits for the next main. False when all who could tell are dead. */
static bool next_main(struct hello *hello)
{
    struct pollfd wait = {.fd = hello_fds[0], .events = POLLIN};

    ck_assert_msg(poll(&wait, 1, WAIT_MS) == 1, "nothing happened in %d ms", WAIT_MS);
    return read(hello_fds[0], hello, sizeof(*hello)) == (ssize_t)sizeof(*hello);
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

    ck_assert(next_main(&hello));
    ck_assert_uint_ne(hello.uid, 0);
    ck_assert_int_eq(hello.no_new_privs, 1);
    ck_assert_int_eq(hello.dumpable, 0);
    ck_assert_int_eq(hello.death_signal, SIGKILL);
    ck_assert_int_eq(hello.can_be_root, 0);
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

    ck_assert(next_main(&hello));
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

    main_kind = MAIN_STUBBORN;
    supervisor = start_supervisor();
    ck_assert(next_main(&hello));
    keeper = child_of(supervisor, hello.pid);
    ck_assert_int_eq(kill(supervisor, SIGTERM), 0);
    ck_assert_int_eq(kill(supervisor, SIGINT), 0); /* another number: not merged with the first */
    ck_assert_int_eq(exit_code(supervisor), DAEMON_EXIT_LOST);
    ck_assert_int_eq(kill(keeper, 0), -1);
    ck_assert_int_eq(kill(hello.pid, 0), -1);
}
END_TEST

START_TEST(either_ones_death_starts_both_again)
{
    struct hello first;
    struct hello second;
    struct hello third;
    pid_t supervisor = start_supervisor();
    pid_t keepers[3];

    ck_assert(next_main(&first));
    keepers[0] = child_of(supervisor, first.pid);
    ck_assert_int_eq(kill(keepers[0], SIGKILL), 0);
    ck_assert(next_main(&second));
    ck_assert_int_ne(first.pid, second.pid);
    ck_assert_int_eq(kill(first.pid, 0), -1);
    keepers[1] = child_of(supervisor, second.pid);
    ck_assert_int_ne(keepers[0], keepers[1]);
    ck_assert_int_eq(kill(second.pid, SIGKILL), 0);
    ck_assert(next_main(&third));
    keepers[2] = child_of(supervisor, third.pid);
    ck_assert_int_ne(keepers[1], keepers[2]);
    ck_assert_int_eq(kill(keepers[1], 0), -1);
    assert_stops(supervisor);
}
END_TEST

START_TEST(a_main_that_ignores_its_keepers_death_is_killed)
{
    struct hello first;
    struct hello second;
    pid_t supervisor;

    main_kind = MAIN_STUBBORN;
    supervisor = start_supervisor();
    ck_assert(next_main(&first));
    ck_assert_int_eq(kill(child_of(supervisor, first.pid), SIGKILL), 0);
    ck_assert(next_main(&second));
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

    main_kind = MAIN_CONFIG;
    quiet.level = LOG_ERROR + 1;
    supervisor = start_supervisor();
    ck_assert(next_main(&hello));
    ck_assert_int_eq(exit_code(supervisor), DAEMON_EXIT_CONFIG);
    close(hello_fds[1]);
    ck_assert(!next_main(&hello)); /* no second one */
    hello_fds[1] = dup(hello_fds[0]);
}
END_TEST

START_TEST(the_supervisors_death_ends_both_and_frees_the_lock)
{
    struct hello hello;
    pid_t supervisor = start_supervisor();
    int status;

    ck_assert(next_main(&hello));
    ck_assert_int_eq(kill(supervisor, SIGKILL), 0);
    ck_assert_int_eq(waitpid(supervisor, &status, 0), supervisor);
    supervisor = start_supervisor(); /* gets the lock only when the first keeper is dead */
    ck_assert(next_main(&hello));
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
    ck_assert(next_main(&hello));
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

    ck_assert(next_main(&hello));
    ck_assert_int_eq(supervisor_run(config, &quiet, &err), SUPERVISOR_EXIT_FATAL);
    ck_assert_int_eq(err.code, ERR_PREFLIGHT);
    ck_assert_ptr_nonnull(strstr(err.detail, "another paddockd"));
    err = (struct error)ERROR_INIT;
    ck_assert_msg(supervisor_check(config, &quiet, out, &err) == 0, "%s", err.detail);
    rewind(out);
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
    ck_assert_int_eq(supervisor_run(config, &quiet, &err), SUPERVISOR_EXIT_FATAL);
    ck_assert_int_eq(err.code, ERR_PREFLIGHT);
    ck_assert_ptr_nonnull(strstr(err.detail, "known good (1.0 2.0)"));
    ck_assert_int_eq(child_of(getpid(), 0), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("supervisor");
    TCase *tcase = tcase_create("supervisor");
    SRunner *runner = srunner_create(suite);
    int failed;

    (void)snprintf(parent, sizeof(parent), "/paddock-test-super-%d", (int)getpid());
    tcase_set_timeout(tcase, 120);
    tcase_add_unchecked_fixture(tcase, NULL, suite_teardown);
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, main_has_no_privileges_and_knows_the_facts);
    tcase_add_test(tcase, a_stop_drains_main_and_ends_all);
    tcase_add_test(tcase, a_second_stop_waits_for_nobody);
    tcase_add_test(tcase, either_ones_death_starts_both_again);
    tcase_add_test(tcase, a_main_that_ignores_its_keepers_death_is_killed);
    tcase_add_test(tcase, a_main_that_cannot_run_here_is_not_restarted);
    tcase_add_test(tcase, the_supervisors_death_ends_both_and_frees_the_lock);
    tcase_add_test(tcase, a_dying_keepers_lock_is_waited_for);
    tcase_add_test(tcase, a_second_paddockd_is_refused_and_a_check_is_not);
    tcase_add_test(tcase, a_failed_preflight_starts_nothing);
    suite_add_tcase(suite, tcase);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
