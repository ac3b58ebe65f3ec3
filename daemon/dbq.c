/*
 * The daemon's statements: queued, sent in a pipeline, answered in order. Two
 * connections (dbconn.c), one for statements and one for LISTEN. Called by
 * everything in the daemon that reads or writes a row.
 *
 * What must stay true: every statement has a sync point of its own, so that it
 * is a transaction of its own and a refused one aborts no other; and its outcome
 * is told only once that sync point was passed, when the commit is done. The
 * statements in `sent` are those that libpq has, in the order of the pipeline.
 */
#include "daemon/dbq.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "common/cleanup.h"
#include "common/db.h"
#include "daemon/dbconn.h"

#define QUEUE_MAX 65536
/* Statements on their way at once: enough to keep the server busy, few enough that libpq's copy
 * of their parameters and what is sent again after a loss stay small. */
#define WINDOW 128
#define RETRIES_MAX 3
#define CRASHES_MAX 3
#define UNAVAILABLE_RETRY_MS 2000 /* what clients that wait are told: when to ask again */
#define OWNER_BUCKETS 4096u
/* PGresults without content that libpq may give in a row between two statements; more would mean
 * that it and we disagree on what was sent. */
#define EMPTY_MAX 8

struct item {
    TAILQ_ENTRY(item) entry;
    LIST_ENTRY(item) owner; /* in owners[] while cb is set */
    enum statement stmt;
    dbq_result_cb cb;
    void *arg;
    unsigned retries; /* after a lost race */
    unsigned crashes; /* connections that ended on it */
    bool preparing;   /* sent with its PREPARE, whose result is not in yet */
    bool prepared_now;
    unsigned generation; /* the PREPARE it was sent with or relies on */
    const char *values[STATEMENT_PARAMS_MAX];
    int lengths[STATEMENT_PARAMS_MAX];
    int formats[STATEMENT_PARAMS_MAX];
    char data[];
};

TAILQ_HEAD(item_queue, item);
LIST_HEAD(item_list, item);

struct dbq {
    struct loop *loop;
    const struct log *log;
    struct dbconn_target target;
    struct dbconn *main;
    struct dbconn *listener;
    struct loop_timer *pump;  /* the next turn: send what is queued */
    struct loop_timer *stall; /* while something is sent: did anything come back? */
    bool pump_armed;
    bool stall_armed;
    bool progress;
    bool closing;

    struct item_queue sent;
    struct item_queue waiting;
    unsigned sent_count;
    unsigned count; /* both queues */
    struct item_list owners[OWNER_BUCKETS];

    /* Of the first statement of `sent`. */
    PGresult *result;
    char sqlstate[6];                /* of its first error; "" for none */
    bool prepared[STMT_COUNT];       /* or on its way to be */
    unsigned generation[STMT_COUNT]; /* PREPAREs sent */
    bool farewell; /* the server said that it ends the connection of its own accord */

    char channel[64];
    bool listening;
    dbq_notify_cb on_notify;
    dbq_ready_cb on_ready;
    void *listen_arg;
    void (*on_idle)(void *arg);
    void *idle_arg;
};

static void main_up(void *arg);
static void main_event(unsigned events, void *arg);
static void main_down(void *arg);
static void main_notice(const PGresult *notice, void *arg);
static void listener_up(void *arg);
static void listener_event(unsigned events, void *arg);
static void listener_down(void *arg);
static void listener_notice(const PGresult *notice, void *arg);
static void pump_fired(void *arg);
static void stall_fired(void *arg);

static const struct dbconn_handlers main_handlers = {main_up, main_event, main_down, main_notice};
static const struct dbconn_handlers listener_handlers = {listener_up, listener_event, listener_down,
                                                         listener_notice};

/* Life ------------------------------------------------------------------------------- */

