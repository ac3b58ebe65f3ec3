/*
 * The supervisor (root) owns nothing but two children, the socket between them
 * until they have it, and the lock on the state folder. Both children die with
 * it (PR_SET_PDEATHSIG), the keeper's death is every guest's, and main's death
 * makes the keeper end every guest; so after any crash the host is empty, and
 * both are started again, with backoff. It reads nothing that a guest wrote: the
 * smoke guest is driven by a child without privileges.
 */
#include "daemon/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <jansson.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/process.h"
#include "common/text.h"
#include "daemon/keeper/keeper.h"
#include "daemon/keeper/preflight.h"
#include "daemon/keeper/smoke.h"
#include "daemon/run.h"

#define BACKOFF_MIN_MS 100
#define BACKOFF_MAX_MS 5000
#define HEALTHY_MS 60000
#define MAIN_GRACE_MS 2000    /* for main to end after the keeper died */
#define KEEPER_GRACE_MS 15000 /* for the keeper to end its guests after main died */
#define START_TRIES 5
#define SMOKE_EXIT_FAILED 1
#define SMOKE_EXIT_UNDECIDED 2
#define LOCK_WAIT_MS 3000
/* The kernel kills a keeper's guests before the keeper is gone: 3 s were measured for eight busy
 * ones on a loaded machine. */
#define LOCK_DYING_MS 30000

struct child {
    pid_t pid; /* 0: not running */
    int status;
};

struct supervisor {
    const struct config *config;
    const struct log *log;
    struct preflight found;
    struct keeper_setup setup;
    sigset_t waited; /* blocked here; sigtimedwait takes them */
    int lock_fd;
    int main_sock; /* main's end, until main has it; -1 */
    struct child keeper;
    struct child main;
    struct child smoke;
    unsigned stop_requests;
};

/* --- lock ------------------------------------------------------------------------------------- */

/* The supervisor that has or had the lock wrote its pid into the file. */
static bool holder_is_dead(int fd)
{
    char text[16] = "";
    int64_t pid;

    if (pread(fd, text, sizeof(text) - 1, 0) <= 0)
        return false;
    text[strcspn(text, "\n")] = '\0';
    return text_parse_i64(text, 2, INT_MAX, &pid) == 0 && process_has_ended((pid_t)pid, 0);
}

static int lock_state(const struct config *config, int64_t wait_ms, struct error *err)
{
    int64_t began = clock_mono_ms();
    _cleanup_close_ int fd = -1;
    char path[320];

    (void)snprintf(path, sizeof(path), "%s/lock", config->daemon_state_dir);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return error_set_errno(err, "cannot open %s", path);
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return error_set_errno(err, "cannot lock %s", path);
        /* Only a keeper that is being killed holds the lock of a supervisor that is dead. */
        if (clock_mono_ms() >=
            began + (wait_ms > 0 && holder_is_dead(fd) ? LOCK_DYING_MS : wait_ms))
            return error_set(err, ERR_PREFLIGHT,
                             "another paddockd uses %s: stop it, or set another daemon.state_dir",
                             config->daemon_state_dir);
        (void)poll(NULL, 0, 20);
    }
    if (ftruncate(fd, 0) < 0 || dprintf(fd, "%d\n", (int)getpid()) < 0)
        return error_set_errno(err, "cannot write %s", path);
    return steal_fd(&fd);
}

/* --- signals and children --------------------------------------------------------------------- */

static int take_signals(struct supervisor *sup, struct error *err)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGCHLD};

    (void)sigemptyset(&sup->waited);
    for (unsigned i = 0; i < ARRAY_LEN(signals); i++)
        (void)sigaddset(&sup->waited, signals[i]);
    if (sigprocmask(SIG_BLOCK, &sup->waited, NULL) < 0)
        return error_set_errno(err, "cannot block signals");
    return 0;
}

static void give_signals_back(const struct supervisor *sup)
{
    (void)sigprocmask(SIG_UNBLOCK, &sup->waited, NULL);
}

static void reap(struct supervisor *sup)
{
    struct child *const children[] = {&sup->keeper, &sup->main, &sup->smoke};
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        for (unsigned i = 0; i < ARRAY_LEN(children); i++)
            if (children[i]->pid == pid)
                *children[i] = (struct child){.status = status};
}

