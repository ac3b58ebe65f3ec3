/*
 * How a sandbox begins in a guest that a former daemon on this node left alive.
 * Called by sandboxes.c (reports, the start) and sandbox.c.
 *
 *   HELD       the keeper told of it; the node is not registered yet
 *   ADOPTING   its row is being read: one that is ready goes on, any other ends, and so does the
 *              guest; the end is awaited here
 *   RESYNCING  the guest tells its streams, then the unended executions are read
 *
 * From RESYNCING it goes on to READY as if it had never been elsewhere: its deadlines are those of
 * the row, its executions go on.
 *
 * Must stay true: the row decides; nothing is begun here that a former daemon may have begun; and
 * what runs in the guest without a row is killed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/db.h"
#include "common/states.h"
#include "common/text.h"
#include "daemon/keeper_link.h"
#include "daemon/node.h"
#include "daemon/sandbox_internal.h"
#include "daemon/sandbox_row.h"

void sandbox_tell_keeper(struct daemon *d, enum keeper_op op, const char *id, const char *reason)
{
    struct keeper_request request;
    struct error err = ERROR_INIT;

    memset(&request, 0, sizeof(request));
    request.op = op;
    memcpy(request.id, id, ID_SIZE);
    (void)snprintf(request.reason, sizeof(request.reason), "%s", reason);
    if (keeper_link_send(d->keeper, &request, &err) < 0)
        log_error_value(&d->log, LOG_WARN, "keeper_not_asked", &err);
}

bool sandbox_is_taken_over(const struct sandbox *s)
{
    return s->phase == PHASE_HELD || s->phase == PHASE_ADOPTING || s->phase == PHASE_RESYNCING;
}

static void close_held(struct sandbox *s)
{
    if (s->held_fd >= 0)
        close(s->held_fd);
    s->held_fd = -1;
}

/* KEEPER_ENDED follows, and ends the row. */
static void end_held(struct sandbox *s, const char *reason)
{
    close_held(s);
    sandbox_tell_keeper(s->all->d, KEEPER_END, s->id, reason);
}

/* --- reports ------------------------------------------------------------------------------- */

static void on_held_ended(struct sandbox *s, const struct keeper_report *report)
{
    const char *reason = guest_link_reason(report);

    log_info(&s->all->d->log, "guest_ended", "id=%s status=%d oom_kills=%u killed=%u detail=%s",
             s->id, (int)report->exit_status, (unsigned)report->oom_kills, (unsigned)report->killed,
             report->text);
    close_held(s);
    if (s->phase == PHASE_ADOPTING) {
        sandbox_end_row(s, reason);
        return;
    }
    s->is_over = true;
    (void)snprintf(s->end_reason, sizeof(s->end_reason), "%s", reason);
}

bool sandbox_take_report(struct sandboxes *all, const struct keeper_report *report, int fd)
{
    _cleanup_close_ int held = fd;
    struct sandbox *s = idmap_get(all->by_id, report->id);
    bool is_ended = report->event == KEEPER_ENDED;

    if (s && is_ended && (s->phase == PHASE_HELD || s->phase == PHASE_ADOPTING)) {
        on_held_ended(s, report);
        return true;
    }
    if (s || node_is_registered(all->d->node) || all->is_closing ||
        (!is_ended && report->event != KEEPER_HELD)) {
        steal_fd(&held);
        return false;
    }
    s = sandbox_new(all, report->id, PHASE_HELD);
    if (!s) { /* its row is ended at the registration; the guest is a stray then */
        log_fail(&all->d->log, "no_memory", "id=%s", report->id);
        return true;
    }
    s->held_fd = steal_fd(&held);
    if (is_ended)
        on_held_ended(s, report);
    return true;
}

/* --- the row ------------------------------------------------------------------------------- */

static void send_adopt(struct sandbox *s);
static void send_list(struct sandbox *s);

static int take_over(struct sandbox *s, const PGresult *res, struct error *err)
{
    struct sandboxes *all = s->all;
    _cleanup_sandbox_row_ struct sandbox_row row;
    int64_t epoch = 0;

    if (sandbox_row_read(res, 0, all->d->config, &row, err) < 0)
        return -1;
    s->idle_ms = row.deadlines.idle_ms;
    s->idle_left_ms = row.deadlines.idle_in_ms;
    /* No two daemons of a node have the same epoch. */
    if (text_parse_i64(node_epoch_text(all->d->node), 1, INT64_MAX, &epoch) < 0)
        return error_set(err, ERR_INTERNAL, "no epoch");
    s->guest = guest_link_take_over(all->d, all->rx, s->id, s->held_fd, (uint64_t)epoch,
                                    &sandbox_guest_handler, s, err);
    s->held_fd = -1;
    if (!s->guest)
        return -1;
    sandbox_advance(s, PHASE_RESYNCING, NULL);
    sandbox_arm_in(s, s->ttl_timer, row.deadlines.expires_in_ms);
    return 0;
}