struct dbq *dbq_new(struct loop *loop, const struct log *log, const char *conninfo,
                    struct error *err)
{
    struct dbq *dbq = calloc(1, sizeof(*dbq));
    if (!dbq) {
        error_set(err, ERR_SYSTEM, "out of memory");
        return NULL;
    }
    dbq->loop = loop;
    dbq->log = log;
    TAILQ_INIT(&dbq->sent);
    TAILQ_INIT(&dbq->waiting);
    if (dbconn_target_init(&dbq->target, conninfo, log, err) < 0) {
        free(dbq);
        return NULL;
    }
    dbq->main = dbconn_new(loop, log, "statements", &dbq->target, &main_handlers, dbq, err);
    dbq->listener = dbconn_new(loop, log, "listen", &dbq->target, &listener_handlers, dbq, err);
    dbq->pump = loop_timer_new(loop, pump_fired, dbq);
    dbq->stall = loop_timer_new(loop, stall_fired, dbq);
    if (!dbq->main || !dbq->listener || !dbq->pump || !dbq->stall) {
        dbq_free(dbq);
        error_set(err, ERR_SYSTEM, "out of memory");
        return NULL;
    }
    return dbq;
}

static void forget_owner(struct item *item)
{
    if (!item->cb)
        return;
    LIST_REMOVE(item, owner);
    item->cb = NULL;
}

/* Takes the item, which is in neither queue any more, and tells its outcome. */
static void settle(struct dbq *dbq, struct item *item, const PGresult *res, const struct error *err)
{
    dbq_result_cb cb = item->cb;
    void *arg = item->arg;
    forget_owner(item);
    free(item);
    dbq->count--;
    if (cb)
        cb(res, err, arg);
}

static void settle_all(struct dbq *dbq, struct item_queue *queue)
{
    struct error err = ERROR_INIT;
    struct item *item;
    error_set(&err, ERR_DATABASE_UNAVAILABLE, "the daemon is stopping");
    while ((item = TAILQ_FIRST(queue))) {
        TAILQ_REMOVE(queue, item, entry);
        settle(dbq, item, NULL, &err);
    }
}

void dbq_free(struct dbq *dbq)
{
    if (!dbq)
        return;
    dbq->closing = true;
    dbconn_free(dbq->main);
    dbconn_free(dbq->listener);
    settle_all(dbq, &dbq->sent);
    settle_all(dbq, &dbq->waiting);
    PQclear(dbq->result);
    loop_timer_free(dbq->pump);
    loop_timer_free(dbq->stall);
    dbconn_target_release(&dbq->target);
    free(dbq);
}

void dbq_set_timeouts(struct dbq *dbq, int64_t connect_ms, int64_t statement_ms)
{
    dbq->target.connect_timeout_ms = connect_ms;
    dbq->target.statement_timeout_ms = statement_ms;
}

void dbq_listen(struct dbq *dbq, const char *channel, dbq_notify_cb on_notify,
                dbq_ready_cb on_ready, void *arg)
{
    (void)snprintf(dbq->channel, sizeof(dbq->channel), "%s", channel);
    dbq->on_notify = on_notify;
    dbq->on_ready = on_ready;
    dbq->listen_arg = arg;
}

void dbq_start(struct dbq *dbq)
{
    dbconn_start(dbq->main);
    if (dbq->channel[0])
        dbconn_start(dbq->listener);
}

bool dbq_is_connected(const struct dbq *dbq)
{
    return dbconn_pg(dbq->main) != NULL;
}

static void wake(struct dbq *dbq)
{
    if (!dbq->pump_armed)
        dbq->pump_armed = loop_timer_arm(dbq->pump, 0) == 0;
}

void dbq_when_idle(struct dbq *dbq, void (*cb)(void *arg), void *arg)
{
    dbq->on_idle = cb;
    dbq->idle_arg = arg;
    wake(dbq);
}

static void check_ready(struct dbq *dbq)
{
    if (dbq->on_ready && dbq->listening && dbq_is_connected(dbq))
        dbq->on_ready(dbq->listen_arg);
}

/* Queueing --------------------------------------------------------------------------- */

static struct item_list *owners_of(struct dbq *dbq, const void *arg)
{
    /* Fibonacci hashing: the low bits of a pointer say little. */
    uint64_t hash = (uint64_t)(uintptr_t)arg * UINT64_C(0x9E3779B97F4A7C15);
    return &dbq->owners[hash >> 52]; /* the top 12 bits: OWNER_BUCKETS */
}

