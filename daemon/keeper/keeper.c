/*
 * The keeper's loop: one thread that polls main's socket and SIGCHLD, and keeps
 * the guests' timers. It never waits for a guest. Every field of a request is
 * checked here again; main is trusted with nothing but to name an id, a template
 * and numbers within the configured bounds. A message that is not a request ends
 * the keeper: main is broken or taken over then, and no guest shall outlive that.
 */
#include "daemon/keeper/keeper.h"

#include <errno.h>
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

/* Reports that wait for main; beyond, no request is read until it took some. */
#define OUTBOX_MAX 1024
#define REQUESTS_A_TURN 64
/* At the end: guests get this long until the kernel takes them with the keeper. */
#define SHUTDOWN_MS 10000
#define SIZE_MIN_BYTES (1u << 20)

struct outgoing {
    struct outgoing *next;
    struct keeper_report report;
    int fd; /* owned; -1 for none */
};

struct slot {
    struct slot *next;
    struct guest *guest;
};

struct keeper {
    const struct keeper_setup *setup;
    struct guest_env env;
    int sock;
    int signal_fd;
    struct slot *slots;
    unsigned guest_count;
    unsigned guest_max;
    struct outgoing *out_head;
    struct outgoing **out_tail;
    unsigned out_count;
    bool closing; /* main is gone: nothing is reported any more */
    int exit_code;
};

/* --- reports ---------------------------------------------------------------------------------- */

/* Takes fd over. */
static void report(struct keeper *keeper, const struct keeper_report *what, int fd)
{
    struct outgoing *out = keeper->closing ? NULL : malloc(sizeof(*out));

    if (!out) {
        if (fd >= 0)
            close(fd);
        if (!keeper->closing) {
            /* A report that is lost would leave a sandbox waiting for ever. */
            log_fail(keeper->setup->log, "keeper_no_memory", NULL);
            keeper->closing = true;
            keeper->exit_code = 1;
        }
        return;
    }
    out->next = NULL;
    out->report = *what;
    out->fd = fd;
    *keeper->out_tail = out;
    keeper->out_tail = &out->next;
    keeper->out_count++;
}

static void drop_first(struct keeper *keeper)
{
    struct outgoing *out = keeper->out_head;

    keeper->out_head = out->next;
    if (!keeper->out_head)
        keeper->out_tail = &keeper->out_head;
    keeper->out_count--;
    if (out->fd >= 0)
        close(out->fd);
    free(out);
}

static void main_is_gone(struct keeper *keeper, int exit_code)
{
    keeper->closing = true;
    keeper->exit_code = exit_code;
}

static void flush(struct keeper *keeper)
{
    while (keeper->out_head && !keeper->closing) {
        const struct outgoing *out = keeper->out_head;
        struct error err = ERROR_INIT;

        if (fdpass_send(keeper->sock, &out->report, sizeof(out->report), out->fd, &err) < 0) {
            if (err.errno_value == EAGAIN || err.errno_value == ENOBUFS)
                return;
            main_is_gone(keeper, 0); /* EPIPE, ECONNRESET */
            return;
        }
        drop_first(keeper);
    }
}

static void report_refused(struct keeper *keeper, const char *id, const char *why)
{
    struct keeper_report refused;

    memset(&refused, 0, sizeof(refused));
    refused.event = KEEPER_REFUSED;
    memcpy(refused.id, id, ID_SIZE);
    (void)snprintf(refused.text, sizeof(refused.text), "%.*s", KEEPER_TEXT_MAX - 1, why);
    log_warn(keeper->setup->log, "guest_refused", "id=%s why=%s", id, refused.text);
    report(keeper, &refused, -1);
}

/* --- requests --------------------------------------------------------------------------------- */

static struct guest *find(const struct keeper *keeper, const char *id)
{
    for (const struct slot *slot = keeper->slots; slot; slot = slot->next)
        if (strcmp(guest_id(slot->guest), id) == 0)
            return slot->guest;
    return NULL;
}

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
    int fd = -1;

    if (!image)
        why = "this host does not offer the template";
    else if (find(keeper, request->id))
        why = "a guest of this id exists";
    else if (keeper->guest_count >= keeper->guest_max)
        why = "this host holds as many guests as it may";
    if (!why && (slot = calloc(1, sizeof(*slot))) == NULL)
        why = "no memory";
    if (!why && (slot->guest = guest_start(&keeper->env, image, request, &fd, &err)) == NULL)
        why = err.detail;
    if (why) {
        free(slot);
        report_refused(keeper, request->id, why);
        return;
    }
    slot->next = keeper->slots;
    keeper->slots = slot;
    keeper->guest_count++;
    memset(&started, 0, sizeof(started));
    started.event = KEEPER_STARTED;
    memcpy(started.id, request->id, ID_SIZE);
    log_debug(keeper->setup->log, "guest_started", "id=%s pid=%d", request->id,
              (int)guest_pid(slot->guest));
    report(keeper, &started, fd);
}

