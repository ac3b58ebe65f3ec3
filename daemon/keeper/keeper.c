/*
 * The keeper's loop: one thread that polls main's socket, the supervisor's and
 * SIGCHLD, and keeps the guests' timers. It never waits for a guest. Every field
 * of a request is checked here again; main is trusted with nothing but to name
 * an id, a template and numbers within the configured bounds.
 *
 * Guests live as long as the supervisor's socket is open. Main may come and go:
 * one that says what is no request loses its socket, and the next is told what
 * is held. Only when none came for daemon.lease are the guests killed, for then
 * nobody takes care of their rows.
 */
#include "daemon/keeper/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/fdpass.h"
#include "common/text.h"
#include "daemon/keeper/guest.h"
#include "daemon/keeper/protocol.h"
#include "daemon/keeper/reports.h"

/* Reports that wait for main; beyond, no request is read until it took some. */
#define OUTBOX_MAX 1024
#define REQUESTS_A_TURN 64
/* At the end: guests get this long until the kernel takes them with the keeper. */
#define SHUTDOWN_MS 10000
#define SWEEP_EVERY_MS 60000
#define SIZE_MIN_BYTES (1u << 20)

struct slot {
    struct slot *next;
    struct guest *guest;
};

struct keeper {
    const struct keeper_setup *setup;
    struct guest_env env;
    int control;
    int signal_fd;
    struct reports reports; /* and main's socket */
    int64_t detached_ms;    /* since when no main is there */
    int64_t sweep_ms;       /* the next one */
    struct slot *slots;
    unsigned guest_count;
    unsigned guest_max;
    bool closing; /* the supervisor is gone, or wants an end */
    int exit_code;
};

/* --- main comes and goes ------------------------------------------------------------------------
 */

static void detach(struct keeper *keeper)
{
    if (keeper->reports.sock < 0)
        return;
    reports_detach(&keeper->reports);
    keeper->detached_ms = clock_mono_ms();
    log_info(keeper->setup->log, "main_detached", "guests=%u", keeper->guest_count);
}

static void new_report(struct keeper_report *report, enum keeper_event event, const char *id)
{
    memset(report, 0, sizeof(*report)); /* its padding crosses a process boundary, too */
    report->event = event;
    memcpy(report->id, id, ID_SIZE);
}

/* Takes sock over. */
static void attach(struct keeper *keeper, int sock)
{
    struct keeper_report report;
    int flags = fcntl(sock, F_GETFL);

    if (flags < 0 || fcntl(sock, F_SETFL, flags | O_NONBLOCK) < 0) {
        close(sock);
        return;
    }
    reports_attach(&keeper->reports, sock);
    for (const struct slot *slot = keeper->slots; slot; slot = slot->next) {
        new_report(&report, KEEPER_HELD, guest_id(slot->guest));
        reports_add(&keeper->reports, &report);
    }
    reports_tell_ends(&keeper->reports);
    memset(&report, 0, sizeof(report));
    report.event = KEEPER_ATTACHED;
    reports_add(&keeper->reports, &report);
    log_info(keeper->setup->log, "main_attached", "guests=%u unrecorded=%u", keeper->guest_count,
             keeper->reports.ends_count);
}

/* One message: a main's socket, or the end. */
static void read_control(struct keeper *keeper)
{
    struct error err = ERROR_INIT;
    struct keeper_control control;
    int fd = -1;
    ssize_t len = fdpass_recv(keeper->control, &control, sizeof(control), &fd, &err);

    if (len < 0 && err.errno_value == EAGAIN)
        return;
    if (len == sizeof(control) && control.op == KEEPER_CONTROL_MAIN && fd >= 0) {
        attach(keeper, fd);
        return;
    }
    if (fd >= 0)
        close(fd);
    keeper->closing = true;
    keeper->exit_code = len == 0 || (len < 0 && err.code == ERR_SYSTEM) ? 0 : 1;
}

static void kill_all(struct keeper *keeper, const char *reason)
{
    for (const struct slot *slot = keeper->slots; slot; slot = slot->next)
        guest_kill(slot->guest, reason);
}

static bool any_running(const struct keeper *keeper)
{
    for (const struct slot *slot = keeper->slots; slot; slot = slot->next)
        if (guest_socket(slot->guest) >= 0)
            return true;
    return false;
}

/* When the guests are killed for want of a main; INT64_MAX while one is there. */
static int64_t lease_ends_ms(const struct keeper *keeper)
{
    if (keeper->reports.sock >= 0 || keeper->closing || !any_running(keeper))
        return INT64_MAX;
    return keeper->detached_ms + keeper->setup->config->daemon_lease;
}

