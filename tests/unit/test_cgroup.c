/*
 * cgroups: the real hierarchies of this machine (limits, entering, killing, OOM
 * counts, removal; on version 2 also the move aside that parent "auto" makes),
 * and for version 2 a folder tree that looks like one, as far as paths and
 * parsing go. Needs root. tests/vm/cgroup-v2 runs this on a kernel with version 2.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/keeper/cgroup.h"

#define ID_A "0001aaaa-0000-4000-8000-000000000001"
#define ID_B "0001aaaa-0000-4000-8000-000000000002"

static const struct cgroup_limits limits = {.memory_bytes = 64u << 20, .cpus = 2, .pids = 50};

/* --- this machine's ------------------------------------------------------------------------- */

static char parent[64];

static struct cgroup *real_cgroup(void)
{
    struct error err = ERROR_INIT;
    int version = cgroup_detect(CGROUP_ROOT, &err);
    struct cgroup *cg;

    ck_assert_msg(version > 0, "%s", err.detail);
    cg = cgroup_new(CGROUP_ROOT, version, parent, "/", &err);
    ck_assert_msg(cg != NULL, "%s", err.detail);
    ck_assert_msg(cgroup_prepare(cg, &err) == 0, "%s", err.detail);
    return cg;
}

static int remove_one(const char *id, void *arg)
{
    struct error err = ERROR_INIT;

    for (unsigned i = 0; i < 500; i++) {
        cgroup_kill(arg, id, CGROUP_ALL);
        if (cgroup_remove(arg, id, &err) == 0)
            break;
        usleep(2000);
    }
    return 0;
}

static void path_of(const char *controller, const char *rest, char out[256])
{
    struct error err = ERROR_INIT;

    (void)snprintf(out, 256, "%s%s%s%s%s", CGROUP_ROOT,
                   cgroup_detect(CGROUP_ROOT, &err) == 1 ? "/" : "",
                   cgroup_detect(CGROUP_ROOT, &err) == 1 ? controller : "", parent, rest);
}

static void forget_all(void)
{
    struct cgroup *cg = real_cgroup();
    static const char *const controllers[] = {"cpu", "cpuacct", "memory", "pids"};

    (void)cgroup_each(cg, remove_one, cg);
    for (unsigned i = 0; i < ARRAY_LEN(controllers); i++) {
        char path[256];

        path_of(controllers[i], "", path);
        (void)rmdir(path);
    }
    cgroup_free(cg);
}

/* As the keeper starts runsc: into the cgroup by clone3 where that can be, else by the child. */
static pid_t child_in(const struct cgroup *cg, const char *id, void (*body)(void))
{
    struct cgroup_entry entry;
    struct clone_args args = {.exit_signal = SIGCHLD};
    struct error err = ERROR_INIT;
    pid_t pid;

    ck_assert_msg(cgroup_open_entry(cg, id, &entry, &err) == 0, "%s", err.detail);
    if (entry.into_fd >= 0) {
        args.flags = CLONE_INTO_CGROUP;
        args.cgroup = (unsigned)entry.into_fd;
    }
    pid = (pid_t)syscall(SYS_clone3, &args, sizeof(args));
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        if (cgroup_enter(&entry) < 0)
            _exit(99);
        body();
        _exit(0);
    }
    cgroup_close_entry(&entry);
    return pid;
}

static void create(const struct cgroup *cg, const char *id)
{
    struct error err = ERROR_INIT;

    ck_assert_msg(cgroup_create(cg, id, &limits, &err) == 0, "%s", err.detail);
}

static void wait_forever(void)
{
    for (;;)
        pause();
}

