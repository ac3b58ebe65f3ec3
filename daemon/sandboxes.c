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
#include "daemon/execution.h"
#include "daemon/keeper_link.h"
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

static struct channel *on_execution_claimed(void *arg, struct execution *e, bool *ending)
{
    const struct sandboxes *all = arg;
    struct sandbox *s = sandbox_of(all, e);

    *ending = s != NULL;
    return s ? sandbox_begin_execution(s) : NULL;
}

static void on_execution_ended(void *arg, struct execution *e)
{
    struct sandbox *s = sandbox_of(arg, e);

    if (s)
        sandbox_execution_ended(s);
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
    .on_stuck = on_execution_stuck,
    .on_done = on_execution_done,
};

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

void sandboxes_work(struct sandboxes *all, char kind, const char *id)
{
    /* What comes while closing is the next daemon's: it stays queued. */
    if (all->is_closing || !node_is_registered(all->d->node))
        return;
    if (!id_is_valid(id)) {
        log_warn(&all->d->log, "work_malformed", NULL);
        return;
    }
    if (kind == 's')
        sandbox_announced(all, id);
    else if (kind == 'e')
        work_execution(all, id);
}

/* A guest that nobody here asked for. */
static void end_stray(struct daemon *d, const char *id)
{
    struct keeper_request request = {.op = KEEPER_END};
    struct error err = ERROR_INIT;

    memcpy(request.id, id, ID_SIZE);
    if (keeper_link_send(d->keeper, &request, &err) < 0)
        log_error_value(&d->log, LOG_WARN, "keeper_not_asked", &err);
}

void sandboxes_keeper_report(struct daemon *d, const struct keeper_report *report, int fd)
{
    struct sandbox *s = idmap_get(d->sandboxes->by_id, report->id);

    if (s && s->guest) {
        guest_link_report(s->guest, report, fd);
        return;
    }
    if (fd >= 0)
        close(fd);
    log_warn(&d->log, "report_unexpected", "id=%s event=%u", report->id, (unsigned)report->event);
    if (report->event == KEEPER_STARTED)
        end_stray(d, report->id);
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
    }
    if (!all || !all->by_id || !all->executions || !all->rx || !all->empty_timer) {
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

void sandboxes_shutdown(struct sandboxes *all, void (*on_empty)(struct daemon *d))
{
    struct sandbox *s;
    unsigned cursor = 0;

    all->is_closing = true;
    all->on_empty = on_empty;
    while ((s = idmap_next(all->by_id, &cursor)))
        if (sandbox_is_live(s))
            sandbox_stop_guest(s, "daemon_restart");
    sandboxes_check_empty(all);
}

unsigned sandboxes_count(const struct sandboxes *all)
{
    return idmap_count(all->by_id);
}
