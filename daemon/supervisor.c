/*
 * The supervisor (root) owns nothing but children, the sockets between them
 * until they have them, and the lock on the state folder. All of them die with
 * it (PR_SET_PDEATHSIG). The keeper's death is every guest's: then main is
 * ended, too, and both are started again. Main's death is nobody's else: it
 * alone is started again, with backoff, and takes the guests over. On SIGHUP a
 * new main is loaded beside the old one, from the program's file as it is then;
 * only when that has worked the old one is told to leave. The supervisor reads
 * nothing that a guest wrote: the smoke guest is driven by a child without
 * privileges.
 */
#include "daemon/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/signalfd.h>
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
#include "daemon/main_process.h"
#include "daemon/main_slot.h"
#include "daemon/notify.h"
#include "daemon/run.h"

#define BACKOFF_MIN_MS 100
#define BACKOFF_MAX_MS 5000
#define HEALTHY_MS 60000
#define MAIN_GRACE_MS 2000    /* for main to end after the keeper died */
#define MAIN_LEAVE_MS 20000   /* for it to settle, and to hand over who waits */
#define KEEPER_GRACE_MS 15000 /* for the keeper to end its guests */
#define START_TRIES 5
#define SMOKE_EXIT_FAILED 1
#define SMOKE_EXIT_UNDECIDED 2
#define LOCK_WAIT_MS 3000
/* The kernel kills a keeper's guests before the keeper is gone: 3 s were measured for eight busy
 * ones on a loaded machine. */
#define LOCK_DYING_MS 30000
/* Woken later than this, the supervisor itself was stopped, and nobody else is to blame. */
#define LATE_MS 1000
#define WAIT_MAX_MS 60000

struct child {
    pid_t pid; /* 0: not running */
    int status;
};

struct supervisor {
    const struct config *config;
    const struct supervisor_options *options;
    const struct log *log;
    struct preflight found;
    struct keeper_setup setup;
    struct notify notify;
    int signal_fd;
    int lock_fd;
    int control; /* to the keeper, whose end is its; -1 */
    struct child keeper;
    struct child smoke;
    struct main_slot main;  /* the one that works, or shall */
    struct main_slot other; /* the next one, being loaded; or the former one, on its way out */
    bool is_loading_other;
    unsigned stop_requests;
    bool reload_requested;
    bool told_ready;
    int64_t main_began_ms;
    int64_t backoff_ms;
    int64_t restart_ms; /* when a dead main is started again */
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
    sigset_t taken;

    (void)sigemptyset(&taken);
    for (unsigned i = 0; i < ARRAY_LEN(signals); i++)
        (void)sigaddset(&taken, signals[i]);
    if (sigprocmask(SIG_BLOCK, &taken, NULL) < 0 ||
        (sup->signal_fd = signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK)) < 0)
        return error_set_errno(err, "cannot take signals");
    return 0;
}

static void reap(struct supervisor *sup)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid == sup->keeper.pid)
            sup->keeper = (struct child){.status = status};
        else if (pid == sup->smoke.pid)
            sup->smoke = (struct child){.status = status};
        else if (pid == sup->main.pid)
            main_slot_ended(&sup->main, status);
        else if (pid == sup->other.pid)
            main_slot_ended(&sup->other, status);
    }
}

static void read_signals(struct supervisor *sup)
{
    struct signalfd_siginfo info;

    while (read(sup->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo == SIGCHLD)
            continue; /* SIGCHLDs merge: every child is asked for below */
        if (info.ssi_signo == SIGHUP) {
            sup->reload_requested = true;
            continue;
        }
        sup->stop_requests++;
        log_info(sup->log, "stop_requested", "signal=%u", (unsigned)info.ssi_signo);
        notify_send(&sup->notify, "STOPPING=1");
    }
}

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Both mains get the time back in which nobody could hear them. */
static void forgive(struct supervisor *sup, int64_t late_ms)
{
    struct main_slot *const slots[] = {&sup->main, &sup->other};

    if (late_ms < LATE_MS)
        return;
    for (unsigned i = 0; i < ARRAY_LEN(slots); i++)
        if (slots[i]->due_ms != INT64_MAX)
            slots[i]->due_ms += late_ms;
}