static void eat_memory(void)
{
    for (;;) {
        char *more =
            mmap(NULL, 8u << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        if (more != MAP_FAILED)
            memset(more, 1, 8u << 20);
    }
}

START_TEST(limits_are_proved)
{
    _cleanup_cgroup_ struct cgroup *cg = real_cgroup();
    struct error err = ERROR_INIT;

    ck_assert_msg(cgroup_prove(cg, &err) == 0, "%s", err.detail);
}
END_TEST

/* Every guest at its own limit must still leave the host some. */
START_TEST(all_guests_together_cannot_take_every_task_of_the_host)
{
    _cleanup_cgroup_ struct cgroup *cg = real_cgroup();
    struct error err = ERROR_INIT;
    char path[256];
    long host = 0;
    long most = 0;
    FILE *file = fopen("/proc/sys/kernel/pid_max", "r");

    ck_assert(file != NULL && fscanf(file, "%ld", &host) == 1);
    fclose(file);
    path_of("pids", "/pids.max", path);
    file = fopen(path, "r+");
    ck_assert(file != NULL && fscanf(file, "%ld", &most) == 1);
    ck_assert(most > 0 && most < host);
    /* A lower one is an operator's. */
    ck_assert_int_eq(fseek(file, 0, SEEK_SET), 0);
    ck_assert(fprintf(file, "1000") > 0 && fclose(file) == 0);
    ck_assert_int_eq(cgroup_prepare(cg, &err), 0);
    file = fopen(path, "r");
    ck_assert(file != NULL && fscanf(file, "%ld", &most) == 1);
    fclose(file);
    ck_assert_int_eq(most, 1000);
}
END_TEST

START_TEST(a_process_is_counted_and_killed_and_all_is_removed)
{
    _cleanup_cgroup_ struct cgroup *cg = real_cgroup();
    struct error err = ERROR_INIT;
    struct cgroup_usage usage;
    char path[256];
    struct stat st;
    int status;
    pid_t pid;

    create(cg, ID_A);
    pid = child_in(cg, ID_A, wait_forever);
    do { /* until it has entered */
        ck_assert_int_eq(waitpid(pid, &status, WNOHANG), 0);
        cgroup_read_usage(cg, ID_A, &usage);
    } while (usage.tasks == 0);
    ck_assert_uint_eq(usage.tasks, 1);
    ck_assert_uint_eq(usage.oom_kills, 0);
    ck_assert_int_eq(cgroup_remove(cg, ID_A, &err), 1); /* busy, and not an error */
    cgroup_kill(cg, ID_A, CGROUP_GUEST);                /* it is in `run` */
    ck_assert_int_eq(waitpid(pid, &status, WNOHANG), 0);
    create(cg, ID_B);
    cgroup_kill(cg, ID_B, CGROUP_ALL); /* another's */
    ck_assert_int_eq(waitpid(pid, &status, WNOHANG), 0);
    cgroup_kill(cg, ID_A, CGROUP_ALL);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    (void)remove_one(ID_A, cg);
    path_of("memory", "/" ID_A, path);
    ck_assert_int_eq(stat(path, &st), -1);
    path_of("memory", "/" ID_B, path);
    ck_assert_int_eq(stat(path, &st), 0);
    (void)remove_one(ID_B, cg);
    ck_assert_int_eq(cgroup_remove(cg, ID_B, &err), 0); /* again: fine */
}
END_TEST

START_TEST(an_oom_kill_is_counted_after_the_process_is_gone)
{
    _cleanup_cgroup_ struct cgroup *cg = real_cgroup();
    struct cgroup_usage usage;
    int status;
    pid_t pid;

    create(cg, ID_A);
    pid = child_in(cg, ID_A, eat_memory);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    cgroup_read_usage(cg, ID_A, &usage);
    ck_assert_uint_eq(usage.oom_kills, 1);
    ck_assert_uint_gt(usage.cpu_us, 0);
    (void)remove_one(ID_A, cg);
}
END_TEST

/* Exits with the number of processes that could be started before one could not. */
static void start_many(void)
{
    for (int i = 0; i < 200; i++) {
        pid_t pid = fork();

        if (pid == 0)
            wait_forever();
        if (pid < 0)
            _exit(errno == EAGAIN ? i : 98);
    }
    _exit(97);
}

START_TEST(no_more_tasks_than_the_limit_can_be_started)
{
    _cleanup_cgroup_ struct cgroup *cg = real_cgroup();
    struct cgroup_usage usage;
    int status;
    pid_t pid;

    create(cg, ID_A);
    pid = child_in(cg, ID_A, start_many);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status));
    ck_assert_uint_eq((unsigned)WEXITSTATUS(status), limits.pids - 1); /* it counts, too */
    cgroup_read_usage(cg, ID_A, &usage);
    ck_assert_uint_eq(usage.tasks, limits.pids - 1);
    (void)remove_one(ID_A, cg);
    cgroup_read_usage(cg, ID_A, &usage);
    ck_assert_uint_eq(usage.tasks, 0); /* killed, whoever their parent was, and removed */
}
END_TEST

