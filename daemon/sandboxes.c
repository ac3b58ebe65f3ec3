/*
 * The sandboxes and executions of this node: announced work finds its object
 * here, or makes it; the keeper's reports find their guest. Called by node.c
 * (work) and run.c (reports, shutdown).
 *
 * Must stay true: one id, one object, so announcing twice is harmless.
 */
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/db.h"
#include "daemon/execution.h"
#include "daemon/node.h"
#include "daemon/sandbox_internal.h"

void sandboxes_check_empty(struct sandboxes *all)
{
    if (all->is_closing && idmap_count(all->by_id) == 0 && idmap_count(all->executions) == 0 &&
        loop_timer_arm(all->empty_timer, 0) < 0)
        log_fail(&all->d->log, "no_timer", NULL);
}

/* --- executions ---------------------------------------------------------------------------- */

static struct sandbox *sandbox_of(const struct sandboxes *all, const struct execution *e)
{
    return idmap_get(all->by_id, execution_sandbox_id(e));
}

static enum execution_place on_execution_claimed(void *arg, struct execution *e,
                                                 struct channel **channel)
{
    const struct sandboxes *all = arg;
    struct sandbox *s = sandbox_of(all, e);

    if (!s)
        return PLACE_NONE;
    if (sandbox_is_taken_over(s))
        return PLACE_LATER;
    *channel = sandbox_begin_execution(s);
    return *channel ? PLACE_READY : PLACE_ENDING;
}

static void on_execution_ended(void *arg, struct execution *e)
{
    struct sandbox *s = sandbox_of(arg, e);

    if (s)
        sandbox_execution_ended(s);
}

static bool on_execution_failed(void *arg, struct execution *e)
{
    const struct sandbox *s = sandbox_of(arg, e);

    return s && s->guest && guest_link_measure(s->guest);
}

static void on_execution_stuck(void *arg, struct execution *e)
{
    struct sandbox *s = sandbox_of(arg, e);

    if (s)
        sandbox_stop_guest(s, "relay_lost");
}

static void on_execution_done(void *arg, struct execution *e, bool terminate)
{
    struct sandboxes *all = arg;
    struct sandbox *s = sandbox_of(all, e);

    idmap_remove(all->executions, execution_id(e));
    execution_free(e);
    if (s && terminate)
        sandbox_want_stop(s, STOP_EXECUTION);
    sandboxes_check_empty(all);
}

static const struct execution_handler execution_handler = {
    .on_claimed = on_execution_claimed,
    .on_ended = on_execution_ended,
    .on_failed = on_execution_failed,
    .on_stuck = on_execution_stuck,
    .on_done = on_execution_done,
};

/* --- executions of a sandbox that is taken over ---------------------------------------------- */

void sandboxes_adopt_execution(struct sandboxes *all, const struct sandbox *s, const PGresult *res,
                               int row)
{
    const char *id = db_column(res, row, "id");
    const char *state = db_column(res, row, "state");
    struct channel_found found;
    uint8_t uuid[WIRE_UUID_SIZE];
    struct error err = ERROR_INIT;
    struct execution *e;

    if (!id || !state || !id_is_valid(id))
        return;
    e = idmap_get(all->executions, id);
    if (e && execution_is_another_ones(e))
        execution_learn(e, s->id, res, row); /* it was announced meanwhile */
    if (e)
        return; /* or this daemon claimed it */
    id_to_bytes(id, uuid);
    /* One that is queued and begun: the database lost the claim in a crash of its own. */
    if (strcmp(state, "queued") == 0 && !channel_find(guest_link_channel(s->guest), uuid, &found))
        return;
    if (idmap_put(all->executions, id, all) < 0) {
        log_fail(&all->d->log, "no_memory", "id=%s", id);
        return;
    }
    e = execution_adopt(all->d, s->id, res, row, &execution_handler, all, &err);
    if (e) {
        idmap_put(all->executions, id, e);
        return;
    }
    log_error_value(&all->d->log, LOG_ERROR, "execution_not_adopted", &err);
    idmap_remove(all->executions, id);
}

void sandboxes_release_waiting(struct sandboxes *all, const struct sandbox *s, bool resume)
{
    struct execution *e;
    unsigned cursor = 0;

    while ((e = idmap_next(all->executions, &cursor)))
        if (execution_is_waiting(e) && strcmp(execution_sandbox_id(e), s->id) == 0) {
            if (resume)
                execution_resume(e);
            else
                execution_drop(e);
        }
}

/* --- work ---------------------------------------------------------------------------------- */

static void work_execution(struct sandboxes *all, const char *id)
{
    struct execution *e = idmap_get(all->executions, id);
    struct error err = ERROR_INIT;

    if (e) {
        execution_announced(e);
        return;
    }
    /* Its place in the table first (any value): a claim must never be sent for what has none. */
    if (idmap_put(all->executions, id, all) < 0) {
        log_fail(&all->d->log, "no_memory", "id=%s", id);
        return;
    }
    e = execution_new(all->d, id, &execution_handler, all, &err);
    if (e) {
        idmap_put(all->executions, id, e);
        return;
    }
    log_error_value(&all->d->log, LOG_WARN, "execution_not_claimed", &err);
    idmap_remove(all->executions, id);
}

