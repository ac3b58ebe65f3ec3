/*
 * One execution on this node: claimed from its row, run in the guest through a
 * stream of the sandbox's channel, ended by itself or by its time, recorded.
 */
#ifndef PADDOCK_DAEMON_EXECUTION_H
#define PADDOCK_DAEMON_EXECUTION_H

#include <stdbool.h>

#include "daemon/channel.h"
#include "daemon/context.h"

struct execution;

/* What the owner (sandbox.c) is told; all from the loop. */
struct execution_handler {
    /* Its row is claimed: the channel of its sandbox when that is ready, else NULL; then *ending
     * says that the sandbox is held but ends, which ends this row too. */
    struct channel *(*on_claimed)(void *arg, struct execution *execution, bool *ending);
    /* Once after on_claimed gave a channel: it runs no more. */
    void (*on_ended)(void *arg, struct execution *execution);
    /* The guest does not end it though told to. */
    void (*on_stuck)(void *arg, struct execution *execution);
    /* Its result is recorded, or nothing can be: free it. terminate: its sandbox shall be stopped,
     * for it ran out of time. */
    void (*on_done)(void *arg, struct execution *execution, bool terminate);
};

/* Sends the claim; all else follows from its answer. handler is borrowed. */
struct execution *execution_new(struct daemon *d, const char *id,
                                const struct execution_handler *handler, void *arg,
                                struct error *err);
/* Frees it from any callback. What was sent to the database still happens. NULL is fine. */
void execution_free(struct execution *execution);

const char *execution_id(const struct execution *execution);
/* "" until on_claimed. */
const char *execution_sandbox_id(const struct execution *execution);
/* It was announced again: if the claim now in flight comes too early, it is tried once more. */
void execution_announced(struct execution *execution);

#endif
