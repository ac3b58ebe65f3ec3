/* The bodies of create and change requests to their normalised form: every value within the
 * limits; of a create, every field present but lifetimes that were left open, defaults filled in.
 * Pure; the database admits what comes out. */
#ifndef PADDOCK_FCGI_SANDBOX_REQUEST_H
#define PADDOCK_FCGI_SANDBOX_REQUEST_H

#include <jansson.h>

#include "common/config.h"
#include "common/error.h"

/* What a guest needs beside the content of its tmpfs: gVisor's own memory and a working set. */
#define SANDBOX_MEMORY_SPARE_MB 64

/* New reference to {template, cpus, memoryMb, workspaceMb, pids, ttlSeconds, idleSeconds, env,
 * labels, egress, exclusive}, or NULL with the field at fault named. */
json_t *sandbox_request_from_body(const json_t *body, const struct config *cfg, struct error *err)
    __attribute__((warn_unused_result));

/* New reference to what is to be changed of {ttlSeconds, idleSeconds, labels}, at least one, or
 * NULL with the field at fault named. */
json_t *sandbox_update_from_body(const json_t *body, const struct config *cfg, struct error *err)
    __attribute__((warn_unused_result));

#endif
