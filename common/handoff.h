/*
 * The message with which a handler hands an open FastCGI connection to the
 * daemon: what shall be answered, on which request id, and how long to wait.
 * A JSON object (strictly parsed by the daemon), with the connection's
 * descriptor beside it (common/fdpass.h).
 */
#ifndef PADDOCK_COMMON_HANDOFF_H
#define PADDOCK_COMMON_HANDOFF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"
#include "common/id.h"
#include "common/token.h"

#define HANDOFF_MAX 4096 /* bytes of one message */

enum handoff_wait {
    HANDOFF_SANDBOX_READY,   /* until the sandbox left queued and provisioning */
    HANDOFF_SANDBOX_ENDED,   /* until it is in a terminal state */
    HANDOFF_EXECUTION_ENDED, /* until the execution is in a terminal state */
};

struct handoff {
    enum handoff_wait wait;
    char id[ID_SIZE];                /* sandbox or execution */
    char sandbox_id[ID_SIZE];        /* the execution's sandbox; same as id for sandboxes */
    char request_id[ID_SIZE];        /* for X-Request-Id and logs */
    char token_id[TOKEN_ID_LEN + 1]; /* whose answer it is; it must still count when it is given */
    uint16_t fcgi_request_id;        /* the id in FCGI records */
    int64_t wait_ms;                 /* 0 … 300000: answer with the state as it is after this */
    int status_done;                 /* HTTP status when the wait was fulfilled: 200, 201 */
    int status_pending;              /* … when it was not: 200, 202 */
    bool replayed;                   /* adds Idempotency-Replayed: true */
    bool head_only;                  /* HEAD request: no body */
    char location[256];              /* Location header, "" for none */
};

/* Encodes into out (HANDOFF_MAX bytes). Returns the length or -1. */
int handoff_encode(const struct handoff *msg, char *out, size_t size, struct error *err)
    __attribute__((warn_unused_result));
/* ERR_PROTOCOL for anything that is not exactly such a message. */
int handoff_decode(const char *data, size_t len, struct handoff *msg, struct error *err)
    __attribute__((warn_unused_result));

#endif
