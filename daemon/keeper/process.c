/*
 * The keeper as a process: its namespaces, and the sweep of what a former one
 * left. Called by the supervisor (and by the tests, which stand in for it).
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/fdpass.h"
#include "common/id.h"
#include "common/leave.h"
#include "daemon/keeper/bundle.h"
#include "daemon/keeper/keeper.h"
#include "daemon/keeper/protocol.h"
#include "daemon/keeper/runsc.h"

#define SWEEP_MS 10000
#define SWEEP_RETRY_MS 10

/* --- the sweep -------------------------------------------------------------------------------- */

struct sweep {
    const struct cgroup *cgroup;
    bool busy;
};

static int sweep_cgroup(const char *id, void *arg)
{
    struct sweep *sweep = arg;
    struct error err = ERROR_INIT;

    cgroup_kill(sweep->cgroup, id, CGROUP_ALL);
    if (cgroup_remove(sweep->cgroup, id, &err) != 0)
        sweep->busy = true;
    return 0;
}

static int sweep_cgroups(const struct cgroup *cgroup, struct error *err)
{
    int64_t deadline = clock_mono_ms() + SWEEP_MS;

    for (;;) {
        struct sweep sweep = {.cgroup = cgroup};

        (void)cgroup_each(cgroup, sweep_cgroup, &sweep);
        if (!sweep.busy)
            return 0;
        if (clock_mono_ms() > deadline)
            return error_set(err, ERR_SYSTEM,
                             "cgroups of a former run below %s cannot be removed: their processes "
                             "do not end",
                             cgroup_parent(cgroup));
        (void)poll(NULL, 0, SWEEP_RETRY_MS);
    }
}

static int sweep_bundles(const char *state_dir, struct error *err)
{
    char path[320];
    const struct dirent *entry;
    DIR *dir;
    int result = 0;

    if (runsc_bundle_dir(state_dir, "", path, sizeof(path)) < 0 || (dir = opendir(path)) == NULL)
        return error_set_errno(err, "cannot read the guests' folder in %s", state_dir);
    while (result == 0 && (entry = readdir(dir)) != NULL) {
        if (!id_is_valid(entry->d_name))
            continue;
        runsc_forget(state_dir, entry->d_name);
        if (runsc_bundle_dir(state_dir, entry->d_name, path, sizeof(path)) == 0)
            result = bundle_remove(path, err);
    }
    closedir(dir);
    return result;
}

/* Everything in runsc's root is a guest's, and no guest lives. */
static int sweep_state(const char *state_dir, struct error *err)
{
    char path[320];
    const struct dirent *entry;
    DIR *dir;

    if (runsc_root(state_dir, path, sizeof(path)) < 0 || (dir = opendir(path)) == NULL)
        return error_set_errno(err, "cannot read runsc's folder in %s", state_dir);
    while ((entry = readdir(dir)) != NULL)
        if (entry->d_name[0] != '.')
            (void)unlinkat(dirfd(dir), entry->d_name, 0);
    closedir(dir);
    return 0;
}

int keeper_sweep(const struct keeper_setup *setup, struct error *err)
{
    const char *state_dir = setup->config->daemon_state_dir;

    if (sweep_cgroups(setup->cgroup, err) < 0 || sweep_bundles(state_dir, err) < 0)
        return -1;
    return sweep_state(state_dir, err);
}

/* --- what no guest owns, while others live --------------------------------------------------- */

struct strays {
    const struct keeper_setup *setup;
    bool (*is_held)(void *arg, const char *id);
    void *arg;
};

static bool is_stray(const struct strays *strays, const char *name)
{
    char id[ID_SIZE];

    (void)snprintf(id, sizeof(id), "%s", name);
    return id_is_valid(id) && !strays->is_held(strays->arg, id);
}

static int remove_stray_cgroup(const char *id, void *arg)
{
    const struct strays *strays = arg;
    struct error err = ERROR_INIT;

    if (!is_stray(strays, id))
        return 0;
    log_warn(strays->setup->log, "stray_cgroup", "id=%s", id);
    cgroup_kill(strays->setup->cgroup, id, CGROUP_ALL);
    (void)!cgroup_remove(strays->setup->cgroup, id, &err); /* busy: the next time */
    return 0;
}

static void remove_stray_bundle(const struct strays *strays, const char *id)
{
    const char *state_dir = strays->setup->config->daemon_state_dir;
    struct error err = ERROR_INIT;
    char path[320];

    log_warn(strays->setup->log, "stray_bundle", "id=%s", id);
    runsc_forget(state_dir, id);
    if (runsc_bundle_dir(state_dir, id, path, sizeof(path)) == 0 && bundle_remove(path, &err) < 0)
        log_error_value(strays->setup->log, LOG_WARN, "stray_not_removed", &err);
}