static void check_lease(struct keeper *keeper, int64_t now_ms)
{
    if (now_ms < lease_ends_ms(keeper))
        return;
    log_warn(keeper->setup->log, "no_main_within_lease", "guests=%u", keeper->guest_count);
    kill_all(keeper, "node_lost");
}

/* --- reports ------------------------------------------------------------------------------------
 */

static struct guest *find(const struct keeper *keeper, const char *id)
{
    for (const struct slot *slot = keeper->slots; slot; slot = slot->next)
        if (strcmp(guest_id(slot->guest), id) == 0)
            return slot->guest;
    return NULL;
}

/* What STARTED and HELD say at the moment they are sent. */
static bool describe(void *arg, struct keeper_report *report, int *fd)
{
    const struct guest *guest = find(arg, report->id);

    if (!guest)
        return false;
    *fd = guest_socket(guest);
    if (report->event == KEEPER_STARTED)
        return *fd >= 0; /* else main asked for its end meanwhile, and KEEPER_ENDED follows */
    report->ending = *fd < 0;
    guest_copy_reason(guest, report->reason);
    return true;
}

static void report_refused(struct keeper *keeper, const char *id, const char *why)
{
    struct keeper_report refused;

    new_report(&refused, KEEPER_REFUSED, id);
    (void)snprintf(refused.text, sizeof(refused.text), "%.*s", KEEPER_TEXT_MAX - 1, why);
    log_warn(keeper->setup->log, "guest_refused", "id=%s why=%s", id, refused.text);
    reports_add(&keeper->reports, &refused);
}

/* --- requests --------------------------------------------------------------------------------- */

static bool size_fits(uint64_t bytes, uint64_t max_bytes)
{
    return bytes >= SIZE_MIN_BYTES && bytes <= max_bytes && bytes % 4096 == 0;
}

/* NULL when the numbers are within this host's bounds. */
static const char *out_of_bounds(const struct config *config, const struct keeper_request *request)
{
    uint64_t memory_max = (uint64_t)config->guest_memory_mb_max << 20;

    if (request->cpus < 1 || request->cpus > (uint64_t)config->guest_cpus_max)
        return "cpus is over guest.cpus_max";
    if (!size_fits(request->memory_bytes, memory_max))
        return "memory is over guest.memory_mb_max";
    if (request->pids < 1 || request->pids > (uint64_t)config->guest_pids_max)
        return "pids is over guest.pids_max";
    if (!size_fits(request->workspace_bytes, memory_max) ||
        !size_fits(request->tmp_bytes, memory_max) || !size_fits(request->shm_bytes, memory_max))
        return "a tmpfs is over guest.memory_mb_max";
    return NULL;
}

static void handle_start(struct keeper *keeper, const struct keeper_request *request)
{
    const struct template_image *image =
        templates_find(keeper->setup->templates, request->template_name);
    const char *why = out_of_bounds(keeper->setup->config, request);
    struct slot *slot = NULL;
    struct keeper_report started;
    struct error err = ERROR_INIT;

    if (!image)
        why = "this host does not offer the template";
    else if (find(keeper, request->id))
        why = "a guest of this id exists";
    else if (keeper->guest_count >= keeper->guest_max)
        why = "this host holds as many guests as it may";
    if (!why && (slot = calloc(1, sizeof(*slot))) == NULL)
        why = "no memory";
    if (!why && (slot->guest = guest_start(&keeper->env, image, request, &err)) == NULL)
        why = err.detail;
    if (why) {
        free(slot);
        report_refused(keeper, request->id, why);
        return;
    }
    slot->next = keeper->slots;
    keeper->slots = slot;
    keeper->guest_count++;
    new_report(&started, KEEPER_STARTED, request->id);
    log_debug(keeper->setup->log, "guest_started", "id=%s pid=%d", request->id,
              (int)guest_pid(slot->guest));
    reports_add(&keeper->reports, &started);
}

static void handle_stats(struct keeper *keeper, const char *id)
{
    const struct guest *guest = find(keeper, id);
    struct cgroup_usage now = {0};
    struct keeper_report usage;

    if (guest)
        guest_usage(guest, &now);
    new_report(&usage, KEEPER_USAGE, id);
    usage.memory_bytes = now.memory_bytes;
    usage.cpu_us = now.cpu_us;
    usage.tasks = now.tasks;
    usage.oom_kills = now.oom_kills;
    reports_add(&keeper->reports, &usage);
}

