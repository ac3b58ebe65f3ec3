/* Options of a request that stand beside its body: how long to wait for the answer (Prefer: wait,
 * RFC 7240, or ?wait=), and the idempotency key. Pure. */
#ifndef PADDOCK_FCGI_OPTIONS_H
#define PADDOCK_FCGI_OPTIONS_H

#include <stdint.h>

#include "common/error.h"
#include "fcgi/request.h"

#define OPTIONS_WAIT_MAX_S 300
#define OPTIONS_KEY_MAX 255

/* *wait_ms: left as it is when the request does not say. Both forms and different: ERR_MALFORMED;
 * not 0 … 300: ERR_INVALID_FIELD. Preferences that are not `wait` are ignored, as RFC 7240 asks. */
int options_wait(const struct request *req, int64_t *wait_ms, struct error *err)
    __attribute__((warn_unused_result));
/* *key: borrowed from the request, NULL when there is none. */
int options_idempotency_key(const struct request *req, const char **key, struct error *err)
    __attribute__((warn_unused_result));

#endif
