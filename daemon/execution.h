/*
 * One execution on this node: claimed from its row, run in the guest through a
 * stream of the sandbox's channel, ended by itself or by its time, recorded.
 */
#ifndef PADDOCK_DAEMON_EXECUTION_H
#define PADDOCK_DAEMON_EXECUTION_H

#include <libpq-fe.h>
#include <stdbool.h>

#include "daemon/channel.h"
#include "daemon/context.h"

struct execution;

enum execution_place {
    PLACE_NONE,   /* no such sandbox is held here */
    PLACE_ENDING, /* it is held and ends, which ends the execution's row too */
    PLACE_LATER,  /* its guest is being taken over: execution_resume or execution_drop follows */
    PLACE_READY,  /* it has a channel */
};

/* What the owner (sandbox.c) is told; all from the loop. */
struct execution_handler {
    /* Its row is claimed: where it runs. *channel is set when that is PLACE_READY. */
    enum execution_place (*on_claimed)(void *arg, struct execution *execution,
                                       struct channel **channel);
    /* Once after a channel was given: it runs no more. */
    void (*on_ended)(void *arg, struct execution *execution);
    /* It failed by itself: true when execution_measured will tell whether for want of memory. */
    bool (*on_failed)(void *arg, struct execution *execution);
    /* The guest does not end it though told to. */
    void (*on_stuck)(void *arg, struct execution *execution);
    /* Its result is recorded, or nothing can be: free it. terminate: its sandbox shall be stopped
     * with it. */
    void (*on_done)(void *arg, struct execution *execution, bool terminate);
};

/* Sends the claim; all else follows from its answer. handler is borrowed. */
struct execution *execution_new(struct daemon *d, const char *id,
                                const struct execution_handler *handler, void *arg,
                                struct error *err);
/* One that a former daemon had claimed, in a guest that was taken over; from its row (of
 * SANDBOX_UNENDED_EXECUTIONS). It waits: when it is resumed it goes on, or its end is recorded, as
 * the guest tells; one that the guest knows nothing of is lost. */
struct execution *execution_adopt(struct daemon *d, const char *sandbox_id, const PGresult *res,
                                  int row, const struct execution_handler *handler, void *arg,
                                  struct error *err);
/* One that waits and was claimed by a former daemon, but is not adopted from its row yet: its row.
 */
bool execution_is_another_ones(const struct execution *execution);
void execution_learn(struct execution *execution, const char *sandbox_id, const PGresult *res,
                     int row);
/* After PLACE_LATER, and once it was adopted. Then its guest is ready: resume it; or its sandbox
 * ends: drop it. */
bool execution_is_waiting(const struct execution *execution);
void execution_resume(struct execution *execution);
void execution_drop(struct execution *execution);
/* It is between its row and the guest: being claimed, or recorded. */
bool execution_is_unsettled(const struct execution *execution);
/* Frees it from any callback. What was sent to the database still happens. NULL is fine. */
void execution_free(struct execution *execution);

const char *execution_id(const struct execution *execution);
/* "" until on_claimed. */
const char *execution_sandbox_id(const struct execution *execution);
/* The answer to on_failed. Harmless for any other. */
void execution_measured(struct execution *execution, bool oom_killed);
/* It waits for that answer. */
bool execution_is_measured(const struct execution *execution);
/* A client wants it ended; its whole tree is. Harmless once it ended. */
void execution_cancel(struct execution *execution);
/* It was announced again: if the claim now in flight comes too early, it is tried once more. */
void execution_announced(struct execution *execution);

#endif
