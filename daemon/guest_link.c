/*
 * A guest's life as main sees it, called by sandbox.c:
 *
 *   STARTING  KEEPER_START was sent            timer: guest.provision_timeout, from here to READY
 *   GREETING  its socket is here, HELLO awaited
 *   SETTING   SETUP was sent, READY awaited
 *   RESYNCING it was a former main's, and RESYNC is under way   timer: guest.heartbeat_timeout
 *   READY     executions run                   timer: heartbeat
 *   CLOSED    its socket ended by itself; KEEPER_ENDED should follow   timer: CLOSED_MS
 *   ENDING    KEEPER_END was or will be sent   timer: ask again
 *   GONE      nothing is left of it
 *
 * Why it ended, for a row that does not know it already (sandbox_end keeps a stop's own reason):
 *   main ended it (this one or a former; the    what it ended it for
 *   keeper keeps the reason), or it broke the
 *   protocol
 *   more OOM kills in its cgroup than it       oom   (a guest that lives through an OOM kill of one
 *   was seen alive with, status not 0                of its processes does not end by that)
 *   not ready yet                              provision_failed
 *   status 0 to 127, not 2: PID 1's own        guest_exit
 *   else                                       guest_crash  (the sentry's 2, runsc's 128, 137 of a
 *                                                           kill, unknown)
 *
 * Must stay true: on_ended comes once, after the keeper said that the guest is gone (or never was).
 */
#include "daemon/guest_link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "daemon/keeper_link.h"

/* `runsc run` returns some 10 ms after its guest's end; a loaded machine gets this long. */
#define CLOSED_MS 5000
/* The keeper needs about a second at worst to clear a guest away. */
#define ASK_AGAIN_MS 30000
#define UMASK 0022
/* Go's runtime ends its program with this when it panics or cannot go on, as without a thread. It
 * cannot be told from a PID 1 that exits with it, which paddock-init never does. */
#define SENTRY_CRASH_STATUS 2

enum guest_state { STARTING, GREETING, SETTING, RESYNCING, READY, CLOSED, ENDING, GONE };

struct guest_link {
    struct daemon *d;
    void *rx;
    char id[ID_SIZE];
    uint32_t pids;
    struct buf env; /* until SETUP took it */
    const struct guest_link_handler *handler;
    void *arg;
    enum guest_state state;
    bool is_started; /* KEEPER_STARTED came; KEEPER_ENDED will */
    bool was_ready;
    char asked[KEEPER_REASON_MAX]; /* why we end it; "" while we do not */
    struct channel *channel;
    struct loop_timer *timer; /* by state */
    int64_t ping_ms;          /* the last PING's time */
    uint64_t cpu_us;          /* as the keeper measured it last, like the next */
    uint32_t oom_kills;
};

static const char *state_name(enum guest_state state)
{
    static const char *const names[] = {
        [STARTING] = "starting",   [GREETING] = "greeting", [SETTING] = "setting",
        [RESYNCING] = "resyncing", [READY] = "ready",       [CLOSED] = "closed",
        [ENDING] = "ending",       [GONE] = "gone",
    };

    return names[state];
}

static bool may_become(enum guest_state from, enum guest_state to)
{
    static const unsigned allowed[] = {
        [STARTING] = 1u << GREETING | 1u << ENDING | 1u << GONE,
        [GREETING] = 1u << SETTING | 1u << CLOSED | 1u << ENDING | 1u << GONE,
        [SETTING] = 1u << READY | 1u << CLOSED | 1u << ENDING | 1u << GONE,
        [RESYNCING] = 1u << READY | 1u << CLOSED | 1u << ENDING | 1u << GONE,
        [READY] = 1u << CLOSED | 1u << ENDING | 1u << GONE,
        [CLOSED] = 1u << ENDING | 1u << GONE,
        [ENDING] = 1u << GONE,
        [GONE] = 0,
    };

    return allowed[from] & 1u << to;
}