/* Bytes to copy for a parameter, or -1 when libpq could not count them. */
static int64_t param_size(const struct dbq_param *param)
{
    if (!param->value)
        return 0;
    size_t size = param->binary ? param->len : strlen(param->value) + 1;
    return size <= INT_MAX / 2 ? (int64_t)size : -1;
}

static struct item *item_new(enum statement stmt, const struct dbq_param params[],
                             struct error *err)
{
    int n = statement_params(stmt);
    int64_t total = 0;
    for (int i = 0; i < n; i++) {
        int64_t size = param_size(&params[i]);
        total += size;
        /* One message of the protocol holds a statement's parameters, its length is signed. */
        if (size < 0 || total > INT_MAX / 2) {
            error_set(err, ERR_TOO_LARGE, "%s: parameters too large", statement_name(stmt));
            return NULL;
        }
    }
    struct item *item = calloc(1, sizeof(*item) + (size_t)total);
    if (!item) {
        error_set(err, ERR_DATABASE_UNAVAILABLE, "out of memory");
        return NULL;
    }
    item->stmt = stmt;
    char *at = item->data;
    for (int i = 0; i < n; i++) {
        size_t size = (size_t)param_size(&params[i]);
        if (!params[i].value)
            continue;
        if (size > 0)
            memcpy(at, params[i].value, size);
        item->values[i] = at;
        item->lengths[i] = (int)size;
        item->formats[i] = params[i].binary;
        at += size;
    }
    return item;
}

int dbq_send(struct dbq *dbq, enum statement stmt, const struct dbq_param params[],
             dbq_result_cb cb, void *arg, struct error *err)
{
    if (dbq->closing)
        return error_set(err, ERR_DATABASE_UNAVAILABLE, "the daemon is stopping");
    if (dbq->count >= QUEUE_MAX)
        return error_set(err, ERR_DATABASE_UNAVAILABLE, "too many statements wait");
    struct item *item = item_new(stmt, params, err);
    if (!item)
        return -1;
    item->arg = arg;
    item->cb = cb;
    if (cb)
        LIST_INSERT_HEAD(owners_of(dbq, arg), item, owner);
    TAILQ_INSERT_TAIL(&dbq->waiting, item, entry);
    dbq->count++;
    wake(dbq);
    return 0;
}

void dbq_forget(struct dbq *dbq, const void *arg)
{
    struct item *item = LIST_FIRST(owners_of(dbq, arg));
    while (item) {
        struct item *next = LIST_NEXT(item, owner);
        if (item->arg == arg)
            forget_owner(item);
        item = next;
    }
}

/* Losing the connection -------------------------------------------------------------- */

/* Everything unanswered waits again, in the old order. */
static void main_down(void *arg)
{
    struct dbq *dbq = arg;
    PQclear(steal_ptr(dbq->result));
    dbq->sqlstate[0] = '\0';
    dbq->farewell = false;
    memset(dbq->prepared, 0, sizeof(dbq->prepared));
    TAILQ_CONCAT(&dbq->sent, &dbq->waiting, entry);
    TAILQ_CONCAT(&dbq->waiting, &dbq->sent, entry);
    dbq->sent_count = 0;
    loop_timer_disarm(dbq->stall);
    dbq->stall_armed = false;
}

/* The connection is of no use any more. With `blame`, the statement that was running counts as a
 * suspect, unless the server said why it left: after CRASHES_MAX it is refused, so that it
 * cannot keep every other one from running. */
static void lose(struct dbq *dbq, bool blame, const char *why)
{
    struct item *suspect = blame && !dbq->farewell ? TAILQ_FIRST(&dbq->sent) : NULL;
    dbconn_drop(dbq->main, why); /* main_down */
    if (!suspect || ++suspect->crashes < CRASHES_MAX)
        return;
    struct error err = ERROR_INIT;
    error_set(&err, ERR_INTERNAL, "%s: the connection was lost %d times while it ran",
              statement_name(suspect->stmt), CRASHES_MAX);
    log_error_value(dbq->log, LOG_ERROR, "statement_refused", &err);
    TAILQ_REMOVE(&dbq->waiting, suspect, entry);
    settle(dbq, suspect, NULL, &err);
    wake(dbq);
}