static void handle_list(struct keeper *keeper, const char *id)
{
    struct keeper_report report;

    for (const struct slot *slot = keeper->slots; slot; slot = slot->next) {
        new_report(&report, KEEPER_LISTED, guest_id(slot->guest));
        report.ending = guest_socket(slot->guest) < 0;
        reports_add(&keeper->reports, &report);
    }
    new_report(&report, KEEPER_LIST_END, id);
    reports_add(&keeper->reports, &report);
}

/* A word of main's own, for the next main. */
static bool is_reason(const char reason[KEEPER_REASON_MAX])
{
    size_t len = strnlen(reason, KEEPER_REASON_MAX);

    return len < KEEPER_REASON_MAX && strspn(reason, "abcdefghijklmnopqrstuvwxyz_") == len;
}

/* The form of a message. Numbers are handle_start's affair: main may pass on what the database
 * admitted under another configuration. */
static bool is_request(const struct keeper_request *request, size_t len, int fd)
{
    if (len != sizeof(*request) || fd >= 0 || !memchr(request->id, '\0', ID_SIZE) ||
        !id_is_valid(request->id))
        return false;
    switch (request->op) {
    case KEEPER_START:
        return memchr(request->template_name, '\0', sizeof(request->template_name)) != NULL &&
               text_is_name(request->template_name, KEEPER_TEMPLATE_MAX);
    case KEEPER_END:
        return is_reason(request->reason);
    case KEEPER_STATS:
    case KEEPER_FORGET:
    case KEEPER_LIST:
        return true;
    default:
        return false;
    }
}

static void handle(struct keeper *keeper, const struct keeper_request *request)
{
    struct guest *guest;

    switch (request->op) {
    case KEEPER_START:
        handle_start(keeper, request);
        break;
    case KEEPER_END:
        guest = find(keeper, request->id); /* none: it ended while this was under way */
        if (guest)
            guest_kill(guest, request->reason);
        break;
    case KEEPER_FORGET:
        reports_forget(&keeper->reports, request->id);
        break;
    case KEEPER_LIST:
        handle_list(keeper, request->id);
        break;
    default:
        handle_stats(keeper, request->id);
        break;
    }
}

static void read_requests(struct keeper *keeper)
{
    for (unsigned i = 0; i < REQUESTS_A_TURN && keeper->reports.count < OUTBOX_MAX; i++) {
        struct keeper_request request;
        struct error err = ERROR_INIT;
        int fd = -1;
        ssize_t len = fdpass_recv(keeper->reports.sock, &request, sizeof(request), &fd, &err);
        bool valid = len > 0 && is_request(&request, (size_t)len, fd);

        if (fd >= 0)
            close(fd);
        if (len < 0 && err.errno_value == EAGAIN)
            return;
        /* Said once, before what is still to be read, of a main that went without reading all. */
        if (len < 0 && err.errno_value == ECONNRESET)
            continue;
        if (len == 0 || (len < 0 && err.code == ERR_SYSTEM)) {
            detach(keeper);
            return;
        }
        if (!valid) {
            log_fail(keeper->setup->log, "keeper_request_malformed", "bytes=%zd op=%u", len,
                     len >= (ssize_t)sizeof(request.op) ? (unsigned)request.op : 0);
            detach(keeper);
            return;
        }
        handle(keeper, &request);
    }
}

/* What a main asked for before it went is done, though it hears nothing any more. */
static void flush(struct keeper *keeper)
{
    if (keeper->reports.sock < 0 || reports_flush(&keeper->reports, describe, keeper))
        return;
    read_requests(keeper);
    detach(keeper);
}

/* --- the loop --------------------------------------------------------------------------------- */

static void reap(struct keeper *keeper)
{
    struct signalfd_siginfo info;
    int status;
    pid_t pid;

    while (read(keeper->signal_fd, &info, sizeof(info)) > 0)
        continue; /* SIGCHLDs merge: ask for every child */
    /* Also what a dead `runsc run` left behind: PID 1 inherits it. */
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        for (const struct slot *slot = keeper->slots; slot; slot = slot->next)
            if (guest_pid(slot->guest) == pid) {
                guest_reaped(slot->guest, status);
                break;
            }
}

static void tick(struct keeper *keeper)
{
    int64_t now_ms = clock_mono_ms();

    for (struct slot **at = &keeper->slots; *at;) {
        struct slot *slot = *at;
        struct keeper_report ended;

        if (guest_deadline(slot->guest) > now_ms || !guest_tick(slot->guest, now_ms, &ended)) {
            at = &slot->next;
            continue;
        }
        *at = slot->next;
        keeper->guest_count--;
        log_debug(keeper->setup->log, "guest_ended", "id=%s status=%d oom_kills=%u killed=%d",
                  ended.id, ended.exit_status, ended.oom_kills, ended.killed);
        reports_add_end(&keeper->reports, &ended);
        guest_free(slot->guest);
        free(slot);
    }
}

