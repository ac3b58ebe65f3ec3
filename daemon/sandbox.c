/*
 * One sandbox's life: what its row asks for, and what its guest does. Called by
 * sandboxes.c.
 *
 *   CLAIMING      the claim is in flight
 *   LOOKING       it gave no row; the row is read to learn why
 *   PROVISIONING  the guest starts
 *   READYING      the guest is ready, the row is being told
 *   READY         executions run
 *   STOPPING      the guest is being ended
 *   ENDING        there is no guest (any more); the row is being ended
 *   HELD, ADOPTING, RESYNCING: sandbox_takeover.c
 *
 * Must stay true: the object lives until its row is committed as ended (or known to be another
 * daemon's); the row leads: a stop is committed there before the guest is ended for it. Every
 * statement may be repeated, so each is tried until the database takes it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/db.h"
#include "common/states.h"
#include "daemon/answer.h"
#include "daemon/guest_link.h"
#include "daemon/idmap.h"
#include "daemon/node.h"
#include "daemon/sandbox_internal.h"
#include "daemon/sandbox_row.h"

/* After a statement was refused; and while a deadline is not due by the database's clock. */
#define RETRY_FIRST_MS 500
#define RETRY_MAX_MS 30000
/* Timers are for whole milliseconds and may fire within the one before the deadline. */
#define DEADLINE_SLACK_MS 2

static void send_claim(struct sandbox *s);
static void send_ready(struct sandbox *s);
static void send_look(struct sandbox *s);
static void send_stop(struct sandbox *s);
static void send_end(struct sandbox *s);

/* --- phases -------------------------------------------------------------------------------- */

static const char *phase_name(enum sandbox_phase phase)
{
    static const char *const names[] = {
        [PHASE_CLAIMING] = "claiming",
        [PHASE_LOOKING] = "looking",
        [PHASE_PROVISIONING] = "provisioning",
        [PHASE_READYING] = "readying",
        [PHASE_READY] = "ready",
        [PHASE_STOPPING] = "stopping",
        [PHASE_ENDING] = "ending",
        [PHASE_HELD] = "held",
        [PHASE_ADOPTING] = "adopting",
        [PHASE_RESYNCING] = "resyncing",
    };

    return names[phase];
}

static bool may_become(enum sandbox_phase from, enum sandbox_phase to)
{
    static const unsigned allowed[] = {
        [PHASE_CLAIMING] = 1u << PHASE_LOOKING | 1u << PHASE_PROVISIONING | 1u << PHASE_ENDING,
        [PHASE_LOOKING] = 1u << PHASE_ENDING,
        [PHASE_PROVISIONING] = 1u << PHASE_READYING | 1u << PHASE_STOPPING | 1u << PHASE_ENDING,
        [PHASE_READYING] = 1u << PHASE_READY | 1u << PHASE_STOPPING | 1u << PHASE_ENDING,
        [PHASE_READY] = 1u << PHASE_STOPPING | 1u << PHASE_ENDING,
        [PHASE_STOPPING] = 1u << PHASE_ENDING,
        [PHASE_ENDING] = 0,
        [PHASE_HELD] = 1u << PHASE_ADOPTING | 1u << PHASE_ENDING,
        [PHASE_ADOPTING] = 1u << PHASE_RESYNCING | 1u << PHASE_ENDING,
        [PHASE_RESYNCING] = 1u << PHASE_READY | 1u << PHASE_STOPPING | 1u << PHASE_ENDING,
    };

    return allowed[from] & 1u << to;
}

bool sandbox_advance(struct sandbox *s, enum sandbox_phase to, const char *reason)
{
    bool was_taken_over = sandbox_is_taken_over(s);

    if (!may_become(s->phase, to))
        return false;
    log_info(&s->all->d->log, "sandbox_phase", "id=%s from=%s to=%s reason=%s ms=%lld", s->id,
             phase_name(s->phase), phase_name(to), reason ? reason : "-",
             (long long)(clock_mono_ms() - s->born_ms));
    s->phase = to;
    s->retry_ms = 0;
    if (was_taken_over && (to == PHASE_STOPPING || to == PHASE_ENDING))
        sandboxes_release_waiting(s->all, s, false);
    return true;
}