/* Waits for a signal until deadline_ms (INT64_MAX: for ever) and takes what it tells. False when
 * time is up. */
static bool wait_event(struct supervisor *sup, int64_t deadline_ms)
{
    int64_t left = deadline_ms == INT64_MAX ? 60000 : deadline_ms - clock_mono_ms();
    struct timespec limit;
    int sig;

    if (left < 0)
        left = 0;
    if (left > 60000)
        left = 60000;
    limit = (struct timespec){.tv_sec = left / 1000, .tv_nsec = left % 1000 * 1000000};
    sig = sigtimedwait(&sup->waited, NULL, &limit);
    reap(sup);
    if (sig > 0 && sig != SIGCHLD) {
        sup->stop_requests++;
        log_info(sup->log, "stop_requested", "signal=%d", sig);
    }
    return clock_mono_ms() < deadline_ms;
}

static void send_signal(const struct child *child, int sig)
{
    if (child->pid > 0)
        (void)kill(child->pid, sig);
}

/* Waits until the child is gone; after grace_ms, or at a second request to stop, it is killed. */
static void end_child(struct supervisor *sup, struct child *child, int64_t grace_ms)
{
    int64_t deadline = clock_mono_ms() + grace_ms;

    while (child->pid > 0)
        if (!wait_event(sup, deadline) || sup->stop_requests > 1) {
            send_signal(child, SIGKILL);
            deadline = INT64_MAX;
        }
}

/* Exit code, or 128 + signal. */
static int child_code(const struct child *child)
{
    if (WIFEXITED(child->status))
        return WEXITSTATUS(child->status);
    return 128 + (WIFSIGNALED(child->status) ? WTERMSIG(child->status) : 0);
}

static void close_main_sock(struct supervisor *sup)
{
    if (sup->main_sock >= 0)
        close(sup->main_sock);
    sup->main_sock = -1;
}

/* --- children without privileges -------------------------------------------------------------- */

/* For good: no way back to root, nothing to gain by exec, no core or ptrace by others. */
static int drop_privileges(const struct supervisor *sup, pid_t parent, struct error *err)
{
    if (initgroups(sup->config->daemon_user, sup->found.gid) < 0 ||
        setresgid(sup->found.gid, sup->found.gid, sup->found.gid) < 0 ||
        setresuid(sup->found.uid, sup->found.uid, sup->found.uid) < 0)
        return error_set_errno(err, "cannot become user %s", sup->config->daemon_user);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
        return error_set_errno(err, "cannot give up privileges");
    if (setresuid(0, 0, 0) == 0)
        return error_set(err, ERR_SYSTEM, "root could be had again");
    /* After the change of user, which clears it. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
        return error_set_errno(err, "cannot tie this process to its supervisor");
    if (getppid() != parent)
        return error_set(err, ERR_SYSTEM, "the supervisor is gone");
    return 0;
}

/* What a child of the supervisor does first. Keeps its own end of the socket open. */
static int become_child(struct supervisor *sup, pid_t parent, struct error *err)
{
    int null_fd;

    if (sup->lock_fd >= 0)
        close(sup->lock_fd);
    sup->lock_fd = -1;
    give_signals_back(sup);
    null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null_fd < 0 || dup2(null_fd, 0) < 0 || chdir("/") < 0)
        return error_set_errno(err, "cannot set up a process");
    close(null_fd);
    (void)umask(027);
    return drop_privileges(sup, parent, err);
}

static _Noreturn void main_process(struct supervisor *sup, pid_t parent)
{
    struct error err = ERROR_INIT;
    int code = SUPERVISOR_EXIT_FATAL;

    (void)prctl(PR_SET_NAME, "paddockd-main"); /* for ps; nothing depends on it */
    if (become_child(sup, parent, &err) == 0)
        code = daemon_run(sup->config, steal_fd(&sup->main_sock), sup->found.facts_json, &err);
    if (error_is_set(&err))
        log_error_value(sup->log, LOG_ERROR, "main_failed", &err);
    _exit(code);
}

static _Noreturn void smoke_process(struct supervisor *sup, pid_t parent, int report_fd)
{
    struct error err = ERROR_INIT;

    if (become_child(sup, parent, &err) == 0 && smoke_run(sup->config, sup->main_sock, &err) == 0)
        _exit(0);
    (void)!write(report_fd, err.detail, strlen(err.detail));
    _exit(err.code == ERR_PREFLIGHT ? SMOKE_EXIT_FAILED : SMOKE_EXIT_UNDECIDED);
}

