/*
 * The prefork manager (see manager.h). Called by main.c once privileges are
 * dropped. Single-threaded; signals come through a signalfd, and the loop sleeps
 * until the next moment at which something is due. What must stay true: a
 * process that this one forked is either in `workers` or in `old` until it is
 * reaped, and the listening socket outlives every one of them.
 */
#include "fcgi/manager.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/leave.h"
#include "common/text.h"
#include "fcgi/child.h"
#include "fcgi/listener.h"

#define CHILDREN_MAX 256 /* bound of web.children in config_keys.def */
#define YOUNG_MS 2000    /* a child that fails sooner is likely to fail again */
#define BACKOFF_FIRST_MS 100
#define BACKOFF_MAX_MS 5000
#define FORK_RETRY_MS 1000
#define NEVER INT64_MAX
/* What the program tells its next image: "listen_fd lock_fd old_pid old_pid …". */
#define STATE_VARIABLE "FCGI_MANAGER_STATE"
/* Old children that still finish; more means reloads faster than requests end. */
#define OLD_MAX 1024

struct worker {
    pid_t pid; /* 0: not running */
    int64_t born_ms;
    int64_t respawn_at_ms; /* while not running */
    unsigned young_deaths; /* in a row */
};

struct manager {
    const struct manager_options *options;
    const struct config *cfg;
    struct log log;
    char exe[PATH_MAX];
    struct listener listener;
    int signal_fd;
    sigset_t signals;
    struct child_slot *slots; /* shared with the children */
    struct worker workers[CHILDREN_MAX];
    unsigned count;
    pid_t old[OLD_MAX]; /* children of the former image, told to end */
    unsigned old_count;
    int64_t old_deadline_ms;
    bool stopping;
    int64_t stop_deadline_ms;
};

/* --- children -------------------------------------------------------------------------- */

static _Noreturn void become_child(struct manager *m, unsigned index, pid_t parent)
{
    /* SIGTERM, not SIGKILL: even without a manager the request in hand is finished. */
    if (prctl(PR_SET_PDEATHSIG, SIGTERM) < 0 || getppid() != parent)
        _exit(1);
    close(m->signal_fd);
    close(m->listener.lock_fd);
    leave_process(child_run(m->cfg, &m->log, m->listener.fd, &m->slots[index]));
}

static void spawn(struct manager *m, unsigned index, int64_t now)
{
    struct worker *worker = &m->workers[index];
    atomic_store(&m->slots[index].busy_since_ms, 0);
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0)
        become_child(m, index, parent);
    if (pid < 0) {
        log_fail(&m->log, "fork_failed", "errno=%d", errno);
        worker->respawn_at_ms = now + FORK_RETRY_MS;
        return;
    }
    worker->pid = pid;
    worker->born_ms = now;
    log_debug(&m->log, "child_started", "child=%d", (int)pid);
}

static int64_t backoff_ms(unsigned young_deaths)
{
    if (young_deaths < 2)
        return 0;
    unsigned doublings = young_deaths - 2;
    if (doublings > 6)
        return BACKOFF_MAX_MS;
    int64_t ms = (int64_t)BACKOFF_FIRST_MS << doublings;
    return ms < BACKOFF_MAX_MS ? ms : BACKOFF_MAX_MS;
}

static void worker_ended(struct manager *m, struct worker *worker, int status, int64_t now)
{
    bool clean = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    int64_t lived_ms = now - worker->born_ms;
    if (clean || lived_ms >= YOUNG_MS)
        worker->young_deaths = 0;
    if (!clean) {
        worker->young_deaths++;
        log_warn(&m->log, "child_died", "child=%d exit=%d signal=%d lived_ms=%" PRId64,
                 (int)worker->pid, WIFEXITED(status) ? WEXITSTATUS(status) : -1,
                 WIFSIGNALED(status) ? WTERMSIG(status) : 0, lived_ms);
    }
    worker->respawn_at_ms = now + backoff_ms(worker->young_deaths);
    worker->pid = 0;
}