bool sandbox_is_live(const struct sandbox *s)
{
    return s->phase == PHASE_PROVISIONING || s->phase == PHASE_READYING ||
           s->phase == PHASE_READY || s->phase == PHASE_RESYNCING;
}

void sandbox_arm(const struct sandbox *s, struct loop_timer *timer, int64_t delay_ms)
{
    if (loop_timer_arm(timer, delay_ms) < 0)
        log_fail(&s->all->d->log, "no_timer", "id=%s", s->id);
}

static int64_t backoff(int64_t *delay_ms)
{
    *delay_ms = *delay_ms ? *delay_ms * 2 : RETRY_FIRST_MS;
    if (*delay_ms > RETRY_MAX_MS)
        *delay_ms = RETRY_MAX_MS;
    return *delay_ms;
}

void sandbox_retry_later(struct sandbox *s, const struct error *err)
{
    log_error_value(&s->all->d->log, LOG_WARN, "sandbox_statement_refused", err);
    sandbox_arm(s, s->retry_timer, backoff(&s->retry_ms));
}

/* --- the object ---------------------------------------------------------------------------- */

void sandbox_free(struct sandbox *s)
{
    dbq_forget(s->all->d->db, s);
    guest_link_free(s->guest);
    if (s->held_fd >= 0)
        close(s->held_fd);
    loop_timer_free(s->ttl_timer);
    loop_timer_free(s->idle_timer);
    loop_timer_free(s->retry_timer);
    /* The caller of a callback that led here may still look at it. */
    loop_defer_free(s->all->d->loop, free, s);
}

void sandbox_remove(struct sandbox *s)
{
    struct sandboxes *all = s->all;

    if (sandbox_is_taken_over(s))
        sandboxes_release_waiting(all, s, false);
    idmap_remove(all->by_id, s->id);
    sandbox_free(s);
    sandboxes_check_empty(all);
}

/* Ends the guest; its row is ended when it is gone. */
void sandbox_stop_guest(struct sandbox *s, const char *reason)
{
    if (!sandbox_advance(s, PHASE_STOPPING, reason))
        return;
    loop_timer_disarm(s->ttl_timer);
    loop_timer_disarm(s->idle_timer);
    loop_timer_disarm(s->retry_timer);
    guest_link_end(s->guest, reason);
}

void sandbox_end_row(struct sandbox *s, const char *reason)
{
    if (!sandbox_advance(s, PHASE_ENDING, reason))
        return;
    loop_timer_disarm(s->ttl_timer);
    loop_timer_disarm(s->idle_timer);
    loop_timer_disarm(s->retry_timer);
    (void)snprintf(s->end_reason, sizeof(s->end_reason), "%s", reason);
    send_end(s);
}

/* --- deadlines ----------------------------------------------------------------------------- */

void sandbox_arm_in(struct sandbox *s, struct loop_timer *timer, int64_t delay_ms)
{
    if (delay_ms == INT64_MAX)
        loop_timer_disarm(timer);
    else
        sandbox_arm(s, timer, (delay_ms > 0 ? delay_ms : 0) + DEADLINE_SLACK_MS);
}

/* Both as a row tells them, by the database's clock: at first, after a change, and when one that
 * was thought to be over is not. */
static void take_deadlines(struct sandbox *s, const PGresult *res)
{
    struct sandbox_deadlines deadlines;
    struct error err = ERROR_INIT;

    if (sandbox_deadlines_read(res, 0, &deadlines, &err) < 0) {
        log_error_value(&s->all->d->log, LOG_ERROR, "deadlines_not_read", &err);
        return;
    }
    s->idle_ms = deadlines.idle_ms;
    sandbox_arm_in(s, s->ttl_timer, deadlines.expires_in_ms);
    /* Work that the row knows of and this daemon does not is asked for again. */
    if (s->phase == PHASE_READY && s->running == 0)
        sandbox_arm_in(s, s->idle_timer,
                       deadlines.idle_in_ms != INT64_MAX ? deadlines.idle_in_ms
                                                         : deadlines.idle_ms);
}

