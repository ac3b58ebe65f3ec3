/*
 * The daemon's database access: one non-blocking connection in pipeline mode for
 * statements, one for LISTEN, both reconnecting with backoff. A statement is
 * queued, sent when connected, and its callback gets exactly one outcome.
 *
 * When the connection is lost, statements that were sent and not answered are
 * sent again after the reconnect: every statement of the daemon is written so
 * that a second run changes nothing (guarded by state, node and epoch). So a
 * result the daemon wants to record is never dropped because Postgres restarted.
 */
#ifndef PADDOCK_DAEMON_DBQ_H
#define PADDOCK_DAEMON_DBQ_H

#include <libpq-fe.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"
#include "common/log.h"
#include "common/statement.h"
#include "daemon/loop.h"

struct dbq;

/* res: borrowed, PGRES_TUPLES_OK or PGRES_COMMAND_OK; NULL with err set when the server refused
 * the statement (db_sqlstate_code; SQLSTATE in the detail) or dbq is being freed. Called once, from
 * the loop, never from within dbq_send. */
typedef void (*dbq_result_cb)(const PGresult *res, const struct error *err, void *arg);
/* A notification's payload (borrowed). */
typedef void (*dbq_notify_cb)(const char *payload, void *arg);
/* Both connections are up (again), LISTEN in force: time to scan for what was missed. */
typedef void (*dbq_ready_cb)(void *arg);

struct dbq *dbq_new(struct loop *loop, const struct log *log, const char *conninfo,
                    struct error *err);
/* Pending callbacks get ERR_DATABASE_UNAVAILABLE first. Not from within a callback. */
void dbq_free(struct dbq *dbq);

/* Before dbq_start: give up a connection attempt after connect_ms; the server ends a statement
 * after statement_ms (a server that sends nothing for the two together is taken for dead).
 * Without this 5 s and 10 s. */
void dbq_set_timeouts(struct dbq *dbq, int64_t connect_ms, int64_t statement_ms);

/* Before dbq_start: what is called on notifications and (re)connects; channel is a valid
 * identifier. */
void dbq_listen(struct dbq *dbq, const char *channel, dbq_notify_cb on_notify,
                dbq_ready_cb on_ready, void *arg);
/* Starts connecting. */
void dbq_start(struct dbq *dbq);
bool dbq_is_connected(const struct dbq *dbq);

struct dbq_param {
    const char *value; /* NULL: SQL null. Copied by dbq_send. */
    size_t len;        /* only for binary */
    bool binary;       /* a bytea's raw bytes; else text with NUL */
};

/* Queues a statement with statement_params(stmt) parameters. At most 65,536 queued; beyond,
 * ERR_DATABASE_UNAVAILABLE at once. cb may be NULL.
 *
 * Statements run in the order in which they were queued, each in a transaction of its own, and
 * are answered when that is committed. One that lost a race (SQLSTATE class 40) runs again, up to
 * three times, behind those that were already on their way. One that took the connection down
 * three times is refused. */
int dbq_send(struct dbq *dbq, enum statement stmt, const struct dbq_param params[],
             dbq_result_cb cb, void *arg, struct error *err) __attribute__((warn_unused_result));

/* Forgets the callbacks registered with this arg (the owner is being freed); the statements still
 * run. */
void dbq_forget(struct dbq *dbq, const void *arg);

/* Calls cb once, from the loop, when nothing is queued. NULL: no longer. */
void dbq_when_idle(struct dbq *dbq, void (*cb)(void *arg), void *arg);

#endif
