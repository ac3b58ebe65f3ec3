/*
 * One handler process: accepts connections of the web server on the shared
 * listening socket and answers one request at a time, until it is told to end
 * or has served its share.
 */
#ifndef PADDOCK_FCGI_CHILD_H
#define PADDOCK_FCGI_CHILD_H

#include <stdatomic.h>
#include <stdint.h>

#include "common/config.h"
#include "common/log.h"

/* What a child tells its manager, in memory that both map. */
struct child_slot {
    /* CLOCK_MONOTONIC in ms at which the request in hand began; 0: none in hand. */
    _Alignas(64) _Atomic int64_t busy_since_ms;
};

/* Runs until SIGTERM or SIGINT (pending ones are taken between requests, never within one) or
 * web.max_requests. Returns the exit status: 0, or 1 after a failure that was logged. */
int child_run(const struct config *cfg, const struct log *log, int listen_fd,
              struct child_slot *slot);

#endif