static void stall_fired(void *arg)
{
    struct dbq *dbq = arg;
    dbq->stall_armed = false;
    if (dbq->sent_count == 0)
        return;
    if (!dbq->progress) {
        lose(dbq, true, "the server does not answer");
        return;
    }
    dbq->progress = false;
    dbq->stall_armed = loop_timer_arm(dbq->stall, dbq->target.statement_timeout_ms +
                                                      dbq->target.connect_timeout_ms) == 0;
}

/* Sending ---------------------------------------------------------------------------- */

static int send_item(struct dbq *dbq, PGconn *pg, struct item *item)
{
    const char *name = statement_name(item->stmt);
    item->preparing = item->prepared_now = !dbq->prepared[item->stmt];
    if (item->preparing) {
        if (PQsendPrepare(pg, name, statement_text(item->stmt), 0, NULL) != 1)
            return -1;
        /* Those behind it in the pipeline rely on it, and try again if it is refused (judge). */
        dbq->prepared[item->stmt] = true;
        dbq->generation[item->stmt]++;
    }
    item->generation = dbq->generation[item->stmt];
    if (PQsendQueryPrepared(pg, name, statement_params(item->stmt), item->values, item->lengths,
                            item->formats, 0) != 1)
        return -1;
    return PQpipelineSync(pg) == 1 ? 0 : -1;
}

/* A suspect travels alone, so that it is known what the next loss was about. */
static bool may_send(const struct dbq *dbq, const struct item *item)
{
    const struct item *first = TAILQ_FIRST(&dbq->sent);
    return !first || (dbq->sent_count < WINDOW && item->crashes == 0 && first->crashes == 0);
}

static void send_waiting(struct dbq *dbq, PGconn *pg)
{
    struct item *item;
    while ((item = TAILQ_FIRST(&dbq->waiting)) && may_send(dbq, item)) {
        int rc = send_item(dbq, pg, item);
        TAILQ_REMOVE(&dbq->waiting, item, entry);
        TAILQ_INSERT_TAIL(&dbq->sent, item, entry);
        dbq->sent_count++;
        if (rc < 0) {
            /* Out of memory, or the socket is dead: the one is its fault when it is alone. */
            lose(dbq, dbq->sent_count == 1 && PQstatus(pg) == CONNECTION_OK, PQerrorMessage(pg));
            return;
        }
    }
    if (dbconn_flush(dbq->main) < 0) {
        lose(dbq, false, "the connection could not be watched");
        return;
    }
    if (dbq->sent_count > 0 && !dbq->stall_armed) {
        dbq->progress = true;
        dbq->stall_armed = loop_timer_arm(dbq->stall, 0) == 0;
    }
}

static void pump_fired(void *arg)
{
    struct dbq *dbq = arg;
    dbq->pump_armed = false;
    PGconn *pg = dbconn_pg(dbq->main);
    if (pg && !TAILQ_EMPTY(&dbq->waiting))
        send_waiting(dbq, pg);
    if (dbq->count == 0 && dbq->on_idle) {
        void (*cb)(void *) = steal_ptr(dbq->on_idle);
        cb(dbq->idle_arg);
    }
}

/* Results ---------------------------------------------------------------------------- */

enum verdict { VERDICT_FINAL, VERDICT_RETRY, VERDICT_RECONNECT };

/* What an SQLSTATE (errcodes of PostgreSQL, appendix A) means for the statement. */
static enum verdict judge(const struct item *item, const char *sqlstate)
{
    if (item->retries >= RETRIES_MAX)
        return VERDICT_FINAL;
    /* A lost race (serialisation failure, deadlock). 26000: the PREPARE it relied on was refused.
     */
    if (db_sqlstate_code(sqlstate) == ERR_CONFLICT ||
        (strcmp(sqlstate, "26000") == 0 && !item->prepared_now))
        return VERDICT_RETRY;
    /* 0A000: "cached plan must not change result type", after a migration. */
    if (strcmp(sqlstate, "0A000") == 0 && !item->prepared_now)
        return VERDICT_RECONNECT;
    return VERDICT_FINAL;
}