/* --- starting --------------------------------------------------------------------------------- */

static int start_keeper(struct supervisor *sup, struct error *err)
{
    _cleanup_close_ int keeper_end = -1;
    int fds[2];
    pid_t pid;

    if (keeper_sweep(&sup->setup, err) < 0)
        return -1;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) < 0)
        return error_set_errno(err, "cannot make a socket pair");
    sup->main_sock = fds[0];
    keeper_end = fds[1];
    pid = keeper_spawn(&sup->setup, keeper_end, sup->lock_fd, err);
    if (pid < 0)
        return -1;
    sup->keeper.pid = pid;
    return 0;
}

static int start_main(struct supervisor *sup, struct error *err)
{
    pid_t parent = getpid();
    pid_t pid = fork();

    if (pid < 0)
        return error_set_errno(err, "cannot start the main process");
    if (pid == 0)
        main_process(sup, parent);
    sup->main.pid = pid;
    close_main_sock(sup);
    return 0;
}

static int smoke_result(struct supervisor *sup, int report_fd, struct error *err)
{
    char text[sizeof(err->detail)];
    ssize_t got;
    int code;

    while (sup->smoke.pid > 0) {
        (void)wait_event(sup, INT64_MAX);
        if (sup->stop_requests > 0) {
            send_signal(&sup->smoke, SIGKILL);
            end_child(sup, &sup->smoke, 0);
            return error_set(err, ERR_PREFLIGHT, "stopped while the smoke guest ran");
        }
    }
    if (sup->smoke.status == 0)
        return 0;
    code = child_code(&sup->smoke);
    got = read(report_fd, text, sizeof(text) - 1);
    text[got > 0 ? got : 0] = '\0';
    return error_set(
        err, code == SMOKE_EXIT_UNDECIDED || code == 128 + SIGKILL ? ERR_SYSTEM : ERR_PREFLIGHT,
        "%s", got > 0 ? text : "the smoke test crashed");
}

static int run_smoke(struct supervisor *sup, struct error *err)
{
    int64_t began = clock_mono_ms();
    pid_t parent = getpid();
    int fds[2];
    pid_t pid;
    int result;

    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
        return error_set_errno(err, "cannot make a pipe");
    pid = fork();
    if (pid < 0) {
        close(fds[0]);
        close(fds[1]);
        return error_set_errno(err, "cannot start a process");
    }
    if (pid == 0)
        smoke_process(sup, parent, fds[1]);
    close(fds[1]);
    sup->smoke.pid = pid;
    result = smoke_result(sup, fds[0], err);
    close(fds[0]);
    if (result == 0)
        log_info(sup->log, "smoke_passed", "ms=%lld", (long long)(clock_mono_ms() - began));
    return result;
}

/* Ends both in the order in which guests are sure to be gone. */
static void end_all(struct supervisor *sup, int64_t main_grace_ms)
{
    close_main_sock(sup);
    send_signal(&sup->main, SIGTERM);
    end_child(sup, &sup->main, main_grace_ms);
    end_child(sup, &sup->keeper, KEEPER_GRACE_MS); /* it saw main's end of the socket close */
}

static int start_both(struct supervisor *sup, bool smoke, struct error *err)
{
    if (start_keeper(sup, err) == 0 && (!smoke || run_smoke(sup, err) == 0) &&
        start_main(sup, err) == 0)
        return 0;
    end_all(sup, 0);
    return -1;
}

/* --- running ---------------------------------------------------------------------------------- */

/* Until one of the two ends or a stop was asked for and done. True: start again. *code otherwise.
 */
