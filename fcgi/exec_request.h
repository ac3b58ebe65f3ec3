/* The body of an exec request to its normalised form. Pure; the database admits what comes out
 * and the daemon turns its spec into the frames of the guest's protocol. */
#ifndef PADDOCK_FCGI_EXEC_REQUEST_H
#define PADDOCK_FCGI_EXEC_REQUEST_H

#include <jansson.h>
#include <stdint.h>

#include "common/config.h"
#include "common/error.h"

/* New reference to {spec: {argv, env, cwd, code, suffix, stdin}, timeoutMs, onTimeout, background,
 * tag}, or NULL with the field at fault named. */
json_t *exec_request_from_body(const json_t *body, const struct config *cfg, struct error *err)
    __attribute__((warn_unused_result));

/* How long the answer waits when the client does not say: the execution's own timeout and some
 * seconds for its end to be reported, at most 300 s; nothing for one in the background. */
int64_t exec_request_default_wait_ms(const json_t *request);

/* Makes path absolute below /workspace and resolves "." and ".." and doubled slashes by text
 * alone. Returns 0, or -1 when the result does not fit. */
int exec_request_resolve_cwd(const char *path, char *out, size_t size)
    __attribute__((warn_unused_result));

#endif