static void reap(struct manager *m, int64_t now)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        for (unsigned i = 0; i < m->count; i++) {
            if (m->workers[i].pid == pid)
                worker_ended(m, &m->workers[i], status, now);
        }
        for (unsigned i = 0; i < m->old_count; i++) {
            if (m->old[i] == pid)
                m->old[i--] = m->old[--m->old_count];
        }
    }
}

static bool any_child(const struct manager *m)
{
    for (unsigned i = 0; i < m->count; i++) {
        if (m->workers[i].pid)
            return true;
    }
    return m->old_count > 0;
}

static void signal_all(const struct manager *m, int signal_number)
{
    for (unsigned i = 0; i < m->count; i++) {
        if (m->workers[i].pid)
            kill(m->workers[i].pid, signal_number);
    }
    for (unsigned i = 0; i < m->old_count; i++)
        kill(m->old[i], signal_number);
}

/* When this child's request in hand is over its time; an idle one cannot be before now + timeout.
 */
static int64_t stuck_at_ms(const struct manager *m, unsigned index, int64_t now)
{
    int64_t since = atomic_load(&m->slots[index].busy_since_ms);
    return (since ? since : now) + m->cfg->web_request_timeout;
}

/* --- what is due ----------------------------------------------------------------------- */

static void check_worker(struct manager *m, unsigned index, int64_t now)
{
    struct worker *worker = &m->workers[index];
    if (!worker->pid) {
        if (!m->stopping && worker->respawn_at_ms <= now)
            spawn(m, index, now);
    } else if (stuck_at_ms(m, index, now) <= now) {
        log_fail(&m->log, "child_stuck", "child=%d timeout_ms=%" PRId64, (int)worker->pid,
                 m->cfg->web_request_timeout);
        /* Its death is reaped as any other. Not judged again before that. */
        atomic_store(&m->slots[index].busy_since_ms, 0);
        kill(worker->pid, SIGKILL);
    }
}

static void check_due(struct manager *m, int64_t now)
{
    for (unsigned i = 0; i < m->count; i++)
        check_worker(m, i, now);
    if (m->old_count > 0 && m->old_deadline_ms <= now) {
        log_warn(&m->log, "old_children_killed", "count=%u", m->old_count);
        for (unsigned i = 0; i < m->old_count; i++)
            kill(m->old[i], SIGKILL);
        m->old_deadline_ms = NEVER;
    }
    if (m->stopping && m->stop_deadline_ms <= now) {
        log_warn(&m->log, "children_killed", "timeout_ms=%" PRId64, m->cfg->web_shutdown_timeout);
        signal_all(m, SIGKILL);
        m->stop_deadline_ms = NEVER;
    }
}

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Milliseconds until something may be due; -1: until a signal. */
static int next_due_ms(const struct manager *m, int64_t now)
{
    int64_t next = NEVER;
    for (unsigned i = 0; i < m->count; i++) {
        if (m->workers[i].pid)
            next = earlier(next, stuck_at_ms(m, i, now));
        else if (!m->stopping)
            next = earlier(next, m->workers[i].respawn_at_ms);
    }
    if (m->old_count > 0)
        next = earlier(next, m->old_deadline_ms);
    if (m->stopping)
        next = earlier(next, m->stop_deadline_ms);
    if (next == NEVER)
        return -1;
    if (next <= now)
        return 0;
    return next - now > INT_MAX ? INT_MAX : (int)(next - now);
}

/* --- reload ---------------------------------------------------------------------------- */

/* A new configuration must be good and must not change what cannot change while running. */
static int check_new_config(const struct manager *m, struct error *err)
{
    unsigned mode;
    _cleanup_config_ struct config *cfg = config_load(m->options->config_path, err);
    if (!cfg)
        return -1;
    if (strcmp(cfg->web_socket, m->cfg->web_socket) != 0)
        return error_set_field(err, ERR_CONFIG, "web.socket",
                               "web.socket changed; that needs a restart");
    if (strcmp(cfg->web_user, m->cfg->web_user) != 0)
        return error_set_field(err, ERR_CONFIG, "web.user",
                               "web.user changed; that needs a restart");
    return listener_mode(cfg->web_socket_mode, &mode, err);
}