/* One that is not held is looked at: whoever waits for it is told of its end. */
static void cancel_execution(struct sandboxes *all, const char *id)
{
    struct execution *e = idmap_get(all->executions, id);

    if (e)
        execution_cancel(e);
    else
        work_execution(all, id);
}

void sandboxes_work(struct sandboxes *all, char kind, const char *id)
{
    /* What comes while closing is the next daemon's: it stays queued. */
    if (all->is_closing || all->is_leaving || !node_is_registered(all->d->node))
        return;
    if (!id_is_valid(id)) {
        log_warn(&all->d->log, "work_malformed", NULL);
        return;
    }
    if (kind == 's')
        sandbox_announced(all, id);
    else if (kind == 'e')
        work_execution(all, id);
    else if (kind == 'c')
        cancel_execution(all, id);
}

/* A guest that nobody here asked for, or an end that nobody waits for. */
static void on_stray_report(struct daemon *d, const struct keeper_report *report)
{
    log_warn(&d->log, "report_unexpected", "id=%s event=%u", report->id, (unsigned)report->event);
    if (report->event == KEEPER_STARTED || report->event == KEEPER_HELD)
        sandbox_tell_keeper(d, KEEPER_END, report->id, "daemon_restart");
    else if (report->event == KEEPER_ENDED && !idmap_get(d->sandboxes->by_id, report->id))
        sandbox_tell_keeper(d, KEEPER_FORGET, report->id, "");
}

/* --- what the keeper holds ------------------------------------------------------------------- */

static void on_listed(struct sandboxes *all, const struct keeper_report *report)
{
    struct sandbox *s = idmap_get(all->by_id, report->id);
    struct keeper_report stray = *report;

    stray.event = KEEPER_HELD;
    if (s)
        s->listed = true;
    else if (!report->ending)
        on_stray_report(all->d, &stray);
}

/* What main believes to be there and is not: the keeper would have told its end before this. */
static void on_list_end(struct sandboxes *all)
{
    struct keeper_report gone = {.event = KEEPER_ENDED, .exit_status = -1, .text = "not listed"};
    struct sandbox *s;
    unsigned cursor = 0;

    all->is_listing = false;
    while ((s = idmap_next(all->by_id, &cursor))) {
        if (s->listed || !s->guest || !guest_link_is_started(s->guest))
            continue;
        log_fail(&all->d->log, "guest_missing", "id=%s", s->id);
        memcpy(gone.id, s->id, ID_SIZE);
        guest_link_report(s->guest, &gone, -1);
    }
}

void sandboxes_reconcile_guests(struct sandboxes *all)
{
    struct sandbox *s;
    unsigned cursor = 0;
    char any[ID_SIZE];

    if (all->is_listing || all->is_closing || all->is_leaving)
        return;
    while ((s = idmap_next(all->by_id, &cursor))) {
        s->listed = false;
        sandbox_kill_strays(s);
    }
    all->is_listing = true;
    id_new(any);
    sandbox_tell_keeper(all->d, KEEPER_LIST, any, "");
}

void sandboxes_measured(struct sandboxes *all, const char *sandbox_id, bool oom_killed)
{
    unsigned cursor = 0;
    struct execution *e;

    while ((e = idmap_next(all->executions, &cursor)))
        if (execution_is_measured(e) && strcmp(execution_sandbox_id(e), sandbox_id) == 0) {
            execution_measured(e, oom_killed);
            oom_killed = false;
        }
}

static void on_usage(struct sandboxes *all, struct sandbox *s, const struct keeper_report *report)
{
    uint32_t known = s && s->guest ? guest_link_oom_kills(s->guest) : UINT32_MAX;

    if (s && s->guest) {
        guest_link_report(s->guest, report, -1);
        usage_measured(&s->sample, guest_link_cpu_us(s->guest));
    }
    sandboxes_measured(all, report->id, report->oom_kills > known);
}

void sandboxes_keeper_report(struct daemon *d, const struct keeper_report *report, int fd)
{
    struct sandboxes *all = d->sandboxes;
    struct sandbox *s;

    switch (report->event) {
    case KEEPER_ATTACHED:
        if (all->on_attached)
            steal_ptr(all->on_attached)(d);
        return;
    case KEEPER_LISTED:
        on_listed(all, report);
        return;
    case KEEPER_LIST_END:
        on_list_end(all);
        return;
    default:
        break;
    }
    s = idmap_get(all->by_id, report->id);
    if (report->event == KEEPER_USAGE) {
        on_usage(all, s, report); /* comes without a descriptor */
        return;
    }
    if (s && s->guest) {
        guest_link_report(s->guest, report, fd);
        return;
    }
    if (sandbox_take_report(all, report, fd))
        return;
    if (fd >= 0)
        close(fd);
    on_stray_report(d, report);
}