static void on_adopt(const PGresult *res, const struct error *err, void *arg)
{
    struct sandbox *s = arg;
    struct sandboxes *all = s->all;
    struct error take_err = ERROR_INIT;
    enum sandbox_state state = SANDBOX_QUEUED;
    const char *name = res && PQntuples(res) > 0 ? db_column(res, 0, "state") : NULL;

    if (s->phase != PHASE_ADOPTING)
        return;
    if (!res) {
        sandbox_retry_later(s, err);
        return;
    }
    if (!name || sandbox_state_parse(name, &state) < 0 || sandbox_state_is_terminal(state) ||
        state == SANDBOX_QUEUED) {
        /* Another node's, deleted, or over: nobody wants this guest. */
        log_warn(&all->d->log, "guest_without_row", "id=%s state=%s", s->id, name ? name : "-");
        end_held(s, "daemon_restart");
        sandbox_remove(s);
        return;
    }
    if (s->held_fd < 0)
        return; /* it is ending already */
    if (state == SANDBOX_STOPPING) {
        end_held(s, db_column(res, 0, "reason"));
        return;
    }
    if (all->is_closing || state == SANDBOX_PROVISIONING) {
        end_held(s, "daemon_restart");
        return;
    }
    if (take_over(s, res, &take_err) < 0) {
        log_error_value(&all->d->log, LOG_ERROR, "guest_not_taken_over", &take_err);
        end_held(s, "daemon_restart");
    } else if (s->look_again) {
        sandbox_announced(all, s->id);
    }
}

static void send_adopt(struct sandbox *s)
{
    struct error err = ERROR_INIT;

    if (sandbox_send(s, STMT_SANDBOX_ADOPT, NULL, NULL, NULL, on_adopt, &err) < 0)
        sandbox_retry_later(s, &err);
}

void sandbox_adopt(struct sandbox *s)
{
    char reason[sizeof(s->end_reason)];

    if (s->phase != PHASE_HELD)
        return;
    if (s->is_over) {
        memcpy(reason, s->end_reason, sizeof(reason)); /* it is written there again */
        sandbox_end_row(s, reason);
        return;
    }
    sandbox_advance(s, PHASE_ADOPTING, NULL);
    send_adopt(s);
}

void sandbox_takeover_stop(struct sandbox *s)
{
    if (s->phase == PHASE_ADOPTING && s->held_fd >= 0)
        end_held(s, "daemon_restart");
    /* Without a registration there is no row to end: the next daemon does. */
    if (s->phase == PHASE_HELD)
        sandbox_remove(s);
}

/* --- the executions ------------------------------------------------------------------------ */

static bool is_ours(void *arg, const uint8_t uuid[WIRE_UUID_SIZE])
{
    const struct sandboxes *all = arg;
    char id[ID_SIZE];

    id_from_bytes(uuid, id);
    return idmap_get(all->executions, id) != NULL;
}

void sandbox_kill_strays(struct sandbox *s)
{
    struct channel *channel = s->guest ? guest_link_channel(s->guest) : NULL;
    unsigned killed = channel ? channel_kill_strays(channel, is_ours, s->all) : 0;

    if (killed > 0)
        log_warn(&s->all->d->log, "executions_without_row", "sandbox=%s killed=%u", s->id, killed);
}

static void on_list(const PGresult *res, const struct error *err, void *arg)
{
    struct sandbox *s = arg;

    if (s->phase != PHASE_RESYNCING)
        return;
    if (!res) {
        sandbox_retry_later(s, err);
        return;
    }
    for (int row = 0; row < PQntuples(res); row++)
        sandboxes_adopt_execution(s->all, s, res, row);
    sandbox_advance(s, PHASE_READY, NULL);
    sandboxes_release_waiting(s->all, s, true);
    /* The first of them may have ended all. */
    if (s->phase != PHASE_READY)
        return;
    sandbox_kill_strays(s);
    /* What the kernel took for want of memory so far was a former daemon's affair. */
    (void)guest_link_measure(s->guest);
    if (s->running == 0)
        sandbox_arm_in(s, s->idle_timer, s->idle_left_ms);
    /* Those that were queued meanwhile. */
    for (int row = 0; row < PQntuples(res); row++) {
        const char *state = db_column(res, row, "state");
        const char *id = db_column(res, row, "id");

        if (id && state && strcmp(state, "queued") == 0)
            sandboxes_work(s->all, 'e', id);
    }
}

static void send_list(struct sandbox *s)
{
    const struct dbq_param params[] = {{.value = s->id}};
    struct error err = ERROR_INIT;

    if (dbq_send(s->all->d->db, STMT_SANDBOX_UNENDED_EXECUTIONS, params, on_list, s, &err) < 0)
        sandbox_retry_later(s, &err);
}

void sandbox_resynced(struct sandbox *s)
{
    send_list(s);
}

void sandbox_takeover_retry(struct sandbox *s)
{
    if (s->phase == PHASE_ADOPTING)
        send_adopt(s);
    else if (s->guest && guest_link_channel(s->guest))
        send_list(s);
}