/* The one place where the state changes. False: not from here. */
static bool advance(struct guest_link *guest, enum guest_state to)
{
    if (!may_become(guest->state, to))
        return false;
    log_debug(&guest->d->log, "guest_state", "id=%s from=%s to=%s", guest->id,
              state_name(guest->state), state_name(to));
    guest->state = to;
    return true;
}

static void arm(struct guest_link *guest, int64_t delay_ms)
{
    if (loop_timer_arm(guest->timer, delay_ms) < 0)
        log_fail(&guest->d->log, "no_timer", "id=%s", guest->id);
}

static void drop_channel(struct guest_link *guest)
{
    channel_free(steal_ptr(guest->channel));
}

/* --- the end ------------------------------------------------------------------------------- */

static void ask_keeper(struct guest_link *guest)
{
    struct keeper_request request = {.op = KEEPER_END};
    struct error err = ERROR_INIT;

    memcpy(request.id, guest->id, ID_SIZE);
    (void)snprintf(request.reason, sizeof(request.reason), "%s", guest->asked);
    /* If the keeper is gone so is the guest, and the daemon on its way out. */
    if (guest->is_started && keeper_link_send(guest->d->keeper, &request, &err) < 0)
        log_error_value(&guest->d->log, LOG_WARN, "keeper_not_asked", &err);
    arm(guest, ASK_AGAIN_MS);
}

void guest_link_end(struct guest_link *guest, const char *reason)
{
    if (!advance(guest, ENDING))
        return;
    (void)snprintf(guest->asked, sizeof(guest->asked), "%s", reason);
    ask_keeper(guest);
    drop_channel(guest);
}

/* asked: why main ended it; "" when it did not, or a former main did. */
static const char *end_reason(const char *asked, bool was_ready, uint32_t oom_kills,
                              const struct keeper_report *report)
{
    if (asked[0] == '\0')
        asked = report->reason;
    if (asked[0] != '\0' && (report->killed || strcmp(asked, "relay_protocol") == 0))
        return asked;
    if (report->oom_kills > oom_kills && report->exit_status != 0)
        return "oom";
    if (asked[0] != '\0')
        return asked;
    if (!was_ready)
        return "provision_failed";
    return report->exit_status >= 0 && report->exit_status < 128 &&
                   report->exit_status != SENTRY_CRASH_STATUS
               ? "guest_exit"
               : "guest_crash";
}

const char *guest_link_reason(const struct keeper_report *report)
{
    return end_reason("", true, 0, report);
}

static void gone(struct guest_link *guest, const char *reason)
{
    if (!advance(guest, GONE))
        return;
    loop_timer_disarm(guest->timer);
    drop_channel(guest);
    guest->handler->on_ended(guest->arg, reason);
}

/* --- the channel --------------------------------------------------------------------------- */

static void on_hello(void *arg, uint32_t version)
{
    struct guest_link *guest = arg;
    struct error err = ERROR_INIT;

    if (version != WIRE_VERSION) {
        log_fail(&guest->d->log, "guest_version", "id=%s speaks=%u expected=%u", guest->id,
                 (unsigned)version, WIRE_VERSION);
        guest_link_end(guest, "provision_failed");
        return;
    }
    if (!advance(guest, SETTING))
        return;
    if (channel_setup(guest->channel, guest->pids, UMASK, &guest->env, &err) < 0) {
        log_error_value(&guest->d->log, LOG_ERROR, "guest_setup", &err);
        guest_link_end(guest, "provision_failed");
    }
}

static void on_ready(void *arg)
{
    struct guest_link *guest = arg;

    if (!advance(guest, READY))
        return;
    guest->was_ready = true;
    arm(guest, guest->d->config->guest_heartbeat);
    guest->handler->on_ready(guest->arg);
}

static void on_resynced(void *arg)
{
    on_ready(arg);
}

static void on_pong(void *arg)
{
    struct guest_link *guest = arg;

    log_debug(&guest->d->log, "guest_pong", "id=%s ms=%lld", guest->id,
              (long long)(clock_mono_ms() - guest->ping_ms));
}

