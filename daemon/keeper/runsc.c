/*
 * Everything that knows runsc's command line, output and files (builds of
 * 0.0~20240729 and near it). Called by the preflight and by guest.c. The checks
 * run a child and wait for it, with a deadline, before any guest exists; nothing
 * here waits later.
 */
#include "daemon/keeper/runsc.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "daemon/keeper/bundle.h"

#define CHECK_TIMEOUT_MS 20000
#define OUTPUT_MAX 4096
#define LOG_TAIL_BYTES 4096
/* sun_path (108 bytes) must hold <root>/runsc-<id>.sock; else runsc puts it elsewhere. */
#define CONTROL_SOCKET_MAX 104

/* --- checks ----------------------------------------------------------------------------------- */

/* posix_spawn wants char *const[], and changes nothing. */
static char *const *spawn_argv(const char *const argv[])
{
    union {
        const char *const *in;
        char *const *out;
    } view = {.in = argv};

    return view.out;
}

static int spawn_reader(const char *path, const char *const argv[], pid_t *pid, int *out_fd)
{
    static const char *const env[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", NULL};
    posix_spawn_file_actions_t actions;
    int pipe_fds[2];
    int rc;

    if (pipe2(pipe_fds, O_CLOEXEC) < 0)
        return errno;
    rc = posix_spawn_file_actions_init(&actions);
    if (rc == 0) {
        rc = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
        if (rc == 0)
            rc = posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], 1);
        if (rc == 0)
            rc = posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], 2);
        if (rc == 0)
            rc = posix_spawn(pid, path, &actions, NULL, spawn_argv(argv), spawn_argv(env));
        posix_spawn_file_actions_destroy(&actions);
    }
    close(pipe_fds[1]);
    if (rc != 0)
        close(pipe_fds[0]);
    else
        *out_fd = pipe_fds[0];
    return rc;
}

/* Reads to end of file or the deadline; what does not fit is dropped. False when time was up. */
static bool read_output(int fd, char *out, size_t size)
{
    int64_t deadline = clock_mono_ms() + CHECK_TIMEOUT_MS;
    size_t used = 0;

    for (;;) {
        int64_t left = deadline - clock_mono_ms();
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        char chunk[512];
        ssize_t got;

        if (left <= 0 || poll(&wait, 1, (int)left) == 0)
            break;
        got = read(fd, chunk, sizeof(chunk));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            out[used] = '\0';
            return true;
        }
        if ((size_t)got > size - 1 - used)
            got = (ssize_t)(size - 1 - used);
        memcpy(out + used, chunk, (size_t)got);
        used += (size_t)got;
    }
    out[used] = '\0';
    return false;
}

/* Runs path with argv; its output as text. Returns its exit status, or -1 with ERR_PREFLIGHT. */
static int run_check(const char *path, const char *const argv[], char out[OUTPUT_MAX],
                     struct error *err)
{
    _cleanup_close_ int fd = -1;
    int status = 0;
    bool ended;
    pid_t pid;
    int rc = spawn_reader(path, argv, &pid, &fd);

