/*
 * Answers on handed-over FastCGI connections. A waiter holds one connection
 * until what it waits for is committed, or its wait is over, or the client is
 * gone; then it reads the row and writes the one answer.
 */
#ifndef PADDOCK_DAEMON_ANSWER_H
#define PADDOCK_DAEMON_ANSWER_H

#include <libpq-fe.h>
#include <stdint.h>

#include "common/handoff.h"
#include "daemon/context.h"

struct answers; /* all waiters, by id; opaque */

struct answers *answers_new(struct daemon *d, struct error *err);
/* Ends every waiter with the problem daemon_unavailable; answers that are being written get one
 * more second, all together. */
void answers_free(struct answers *answers);

/* Takes over fd (closes it when done) and waits as msg says. The row is read once at the start,
 * so a wait that was fulfilled before the hand-off is answered at once. */
void answers_add(struct answers *answers, const struct handoff *msg, int fd);

/* Connections whose clients still wait, and for what, when a daemon makes way for a newer one. */
struct answers_held_one;
struct answers_held {
    struct answers_held_one *list;
    unsigned count;
};
/* Takes them out. Those whose answer is being written stay. */
void answers_take_held(struct answers *answers, struct answers_held *held);
/* Hands them to the door of another daemon. Returns how many it took. */
unsigned answers_held_send(struct answers_held *held, int door_sock);
/* Closes what is left. */
void answers_held_free(struct answers_held *held);

/* A committed row changed: waiters on its id whose wait it fulfils are answered from it. */
void answers_sandbox_row(struct answers *answers, const PGresult *res, int row);
void answers_execution_row(struct answers *answers, const PGresult *res, int row);
/* The sandbox ended: waiters on executions of it read their rows again (its unfinished executions
 * were ended in the same transaction). */
void answers_sandbox_ended(struct answers *answers, const char *sandbox_id);

/* How long a reader may take nothing before it is dropped, 60 s at first (a test waits less). */
void answers_set_write_stall(struct answers *answers, int64_t stall_ms);

/* Waiters at present, those whose answer is being written included. */
unsigned answers_count(const struct answers *answers);

#endif