static int export_state(const struct manager *m, struct error *err)
{
    _cleanup_buf_ struct buf state = BUF_INIT((CHILDREN_MAX + OLD_MAX + 2) * 12);
    buf_printf(&state, "%d %d", m->listener.fd, m->listener.lock_fd);
    for (unsigned i = 0; i < m->count; i++) {
        if (m->workers[i].pid)
            buf_printf(&state, " %d", (int)m->workers[i].pid);
    }
    for (unsigned i = 0; i < m->old_count; i++)
        buf_printf(&state, " %d", (int)m->old[i]);
    const char *text = buf_cstr(&state);
    if (state.overflowed || !text || setenv(STATE_VARIABLE, text, 1) < 0)
        return error_set(err, ERR_SYSTEM, "cannot pass the state on");
    return listener_inherit(&m->listener, 1, err);
}

/* Executes the program anew. Returns only when that failed; everything goes on as before then. */
static void reload(struct manager *m)
{
    struct error err = ERROR_INIT;
    if (m->count + m->old_count > OLD_MAX) {
        error_set(&err, ERR_SYSTEM, "too many children of former reloads are still busy");
    } else if (check_new_config(m, &err) == 0 && export_state(m, &err) == 0) {
        log_info(&m->log, "reloading", NULL);
        execv(m->exe, m->options->argv);
        error_set_errno(&err, "cannot execute %s", m->exe);
    }
    log_error_value(&m->log, LOG_ERROR, "reload_failed", &err);
    unsetenv(STATE_VARIABLE);
    struct error ignored = ERROR_INIT;
    if (listener_inherit(&m->listener, 0, &ignored) < 0)
        log_error_value(&m->log, LOG_WARN, "reload_failed", &ignored);
}

/* Reads "listen_fd lock_fd pid …" into the manager. */
static int import_state(struct manager *m, char *text, struct error *err)
{
    int64_t numbers[2];
    char *rest = text;
    for (unsigned i = 0; rest; i++) {
        char *word = strsep(&rest, " ");
        int64_t number = 0;
        if (text_parse_i64(word, 0, INT_MAX, &number) < 0)
            return error_set(err, ERR_PREFLIGHT, "%s is not what this program sets",
                             STATE_VARIABLE);
        if (i < 2)
            numbers[i] = number;
        else if (m->old_count < OLD_MAX && number > 1)
            m->old[m->old_count++] = (pid_t)number;
        if (i == 1 && listener_adopt((int)numbers[0], (int)numbers[1], &m->listener, err) < 0)
            return -1;
    }
    return m->listener.fd < 0 ? error_set(err, ERR_PREFLIGHT, "%s names no socket", STATE_VARIABLE)
                              : 0;
}

/* --- life ------------------------------------------------------------------------------ */

static void handle_signal(struct manager *m, uint32_t signal_number, int64_t now)
{
    if (signal_number == SIGCHLD) {
        reap(m, now);
    } else if (signal_number == SIGHUP) {
        if (!m->stopping)
            reload(m);
    } else if (!m->stopping) {
        log_info(&m->log, "stopping", "signal=%u", signal_number);
        m->stopping = true;
        m->stop_deadline_ms = now + m->cfg->web_shutdown_timeout;
        /* A web server is refused at once instead of being left in the queue; children serve
         * what is in the queue already. */
        listener_refuse(&m->listener);
        signal_all(m, SIGTERM);
    }
}

