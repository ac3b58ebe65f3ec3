/*
 * One non-blocking libpq connection that keeps itself up: connects step by step
 * in the loop, gives up after a time limit, and tries again with a growing,
 * jittered delay. What is said over it is its owner's business (dbq.c).
 */
#ifndef PADDOCK_DAEMON_DBCONN_H
#define PADDOCK_DAEMON_DBCONN_H

#include <libpq-fe.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"
#include "common/log.h"
#include "daemon/loop.h"

/* What every connection of the daemon is opened with. */
struct dbconn_target {
    PQconninfoOption *options;  /* owned; the parsed conninfo */
    int64_t connect_timeout_ms; /* of one attempt */
    int64_t statement_timeout_ms;
};

/* ERR_CONFIG when libpq cannot read conninfo. */
int dbconn_target_init(struct dbconn_target *target, const char *conninfo, const struct log *log,
                       struct error *err) __attribute__((warn_unused_result));
void dbconn_target_release(struct dbconn_target *target);

/* All are called from the loop, or from within dbconn_drop. */
struct dbconn_handlers {
    void (*on_up)(void *arg);
    /* The socket is ready (enum loop_events). The last thing done in its turn. */
    void (*on_event)(unsigned events, void *arg);
    /* Was up, is down; a reconnect is on its way. */
    void (*on_down)(void *arg);
    /* A notice of the server (borrowed), also while connecting. */
    void (*on_notice)(const PGresult *notice, void *arg);
};

struct dbconn;

/* name (for the log), target and handlers are borrowed. */
struct dbconn *dbconn_new(struct loop *loop, const struct log *log, const char *name,
                          const struct dbconn_target *target,
                          const struct dbconn_handlers *handlers, void *arg, struct error *err);
/* Closes; no handler is called. NULL is fine. */
void dbconn_free(struct dbconn *conn);
void dbconn_start(struct dbconn *conn);

/* The connection while it is up, else NULL. Borrowed. */
PGconn *dbconn_pg(const struct dbconn *conn);
/* Sends what libpq holds back and watches for what is needed next. -1: the watch failed. */
int dbconn_flush(struct dbconn *conn) __attribute__((warn_unused_result));
/* The server did something useful: the next reconnect begins with the shortest delay again. */
void dbconn_proven(struct dbconn *conn);
/* Closes a connection that is up and reconnects later; `why` is for the log. */
void dbconn_drop(struct dbconn *conn, const char *why);

#endif