static bool is_held(void *arg, const char *id)
{
    return find(arg, id) != NULL;
}

/* Nothing should be there that is no guest's; should it be, it does not stay. */
static void sweep(struct keeper *keeper, int64_t now_ms)
{
    if (now_ms < keeper->sweep_ms)
        return;
    keeper->sweep_ms = now_ms + SWEEP_EVERY_MS;
    keeper_sweep_strays(keeper->setup, is_held, keeper);
}

static int poll_timeout_ms(const struct keeper *keeper, int64_t latest_ms)
{
    int64_t first = latest_ms;
    int64_t lease_ms = lease_ends_ms(keeper);
    int64_t left;

    for (const struct slot *slot = keeper->slots; slot; slot = slot->next)
        if (guest_deadline(slot->guest) < first)
            first = guest_deadline(slot->guest);
    if (lease_ms < first)
        first = lease_ms;
    if (keeper->sweep_ms < first)
        first = keeper->sweep_ms;
    left = first - clock_mono_ms();
    return left < 0 ? 0 : left > 60000 ? 60000 : (int)left;
}

static void turn(struct keeper *keeper, int64_t latest_ms)
{
    struct pollfd fds[3] = {{.fd = keeper->signal_fd, .events = POLLIN},
                            {.fd = keeper->reports.sock},
                            {.fd = keeper->closing ? -1 : keeper->control, .events = POLLIN}};
    int64_t now_ms;

    if (keeper->reports.count < OUTBOX_MAX)
        fds[1].events |= POLLIN;
    if (keeper->reports.count > 0)
        fds[1].events |= POLLOUT;
    if (poll(fds, 3, poll_timeout_ms(keeper, latest_ms)) < 0 && errno != EINTR) {
        log_fail(keeper->setup->log, "keeper_poll_failed", "errno=%d", errno);
        keeper->closing = true;
        keeper->exit_code = 1;
        return;
    }
    if (fds[0].revents)
        reap(keeper);
    if (fds[1].revents & (POLLIN | POLLHUP | POLLERR) && fds[1].events & POLLIN)
        read_requests(keeper);
    else if (fds[1].revents & (POLLHUP | POLLERR))
        detach(keeper);
    now_ms = clock_mono_ms();
    tick(keeper);
    check_lease(keeper, now_ms);
    sweep(keeper, now_ms);
    flush(keeper);
    /* Last: what main had asked for before the supervisor spoke is done. */
    if (fds[2].revents)
        read_control(keeper);
}

static void shut_down(struct keeper *keeper)
{
    int64_t deadline = clock_mono_ms() + SHUTDOWN_MS;

    reports_clear(&keeper->reports);
    kill_all(keeper, "daemon_restart");
    while (keeper->slots && clock_mono_ms() < deadline)
        turn(keeper, deadline);
    while (keeper->slots) {
        struct slot *slot = keeper->slots;

        keeper->slots = slot->next;
        log_warn(keeper->setup->log, "guest_left", "id=%s", guest_id(slot->guest));
        guest_free(slot->guest);
        free(slot);
    }
    reports_clear(&keeper->reports);
}

int keeper_run(const struct keeper_setup *setup, int control)
{
    struct keeper keeper = {
        .setup = setup,
        .env = {.config = setup->config, .log = setup->log, .cgroup = setup->cgroup},
        .control = control,
        .signal_fd = -1,
        .detached_ms = clock_mono_ms(),
        .sweep_ms = clock_mono_ms() + SWEEP_EVERY_MS,
        /* Main counts them; this only bounds what a broken main can start. Guests on their way out
         * count here and may not count there. */
        .guest_max = 2 * (unsigned)setup->config->node_max_sandboxes + 8,
    };
    struct error err = ERROR_INIT;
    sigset_t chld;

    reports_init(&keeper.reports);
    (void)sigemptyset(&chld);
    (void)sigaddset(&chld, SIGCHLD);
    if (sigprocmask(SIG_BLOCK, &chld, NULL) < 0 ||
        (keeper.signal_fd = signalfd(-1, &chld, SFD_CLOEXEC | SFD_NONBLOCK)) < 0) {
        log_fail(setup->log, "keeper_start_failed", "errno=%d", errno);
        return 1;
    }
    while (!keeper.closing)
        turn(&keeper, INT64_MAX);
    shut_down(&keeper);
    close(keeper.signal_fd);
    if (keeper_sweep(setup, &err) < 0)
        log_error_value(setup->log, LOG_WARN, "keeper_sweep_incomplete", &err);
    return keeper.exit_code;
}