/* The sync point of the first statement was passed: its outcome is final. */
static void finish_first(struct dbq *dbq)
{
    struct item *item = TAILQ_FIRST(&dbq->sent);
    PGresult *res = steal_ptr(dbq->result);
    char sqlstate[sizeof(dbq->sqlstate)];
    memcpy(sqlstate, dbq->sqlstate, sizeof(sqlstate));
    dbq->sqlstate[0] = '\0';
    dbconn_proven(dbq->main);
    TAILQ_REMOVE(&dbq->sent, item, entry);
    dbq->sent_count--;

    struct error err = ERROR_INIT;
    if (sqlstate[0]) {
        PQclear(steal_ptr(res));
        enum verdict verdict = judge(item, sqlstate);
        bool missing = item->preparing || strcmp(sqlstate, "26000") == 0;
        if (missing && item->generation == dbq->generation[item->stmt])
            dbq->prepared[item->stmt] = false;
        if (verdict != VERDICT_FINAL) {
            item->retries++;
            TAILQ_INSERT_HEAD(&dbq->waiting, item, entry);
            if (verdict == VERDICT_RECONNECT)
                lose(dbq, false, "a prepared statement is out of date");
            return;
        }
        error_set(&err, db_sqlstate_code(sqlstate), "%s: SQLSTATE %s", statement_name(item->stmt),
                  sqlstate);
        if (error_code_status(err.code) == 503)
            err.retry_after_ms = UNAVAILABLE_RETRY_MS;
    } else if (!res) {
        error_set(&err, ERR_INTERNAL, "%s: no result", statement_name(item->stmt));
    }
    settle(dbq, item, res, res ? NULL : &err);
    PQclear(res);
}

/* An error result. Returns false when it was the end of the connection. */
static bool take_error(struct dbq *dbq, const PGresult *res)
{
    const char *sqlstate = PQresultErrorField(res, PG_DIAG_SQLSTATE);
    const char *severity = PQresultErrorField(res, PG_DIAG_SEVERITY_NONLOCALIZED);
    /* Without an SQLSTATE it is libpq that speaks: the connection is gone, or no memory. */
    if (!sqlstate || !severity || strcmp(severity, "ERROR") != 0) {
        /* Shut down, another backend crashed, no room for the log (a PANIC): none is its fault. */
        if (sqlstate && db_sqlstate_code(sqlstate) == ERR_DATABASE_UNAVAILABLE)
            dbq->farewell = true;
        lose(dbq, true, PQresultErrorMessage(res));
        return false;
    }
    if (!dbq->sqlstate[0])
        (void)snprintf(dbq->sqlstate, sizeof(dbq->sqlstate), "%s", sqlstate);
    return true;
}

/* Owns res. Returns false when the connection was dropped. */
static bool take_result(struct dbq *dbq, PGresult *res)
{
    struct item *item = TAILQ_FIRST(&dbq->sent);
    bool up = true;
    dbq->progress = true;
    /* As an int: newer versions of libpq have more values, which end in default here. */
    switch ((int)PQresultStatus(res)) {
    case PGRES_COMMAND_OK:
    case PGRES_TUPLES_OK:
        if (item->preparing) {
            item->preparing = false;
            break;
        }
        PQclear(dbq->result);
        dbq->result = steal_ptr(res);
        break;
    case PGRES_PIPELINE_SYNC:
        finish_first(dbq);
        up = dbq_is_connected(dbq);
        break;
    case PGRES_PIPELINE_ABORTED:
        break; /* its PREPARE was refused, and said why */
    case PGRES_FATAL_ERROR:
        up = take_error(dbq, res);
        break;
    default:
        lose(dbq, true, "an unexpected kind of result");
        up = false;
        break;
    }
    PQclear(res);
    return up;
}

