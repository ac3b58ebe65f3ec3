/*
 * How an exchange leaves through libfcgi: the answer written, or the connection
 * handed over to the daemon. One persistent connection to the daemon a process,
 * made on first use and anew after a failure.
 */
#ifndef PADDOCK_FCGI_REPLY_H
#define PADDOCK_FCGI_REPLY_H

#include <fcgiapp.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/error.h"
#include "common/handoff.h"
#include "fcgi/pending.h"

struct reply_link {
    const char *path;      /* the daemon's socket; borrowed */
    int fd;                /* -1: not connected */
    int64_t not_before_ms; /* after a hung daemon: do not try before this time */
};

void reply_link_init(struct reply_link *link, const char *path);
void reply_link_close(struct reply_link *link);

/* Writes the answer and finishes the request; the connection is closed, at once or when a slow
 * client has taken the answer (pending). body_ended: the request's input was read to its end. */
void reply_write(FCGX_Request *request, const struct buf *answer, bool body_ended,
                 struct pending *pending);

/* Gives the request's connection to the daemon. The request's input must have been read to its
 * end. Returns 0 (the request is then no longer ours; *request is ready for the next), or -1 with
 * ERR_DAEMON_UNAVAILABLE and the request untouched. */
int reply_hand_over(struct reply_link *link, FCGX_Request *request, struct handoff *msg,
                    struct error *err) __attribute__((warn_unused_result));

#endif