static void on_channel_end(void *arg, enum channel_end end, const struct error *err)
{
    struct guest_link *guest = arg;

    if (end == CHANNEL_VIOLATED) {
        log_warn(&guest->d->log, "guest_violation", "id=%s", guest->id);
        log_error_value(&guest->d->log, LOG_WARN, "guest_violation_detail", err);
        guest_link_end(guest, "relay_protocol");
        return;
    }
    if (end == CHANNEL_FOREIGN) {
        log_error_value(&guest->d->log, LOG_ERROR, "guest_version", err);
        guest_link_end(guest, "daemon_restart");
        return;
    }
    if (!advance(guest, CLOSED))
        return;
    drop_channel(guest);
    arm(guest, CLOSED_MS);
}

static const struct channel_handler channel_handler = {
    .on_hello = on_hello,
    .on_ready = on_ready,
    .on_pong = on_pong,
    .on_resynced = on_resynced,
    .on_end = on_channel_end,
};

/* --- time ---------------------------------------------------------------------------------- */

static void heartbeat(struct guest_link *guest)
{
    int64_t every_ms = guest->d->config->guest_heartbeat;
    int64_t now_ms = clock_mono_ms();
    int64_t left_ms;

    if (channel_ping(guest->channel)) {
        guest->ping_ms = now_ms;
        arm(guest, every_ms);
        return;
    }
    left_ms = guest->ping_ms + guest->d->config->guest_heartbeat_timeout - now_ms;
    if (left_ms > 0) {
        arm(guest, left_ms < every_ms ? left_ms : every_ms);
        return;
    }
    log_warn(&guest->d->log, "guest_silent", "id=%s ms=%lld", guest->id,
             (long long)(now_ms - guest->ping_ms));
    guest_link_end(guest, "relay_lost");
}

static void on_timer(void *arg)
{
    struct guest_link *guest = arg;

    switch (guest->state) {
    case STARTING:
    case GREETING:
    case SETTING:
        guest_link_end(guest, "provision_timeout");
        break;
    case READY:
        heartbeat(guest);
        break;
    case RESYNCING:
    case CLOSED:
        guest_link_end(guest, "relay_lost");
        break;
    case ENDING:
        log_warn(&guest->d->log, "guest_still_there", "id=%s", guest->id);
        ask_keeper(guest);
        break;
    case GONE:
        break;
    }
}

/* --- the keeper ---------------------------------------------------------------------------- */

static void on_started(struct guest_link *guest, int fd)
{
    _cleanup_close_ int socket_fd = fd;
    struct error err = ERROR_INIT;

    if (guest->is_started)
        return;
    guest->is_started = true;
    if (guest->state == ENDING) { /* was not sent: the keeper did not have it yet */
        ask_keeper(guest);
        return;
    }
    if (!advance(guest, GREETING))
        return;
    guest->channel = channel_new(guest->d->loop, socket_fd, guest->rx,
                                 (unsigned)guest->d->config->limits_executions_live,
                                 &channel_handler, guest, &err);
    if (guest->channel) {
        steal_fd(&socket_fd);
        return;
    }
    log_error_value(&guest->d->log, LOG_ERROR, "guest_channel", &err);
    guest_link_end(guest, "provision_failed");
}

static void on_keeper_ended(struct guest_link *guest, const struct keeper_report *report)
{
    log_info(&guest->d->log, "guest_ended",
             "id=%s status=%d oom_kills=%u killed=%u cpu_us=%llu detail=%s", guest->id,
             (int)report->exit_status, (unsigned)report->oom_kills, (unsigned)report->killed,
             (unsigned long long)report->cpu_us, report->text);
    guest->cpu_us = report->cpu_us;
    gone(guest, end_reason(guest->asked, guest->was_ready, guest->oom_kills, report));
}

void guest_link_report(struct guest_link *guest, const struct keeper_report *report, int fd)
{
    if (report->event == KEEPER_STARTED) {
        on_started(guest, fd);
        return;
    }
    if (fd >= 0)
        close(fd);
    if (report->event == KEEPER_REFUSED) {
        log_fail(&guest->d->log, "guest_refused", "id=%s detail=%s", guest->id, report->text);
        gone(guest, guest->asked[0] ? guest->asked : "provision_failed");
    } else if (report->event == KEEPER_ENDED) {
        on_keeper_ended(guest, report);
    } else if (report->event == KEEPER_USAGE && report->cpu_us >= guest->cpu_us) {
        guest->cpu_us = report->cpu_us;
        guest->oom_kills = report->oom_kills;
    }
}

