/*
 * The one form of an HTTP answer, as CGI text ("Status: 200 OK" …): used by the
 * FastCGI handlers and, for handed-over connections, by the daemon.
 * Every answer carries X-Request-Id, Cache-Control: no-store and
 * X-Content-Type-Options: nosniff.
 */
#ifndef PADDOCK_COMMON_RESPOND_H
#define PADDOCK_COMMON_RESPOND_H

#include <jansson.h>
#include <stdbool.h>

#include "common/buf.h"
#include "common/error.h"

struct answer_meta {
    const char *request_id; /* borrowed */
    const char *location;   /* NULL or "" for none */
    const char *allow;      /* Allow header of a 405; NULL for none */
    bool replayed;          /* Idempotency-Replayed: true */
    bool head_only;         /* headers, Content-Length, no body */
};

/* Appends head and body. `body` is borrowed. Returns 0, -1 when the buffer refused. */
int respond_json(struct buf *out, int status, const struct answer_meta *meta, const json_t *body);
/* RFC 9457 problem details from an error: type, title, status, detail, code, requestId, field,
 * retryAfterMs; Retry-After header (seconds, rounded up) when retry_after_ms is set;
 * WWW-Authenticate: Bearer on 401. */
int respond_problem(struct buf *out, const struct error *err, const struct answer_meta *meta);
/* "OK" for 200 …; "Unknown" otherwise. */
const char *respond_reason(int status);

#endif