/* --- the row ------------------------------------------------------------------------------- */

int sandbox_send(struct sandbox *s, enum statement stmt, const char *more1, const char *more2,
                 const char *more3, dbq_result_cb cb, struct error *err)
{
    struct daemon *d = s->all->d;
    const struct dbq_param params[] = {{.value = s->id},
                                       {.value = node_number_text(d->node)},
                                       {.value = node_epoch_text(d->node)},
                                       {.value = more1},
                                       {.value = more2},
                                       {.value = more3}};

    return dbq_send(d->db, stmt, params, cb, s, err);
}

/* The state of a result's row; false when there is none. */
static bool row_state(const PGresult *res, enum sandbox_state *state)
{
    const char *name = PQntuples(res) > 0 ? db_column(res, 0, "state") : NULL;

    return name && sandbox_state_parse(name, state) == 0;
}

static const char *row_reason(const PGresult *res)
{
    const char *reason = db_column(res, 0, "reason");

    return reason ? reason : "-";
}

static void answer_row(struct sandbox *s, const PGresult *res, enum sandbox_state state)
{
    log_info(&s->all->d->log, "sandbox_state", "id=%s state=%s reason=%s ms=%lld", s->id,
             sandbox_state_name(state), row_reason(res), (long long)(clock_mono_ms() - s->born_ms));
    answers_sandbox_row(s->all->d->answers, res, 0);
    if (sandbox_state_is_terminal(state))
        answers_sandbox_ended(s->all->d->answers, s->id);
}

/* A row was read while the guest is or will be alive. True: it may go on. */
static bool may_go_on(struct sandbox *s, const PGresult *res)
{
    enum sandbox_state state;

    if (!row_state(res, &state)) {
        sandbox_stop_guest(s, "daemon_restart"); /* the row was deleted */
        return false;
    }
    if (state == SANDBOX_STOPPING || sandbox_state_is_terminal(state)) {
        answer_row(s, res, state);
        sandbox_stop_guest(s, row_reason(res));
        return false;
    }
    take_deadlines(s, res);
    return true;
}

/* --- claim --------------------------------------------------------------------------------- */

static void on_guest_ready(void *arg)
{
    struct sandbox *s = arg;

    if (s->phase == PHASE_RESYNCING)
        sandbox_resynced(s);
    else if (sandbox_advance(s, PHASE_READYING, NULL))
        send_ready(s);
}

static void on_guest_ended(void *arg, const char *reason)
{
    struct sandbox *s = arg;

    s->cpu_us = guest_link_cpu_us(s->guest);
    /* Before the row's end, which would take those for lost that wait for this. */
    sandboxes_measured(s->all, s->id, strcmp(reason, "oom") == 0);
    guest_link_free(steal_ptr(s->guest));
    if (strcmp(reason, "provision_failed") == 0)
        node_check_room(s->all->d->node);
    sandbox_end_row(s, reason);
}

const struct guest_link_handler sandbox_guest_handler = {
    .on_ready = on_guest_ready,
    .on_ended = on_guest_ended,
};

static int provision(struct sandbox *s, const PGresult *res, struct error *err)
{
    struct sandboxes *all = s->all;
    _cleanup_sandbox_row_ struct sandbox_row row;

    if (sandbox_row_read(res, 0, all->d->config, &row, err) < 0)
        return -1;
    s->idle_ms = row.deadlines.idle_ms;
    s->guest =
        guest_link_new(all->d, all->rx, &row.start, &row.env, &sandbox_guest_handler, s, err);
    if (!s->guest)
        return -1;
    sandbox_advance(s, PHASE_PROVISIONING, NULL);
    sandbox_arm_in(s, s->ttl_timer, row.deadlines.expires_in_ms);
    return 0;
}