/* --- the start ------------------------------------------------------------------------------- */

void sandboxes_when_attached(struct sandboxes *all, void (*on_attached)(struct daemon *d))
{
    all->on_attached = on_attached;
}

int sandboxes_list_held(const struct sandboxes *all, struct buf *out)
{
    const struct sandbox *s;
    unsigned cursor = 0;
    const char *separator = "{";

    while ((s = idmap_next(all->by_id, &cursor)))
        if (s->phase == PHASE_HELD) {
            buf_append_str(out, separator);
            buf_append_str(out, s->id);
            separator = ",";
        }
    buf_append_str(out, separator[0] == '{' ? "{}" : "}");
    return out->overflowed ? -1 : 0;
}

void sandboxes_adopt_held(struct sandboxes *all)
{
    struct sandbox *s;
    unsigned cursor = 0;

    while ((s = idmap_next(all->by_id, &cursor)))
        sandbox_adopt(s);
}

/* A row that this node claimed: should nobody here know of it, it is looked into. */
void sandboxes_claimed(struct sandboxes *all, char kind, const char *id, const char *sandbox_id)
{
    const struct sandbox *s = idmap_get(all->by_id, sandbox_id);

    if (all->is_closing || all->is_leaving)
        return;
    if (kind == 's' && !s) {
        log_warn(&all->d->log, "row_without_guest", "id=%s", id);
        sandbox_announced(all, id);
    } else if (kind == 'e' && s && s->phase == PHASE_READY && !idmap_get(all->executions, id)) {
        log_warn(&all->d->log, "row_without_stream", "id=%s sandbox=%s", id, sandbox_id);
        work_execution(all, id);
    }
}

/* --- all ----------------------------------------------------------------------------------- */

static void on_empty_timer(void *arg)
{
    struct sandboxes *all = arg;
    void (*on_empty)(struct daemon *d) = steal_ptr(all->on_empty);

    if (on_empty)
        on_empty(all->d);
}

struct sandboxes *sandboxes_new(struct daemon *d, struct error *err)
{
    struct sandboxes *all = calloc(1, sizeof(*all));

    if (all) {
        all->d = d;
        all->by_id = idmap_new();
        all->executions = idmap_new();
        all->rx = malloc(WIRE_FRAME_MAX);
        all->empty_timer = loop_timer_new(d->loop, on_empty_timer, all);
        all->usage = usage_new(all);
    }
    if (!all || !all->by_id || !all->executions || !all->rx || !all->empty_timer || !all->usage) {
        if (all)
            sandboxes_free(all);
        error_set(err, ERR_SYSTEM, "no memory for the sandboxes");
        return NULL;
    }
    return all;
}

void sandboxes_free(struct sandboxes *all)
{
    struct execution *e;
    struct sandbox *s;
    unsigned cursor = 0;

    all->is_closing = true;
    all->on_empty = NULL;
    usage_free(all->usage);
    /* With its guest's channel a sandbox ends the executions in there, which frees them. */
    while (all->by_id && (s = idmap_next(all->by_id, &cursor))) {
        idmap_remove(all->by_id, s->id);
        sandbox_free(s);
    }
    cursor = 0;
    while (all->executions && (e = idmap_next(all->executions, &cursor))) {
        idmap_remove(all->executions, execution_id(e));
        execution_free(e);
    }
    loop_timer_free(all->empty_timer);
    idmap_free(all->by_id);
    idmap_free(all->executions);
    free(all->rx);
    free(all);
}

void sandboxes_take_no_work(struct sandboxes *all)
{
    all->is_leaving = true;
}

bool sandboxes_are_settled(const struct sandboxes *all)
{
    const struct execution *e;
    const struct sandbox *s;
    unsigned cursor = 0;

    while ((s = idmap_next(all->by_id, &cursor)))
        if (s->phase == PHASE_CLAIMING || s->phase == PHASE_LOOKING ||
            s->phase == PHASE_PROVISIONING || s->phase == PHASE_READYING ||
            s->phase == PHASE_ENDING)
            return false;
    cursor = 0;
    while ((e = idmap_next(all->executions, &cursor)))
        if (execution_is_unsettled(e))
            return false;
    return true;
}

void sandboxes_shutdown(struct sandboxes *all, void (*on_empty)(struct daemon *d))
{
    struct sandbox *s;
    unsigned cursor = 0;

    all->is_closing = true;
    all->on_empty = on_empty;
    while ((s = idmap_next(all->by_id, &cursor))) {
        if (sandbox_is_live(s))
            sandbox_stop_guest(s, "daemon_restart");
        else if (sandbox_is_taken_over(s))
            sandbox_takeover_stop(s);
    }
    sandboxes_check_empty(all);
}

unsigned sandboxes_count(const struct sandboxes *all)
{
    return idmap_count(all->by_id);
}