/* Waits until something happens or deadline_ms, and takes what happened. False when time is up. */
static bool wait_event(struct supervisor *sup, int64_t deadline_ms)
{
    struct pollfd fds[3] = {{.fd = sup->signal_fd, .events = POLLIN},
                            {.fd = sup->main.link, .events = POLLIN},
                            {.fd = sup->other.link, .events = POLLIN}};
    int64_t silence_ms = sup->config->daemon_watchdog;
    int64_t now_ms = clock_mono_ms();
    int64_t until_ms = earlier(deadline_ms, now_ms + WAIT_MAX_MS);

    until_ms = earlier(until_ms, earlier(sup->main.due_ms, sup->other.due_ms));
    if (until_ms < now_ms)
        until_ms = now_ms;
    (void)poll(fds, 3, (int)(until_ms - now_ms));
    now_ms = clock_mono_ms();
    forgive(sup, now_ms - until_ms);
    read_signals(sup);
    main_slot_read(&sup->main, silence_ms, sup->log);
    main_slot_read(&sup->other, silence_ms, sup->log);
    reap(sup);
    main_slot_check(&sup->main, now_ms, sup->log);
    main_slot_check(&sup->other, now_ms, sup->log);
    if (sup->main.has_beaten) {
        sup->main.has_beaten = false;
        notify_send(&sup->notify, "WATCHDOG=1");
    }
    return now_ms < deadline_ms;
}

static void send_signal(pid_t pid, int sig)
{
    if (pid > 0)
        (void)kill(pid, sig);
}

/* Waits until the process is gone; after grace_ms, or at a second request to stop, it is killed. */
static void end_process(struct supervisor *sup, const pid_t *pid, int64_t grace_ms)
{
    int64_t deadline = clock_mono_ms() + grace_ms;

    while (*pid > 0)
        if (!wait_event(sup, deadline) || sup->stop_requests > 1) {
            send_signal(*pid, SIGKILL);
            deadline = INT64_MAX;
        }
}

static int child_code(const struct child *child)
{
    if (WIFEXITED(child->status))
        return WEXITSTATUS(child->status);
    return 128 + (WIFSIGNALED(child->status) ? WTERMSIG(child->status) : 0);
}

/* --- the keeper ---------------------------------------------------------------------------------
 */

static void close_control(struct supervisor *sup)
{
    if (sup->control >= 0)
        close(sup->control);
    sup->control = -1;
}

static int start_keeper(struct supervisor *sup, struct error *err)
{
    int fds[2];
    pid_t pid;

    if (keeper_sweep(&sup->setup, err) < 0)
        return -1;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) < 0)
        return error_set_errno(err, "cannot make a socket pair");
    sup->control = fds[0];
    pid = keeper_spawn(&sup->setup, fds[1], sup->lock_fd, err);
    close(fds[1]);
    if (pid < 0)
        return -1;
    sup->keeper.pid = pid;
    return 0;
}

static void end_keeper(struct supervisor *sup)
{
    close_control(sup);
    end_process(sup, &sup->keeper.pid, KEEPER_GRACE_MS);
}

/* A fresh socket to the keeper, which takes whoever has it for main. Returns -1 without one. */
static int connect_keeper(const struct supervisor *sup, struct error *err)
{
    _cleanup_close_ int ours = -1;
    int fds[2];
    int result;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) < 0)
        return error_set_errno(err, "cannot make a socket pair");
    ours = fds[0];
    result = keeper_give_main(sup->control, fds[1], err);
    close(fds[1]);
    return result < 0 ? -1 : steal_fd(&ours);
}

/* --- the smoke guest ----------------------------------------------------------------------------
 */

static _Noreturn void smoke_process(struct supervisor *sup, pid_t parent, int keeper_sock,
                                    int report_fd)
{
    struct error err = ERROR_INIT;
    sigset_t none;
    int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    if (sup->lock_fd >= 0)
        close(sup->lock_fd);
    close_control(sup);
    if (null_fd < 0 || dup2(null_fd, 0) < 0 || chdir("/") < 0 || getppid() != parent)
        (void)error_set_errno(&err, "cannot set up a process");
    else if (main_process_drop(sup->config, &sup->found, &err) == 0 &&
             smoke_run(sup->config, keeper_sock, &err) == 0)
        _exit(0);
    (void)!write(report_fd, err.detail, strlen(err.detail));
    _exit(err.code == ERR_PREFLIGHT ? SMOKE_EXIT_FAILED : SMOKE_EXIT_UNDECIDED);
}