/* Returns false when the connection was dropped. */
static bool read_results(struct dbq *dbq)
{
    PGconn *pg = dbconn_pg(dbq->main);
    unsigned empty = 0;
    while (dbq->sent_count > 0 && !PQisBusy(pg)) {
        PGresult *res = PQgetResult(pg);
        if (res) {
            empty = 0;
            if (!take_result(dbq, res))
                return false;
        } else if (++empty > EMPTY_MAX) {
            lose(dbq, true, "the pipeline is out of step");
            return false;
        }
    }
    return true;
}

static void read_notifications(struct dbq *dbq, PGconn *pg)
{
    PGnotify *notify;
    while ((notify = PQnotifies(pg))) {
        if (dbq->on_notify && strcmp(notify->relname, dbq->channel) == 0)
            dbq->on_notify(notify->extra, dbq->listen_arg);
        PQfreemem(notify);
    }
}

static void main_up(void *arg)
{
    struct dbq *dbq = arg;
    if (PQenterPipelineMode(dbconn_pg(dbq->main)) != 1) {
        lose(dbq, false, "no pipeline mode");
        return;
    }
    wake(dbq);
    check_ready(dbq);
}

static void main_event(unsigned events, void *arg)
{
    struct dbq *dbq = arg;
    PGconn *pg = dbconn_pg(dbq->main);
    bool alive = true;
    if (events & LOOP_READ)
        alive = PQconsumeInput(pg) == 1;
    read_notifications(dbq, pg);
    if (!read_results(dbq))
        return;
    if (!alive) {
        lose(dbq, true, PQerrorMessage(pg));
        return;
    }
    if (dbconn_flush(dbq->main) < 0) {
        lose(dbq, false, "the connection could not be watched");
        return;
    }
    if (!TAILQ_EMPTY(&dbq->waiting) || (dbq->count == 0 && dbq->on_idle))
        wake(dbq);
}

static void main_notice(const PGresult *notice, void *arg)
{
    struct dbq *dbq = arg;
    const char *sqlstate = PQresultErrorField(notice, PG_DIAG_SQLSTATE);
    /* A backend that is told to leave at once says so in a warning. */
    if (sqlstate && strncmp(sqlstate, "57P0", 4) == 0)
        dbq->farewell = true;
}

/* The connection that listens -------------------------------------------------------- */

static void listener_up(void *arg)
{
    struct dbq *dbq = arg;
    PGconn *pg = dbconn_pg(dbq->listener);
    char command[sizeof("LISTEN ") + 2 * sizeof(dbq->channel) + 2];
    char *channel = PQescapeIdentifier(pg, dbq->channel, strlen(dbq->channel));
    int sent = 0;
    /* An identifier cannot be a parameter, so this one is not in the table of statements. */
    if (channel) {
        (void)snprintf(command, sizeof(command), "LISTEN %s", channel);
        sent = PQsendQuery(pg, command);
    }
    PQfreemem(channel);
    if (sent != 1 || dbconn_flush(dbq->listener) < 0)
        dbconn_drop(dbq->listener, PQerrorMessage(pg));
}

static void listener_event(unsigned events, void *arg)
{
    struct dbq *dbq = arg;
    PGconn *pg = dbconn_pg(dbq->listener);
    bool alive = !(events & LOOP_READ) || PQconsumeInput(pg) == 1;
    bool began = false;
    while (alive && !PQisBusy(pg)) {
        PGresult *res = PQgetResult(pg);
        if (!res)
            break;
        began = PQresultStatus(res) == PGRES_COMMAND_OK;
        alive = began;
        PQclear(res);
    }
    read_notifications(dbq, pg);
    if (!alive || dbconn_flush(dbq->listener) < 0) {
        dbconn_drop(dbq->listener, PQerrorMessage(pg));
        return;
    }
    if (began) {
        dbq->listening = true;
        dbconn_proven(dbq->listener);
        check_ready(dbq);
    }
}

static void listener_down(void *arg)
{
    struct dbq *dbq = arg;
    dbq->listening = false;
}

static void listener_notice(const PGresult *notice, void *arg)
{
    (void)notice;
    (void)arg;
}