static bool watch(struct supervisor *sup, int *code)
{
    unsigned told = 0;
    bool lost;

    while (sup->keeper.pid > 0 && sup->main.pid > 0) {
        (void)wait_event(sup, INT64_MAX);
        if (sup->stop_requests > told) {
            told = sup->stop_requests;
            send_signal(&sup->main, told > 1 ? SIGKILL : SIGTERM);
        }
    }
    lost = sup->main.pid > 0; /* the keeper went first, and every guest with it */
    /* A keeper that saw main end exits with 0, maybe before this process looked. */
    if (sup->keeper.pid == 0 && (lost || child_code(&sup->keeper) != 0))
        log_fail(sup->log, "keeper_died", "code=%d", child_code(&sup->keeper));
    end_all(sup, lost ? MAIN_GRACE_MS : 0);
    *code = child_code(&sup->main);
    if (*code != DAEMON_EXIT_DRAINED)
        log_fail(sup->log, "main_died", "code=%d", *code);
    if (*code > 128)
        *code = DAEMON_EXIT_LOST; /* killed: by a second request to stop, if one came */
    if (sup->stop_requests > 0 || *code == DAEMON_EXIT_CONFIG)
        return false;
    return lost || *code != DAEMON_EXIT_DRAINED;
}

/* False when a stop was asked for meanwhile. */
static bool back_off(struct supervisor *sup, int64_t delay_ms)
{
    int64_t deadline = clock_mono_ms() + delay_ms;

    log_warn(sup->log, "restart", "in_ms=%lld", (long long)delay_ms);
    while (sup->stop_requests == 0 && wait_event(sup, deadline))
        continue;
    return sup->stop_requests == 0;
}

/* The first start shows whether this host can do it at all. What it found missing ends paddockd for
 * good; what may be otherwise at another try (a keeper or a smoke guest that was killed) is tried
 * again, as after any later start, but in the end left to the init system. */
static int run_until_stopped(struct supervisor *sup, struct error *err)
{
    bool smoke = sup->config->guest_smoke;
    bool proven = false;
    unsigned tries = 0;
    int64_t delay_ms = BACKOFF_MIN_MS;
    int code = 1;

    for (;;) {
        int64_t began = clock_mono_ms();
        bool again;

        if (start_both(sup, smoke, err) < 0) {
            if (sup->stop_requests > 0)
                return 1;
            if (!proven && err->code == ERR_PREFLIGHT)
                return SUPERVISOR_EXIT_FATAL;
            if (!proven && ++tries == START_TRIES)
                return 1;
            log_error_value(sup->log, LOG_ERROR, "start_failed", err);
            *err = (struct error)ERROR_INIT;
            again = true;
        } else {
            log_info(sup->log, "started", "keeper=%d main=%d", (int)sup->keeper.pid,
                     (int)sup->main.pid);
            smoke = false;
            proven = true;
            again = watch(sup, &code);
        }
        if (!again)
            return code;
        if (clock_mono_ms() - began >= HEALTHY_MS)
            delay_ms = BACKOFF_MIN_MS;
        if (!back_off(sup, delay_ms))
            return 1;
        delay_ms = delay_ms * 2 > BACKOFF_MAX_MS ? BACKOFF_MAX_MS : delay_ms * 2;
    }
}

/* Preflight with the lock held, so that no two disturb each other's cgroups and folders. */
static int prepare(struct supervisor *sup, const struct config *config, const struct log *log,
                   struct error *err)
{
    *sup = (struct supervisor){.config = config, .log = log, .lock_fd = -1, .main_sock = -1};
    if (preflight_host(&sup->found, config, log, err) < 0)
        return -1;
    return take_signals(sup, err);
}

static void set_up_keeper(struct supervisor *sup)
{
    sup->setup = (struct keeper_setup){.config = sup->config,
                                       .log = sup->log,
                                       .cgroup = sup->found.cgroup,
                                       .templates = &sup->found.templates};
}

static int prepare_guests(struct supervisor *sup, struct error *err)
{
    if (preflight_guests(&sup->found, sup->config, sup->log, err) < 0)
        return -1;
    set_up_keeper(sup);
    return 0;
}

/* A keeper for one smoke guest. With the lock held. */
static int try_smoke(struct supervisor *sup, struct error *err)
{
    int result = start_keeper(sup, err);

    if (result == 0)
        result = run_smoke(sup, err);
    end_all(sup, 0);
    return result;
}

static void release(struct supervisor *sup)
{
    close_main_sock(sup);
    if (sup->lock_fd >= 0)
        close(sup->lock_fd);
    preflight_clear(&sup->found);
}