static void on_claim(const PGresult *res, const struct error *err, void *arg)
{
    struct sandbox *s = arg;
    struct error provision_err = ERROR_INIT;

    if (!res) {
        /* Still queued; the next scan announces it again. */
        log_error_value(&s->all->d->log, LOG_WARN, "sandbox_not_claimed", err);
        node_scan_soon(s->all->d->node);
        sandbox_remove(s);
        return;
    }
    if (PQntuples(res) == 0) {
        sandbox_advance(s, PHASE_LOOKING, NULL);
        send_look(s);
        return;
    }
    if (s->all->is_closing) {
        sandbox_end_row(s, "daemon_restart");
        return;
    }
    if (provision(s, res, &provision_err) < 0) {
        log_error_value(&s->all->d->log, LOG_ERROR, "sandbox_not_provisioned", &provision_err);
        sandbox_end_row(s, "provision_failed");
        return;
    }
    if (s->look_again)
        send_look(s);
}

static void send_claim(struct sandbox *s)
{
    struct error err = ERROR_INIT;

    if (sandbox_send(s, STMT_SANDBOX_CLAIM, NULL, NULL, NULL, on_claim, &err) < 0) {
        log_error_value(&s->all->d->log, LOG_WARN, "sandbox_not_claimed", &err);
        sandbox_remove(s);
    }
}

/* --- look ---------------------------------------------------------------------------------- */

/* No claim was given and no guest is held. Ours to end are a row in `stopping` (asked for between
 * claim and start by a daemon that held no guest for it) and one that a claim whose answer was lost
 * with its connection left behind. Any other is queued elsewhere, or over. */
static void looked_unheld(struct sandbox *s, const PGresult *res)
{
    enum sandbox_state state;
    const char *node;

    if (!row_state(res, &state)) {
        sandbox_remove(s);
        return;
    }
    node = db_column(res, 0, "node");
    if (sandbox_state_is_terminal(state)) {
        answer_row(s, res, state);
        sandbox_remove(s);
    } else if (state == SANDBOX_QUEUED || !node ||
               strcmp(node, node_number_text(s->all->d->node)) != 0) {
        sandbox_remove(s);
    } else {
        sandbox_end_row(s, state == SANDBOX_PROVISIONING ? "provision_failed" : "daemon_restart");
    }
}

static void on_look(const PGresult *res, const struct error *err, void *arg)
{
    struct sandbox *s = arg;

    s->look_sent = false;
    if (!res) {
        log_error_value(&s->all->d->log, LOG_WARN, "sandbox_not_read", err);
        node_scan_soon(s->all->d->node);
    }
    if (s->phase == PHASE_LOOKING) {
        if (res)
            looked_unheld(s, res);
        else
            sandbox_remove(s); /* the next scan announces it again */
        return;
    }
    if (!sandbox_is_live(s) || (res && !may_go_on(s, res)))
        return;
    if (s->look_again)
        send_look(s);
}

static void send_look(struct sandbox *s)
{
    const struct dbq_param params[] = {{.value = s->id}};
    struct error err = ERROR_INIT;

    if (s->look_sent) {
        s->look_again = true;
        return;
    }
    s->look_again = false;
    s->look_sent = dbq_send(s->all->d->db, STMT_SANDBOX_BY_ID, params, on_look, s, &err) == 0;
    if (s->look_sent)
        return;
    log_error_value(&s->all->d->log, LOG_WARN, "sandbox_not_read", &err);
    if (s->phase == PHASE_LOOKING)
        sandbox_remove(s);
}

/* --- ready --------------------------------------------------------------------------------- */

/* From now: an execution ended. */
void sandbox_arm_idle(struct sandbox *s)
{
    if (s->phase == PHASE_READY && s->running == 0 && guest_link_channel(s->guest))
        sandbox_arm_in(s, s->idle_timer, s->idle_ms);
}

/* Executions that were admitted before the sandbox was ready. */
static void on_queued(const PGresult *res, const struct error *err, void *arg)
{
    struct sandbox *s = arg;

    if (!res) {
        log_error_value(&s->all->d->log, LOG_WARN, "executions_not_read", err);
        node_scan_soon(s->all->d->node); /* which announces them */
        return;
    }
    for (int row = 0; row < PQntuples(res); row++) {
        const char *id = db_column(res, row, "id");

        if (id)
            sandboxes_work(s->all, 'e', id);
    }
}