/* --- for the sandbox ----------------------------------------------------------------------- */

struct guest_link *guest_link_new(struct daemon *d, void *rx, const struct keeper_request *start,
                                  struct buf *env, const struct guest_link_handler *handler,
                                  void *arg, struct error *err)
{
    struct guest_link *guest = calloc(1, sizeof(*guest));

    if (!guest) {
        error_set(err, ERR_SYSTEM, "no memory for a guest");
        return NULL;
    }
    *guest = (struct guest_link){
        .d = d, .rx = rx, .pids = start->pids, .handler = handler, .arg = arg, .state = STARTING};
    memcpy(guest->id, start->id, ID_SIZE);
    guest->timer = loop_timer_new(d->loop, on_timer, guest);
    if (!guest->timer || loop_timer_arm(guest->timer, d->config->guest_provision_timeout) < 0) {
        error_set(err, ERR_SYSTEM, "no timer for a guest");
        goto fail;
    }
    if (keeper_link_send(d->keeper, start, err) < 0)
        goto fail;
    guest->env = *env;
    *env = (struct buf)BUF_INIT(0);
    return guest;
fail:
    loop_timer_free(guest->timer);
    free(guest);
    return NULL;
}

struct guest_link *guest_link_take_over(struct daemon *d, void *rx, const char *id, int fd,
                                        uint64_t nonce, const struct guest_link_handler *handler,
                                        void *arg, struct error *err)
{
    _cleanup_close_ int socket_fd = fd;
    struct guest_link *guest = calloc(1, sizeof(*guest));

    if (!guest) {
        error_set(err, ERR_SYSTEM, "no memory for a guest");
        return NULL;
    }
    *guest = (struct guest_link){.d = d,
                                 .rx = rx,
                                 .handler = handler,
                                 .arg = arg,
                                 .state = RESYNCING,
                                 .is_started = true,
                                 .was_ready = true};
    memcpy(guest->id, id, ID_SIZE);
    guest->timer = loop_timer_new(d->loop, on_timer, guest);
    if (!guest->timer || loop_timer_arm(guest->timer, d->config->guest_heartbeat_timeout) < 0) {
        error_set(err, ERR_SYSTEM, "no timer for a guest");
        goto fail;
    }
    guest->channel =
        channel_take_over(d->loop, socket_fd, rx, (unsigned)d->config->limits_executions_live,
                          nonce, &channel_handler, guest, err);
    if (!guest->channel)
        goto fail;
    steal_fd(&socket_fd);
    return guest;
fail:
    loop_timer_free(guest->timer);
    free(guest);
    return NULL;
}

static void destroy(void *ptr)
{
    struct guest_link *guest = ptr;

    buf_free(&guest->env);
    free(guest);
}

void guest_link_free(struct guest_link *guest)
{
    if (!guest)
        return;
    guest->state = GONE;
    loop_timer_free(guest->timer);
    guest->timer = NULL;
    drop_channel(guest);
    loop_defer_free(guest->d->loop, destroy, guest);
}

bool guest_link_is_started(const struct guest_link *guest)
{
    return guest->is_started && guest->state != GONE;
}

struct channel *guest_link_channel(const struct guest_link *guest)
{
    return guest->state == READY ? guest->channel : NULL;
}

uint64_t guest_link_cpu_us(const struct guest_link *guest)
{
    return guest->cpu_us;
}

uint32_t guest_link_oom_kills(const struct guest_link *guest)
{
    return guest->oom_kills;
}

bool guest_link_measure(struct guest_link *guest)
{
    struct keeper_request request = {.op = KEEPER_STATS};
    struct error err = ERROR_INIT;

    memcpy(request.id, guest->id, ID_SIZE);
    return guest->state == READY && keeper_link_send(guest->d->keeper, &request, &err) == 0;
}
