/*
 * Starts, ends and removes one guest (guest.h has the states). Called by the
 * keeper's loop only. Order matters: what could still run is killed before
 * anything of it is removed, and ENDED is only told when cgroups, runsc's state
 * and the bundle are gone, so an id that ended has left nothing on the host.
 */
#include "daemon/keeper/guest.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/close_range.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "daemon/keeper/bundle.h"
#include "daemon/keeper/runsc.h"

/* Several 64 KiB frames each way; a smaller buffer costs a wake-up a frame. */
#define SOCKET_BUFFER_BYTES (1 << 20)
/* `runsc run` cleans up and exits some ms after its sandbox died; later it is killed. */
#define RUN_GRACE_MS 3000
#define KILL_RETRY_MS 20
#define REMOVE_RETRY_MIN_MS 2
#define REMOVE_RETRY_MAX_MS 500
#define REMOVE_WARN_MS 10000
#define CHILD_FAILED 127

enum guest_state { GUEST_RUNNING, GUEST_ENDING, GUEST_CLEANING };

struct guest {
    const struct guest_env *env; /* borrowed */
    char id[ID_SIZE];
    enum guest_state state;
    pid_t pid;
    int pidfd;
    int main_fd; /* -1 once it is ending */
    bool killed;
    char reason[KEEPER_REASON_MAX];
    int exit_status; /* -1 unknown */
    int64_t next_tick_ms;
    int64_t run_deadline_ms; /* ENDING: then the run process is killed, too */
    int64_t cleaning_since_ms;
    int64_t remove_retry_ms;
    bool warned;
    struct cgroup_usage last; /* the most that was seen of each count */
    char text[KEEPER_TEXT_MAX];
    char bundle_dir[320];
};

/* --- start ------------------------------------------------------------------------------------ */

static int make_socket(int fds[2], struct error *err)
{
    static const int size = SOCKET_BUFFER_BYTES;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) < 0)
        return error_set_errno(err, "cannot make a socket pair");
    for (unsigned i = 0; i < 2; i++)
        if (setsockopt(fds[i], SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size)) < 0)
            (void)setsockopt(fds[i], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
    return 0;
}

/* The child cannot report by memory; runsc's log is what the keeper reads when a run failed. */
static _Noreturn void child_fail(int log_fd, const char *what)
{
    dprintf(log_fd, "paddockd: %s: %s\n", what, strerror(errno));
    _exit(CHILD_FAILED);
}

static _Noreturn void child_main(const struct runsc_command *cmd, const struct cgroup_entry *entry,
                                 int guest_fd, int null_fd, int log_fd)
{
    static const char *const env[] = {"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:"
                                      "/sbin:/bin",
                                      NULL};
    static const struct rlimit no_core = {0, 0};
    union {
        const char *const *in;
        char *const *out;
    } argv = {.in = cmd->argv}, envp = {.in = env}; /* execve changes neither */
    sigset_t none;

    (void)sigemptyset(&none);
    for (int sig = 1; sig < SIGRTMIN; sig++)
        (void)signal(sig, SIG_DFL);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    if (cgroup_enter(entry) < 0)
        child_fail(log_fd, "cannot enter the guest's cgroup");
    if (setsid() < 0 || setrlimit(RLIMIT_CORE, &no_core) < 0 || chdir("/") < 0)
        child_fail(log_fd, "cannot set up the process");
    (void)umask(077);
    if (dup2(guest_fd, 0) < 0 || dup2(null_fd, 1) < 0 || dup2(null_fd, 2) < 0 ||
        close_range(3, ~0U, CLOSE_RANGE_CLOEXEC) < 0)
        child_fail(log_fd, "cannot set up descriptors");
    (void)execve(cmd->argv[0], argv.out, envp.out);
    child_fail(log_fd, "cannot execute runsc");
}

/* A plain fork (no shared memory, no waiting for exec) that also gives a pidfd, into the cgroup
 * where the kernel can do that. */
static int spawn(struct guest *guest, const struct runsc_command *cmd,
                 const struct cgroup_entry *entry, int guest_fd, struct error *err)
{
    char log_path[400];
    _cleanup_close_ int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    _cleanup_close_ int log_fd = -1;
    int pidfd = -1;
    struct clone_args args = {
        .flags = CLONE_PIDFD, .pidfd = (uint64_t)(uintptr_t)&pidfd, .exit_signal = SIGCHLD};
    long pid;

    (void)snprintf(log_path, sizeof(log_path), "%s/" BUNDLE_LOG, guest->bundle_dir);
    log_fd = open(log_path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW);
    if (null_fd < 0 || log_fd < 0)
        return error_set_errno(err, "cannot open descriptors for runsc");
    if (entry->into_fd >= 0) {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = (unsigned)entry->into_fd;
    }
    pid = syscall(SYS_clone3, &args, sizeof(args));
    if (pid < 0)
        return error_set_errno(err, "cannot start a process");
    if (pid == 0)
        child_main(cmd, entry, guest_fd, null_fd, log_fd);
    guest->pid = (pid_t)pid;
    guest->pidfd = pidfd;
    return 0;
}