static void on_set_ready(const PGresult *res, const struct error *err, void *arg)
{
    struct sandbox *s = arg;
    const struct dbq_param params[] = {{.value = s->id}};
    struct error send_err = ERROR_INIT;
    enum sandbox_state state;

    if (s->phase != PHASE_READYING)
        return;
    if (!res) {
        sandbox_retry_later(s, err);
        return;
    }
    if (!may_go_on(s, res))
        return;
    if (!row_state(res, &state) || state != SANDBOX_READY) {
        sandbox_stop_guest(s, "daemon_restart"); /* the node has a new epoch: not ours any more */
        return;
    }
    sandbox_advance(s, PHASE_READY, NULL);
    answer_row(s, res, state);
    take_deadlines(s, res);
    if (dbq_send(s->all->d->db, STMT_SANDBOX_QUEUED_EXECUTIONS, params, on_queued, s, &send_err) <
        0)
        log_error_value(&s->all->d->log, LOG_WARN, "executions_not_read", &send_err);
}

static void send_ready(struct sandbox *s)
{
    struct error err = ERROR_INIT;

    if (sandbox_send(s, STMT_SANDBOX_SET_READY, NULL, NULL, NULL, on_set_ready, &err) < 0)
        sandbox_retry_later(s, &err);
}

/* --- stops that this daemon decides -------------------------------------------------------- */

static const char *stop_reason(enum sandbox_stop stop)
{
    switch (stop) {
    case STOP_EXECUTION:
        return "execution_timeout";
    case STOP_IDLE:
        return "idle";
    case STOP_TTL:
        break;
    }
    return "ttl";
}

static void on_stop(const PGresult *res, const struct error *err, void *arg)
{
    struct sandbox *s = arg;
    enum sandbox_stop stop = s->stop_sent;

    s->stop_sent = 0;
    if (!sandbox_is_live(s))
        return;
    if (!res) {
        sandbox_retry_later(s, err);
        return;
    }
    s->stops_wanted &= ~(unsigned)stop;
    /* Else not due by the database's clock, which is the one that counts: it was renewed, or there
     * is work whose end is not recorded yet, or that was not heard of yet. */
    if (may_go_on(s, res))
        send_stop(s);
}

static void send_stop(struct sandbox *s)
{
    struct error err = ERROR_INIT;
    enum sandbox_stop stop;

    if (!sandbox_is_live(s) || s->stop_sent || !s->stops_wanted)
        return;
    stop = s->stops_wanted & STOP_EXECUTION ? STOP_EXECUTION
           : s->stops_wanted & STOP_TTL     ? STOP_TTL
                                            : STOP_IDLE;
    if (sandbox_send(s, STMT_SANDBOX_STOP, stop_reason(stop), NULL, NULL, on_stop, &err) < 0)
        sandbox_retry_later(s, &err);
    else
        s->stop_sent = stop;
}

void sandbox_want_stop(struct sandbox *s, enum sandbox_stop stop)
{
    if (!sandbox_is_live(s))
        return;
    s->stops_wanted |= stop;
    send_stop(s);
}

static void on_ttl(void *arg)
{
    sandbox_want_stop(arg, STOP_TTL);
}

static void on_active(const PGresult *res, const struct error *err, void *arg)
{
    struct sandbox *s = arg;

    if (!sandbox_is_live(s))
        return;
    if (res) {
        (void)may_go_on(s, res);
        return;
    }
    log_error_value(&s->all->d->log, LOG_WARN, "sandbox_activity_not_recorded", err);
    sandbox_arm_idle(s);
}

/* Work of no execution: a process in the background that uses the CPU. */
static bool was_active(struct sandbox *s)
{
    int64_t age_ms = clock_mono_ms() - s->sample.active_ms;
    struct error err = ERROR_INIT;
    char age[24];

    if (s->sample.active_ms == 0 || age_ms >= s->idle_ms)
        return false;
    (void)snprintf(age, sizeof(age), "%lld", (long long)age_ms);
    if (sandbox_send(s, STMT_SANDBOX_ACTIVE, age, NULL, NULL, on_active, &err) < 0) {
        log_error_value(&s->all->d->log, LOG_WARN, "sandbox_activity_not_recorded", &err);
        sandbox_arm_idle(s);
    }
    return true;
}