static void take_signals(struct manager *m)
{
    struct signalfd_siginfo info;
    while (read(m->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
        handle_signal(m, info.ssi_signo, clock_mono_ms());
}

static int open_signals(struct manager *m, struct error *err)
{
    sigemptyset(&m->signals);
    sigaddset(&m->signals, SIGTERM);
    sigaddset(&m->signals, SIGINT);
    sigaddset(&m->signals, SIGHUP);
    sigaddset(&m->signals, SIGCHLD);
    if (sigprocmask(SIG_BLOCK, &m->signals, NULL) < 0)
        return error_set_errno(err, "cannot block signals");
    m->signal_fd = signalfd(-1, &m->signals, SFD_CLOEXEC | SFD_NONBLOCK);
    if (m->signal_fd < 0)
        return error_set_errno(err, "cannot take signals");
    return 0;
}

static int open_listener(struct manager *m, struct error *err)
{
    unsigned mode;
    if (listener_mode(m->cfg->web_socket_mode, &mode, err) < 0)
        return -1;
    const char *state = getenv(STATE_VARIABLE);
    if (!state)
        return listener_open(m->cfg->web_socket, mode, &m->listener, err);
    _cleanup_free_ char *copy = strdup(state);
    unsetenv(STATE_VARIABLE);
    if (!copy)
        return error_set(err, ERR_INTERNAL, "out of memory");
    if (import_state(m, copy, err) < 0)
        return -1;
    if (chmod(m->cfg->web_socket, (mode_t)mode) < 0)
        return error_set_errno(err, "cannot set the mode of %s", m->cfg->web_socket);
    return 0;
}

/* A handler that waits for the database must be answered for by the database's own limits; being
 * replaced in the middle of a request is for what nothing else ends. */
static void warn_of_timeouts(const struct manager *m)
{
    int64_t database_ms = m->cfg->database_connect_timeout + m->cfg->database_statement_timeout;
    if (m->cfg->web_request_timeout <= database_ms)
        log_warn(&m->log, "request_timeout_short",
                 "request_timeout_ms=%" PRId64 " database_ms=%" PRId64, m->cfg->web_request_timeout,
                 database_ms);
}

static int manager_open(struct manager *m, struct error *err)
{
    ssize_t len = readlink("/proc/self/exe", m->exe, sizeof(m->exe) - 1);
    if (len < 0)
        return error_set_errno(err, "cannot find the program itself");
    m->exe[len] = '\0';
    m->count = (unsigned)m->cfg->web_children;
    warn_of_timeouts(m);
    void *slots = mmap(NULL, sizeof(struct child_slot) * m->count, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (slots == MAP_FAILED)
        return error_set_errno(err, "cannot map the children's slots");
    m->slots = slots;
    if (open_signals(m, err) < 0)
        return -1;
    return open_listener(m, err);
}

static void manager_close(struct manager *m)
{
    listener_close(&m->listener);
    if (m->signal_fd >= 0)
        close(m->signal_fd);
    if (m->slots)
        munmap(m->slots, sizeof(struct child_slot) * m->count);
}

static void manager_loop(struct manager *m)
{
    for (;;) {
        int64_t now = clock_mono_ms();
        check_due(m, now);
        if (m->stopping && !any_child(m))
            return;
        struct pollfd poll_fd = {.fd = m->signal_fd, .events = POLLIN};
        if (poll(&poll_fd, 1, next_due_ms(m, now)) > 0)
            take_signals(m);
    }
}

int manager_run(const struct manager_options *options, struct error *err)
{
    struct manager m = {.options = options,
                        .cfg = options->cfg,
                        .log = *options->log,
                        .listener = {.fd = -1, .lock_fd = -1},
                        .signal_fd = -1};
    int rc = manager_open(&m, err);
    if (rc == 0) {
        log_info(&m.log, "started", "children=%u old_children=%u", m.count, m.old_count);
        int64_t now = clock_mono_ms();
        for (unsigned i = 0; i < m.count; i++)
            spawn(&m, i, now);
        /* Only now, when new ones can take over, may the old ones end. */
        for (unsigned i = 0; i < m.old_count; i++)
            kill(m.old[i], SIGTERM);
        m.old_deadline_ms = now + m.cfg->web_request_timeout;
        reap(&m, now);
        manager_loop(&m);
        log_info(&m.log, "stopped", NULL);
    }
    manager_close(&m);
    return rc;
}