static int make_cgroup(struct guest *guest, const struct keeper_request *request, struct error *err)
{
    const struct cgroup_limits limits = {.memory_bytes = request->memory_bytes,
                                         .cpus = request->cpus,
                                         .pids = guest_host_pids(request->pids)};

    return cgroup_create(guest->env->cgroup, guest->id, &limits, err);
}

static int make_bundle(const struct guest *guest, const struct template_image *image,
                       const struct keeper_request *request, struct error *err)
{
    char cgroups_path[CGROUP_PATH_MAX];
    struct bundle_spec spec = {
        .rootfs = image->rootfs,
        .cgroups_path = cgroups_path,
        .cpus = request->cpus,
        .memory_bytes = request->memory_bytes,
        .workspace_bytes = request->workspace_bytes,
        .tmp_bytes = request->tmp_bytes,
        .shm_bytes = request->shm_bytes,
        .host_pids = guest_host_pids(request->pids),
    };

    cgroup_guest_path(guest->env->cgroup, guest->id, cgroups_path);
    return bundle_write(&spec, guest->bundle_dir, err);
}

static int start_run(struct guest *guest, struct error *err)
{
    struct runsc_command cmd;
    struct cgroup_entry entry;
    int fds[2];
    int result;

    if (runsc_command_run(&cmd, guest->env->config, guest->id, err) < 0 ||
        make_socket(fds, err) < 0)
        return -1;
    result = cgroup_open_entry(guest->env->cgroup, guest->id, &entry, err);
    if (result == 0) {
        result = spawn(guest, &cmd, &entry, fds[1], err);
        cgroup_close_entry(&entry);
    }
    close(fds[1]);
    if (result == 0)
        guest->main_fd = fds[0];
    else
        close(fds[0]);
    return result;
}

struct guest *guest_start(const struct guest_env *env, const struct template_image *image,
                          const struct keeper_request *request, struct error *err)
{
    struct guest *guest = calloc(1, sizeof(*guest));
    struct error ignored = ERROR_INIT;

    if (!guest) {
        (void)error_set(err, ERR_SYSTEM, "no memory");
        return NULL;
    }
    guest->env = env;
    guest->pidfd = guest->main_fd = -1;
    guest->exit_status = -1;
    guest->next_tick_ms = INT64_MAX;
    guest->remove_retry_ms = REMOVE_RETRY_MIN_MS;
    (void)snprintf(guest->id, sizeof(guest->id), "%s", request->id);
    if (runsc_bundle_dir(env->config->daemon_state_dir, guest->id, guest->bundle_dir,
                         sizeof(guest->bundle_dir)) < 0) {
        (void)error_set(err, ERR_CONFIG, "daemon.state_dir is too long");
        goto fail;
    }
    if (access(image->rootfs, F_OK) < 0) {
        (void)error_set(err, ERR_SYSTEM, "the image of template %s is gone: restart paddockd",
                        image->name);
        goto fail;
    }
    if (make_bundle(guest, image, request, err) < 0)
        goto fail;
    if (make_cgroup(guest, request, err) < 0)
        goto fail_bundle;
    if (start_run(guest, err) == 0)
        return guest;
    (void)!cgroup_remove(env->cgroup, guest->id, &ignored);
fail_bundle:
    (void)!bundle_remove(guest->bundle_dir, &ignored);
fail:
    free(guest);
    return NULL;
}

static void close_socket(struct guest *guest)
{
    if (guest->main_fd >= 0)
        close(guest->main_fd);
    guest->main_fd = -1;
}

void guest_free(struct guest *guest)
{
    close_socket(guest);
    if (guest->pidfd >= 0)
        close(guest->pidfd);
    free(guest);
}

const char *guest_id(const struct guest *guest)
{
    return guest->id;
}

pid_t guest_pid(const struct guest *guest)
{
    return guest->pid;
}

int guest_socket(const struct guest *guest)
{
    return guest->main_fd;
}