int supervisor_run(const struct config *config, const struct log *log, struct error *err)
{
    struct supervisor sup;
    int code = SUPERVISOR_EXIT_FATAL;

    if (prepare(&sup, config, log, err) == 0 &&
        (sup.lock_fd = lock_state(config, LOCK_WAIT_MS, err)) >= 0 &&
        prepare_guests(&sup, err) == 0)
        code = run_until_stopped(&sup, err);
    release(&sup);
    return code;
}

int supervisor_check(const struct config *config, const struct log *log, FILE *out,
                     struct error *err)
{
    struct supervisor sup;
    struct error locked = ERROR_INIT;
    int result = -1;

    if (prepare(&sup, config, log, err) == 0) {
        sup.lock_fd = lock_state(config, 0, &locked);
        result = prepare_guests(&sup, err);
    }
    if (result == 0 && config->guest_smoke && sup.lock_fd >= 0)
        result = try_smoke(&sup, err);
    if (result == 0)
        (void)fprintf(out, "%s\n", sup.found.facts_json);
    if (result == 0 && config->guest_smoke && sup.lock_fd < 0)
        (void)fprintf(out, "no smoke guest: %s\n", locked.detail);
    release(&sup);
    return result == 0 ? 0 : SUPERVISOR_EXIT_FATAL;
}

/* --- the report ------------------------------------------------------------------------------- */

enum finding { FINDING_OK, FINDING_FAILED, FINDING_UNCHECKED };

static void add_finding(json_t *findings, const char *check, enum finding result,
                        const char *detail)
{
    static const char *const names[] = {"ok", "failed", "unchecked"};
    json_t *one =
        json_pack("{s:s, s:s, s:s}", "check", check, "result", names[result], "detail", detail);

    (void)json_array_append_new(findings, one); /* refuses NULL; the report is short one then */
}

/* Runs one check and tells whether it passed. */
static bool report_check(struct supervisor *sup, enum preflight_check check, const bool passed[],
                         json_t *findings)
{
    enum preflight_check needs = preflight_needs(check);
    struct error err = ERROR_INIT;
    char text[128];

    if (needs != PREFLIGHT_COUNT && !passed[needs]) {
        (void)snprintf(text, sizeof(text), "mend %s first", preflight_name(needs));
        add_finding(findings, preflight_name(check), FINDING_UNCHECKED, text);
        return false;
    }
    if (preflight_run(check, &sup->found, sup->config, sup->log, &err) < 0) {
        add_finding(findings, preflight_name(check), FINDING_FAILED, err.detail);
        return false;
    }
    add_finding(findings, preflight_name(check), FINDING_OK, sup->found.note);
    return true;
}

/* Also where guest.smoke is no: whoever asks for a report wants to know. */
static bool report_guest(struct supervisor *sup, bool all_passed, json_t *findings)
{
    static const char name[] = "guest";
    struct error err = ERROR_INIT;

    if (!all_passed) {
        add_finding(findings, name, FINDING_UNCHECKED, "mend the others first");
        return false;
    }
    sup->lock_fd = lock_state(sup->config, 0, &err);
    if (sup->lock_fd < 0 && err.code == ERR_PREFLIGHT) {
        add_finding(findings, name, FINDING_OK, "not tried: a paddockd that started runs here");
        return true;
    }
    set_up_keeper(sup);
    if (sup->lock_fd < 0 || take_signals(sup, &err) < 0 || try_smoke(sup, &err) < 0) {
        add_finding(findings, name, FINDING_FAILED, err.detail);
        return false;
    }
    add_finding(findings, name, FINDING_OK, "one was started, and moved data both ways");
    return true;
}

int supervisor_report(const struct config *config, const struct log *log, FILE *out)
{
    struct supervisor sup = {.config = config, .log = log, .lock_fd = -1, .main_sock = -1};
    _cleanup_json_ json_t *findings = json_array();
    bool passed[PREFLIGHT_COUNT] = {false};
    bool all_passed = true;
    int rc;

    for (enum preflight_check check = 0; check < PREFLIGHT_COUNT; check++) {
        passed[check] = report_check(&sup, check, passed, findings);
        all_passed = all_passed && passed[check];
    }
    all_passed = report_guest(&sup, all_passed, findings) && all_passed;
    release(&sup);
    rc = json_dumpf(findings, out, JSON_COMPACT);
    (void)fputc('\n', out);
    return rc == 0 && all_passed ? 0 : SUPERVISOR_EXIT_FATAL;
}