START_TEST(a_second_of_the_same_id_is_refused_and_harms_nothing)
{
    _cleanup_cgroup_ struct cgroup *cg = real_cgroup();
    struct error err = ERROR_INIT;
    char path[256];
    struct stat st;

    create(cg, ID_A);
    ck_assert_int_eq(cgroup_create(cg, ID_A, &limits, &err), -1);
    ck_assert_int_eq(err.errno_value, EEXIST);
    path_of("pids", "/" ID_A "/guest", path);
    ck_assert_int_eq(stat(path, &st), 0);
    (void)remove_one(ID_A, cg);
}
END_TEST

START_TEST(an_impossible_limit_leaves_nothing)
{
    static const struct cgroup_limits impossible = {
        .memory_bytes = 64u << 20, .cpus = 1, .pids = UINT64_MAX};
    _cleanup_cgroup_ struct cgroup *cg = real_cgroup();
    struct error err = ERROR_INIT;
    char path[256];
    struct stat st;

    ck_assert_int_eq(cgroup_create(cg, ID_A, &impossible, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.detail, "pids.max"));
    path_of("memory", "/" ID_A, path);
    ck_assert_int_eq(stat(path, &st), -1);
}
END_TEST

static int count_one(const char *id, void *arg)
{
    unsigned *count = arg;

    ck_assert_str_eq(id, ID_A);
    (*count)++;
    return 0;
}

START_TEST(only_ids_are_found_below_the_parent)
{
    _cleanup_cgroup_ struct cgroup *cg = real_cgroup();
    char other[256];
    unsigned count = 0;

    path_of("memory", "/somebody-else", other);
    ck_assert_int_eq(mkdir(other, 0755), 0);
    create(cg, ID_A);
    (void)cgroup_each(cg, count_one, &count);
    (void)rmdir(other);
    ck_assert_uint_ge(count, 1);
    (void)remove_one(ID_A, cg);
}
END_TEST

/* --- this machine's, where it is version 2 -------------------------------------------------- */

static void place_of(const char *rest, char out[256])
{
    (void)snprintf(out, 256, CGROUP_ROOT "%s%s", parent, rest);
}

static void assert_file(const char *rest, const char *want)
{
    char path[256];
    char text[256] = "";
    FILE *file;

    place_of(rest, path);
    file = fopen(path, "r");
    ck_assert_msg(file != NULL, "%s: %s", path, strerror(errno));
    (void)!fgets(text, sizeof(text), file);
    (void)fclose(file);
    text[strcspn(text, "\n")] = '\0';
    ck_assert_msg(strcmp(text, want) == 0, "%s: %s", path, text);
}