    if (rc != 0) {
        errno = rc;
        return error_set(err, ERR_PREFLIGHT,
                         "%s cannot be started (%s): install gVisor's runsc "
                         "or set guest.runsc",
                         path, strerror(rc));
    }
    ended = read_output(fd, out, OUTPUT_MAX);
    if (!ended)
        (void)kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (!ended)
        return error_set(err, ERR_PREFLIGHT, "%s did not answer within %d s: replace it", path,
                         CHECK_TIMEOUT_MS / 1000);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

int runsc_version(const char *path, char out[RUNSC_VERSION_MAX], struct error *err)
{
    static const char prefix[] = "runsc version ";
    const char *const argv[] = {path, "--version", NULL};
    char text[OUTPUT_MAX];
    size_t len;
    int status;

    if (access(path, X_OK) < 0)
        return error_set(err, ERR_PREFLIGHT,
                         "%s is missing or not executable: install gVisor's runsc or set "
                         "guest.runsc",
                         path);
    status = run_check(path, argv, text, err);
    if (status < 0)
        return -1;
    len = strncmp(text, prefix, sizeof(prefix) - 1) == 0 ? strcspn(text + sizeof(prefix) - 1, " \n")
                                                         : 0;
    if (status != 0 || len == 0 || len >= RUNSC_VERSION_MAX)
        return error_set(err, ERR_PREFLIGHT,
                         "%s does not tell its version as runsc does: install gVisor's runsc or "
                         "set guest.runsc",
                         path);
    memcpy(out, text + sizeof(prefix) - 1, len);
    out[len] = '\0';
    return 0;
}

bool runsc_version_is_known(const char *known, const char *version)
{
    size_t len = strlen(version);

    for (const char *at = known + strspn(known, " \t"); *at; at += strspn(at, " \t")) {
        size_t word = strcspn(at, " \t");

        if (word == len && memcmp(at, version, len) == 0)
            return true;
        at += word;
    }
    return false;
}

/* systrap traps system calls by seccomp's SECCOMP_RET_TRAP (seccomp(2)). */
int runsc_check_seccomp(struct error *err)
{
    _cleanup_close_ int fd = open("/proc/sys/kernel/seccomp/actions_avail", O_RDONLY | O_CLOEXEC);
    char actions[256] = "";

    if (fd < 0 || read(fd, actions, sizeof(actions) - 1) <= 0 || !strstr(actions, "trap"))
        return error_set(err, ERR_PREFLIGHT,
                         "the kernel has no seccomp filters with the trap action: gVisor's systrap "
                         "needs CONFIG_SECCOMP_FILTER");
    return 0;
}

int runsc_check_platform(const char *path, const char *state_dir, struct error *err)
{
    char root_arg[320];
    char root[300];
    char text[OUTPUT_MAX];
    const char *const argv[] = {path, root_arg, RUNSC_PLATFORM_FLAG, "list", NULL};
    int status;

    if (runsc_root(state_dir, root, sizeof(root)) < 0 ||
        strlen(root) + strlen("/runsc-.sock") + ID_SIZE - 1 > CONTROL_SOCKET_MAX)
        return error_set(err, ERR_PREFLIGHT,
                         "daemon.state_dir is too long for runsc's control sockets: at most %d "
                         "bytes",
                         CONTROL_SOCKET_MAX - (int)strlen("/runsc/runsc-.sock") - (ID_SIZE - 1));
    (void)snprintf(root_arg, sizeof(root_arg), "--root=%s", root);
    status = run_check(path, argv, text, err);
    if (status < 0)
        return -1;
    if (status != 0)
        return error_set(err, ERR_PREFLIGHT,
                         "%s does not take --platform=" RUNSC_PLATFORM ": install a known good "
                         "build",
                         path);
    return 0;
}

/* --- the command line ------------------------------------------------------------------------- */

int runsc_root(const char *state_dir, char *out, size_t size)
{
    int len = snprintf(out, size, "%s/runsc", state_dir);

    return len > 0 && (size_t)len < size ? 0 : -1;
}

int runsc_bundle_dir(const char *state_dir, const char *id, char *out, size_t size)
{
    int len = snprintf(out, size, "%s/guests%s%s", state_dir, id[0] ? "/" : "", id);

    return len > 0 && (size_t)len < size ? 0 : -1;
}

int runsc_command_run(struct runsc_command *cmd, const struct config *config, const char *id,
                      struct error *err)
{
    static const char *const flags[] = {
        RUNSC_PLATFORM_FLAG,         "--network=none",
        "--overlay2=none",           "--file-access=exclusive",
        "--cpu-num-from-quota=true", /* the guest's nproc (never below 2) */
        "--host-uds=none",           "--host-fifo=none",
    };
    const char *state_dir = config->daemon_state_dir;
    unsigned n = 0;