void guest_copy_reason(const struct guest *guest, char out[KEEPER_REASON_MAX])
{
    memcpy(out, guest->reason, KEEPER_REASON_MAX);
}

void guest_usage(const struct guest *guest, struct cgroup_usage *usage)
{
    cgroup_read_usage(guest->env->cgroup, guest->id, usage);
}

int64_t guest_deadline(const struct guest *guest)
{
    return guest->next_tick_ms;
}

/* --- end -------------------------------------------------------------------------------------- */

void guest_kill(struct guest *guest, const char *reason)
{
    if (guest->state != GUEST_RUNNING)
        return;
    (void)snprintf(guest->reason, sizeof(guest->reason), "%s", reason);
    close_socket(guest);
    guest->state = GUEST_ENDING;
    guest->killed = true;
    guest->run_deadline_ms = clock_mono_ms() + RUN_GRACE_MS;
    guest->next_tick_ms = 0;
}

void guest_reaped(struct guest *guest, int wait_status)
{
    if (WIFEXITED(wait_status))
        guest->exit_status = WEXITSTATUS(wait_status);
    else if (WIFSIGNALED(wait_status))
        guest->exit_status = 128 + WTERMSIG(wait_status);
    if (guest->exit_status != 0 && !guest->killed)
        runsc_log_tail(guest->bundle_dir, guest->text, sizeof(guest->text));
    close_socket(guest);
    guest->pid = 0;
    close(guest->pidfd);
    guest->pidfd = -1;
    guest->state = GUEST_CLEANING;
    guest->cleaning_since_ms = clock_mono_ms();
    guest->next_tick_ms = 0;
}

/* Counts vanish with their cgroup, and parts of a guest's go one by one: keep the most. */
static void keep_usage(struct guest *guest)
{
    struct cgroup_usage now;

    cgroup_read_usage(guest->env->cgroup, guest->id, &now);
    if (now.oom_kills > guest->last.oom_kills)
        guest->last.oom_kills = now.oom_kills;
    if (now.cpu_us > guest->last.cpu_us)
        guest->last.cpu_us = now.cpu_us;
}

static void tick_ending(struct guest *guest, int64_t now_ms)
{
    cgroup_kill(guest->env->cgroup, guest->id, CGROUP_GUEST);
    if (now_ms >= guest->run_deadline_ms) {
        cgroup_kill(guest->env->cgroup, guest->id, CGROUP_ALL);
        (void)pidfd_send_signal(guest->pidfd, SIGKILL, NULL, 0);
    }
    guest->next_tick_ms = now_ms + KILL_RETRY_MS;
}

static bool removed(struct guest *guest, int64_t now_ms)
{
    struct error err = ERROR_INIT;
    const char *state_dir = guest->env->config->daemon_state_dir;
    int busy;

    cgroup_kill(guest->env->cgroup, guest->id, CGROUP_ALL);
    keep_usage(guest);
    busy = cgroup_remove(guest->env->cgroup, guest->id, &err);
    if (busy == 0) {
        runsc_forget(state_dir, guest->id);
        if (bundle_remove(guest->bundle_dir, &err) == 0)
            return true;
    }
    if (!guest->warned && now_ms - guest->cleaning_since_ms > REMOVE_WARN_MS) {
        guest->warned = true;
        log_warn(guest->env->log, "guest_not_removed", "id=%s why=%s", guest->id,
                 busy > 0 ? "its cgroup is busy" : err.detail);
    }
    return false;
}

bool guest_tick(struct guest *guest, int64_t now_ms, struct keeper_report *report)
{
    if (guest->state == GUEST_RUNNING)
        return false;
    if (guest->state == GUEST_ENDING) {
        tick_ending(guest, now_ms);
        return false;
    }
    if (!removed(guest, now_ms)) {
        guest->next_tick_ms = now_ms + guest->remove_retry_ms;
        guest->remove_retry_ms *= 2;
        if (guest->remove_retry_ms > REMOVE_RETRY_MAX_MS)
            guest->remove_retry_ms = REMOVE_RETRY_MAX_MS;
        return false;
    }
    memset(report, 0, sizeof(*report)); /* its padding crosses a process boundary, too */
    report->event = KEEPER_ENDED;
    report->exit_status = guest->exit_status;
    report->oom_kills = guest->last.oom_kills;
    report->killed = guest->killed;
    report->cpu_us = guest->last.cpu_us;
    memcpy(report->id, guest->id, sizeof(report->id));
    guest_copy_reason(guest, report->reason);
    memcpy(report->text, guest->text, sizeof(report->text));
    return true;
}