static void enter_place(const char *path)
{
    char procs[300];
    FILE *file;

    (void)snprintf(procs, sizeof(procs), "%s/cgroup.procs", path);
    file = fopen(procs, "w");
    ck_assert_msg(file != NULL, "%s: %s", procs, strerror(errno));
    ck_assert_int_ge(fputs("0", file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

static void assert_own_path(const char *rest)
{
    struct error err = ERROR_INIT;
    char own[256];
    char want[256];

    ck_assert_msg(cgroup_own_path("/proc/self/cgroup", own, sizeof(own), &err) == 0, "%s",
                  err.detail);
    (void)snprintf(want, sizeof(want), "%s%s", parent, rest);
    ck_assert_str_eq(own, want);
}

/* This process alone in <parent>/unit, as systemd starts a unit that delegates. */
static struct cgroup *enter_unit(void)
{
    struct cgroup *outer = real_cgroup();
    struct error err = ERROR_INIT;
    char path[256];
    char own[256];
    struct cgroup *cg;

    cgroup_free(outer); /* made the parent */
    place_of("/unit", path);
    ck_assert(mkdir(path, 0755) == 0 || errno == EEXIST);
    enter_place(path);
    ck_assert_int_eq(cgroup_own_path("/proc/self/cgroup", own, sizeof(own), &err), 0);
    cg = cgroup_new(CGROUP_ROOT, 2, "auto", own, &err);
    ck_assert_msg(cg != NULL, "%s", err.detail);
    return cg;
}

/* In the suite's process, so also after a test that failed half-way: nobody is in there any more,
 * or soon, when a killed process is reaped. */
static void forget_unit(void)
{
    static const char *const places[] = {("/unit/guests/" ID_A "/run"),
                                         ("/unit/guests/" ID_A "/guest"),
                                         ("/unit/guests/" ID_A),
                                         "/unit/guests",
                                         "/unit/paddockd",
                                         "/unit"};

    for (unsigned i = 0; i < ARRAY_LEN(places); i++) {
        char path[256];

        place_of(places[i], path);
        for (unsigned n = 0; n < 500 && rmdir(path) < 0 && errno == EBUSY; n++)
            usleep(2000);
    }
    forget_all();
}

static void leave_unit(void)
{
    enter_place(CGROUP_ROOT);
    forget_unit();
}

START_TEST(v2_limits_are_in_the_files_the_kernel_reads)
{
    static const char *const parts[] = {("/" ID_A), ("/" ID_A "/guest")};
    _cleanup_cgroup_ struct cgroup *cg = real_cgroup();

    create(cg, ID_A);
    for (unsigned i = 0; i < ARRAY_LEN(parts); i++) {
        static const struct {
            const char *file, *value;
        } files[] = {{"memory.max", "67108864"},
                     {"memory.swap.max", "0"},
                     {"cpu.max", "200000 100000"},
                     {"pids.max", "50"}};

        for (unsigned k = 0; k < ARRAY_LEN(files); k++) {
            char rest[128];

            (void)snprintf(rest, sizeof(rest), "%s/%s", parts[i], files[k].file);
            assert_file(rest, files[k].value);
        }
    }
    (void)remove_one(ID_A, cg);
}
END_TEST

static void wait_with_a_child(void)
{
    if (fork() == 0 && setsid() < 0)
        _exit(1);
    wait_forever();
}

START_TEST(v2_a_kill_takes_every_descendant_at_once)
{
    _cleanup_cgroup_ struct cgroup *cg = real_cgroup();
    struct error err = ERROR_INIT;
    struct cgroup_usage usage;
    int status;
    pid_t pid;

    create(cg, ID_A);
    pid = child_in(cg, ID_A, wait_with_a_child);
    do {
        ck_assert_int_eq(waitpid(pid, &status, WNOHANG), 0);
        cgroup_read_usage(cg, ID_A, &usage);
    } while (usage.tasks < 2);
    cgroup_kill(cg, ID_A, CGROUP_ALL);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    while (cgroup_remove(cg, ID_A, &err) > 0) /* busy until the orphan is reaped; no second kill */
        usleep(2000);
    ck_assert_msg(!error_is_set(&err), "%s", err.detail);
}
END_TEST

/* Where gVisor's processes are: <id>/guest has the same limit, and <id> counts for it. */
static void eat_memory_as_the_guest(void)
{
    char path[256];

    place_of("/" ID_A "/guest", path);
    enter_place(path);
    eat_memory();
}

START_TEST(v2_an_oom_kill_below_counts_for_the_guest)
{
    _cleanup_cgroup_ struct cgroup *cg = real_cgroup();
    struct cgroup_usage usage;
    int status;
    pid_t pid;

    create(cg, ID_A);
    pid = child_in(cg, ID_A, eat_memory_as_the_guest);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    cgroup_read_usage(cg, ID_A, &usage);
    ck_assert_uint_eq(usage.oom_kills, 1);
    (void)remove_one(ID_A, cg);
}
END_TEST

START_TEST(v2_auto_moves_this_process_and_hands_controllers_down)
{
    _cleanup_cgroup_ struct cgroup *cg = enter_unit();
    _cleanup_cgroup_ struct cgroup *again = NULL;
    struct error err = ERROR_INIT;
    char own[256];

    assert_own_path("/unit");
    ck_assert_msg(cgroup_prepare(cg, &err) == 0, "%s", err.detail);
    assert_own_path("/unit/paddockd");
    assert_file("/unit/cgroup.procs", "");
    assert_file("/unit/cgroup.subtree_control", "cpu memory pids");
    assert_file("/unit/guests/cgroup.subtree_control", "cpu memory pids");
    ck_assert_msg(cgroup_prove(cg, &err) == 0, "%s", err.detail);
    create(cg, ID_A);
    assert_file("/unit/guests/" ID_A "/guest/memory.max", "67108864");

    /* A daemon that finds itself moved already (it was started again) stays and finds the same. */
    ck_assert_int_eq(cgroup_own_path("/proc/self/cgroup", own, sizeof(own), &err), 0);
    again = cgroup_new(CGROUP_ROOT, 2, "auto", own, &err);
    ck_assert_msg(again != NULL && cgroup_prepare(again, &err) == 0, "%s", err.detail);
    assert_own_path("/unit/paddockd");
    ck_assert_str_eq(cgroup_parent(again), cgroup_parent(cg));
    ck_assert_int_eq(cgroup_remove(again, ID_A, &err), 0);
}
END_TEST

START_TEST(v2_auto_beside_another_process_is_refused_and_undone)
{
    _cleanup_cgroup_ struct cgroup *cg = enter_unit();
    struct error err = ERROR_INIT;
    char path[256];
    struct stat st;
    pid_t other = fork();
    int status;

    if (other == 0)
        wait_forever();
    ck_assert_int_gt(other, 0);
    ck_assert_int_eq(cgroup_prepare(cg, &err), -1);
    ck_assert_int_eq(err.code, ERR_PREFLIGHT);
    ck_assert_ptr_nonnull(strstr(err.detail, "/unit holds processes besides paddockd"));
    assert_own_path("/unit");
    place_of("/unit/paddockd", path);
    ck_assert_int_eq(stat(path, &st), -1);
    ck_assert_int_eq(kill(other, SIGKILL), 0);
    ck_assert_int_eq(waitpid(other, &status, 0), other);
}
END_TEST

/* --- version 2, by a tree that looks like one ----------------------------------------------- */

static char fake[64];

static void fake_setup(void)
{
    (void)snprintf(fake, sizeof(fake), "/tmp/paddock-cgroup-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(fake));
}

static void fake_teardown(void)
{
    char command[128];

    (void)snprintf(command, sizeof(command), "rm -r %s", fake);
    ck_assert_int_eq(system(command), 0);
}

static void put(const char *name, const char *text)
{
    char path[512];
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/%s", fake, name);
    file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    (void)fclose(file);
}

static void make(const char *name)
{
    char path[512];

    (void)snprintf(path, sizeof(path), "%s/%s", fake, name);
    ck_assert_int_eq(mkdir(path, 0755), 0);
}

START_TEST(v2_auto_goes_below_the_own_cgroup)
{
    static const struct {
        const char *setting, *own, *parent;
    } cases[] = {
        {"auto", "/", "/paddock"},
        {"auto", "/system.slice/paddockd.service", "/system.slice/paddockd.service/guests"},
        {"auto", "/system.slice/paddockd.service/paddockd",
         "/system.slice/paddockd.service/guests"},
        {"auto", "/paddockd", "/paddock"},
        {"/a/b", "/system.slice/x", "/a/b"},
    };

    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        struct error err = ERROR_INIT;
        _cleanup_cgroup_ struct cgroup *cg =
            cgroup_new(fake, 2, cases[i].setting, cases[i].own, &err);
        char guest[CGROUP_PATH_MAX];
        char want[CGROUP_PATH_MAX];

        ck_assert_msg(cg != NULL, "%s", err.detail);
        ck_assert_str_eq(cgroup_parent(cg), cases[i].parent);
        cgroup_guest_path(cg, ID_A, guest);
        (void)snprintf(want, sizeof(want), "%s/" ID_A "/guest", cases[i].parent);
        ck_assert_str_eq(guest, want);
    }
}
END_TEST

START_TEST(a_parent_that_leaves_the_hierarchy_is_refused)
{
    static const char *const bad[] = {"paddock", "/",        "/a/", "/a//b", "/../x",
                                      "/a/../b", "/.hidden", "",    "/a b",  "/a\nb"};

    for (unsigned i = 0; i < ARRAY_LEN(bad); i++) {
        struct error err = ERROR_INIT;

        ck_assert_ptr_null(cgroup_new(fake, 2, bad[i], "/", &err));
        ck_assert_int_eq(err.code, ERR_PREFLIGHT);
        ck_assert_str_eq(err.field, "cgroup.parent");
    }
}
END_TEST

START_TEST(own_path_is_the_cgroup2_line)
{
    struct error err = ERROR_INIT;
    char file[128];
    char own[64];

    (void)snprintf(file, sizeof(file), "%s/proc", fake);
    put("proc", "4:memory:/elsewhere\n0::/system.slice/p.service\n");
    ck_assert_int_eq(cgroup_own_path(file, own, sizeof(own), &err), 0);
    ck_assert_str_eq(own, "/system.slice/p.service");
    put("proc", "4:memory:/elsewhere\n");
    ck_assert_int_eq(cgroup_own_path(file, own, sizeof(own), &err), 0);
    ck_assert_str_eq(own, "/");
    put("proc", "0::/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n");
    ck_assert_int_eq(cgroup_own_path(file, own, sizeof(own), &err), -1);
}
END_TEST

START_TEST(v2_names_the_controller_that_is_not_delegated)
{
    struct error err = ERROR_INIT;
    _cleanup_cgroup_ struct cgroup *cg = cgroup_new(fake, 2, "/deep/guests", "/", &err);

    put("cgroup.controllers", "cpuset cpu io memory hugetlb pids\n");
    put("cgroup.subtree_control", "cpu memory pids\n");
    make("deep");
    put("deep/cgroup.controllers", "cpuset memory pids\n"); /* cpuset is not cpu */
    put("deep/cgroup.subtree_control", "\n");
    ck_assert_int_eq(cgroup_prepare(cg, &err), -1);
    ck_assert_int_eq(err.code, ERR_PREFLIGHT);
    ck_assert_ptr_nonnull(strstr(err.detail, "controller cpu "));
    ck_assert_ptr_nonnull(strstr(err.detail, "/deep"));
    ck_assert_ptr_nonnull(strstr(err.detail, "Delegate=yes"));
}
END_TEST

START_TEST(v2_hands_controllers_down_the_whole_path)
{
    static const char *const dirs[] = {"", "deep/", "deep/guests/"};
    struct error err = ERROR_INIT;
    _cleanup_cgroup_ struct cgroup *cg = cgroup_new(fake, 2, "/deep/guests", "/", &err);

    make("deep");
    make("deep/guests");
    for (unsigned i = 0; i < ARRAY_LEN(dirs); i++) {
        char name[64];

        (void)snprintf(name, sizeof(name), "%scgroup.controllers", dirs[i]);
        put(name, "cpu memory pids\n");
        (void)snprintf(name, sizeof(name), "%scgroup.subtree_control", dirs[i]);
        put(name, "memory\n");
    }
    ck_assert_msg(cgroup_prepare(cg, &err) == 0, "%s", err.detail);
    for (unsigned i = 0; i < ARRAY_LEN(dirs); i++) {
        char path[160];
        char text[64] = "";
        FILE *file;

        (void)snprintf(path, sizeof(path), "%s/%scgroup.subtree_control", fake, dirs[i]);
        file = fopen(path, "r");
        ck_assert_ptr_nonnull(file);
        ck_assert_ptr_nonnull(fgets(text, sizeof(text), file));
        (void)fclose(file);
        ck_assert_str_eq(text, "+cpu +memory +pids");
    }
}
END_TEST

START_TEST(v2_auto_moves_this_process_aside)
{
    struct error err = ERROR_INIT;
    _cleanup_cgroup_ struct cgroup *cg = cgroup_new(fake, 2, "auto", "/unit", &err);
    char path[128];
    char text[16] = "";
    FILE *file;

    make("unit");
    make("unit/paddockd");
    put("unit/paddockd/cgroup.procs", "");
    put("cgroup.controllers", "cpu memory pids\n");
    put("cgroup.subtree_control", "cpu memory pids\n");
    put("unit/cgroup.controllers", "cpu memory pids\n");
    put("unit/cgroup.subtree_control", "cpu memory pids\n");
    make("unit/guests");
    put("unit/guests/cgroup.controllers", "cpu memory pids\n");
    put("unit/guests/cgroup.subtree_control", "cpu memory pids\n");
    ck_assert_msg(cgroup_prepare(cg, &err) == 0, "%s", err.detail);
    (void)snprintf(path, sizeof(path), "%s/unit/paddockd/cgroup.procs", fake);
    file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_ptr_nonnull(fgets(text, sizeof(text), file));
    (void)fclose(file);
    ck_assert_str_eq(text, "0");
}
END_TEST

START_TEST(v2_usage_comes_from_the_guests_own_files)
{
    struct error err = ERROR_INIT;
    _cleanup_cgroup_ struct cgroup *cg = cgroup_new(fake, 2, "/p", "/", &err);
    struct cgroup_usage usage;

    cgroup_read_usage(cg, ID_A, &usage); /* nothing is there */
    ck_assert_uint_eq(usage.memory_bytes + usage.cpu_us + usage.tasks + usage.oom_kills, 0);
    make("p");
    make("p/" ID_A);
    put("p/" ID_A "/memory.current", "12345678\n");
    put("p/" ID_A "/pids.current", "17\n");
    put("p/" ID_A "/cpu.stat", "usage_usec 987654\nuser_usec 1\nsystem_usec 2\n");
    put("p/" ID_A "/memory.events", "low 0\nhigh 0\nmax 9\noom 5\noom_kill 3\noom_group_kill 0\n");
    cgroup_read_usage(cg, ID_A, &usage);
    ck_assert_uint_eq(usage.memory_bytes, 12345678);
    ck_assert_uint_eq(usage.tasks, 17);
    ck_assert_uint_eq(usage.cpu_us, 987654);
    ck_assert_uint_eq(usage.oom_kills, 3);
    put("p/" ID_A "/memory.events", "oom_kill_extra 4\n");
    put("p/" ID_A "/memory.current", "max\n");
    cgroup_read_usage(cg, ID_A, &usage);
    ck_assert_uint_eq(usage.memory_bytes, 0);
    ck_assert_uint_eq(usage.oom_kills, 0);
}
END_TEST

START_TEST(a_root_without_hierarchies_is_refused)
{
    struct error err = ERROR_INIT;

    ck_assert_int_eq(cgroup_detect(fake, &err), -1);
    ck_assert_int_eq(err.code, ERR_PREFLIGHT);
    ck_assert_ptr_null(cgroup_new(fake, 1, "auto", "/", &err));
    ck_assert_ptr_nonnull(strstr(err.detail, "controller cpu "));
}
END_TEST

static TCase *version_2_tests(void)
{
    TCase *real_v2 = tcase_create("real version 2");

    tcase_set_timeout(real_v2, 60);
    tcase_add_unchecked_fixture(real_v2, NULL, forget_unit);
    tcase_add_checked_fixture(real_v2, NULL, leave_unit);
    tcase_add_test(real_v2, v2_limits_are_in_the_files_the_kernel_reads);
    tcase_add_test(real_v2, v2_a_kill_takes_every_descendant_at_once);
    tcase_add_test(real_v2, v2_an_oom_kill_below_counts_for_the_guest);
    tcase_add_test(real_v2, v2_auto_moves_this_process_and_hands_controllers_down);
    tcase_add_test(real_v2, v2_auto_beside_another_process_is_refused_and_undone);
    return real_v2;
}

int main(void)
{
    Suite *suite = suite_create("cgroup");
    TCase *real = tcase_create("real");
    TCase *tree = tcase_create("tree");
    struct error err = ERROR_INIT;
    SRunner *runner = srunner_create(suite);
    int failed;

    (void)snprintf(parent, sizeof(parent), "/paddock-test-cgroup-%d", (int)getpid());
    tcase_set_timeout(real, 60);
    tcase_add_unchecked_fixture(real, NULL, forget_all);
    tcase_add_test(real, limits_are_proved);
    tcase_add_test(real, all_guests_together_cannot_take_every_task_of_the_host);
    tcase_add_test(real, a_process_is_counted_and_killed_and_all_is_removed);
    tcase_add_test(real, an_oom_kill_is_counted_after_the_process_is_gone);
    tcase_add_test(real, no_more_tasks_than_the_limit_can_be_started);
    tcase_add_test(real, a_second_of_the_same_id_is_refused_and_harms_nothing);
    tcase_add_test(real, an_impossible_limit_leaves_nothing);
    tcase_add_test(real, only_ids_are_found_below_the_parent);
    tcase_add_checked_fixture(tree, fake_setup, fake_teardown);
    tcase_add_test(tree, v2_auto_goes_below_the_own_cgroup);
    tcase_add_test(tree, a_parent_that_leaves_the_hierarchy_is_refused);
    tcase_add_test(tree, own_path_is_the_cgroup2_line);
    tcase_add_test(tree, v2_names_the_controller_that_is_not_delegated);
    tcase_add_test(tree, v2_hands_controllers_down_the_whole_path);
    tcase_add_test(tree, v2_auto_moves_this_process_aside);
    tcase_add_test(tree, v2_usage_comes_from_the_guests_own_files);
    tcase_add_test(tree, a_root_without_hierarchies_is_refused);
    suite_add_tcase(suite, real);
    if (cgroup_detect(CGROUP_ROOT, &err) == 2)
        suite_add_tcase(suite, version_2_tests());
    suite_add_tcase(suite, tree);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