    /* The longest of the three; config_keys.def bounds state_dir well below the arrays. */
    if (strlen(state_dir) + 100 > sizeof(cmd->log))
        return error_set(err, ERR_CONFIG, "daemon.state_dir is too long");
    (void)snprintf(cmd->id, sizeof(cmd->id), "%s", id);
    (void)snprintf(cmd->root, sizeof(cmd->root), "--root=%s/runsc", state_dir);
    (void)snprintf(cmd->log, sizeof(cmd->log), "--log=%s/guests/%s/" BUNDLE_LOG, state_dir, id);
    (void)snprintf(cmd->bundle, sizeof(cmd->bundle), "--bundle=%s/guests/%s", state_dir, id);
    cmd->argv[n++] = config->guest_runsc;
    cmd->argv[n++] = cmd->root;
    cmd->argv[n++] = cmd->log;
    for (unsigned i = 0; i < ARRAY_LEN(flags); i++)
        cmd->argv[n++] = flags[i];
    cmd->argv[n++] = "run";
    cmd->argv[n++] = cmd->bundle;
    cmd->argv[n++] = cmd->id;
    cmd->argv[n] = NULL;
    return 0;
}

/* --- what it leaves --------------------------------------------------------------------------- */

void runsc_forget(const char *state_dir, const char *id)
{
    char root[300];
    char path[480];

    if (runsc_root(state_dir, root, sizeof(root)) < 0)
        return;
    (void)snprintf(path, sizeof(path), "%s/%s_sandbox:%s.state", root, id, id);
    (void)unlink(path);
    (void)snprintf(path, sizeof(path), "%s/%s_sandbox:%s.lock", root, id, id);
    (void)unlink(path);
    (void)snprintf(path, sizeof(path), "%s/runsc-%s.sock", root, id);
    (void)unlink(path);
}

/* Appends printable text to a string of size bytes; control characters and bytes beyond ASCII come
 * out as '?'. */
static void append_text(char *out, size_t size, size_t *used, const char *text, size_t len)
{
    for (size_t i = 0; i < len && *used < size - 1; i++)
        out[(*used)++] = (char)(text[i] >= ' ' && text[i] <= '~' ? text[i] : '?');
    out[*used] = '\0';
}

/* Joins the lines of a log, of runsc's own records only their message. By plain search, not by a
 * JSON parser: the sandbox holds this file, too. */
static void join_messages(const char *log, char *out, size_t size)
{
    static const char begin[] = "{\"msg\":\"";
    static const char end[] = "\",\"level\":";
    size_t used = 0;

    while (*log) {
        size_t line = strcspn(log, "\n");
        const char *text = log;
        size_t len = line;

        if (line >= sizeof(begin) - 1 && memcmp(log, begin, sizeof(begin) - 1) == 0) {
            const char *stop = memmem(log, line, end, sizeof(end) - 1);

            text += sizeof(begin) - 1;
            len = stop ? (size_t)(stop - text) : line - (sizeof(begin) - 1);
        }
        if (len > 0 && used > 0)
            append_text(out, size, &used, "; ", 2);
        append_text(out, size, &used, text, len);
        log += line + (log[line] == '\n');
    }
}

void runsc_log_tail(const char *bundle_dir, char *out, size_t size)
{
    char path[400];
    char log[LOG_TAIL_BYTES + 1];
    _cleanup_close_ int fd = -1;
    struct stat st;
    ssize_t got;

    out[0] = '\0';
    (void)snprintf(path, sizeof(path), "%s/" BUNDLE_LOG, bundle_dir);
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fstat(fd, &st) < 0)
        return;
    got = pread(fd, log, LOG_TAIL_BYTES,
                st.st_size > LOG_TAIL_BYTES ? st.st_size - LOG_TAIL_BYTES : 0);
    log[got > 0 ? got : 0] = '\0';
    join_messages(log, out, size);
}
