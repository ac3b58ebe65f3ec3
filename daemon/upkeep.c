/*
 * Fencing and retention, called by run.c. Both are statements that any number of
 * daemons may send at once: the database lets one work.
 *
 * What must stay true: they share the connection of everything else, so a
 * statement is small (RETENTION_BATCH), and the next follows after a pause.
 */
#include "daemon/upkeep.h"

#include <stdlib.h>
#include <string.h>

#include "common/db.h"
#include "common/retention.h"
#include "daemon/node.h"

/* Between batches while there is more to delete: some thousand rows of each kind a minute. */
#define PAUSE_MS 200

struct upkeep {
    struct daemon *d;
    struct loop_timer *fence_timer;
    struct loop_timer *clean_timer;
    bool fencing; /* each: a statement is on its way */
    bool cleaning;
};

static void arm(struct upkeep *upkeep, struct loop_timer *timer, int64_t delay_ms)
{
    if (loop_timer_arm(timer, delay_ms) < 0)
        log_fail(&upkeep->d->log, "no_timer", NULL);
}

/* A statement of upkeep; while the database is away one waits, not one each time. */
static bool send(struct upkeep *upkeep, enum statement stmt, const struct dbq_param params[],
                 dbq_result_cb cb)
{
    struct error err = ERROR_INIT;

    if (dbq_send(upkeep->d->db, stmt, params, cb, upkeep, &err) == 0)
        return true;
    log_error_value(&upkeep->d->log, LOG_WARN, "upkeep_not_sent", &err);
    return false;
}

/* --- fencing ------------------------------------------------------------------------------- */

static void fenced(const PGresult *res, const struct error *err, void *arg)
{
    struct upkeep *upkeep = arg;
    const char *nodes = res && PQntuples(res) > 0 ? db_column(res, 0, "nodes") : NULL;

    upkeep->fencing = false;
    if (!res)
        log_error_value(&upkeep->d->log, LOG_WARN, "fencing_failed", err);
    else if (nodes && strcmp(nodes, "0") != 0)
        log_warn(&upkeep->d->log, "nodes_fenced", "nodes=%s sandboxes=%s", nodes,
                 db_column(res, 0, "sandboxes"));
}

static void on_fence_timer(void *arg)
{
    struct upkeep *upkeep = arg;
    const struct dbq_param self[] = {{.value = node_number_text(upkeep->d->node)}};

    if (!upkeep->fencing)
        upkeep->fencing = send(upkeep, STMT_NODES_FENCE, self, fenced);
    arm(upkeep, upkeep->fence_timer, upkeep->d->config->daemon_lease);
}

/* --- retention ----------------------------------------------------------------------------- */

static void log_count(struct upkeep *upkeep, const PGresult *res, const char *name)
{
    const char *count = db_column(res, 0, name);

    if (count && strcmp(count, "0") != 0)
        log_info(&upkeep->d->log, "retention", "kind=%s deleted=%s", name, count);
}

static void cleaned(const PGresult *res, const struct error *err, void *arg)
{
    static const char *const kinds[] = {"outputs", "sandboxes", "keys", "audits"};
    struct upkeep *upkeep = arg;
    const char *more = res && PQntuples(res) > 0 ? db_column(res, 0, "more") : NULL;

    upkeep->cleaning = false;
    if (!res)
        log_error_value(&upkeep->d->log, LOG_WARN, "retention_failed", err);
    for (unsigned i = 0; more && i < ARRAY_LEN(kinds); i++)
        log_count(upkeep, res, kinds[i]);
    arm(upkeep, upkeep->clean_timer,
        more && more[0] == 't' ? PAUSE_MS : upkeep->d->config->retention_every);
}

static void on_clean_timer(void *arg)
{
    struct upkeep *upkeep = arg;
    struct dbq_param params[ARRAY_LEN(((struct retention_params *)NULL)->at)] = {{0}};
    struct retention_params ages;

    retention_params_set(&ages, upkeep->d->config);
    for (unsigned i = 0; i < ARRAY_LEN(params); i++)
        params[i].value = ages.at[i];
    /* The next follows when this one is answered. */
    if (!upkeep->cleaning)
        upkeep->cleaning = send(upkeep, STMT_RETENTION_CLEAN, params, cleaned);
    if (!upkeep->cleaning)
        arm(upkeep, upkeep->clean_timer, upkeep->d->config->retention_every);
}

/* --- the object ---------------------------------------------------------------------------- */

void upkeep_free(struct upkeep *upkeep)
{
    if (!upkeep)
        return;
    dbq_forget(upkeep->d->db, upkeep);
    loop_timer_free(upkeep->fence_timer);
    loop_timer_free(upkeep->clean_timer);
    free(upkeep);
}

struct upkeep *upkeep_new(struct daemon *d, struct error *err)
{
    struct upkeep *upkeep = calloc(1, sizeof(*upkeep));

    if (upkeep) {
        upkeep->d = d;
        upkeep->fence_timer = loop_timer_new(d->loop, on_fence_timer, upkeep);
        upkeep->clean_timer = loop_timer_new(d->loop, on_clean_timer, upkeep);
    }
    if (!upkeep || !upkeep->fence_timer || !upkeep->clean_timer) {
        upkeep_free(upkeep);
        error_set(err, ERR_SYSTEM, "out of memory");
        return NULL;
    }
    return upkeep;
}

void upkeep_start(struct upkeep *upkeep)
{
    arm(upkeep, upkeep->fence_timer, 0);
    arm(upkeep, upkeep->clean_timer, 0);
}