static int smoke_result(struct supervisor *sup, int report_fd, struct error *err)
{
    char text[sizeof(err->detail)];
    ssize_t got;
    int code;

    while (sup->smoke.pid > 0) {
        (void)wait_event(sup, INT64_MAX);
        if (sup->stop_requests > 0) {
            send_signal(sup->smoke.pid, SIGKILL);
            end_process(sup, &sup->smoke.pid, 0);
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
    _cleanup_close_ int keeper_sock = connect_keeper(sup, err);
    int64_t began = clock_mono_ms();
    pid_t parent = getpid();
    int fds[2];
    pid_t pid;
    int result;

    if (keeper_sock < 0)
        return -1;
    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
        return error_set_errno(err, "cannot make a pipe");
    pid = fork();
    if (pid < 0) {
        close(fds[0]);
        close(fds[1]);
        return error_set_errno(err, "cannot start a process");
    }
    if (pid == 0)
        smoke_process(sup, parent, keeper_sock, fds[1]);
    close(fds[1]);
    sup->smoke.pid = pid;
    result = smoke_result(sup, fds[0], err);
    close(fds[0]);
    if (result == 0)
        log_info(sup->log, "smoke_passed", "ms=%lld", (long long)(clock_mono_ms() - began));
    return result;
}

/* --- main ---------------------------------------------------------------------------------------
 */

static int load(struct supervisor *sup, struct main_slot *slot, struct error *err)
{
    return main_slot_start(slot, sup->options->program, sup->options->config_path,
                           sup->config->daemon_watchdog, err);
}

/* The keeper's socket, for a main that is loaded and whose predecessor touches nothing any more. */
static void give_keeper(struct supervisor *sup)
{
    struct error err = ERROR_INIT;
    _cleanup_close_ int sock = -1;

    if (sup->main.state != MAIN_IDLE || sup->other.state == MAIN_LEAVING)
        return;
    sock = connect_keeper(sup, &err);
    if (sock >= 0 && main_slot_give(&sup->main, sock, sup->found.facts_json,
                                    sup->config->daemon_watchdog, &err) == 0) {
        log_info(sup->log, "main_started", "pid=%d keeper=%d", (int)sup->main.pid,
                 (int)sup->keeper.pid);
        return;
    }
    log_error_value(sup->log, LOG_ERROR, "main_not_started", &err);
    main_slot_signal(&sup->main, SIGKILL);
    sup->main.state = MAIN_GOING;
}

static void tell_ready(struct supervisor *sup)
{
    if (!sup->main.is_ready || sup->told_ready)
        return;
    sup->told_ready = true;
    notify_send(&sup->notify, "READY=1");
}

/* SIGHUP: a new main beside the one that works. Whatever is wrong with it costs nothing. */
static void begin_reload(struct supervisor *sup)
{
    struct error err = ERROR_INIT;

    if (!sup->reload_requested || sup->other.pid > 0 || sup->stop_requests > 0)
        return;
    if (sup->main.pid > 0 && sup->main.state != MAIN_WORKING)
        return; /* soon */
    sup->reload_requested = false;
    if (sup->main.pid == 0)
        return; /* the restart that waits does the same */
    log_info(sup->log, "reload", "program=%s", sup->options->program);
    if (load(sup, &sup->other, &err) < 0)
        log_error_value(sup->log, LOG_ERROR, "reload_failed", &err);
    else
        sup->is_loading_other = true;
}

static void go_on_with_reload(struct supervisor *sup)
{
    struct main_slot former;

    if (!sup->is_loading_other || sup->stop_requests > 0)
        return;
    if (sup->other.pid == 0) {
        log_fail(sup->log, "reload_failed", "code=%d note=the former main goes on",
                 main_slot_code(&sup->other));
        sup->is_loading_other = false;
        return;
    }
    if (sup->other.state != MAIN_IDLE)
        return;
    sup->is_loading_other = false;
    former = sup->main;
    sup->main = sup->other;
    sup->other = former;
    sup->main_began_ms = clock_mono_ms();
    sup->told_ready = false;
    notify_send(&sup->notify, "RELOADING=1");
    if (sup->other.pid > 0)
        main_slot_leave(&sup->other, MAIN_LEAVE_MS);
}

static void end_mains(struct supervisor *sup, int64_t grace_ms)
{
    if (sup->other.pid > 0) {
        main_slot_signal(&sup->other, SIGKILL);
        end_process(sup, &sup->other.pid, 0);
    }
    sup->is_loading_other = false;
    /* One that has not begun has nothing to bring to an end. */
    main_slot_signal(&sup->main, sup->main.state == MAIN_WORKING ? SIGTERM : SIGKILL);
    end_process(sup, &sup->main.pid, grace_ms);
}

/* --- running ------------------------------------------------------------------------------------
 */

static void plan_restart(struct supervisor *sup)
{
    int64_t now_ms = clock_mono_ms();

    if (now_ms - sup->main_began_ms >= HEALTHY_MS)
        sup->backoff_ms = BACKOFF_MIN_MS;
    sup->restart_ms = now_ms + sup->backoff_ms;
    log_warn(sup->log, "restart", "in_ms=%lld", (long long)sup->backoff_ms);
    sup->backoff_ms = earlier(sup->backoff_ms * 2, BACKOFF_MAX_MS);
}

/* Main is dead. False: not to be started again; *code says how paddockd ends. */
static bool main_died(struct supervisor *sup, int *code)
{
    *code = main_slot_code(&sup->main);
    if (*code != DAEMON_EXIT_DRAINED)
        log_fail(sup->log, "main_died", "code=%d", *code);
    if (*code > 128 || *code == DAEMON_EXIT_LEFT)
        *code = DAEMON_EXIT_LOST; /* killed: by a second request to stop, if one came */
    if (sup->stop_requests > 0 || *code == DAEMON_EXIT_CONFIG || *code == DAEMON_EXIT_DRAINED)
        return false;
    plan_restart(sup);
    return true;
}

static void start_due_main(struct supervisor *sup)
{
    struct error err = ERROR_INIT;

    if (sup->main.pid > 0 || clock_mono_ms() < sup->restart_ms)
        return;
    /* The former one may still hand over who waits; it does not need this one's place. */
    sup->main_began_ms = clock_mono_ms();
    if (load(sup, &sup->main, &err) == 0)
        return;
    log_error_value(sup->log, LOG_ERROR, "main_not_started", &err);
    plan_restart(sup);
}

/* While the keeper lives. True: it died, start anew; else *code says how paddockd ends. */
static bool watch(struct supervisor *sup, int *code)
{
    unsigned told = 0;
    bool had_main = sup->main.pid > 0;

    while (sup->keeper.pid > 0) {
        (void)wait_event(sup, sup->main.pid > 0 ? INT64_MAX : sup->restart_ms);
        if (sup->keeper.pid == 0)
            break;
        if (sup->stop_requests > told && sup->main.state != MAIN_WORKING) {
            end_mains(sup, 0);
            *code = DAEMON_EXIT_LOST;
            return false;
        }
        if (sup->stop_requests > told) {
            told = sup->stop_requests;
            main_slot_signal(&sup->main, told > 1 ? SIGKILL : SIGTERM);
        }
        if (had_main && sup->main.pid == 0 && !main_died(sup, code))
            return false;
        go_on_with_reload(sup);
        begin_reload(sup);
        start_due_main(sup);
        give_keeper(sup);
        tell_ready(sup);
        had_main = sup->main.pid > 0;
    }
    log_fail(sup->log, "keeper_died", "code=%d", child_code(&sup->keeper));
    end_mains(sup, MAIN_GRACE_MS);
    *code = DAEMON_EXIT_LOST;
    return sup->stop_requests == 0;
}

/* False when a stop was asked for meanwhile. */
static bool back_off(struct supervisor *sup)
{
    while (sup->stop_requests == 0 && wait_event(sup, sup->restart_ms))
        continue;
    return sup->stop_requests == 0;
}

static int start_all(struct supervisor *sup, bool smoke, struct error *err)
{
    if (start_keeper(sup, err) == 0 && (!smoke || run_smoke(sup, err) == 0)) {
        sup->restart_ms = sup->main_began_ms = clock_mono_ms();
        if (load(sup, &sup->main, err) == 0)
            return 0;
    }
    end_keeper(sup);
    return -1;
}

/* A smoke guest that failed on a full disk says nothing about this host. */
static void excuse_full_disk(struct supervisor *sup, struct error *err)
{
    struct error room = ERROR_INIT;

    if (err->code == ERR_PREFLIGHT &&
        preflight_run(PREFLIGHT_STORE, &sup->found, sup->config, sup->log, &room) < 0)
        *err = room;
}

/* The first start shows whether this host can do it at all. What it found missing ends paddockd for
 * good; what may be otherwise at another try (a keeper or a smoke guest that was killed) is tried
 * again, as after any later start, but in the end left to the init system. */
static int run_until_stopped(struct supervisor *sup, struct error *err)
{
    bool smoke = sup->config->guest_smoke;
    bool proven = false;
    unsigned tries = 0;
    int code = SUPERVISOR_EXIT_AGAIN;

    sup->backoff_ms = BACKOFF_MIN_MS;
    for (;;) {
        bool again = true;

        if (start_all(sup, smoke, err) < 0) {
            if (sup->stop_requests > 0)
                return SUPERVISOR_EXIT_AGAIN;
            excuse_full_disk(sup, err);
            if (!proven && err->code == ERR_PREFLIGHT)
                return SUPERVISOR_EXIT_FATAL;
            if (!proven && ++tries == START_TRIES)
                return SUPERVISOR_EXIT_AGAIN;
            log_error_value(sup->log, LOG_ERROR, "start_failed", err);
            *err = (struct error)ERROR_INIT;
        } else {
            log_info(sup->log, "started", "keeper=%d main=%d", (int)sup->keeper.pid,
                     (int)sup->main.pid);
            smoke = false;
            proven = true;
            again = watch(sup, &code);
            end_mains(sup, 0);
            end_keeper(sup);
        }
        if (!again)
            return code;
        plan_restart(sup);
        if (!back_off(sup))
            return SUPERVISOR_EXIT_AGAIN;
    }
}

static struct supervisor supervisor_new(const struct config *config, const struct log *log)
{
    return (struct supervisor){.config = config,
                               .log = log,
                               .notify = {.fd = -1},
                               .signal_fd = -1,
                               .lock_fd = -1,
                               .control = -1,
                               .main = MAIN_SLOT_INIT,
                               .other = MAIN_SLOT_INIT};
}

/* Preflight with the lock held, so that no two disturb each other's cgroups and folders. */
static int prepare(struct supervisor *sup, const struct config *config, const struct log *log,
                   struct error *err)
{
    *sup = supervisor_new(config, log);
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
    end_keeper(sup);
    return result;
}

static void release(struct supervisor *sup)
{
    close_control(sup);
    notify_close(&sup->notify);
    if (sup->signal_fd >= 0)
        close(sup->signal_fd);
    if (sup->lock_fd >= 0)
        close(sup->lock_fd);
    preflight_clear(&sup->found);
}

int supervisor_run(const struct config *config, const struct supervisor_options *options,
                   const struct log *log, struct error *err)
{
    struct supervisor sup;
    bool prepared = false;
    int code;

    if (prepare(&sup, config, log, err) == 0) {
        sup.options = options;
        notify_open(&sup.notify);
        sup.lock_fd = lock_state(config, LOCK_WAIT_MS, err);
        prepared = sup.lock_fd >= 0 && prepare_guests(&sup, err) == 0;
    }
    if (prepared)
        code = run_until_stopped(&sup, err);
    else
        code = err->code == ERR_SYSTEM ? SUPERVISOR_EXIT_AGAIN : SUPERVISOR_EXIT_FATAL;
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
    struct supervisor sup = supervisor_new(config, log);
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