static void handle_stats(struct keeper *keeper, const char *id)
{
    const struct guest *guest = find(keeper, id);
    struct cgroup_usage now = {0};
    struct keeper_report usage;

    if (guest)
        guest_usage(guest, &now);
    memset(&usage, 0, sizeof(usage));
    usage.event = KEEPER_USAGE;
    memcpy(usage.id, id, ID_SIZE);
    usage.memory_bytes = now.memory_bytes;
    usage.cpu_us = now.cpu_us;
    usage.tasks = now.tasks;
    usage.oom_kills = now.oom_kills;
    report(keeper, &usage, -1);
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
    case KEEPER_STATS:
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
            guest_kill(guest);
        break;
    default:
        handle_stats(keeper, request->id);
        break;
    }
}

static void read_requests(struct keeper *keeper)
{
    for (unsigned i = 0; i < REQUESTS_A_TURN && keeper->out_count < OUTBOX_MAX; i++) {
        struct keeper_request request;
        struct error err = ERROR_INIT;
        int fd = -1;
        ssize_t len = fdpass_recv(keeper->sock, &request, sizeof(request), &fd, &err);
        bool valid = len > 0 && is_request(&request, (size_t)len, fd);

        if (fd >= 0)
            close(fd);
        if (len < 0 && err.errno_value == EAGAIN)
            return;
        if (len == 0 || (len < 0 && err.code == ERR_SYSTEM)) {
            main_is_gone(keeper, 0);
            return;
        }
        if (!valid) {
            log_fail(keeper->setup->log, "keeper_request_malformed", "bytes=%zd op=%u", len,
                     len >= (ssize_t)sizeof(request.op) ? (unsigned)request.op : 0);
            main_is_gone(keeper, 1);
            return;
        }
        handle(keeper, &request);
        if (keeper->closing)
            return;
    }
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
        report(keeper, &ended, -1);
        guest_free(slot->guest);
        free(slot);
    }
}

static int poll_timeout_ms(const struct keeper *keeper, int64_t latest_ms)
{
    int64_t first = latest_ms;
    int64_t left;

    for (const struct slot *slot = keeper->slots; slot; slot = slot->next)
        if (guest_deadline(slot->guest) < first)
            first = guest_deadline(slot->guest);
    if (first == INT64_MAX)
        return -1;
    left = first - clock_mono_ms();
    return left < 0 ? 0 : left > 60000 ? 60000 : (int)left;
}

static void turn(struct keeper *keeper, int64_t latest_ms)
{
    struct pollfd fds[2] = {{.fd = keeper->signal_fd, .events = POLLIN},
                            {.fd = keeper->closing ? -1 : keeper->sock}};

    if (keeper->out_count < OUTBOX_MAX)
        fds[1].events |= POLLIN;
    if (keeper->out_head)
        fds[1].events |= POLLOUT;
    if (poll(fds, 2, poll_timeout_ms(keeper, latest_ms)) < 0 && errno != EINTR) {
        log_fail(keeper->setup->log, "keeper_poll_failed", "errno=%d", errno);
        main_is_gone(keeper, 1);
        return;
    }
    if (fds[0].revents)
        reap(keeper);
    if (fds[1].revents & (POLLIN | POLLHUP | POLLERR) && fds[1].events & POLLIN)
        read_requests(keeper);
    else if (fds[1].revents & (POLLHUP | POLLERR))
        main_is_gone(keeper, 0);
    tick(keeper);
    flush(keeper);
}

static void shut_down(struct keeper *keeper)
{
    int64_t deadline = clock_mono_ms() + SHUTDOWN_MS;

    while (keeper->out_head)
        drop_first(keeper);
    for (const struct slot *slot = keeper->slots; slot; slot = slot->next)
        guest_kill(slot->guest);
    while (keeper->slots && clock_mono_ms() < deadline)
        turn(keeper, deadline);
    while (keeper->slots) {
        struct slot *slot = keeper->slots;

        keeper->slots = slot->next;
        log_warn(keeper->setup->log, "guest_left", "id=%s", guest_id(slot->guest));
        guest_free(slot->guest);
        free(slot);
    }
}

int keeper_run(const struct keeper_setup *setup, int sock)
{
    struct keeper keeper = {
        .setup = setup,
        .env = {.config = setup->config, .log = setup->log, .cgroup = setup->cgroup},
        .sock = sock,
        .signal_fd = -1,
        /* Main counts them; this only bounds what a broken main can start. Guests on their way out
         * count here and may not count there. */
        .guest_max = 2 * (unsigned)setup->config->node_max_sandboxes + 8,
    };
    struct error err = ERROR_INIT;
    sigset_t chld;

    keeper.out_tail = &keeper.out_head;
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