/* What runsc left: ID_sandbox:ID.state and .lock, runsc-ID.sock. */
static void remove_stray_state(const struct strays *strays, int dir_fd, const char *name)
{
    static const char prefix[] = "runsc-";
    const char *id =
        strncmp(name, prefix, sizeof(prefix) - 1) == 0 ? name + sizeof(prefix) - 1 : name;

    if (strlen(id) >= ID_SIZE && is_stray(strays, id)) {
        log_warn(strays->setup->log, "stray_state", "file=%s", name);
        (void)unlinkat(dir_fd, name, 0);
    }
}

void keeper_sweep_strays(const struct keeper_setup *setup,
                         bool (*is_held)(void *arg, const char *id), void *arg)
{
    struct strays strays = {.setup = setup, .is_held = is_held, .arg = arg};
    const char *state_dir = setup->config->daemon_state_dir;
    const struct dirent *entry;
    char path[320];
    DIR *dir;

    (void)cgroup_each(setup->cgroup, remove_stray_cgroup, &strays);
    dir = runsc_bundle_dir(state_dir, "", path, sizeof(path)) == 0 ? opendir(path) : NULL;
    while (dir && (entry = readdir(dir)) != NULL)
        if (strlen(entry->d_name) == ID_SIZE - 1 && is_stray(&strays, entry->d_name))
            remove_stray_bundle(&strays, entry->d_name);
    if (dir)
        closedir(dir);
    dir = runsc_root(state_dir, path, sizeof(path)) == 0 ? opendir(path) : NULL;
    while (dir && (entry = readdir(dir)) != NULL)
        remove_stray_state(&strays, dirfd(dir), entry->d_name);
    if (dir)
        closedir(dir);
}

/* --- the process ------------------------------------------------------------------------------ */

/* Keeps 0, 1, 2 and the descriptors in keep (ascending, -1 for none). */
static int close_others(const int keep[], unsigned count)
{
    unsigned first = 3;

    for (unsigned i = 0; i < count; i++) {
        if (keep[i] < (int)first)
            continue;
        if ((unsigned)keep[i] > first && close_range(first, (unsigned)keep[i] - 1, 0) < 0)
            return -1;
        first = (unsigned)keep[i] + 1;
    }
    return close_range(first, ~0U, 0);
}

/* Mounts made here are seen here only; those the host makes or undoes still arrive. */
static int own_mounts(void)
{
    if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0)
        return -1;
    return mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
}

static _Noreturn void keeper_main(const struct keeper_setup *setup, int control, int lock_fd)
{
    int keep[3] = {control, lock_fd, setup->log->fd};
    int null_fd;
    sigset_t none;

    /* The supervisor's death is this one's. Should it be dead already, then its end of the
     * socket is closed, too, and keeper_run ends at once. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || prctl(PR_SET_NAME, "paddockd-keeper") < 0)
        _exit(1);
    (void)sigemptyset(&none);
    for (int sig = 1; sig < SIGRTMIN; sig++)
        (void)signal(sig, SIG_DFL);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    for (unsigned i = 0; i < 3; i++) /* sorts three */
        for (unsigned k = 0; k + 1 < 3; k++)
            if (keep[k] > keep[k + 1]) {
                int swap = keep[k];

                keep[k] = keep[k + 1];
                keep[k + 1] = swap;
            }
    null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null_fd < 0 || dup2(null_fd, 0) < 0 || close_others(keep, 3) < 0 || own_mounts() < 0) {
        log_fail(setup->log, "keeper_start_failed", "errno=%d", errno);
        _exit(1);
    }
    (void)umask(077);
    _exit(keeper_run(setup, control));
}

int keeper_give_main(int control, int sock, struct error *err)
{
    const struct keeper_control message = {.op = KEEPER_CONTROL_MAIN};

    return fdpass_send(control, &message, sizeof(message), sock, err);
}

pid_t keeper_spawn(const struct keeper_setup *setup, int control, int lock_fd, struct error *err)
{
    struct clone_args args = {.flags = CLONE_NEWPID | CLONE_NEWNS, .exit_signal = SIGCHLD};
    long pid = syscall(SYS_clone3, &args, sizeof(args));

    if (pid < 0)
        return error_set_errno(err, "cannot start the keeper");
    if (pid == 0)
        keeper_main(setup, control, lock_fd);
    return (pid_t)pid;
}