static void on_idle(void *arg)
{
    struct sandbox *s = arg;

    if (s->running == 0 && !was_active(s))
        sandbox_want_stop(s, STOP_IDLE);
}

/* --- the row's end ------------------------------------------------------------------------- */

static void on_end(const PGresult *res, const struct error *err, void *arg)
{
    struct sandbox *s = arg;
    enum sandbox_state state;

    if (!res) {
        sandbox_retry_later(s, err);
        return;
    }
    if (!row_state(res, &state))
        log_warn(&s->all->d->log, "sandbox_row_missing", "id=%s", s->id);
    else if (sandbox_state_is_terminal(state))
        answer_row(s, res, state);
    else
        log_fail(&s->all->d->log, "sandbox_row_not_ours", "id=%s state=%s", s->id,
                 sandbox_state_name(state));
    sandbox_tell_keeper(s->all->d, KEEPER_FORGET, s->id, "");
    sandbox_remove(s);
}

static void send_end(struct sandbox *s)
{
    struct error err = ERROR_INIT;
    char cpu_us[24];

    (void)snprintf(cpu_us, sizeof(cpu_us), "%llu", (unsigned long long)s->cpu_us);
    if (sandbox_send(s, STMT_SANDBOX_END, "failed", s->end_reason, cpu_us, on_end, &err) < 0)
        sandbox_retry_later(s, &err);
}

static void on_retry(void *arg)
{
    struct sandbox *s = arg;

    if (s->phase == PHASE_ENDING) {
        send_end(s);
        return;
    }
    if (s->phase == PHASE_ADOPTING || s->phase == PHASE_RESYNCING)
        sandbox_takeover_retry(s);
    if (s->phase == PHASE_READYING)
        send_ready(s);
    send_stop(s);
}

/* --- for sandboxes.c ----------------------------------------------------------------------- */

struct channel *sandbox_begin_execution(struct sandbox *s)
{
    struct channel *channel = s->guest ? guest_link_channel(s->guest) : NULL;

    if (!channel || (s->phase != PHASE_READY && s->phase != PHASE_READYING))
        return NULL;
    s->running++;
    loop_timer_disarm(s->idle_timer);
    s->stops_wanted &= ~(unsigned)STOP_IDLE;
    return channel;
}

void sandbox_execution_ended(struct sandbox *s)
{
    if (s->running == 0)
        return;
    s->running--;
    sandbox_arm_idle(s);
}

struct sandbox *sandbox_new(struct sandboxes *all, const char *id, enum sandbox_phase phase)
{
    struct loop *loop = all->d->loop;
    struct sandbox *s = calloc(1, sizeof(*s));

    if (!s)
        return NULL;
    *s = (struct sandbox){.all = all,
                          .phase = phase,
                          .born_ms = clock_mono_ms(),
                          .idle_ms = INT64_MAX,
                          .held_fd = -1};
    memcpy(s->id, id, ID_SIZE);
    s->ttl_timer = loop_timer_new(loop, on_ttl, s);
    s->idle_timer = loop_timer_new(loop, on_idle, s);
    s->retry_timer = loop_timer_new(loop, on_retry, s);
    if (!s->ttl_timer || !s->idle_timer || !s->retry_timer || idmap_put(all->by_id, id, s) < 0) {
        sandbox_free(s);
        return NULL;
    }
    return s;
}

void sandbox_announced(struct sandboxes *all, const char *id)
{
    struct sandbox *s = idmap_get(all->by_id, id);

    if (s && (s->phase == PHASE_CLAIMING || s->phase == PHASE_LOOKING || s->phase == PHASE_HELD ||
              s->phase == PHASE_ADOPTING)) {
        s->look_again = true;
    } else if (s && sandbox_is_live(s)) {
        send_look(s);
    } else if (!s) {
        s = sandbox_new(all, id, PHASE_CLAIMING);
        if (s)
            send_claim(s);
        else
            log_fail(&all->d->log, "no_memory", "id=%s", id);
    }
}
