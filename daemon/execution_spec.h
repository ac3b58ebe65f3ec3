/*
 * An execution's description, from the row's jsonb to what goes to the guest:
 *
 *   {"argv": [text, …], "env": {NAME: text}, "cwd": text, "code": text, "suffix": text,
 *    "stdin": text}
 *
 * argv is required and not empty; the others may be absent or null. Pure.
 */
#ifndef PADDOCK_DAEMON_EXECUTION_SPEC_H
#define PADDOCK_DAEMON_EXECUTION_SPEC_H

#include <stdbool.h>

#include "common/buf.h"
#include "common/error.h"

struct execution_spec {
    struct buf wire; /* records of common/wire.h */
    bool has_input;
    struct buf input; /* stdin's bytes */
};

#define EXECUTION_SPEC_INIT {.has_input = false}

/* Strict: an unknown member, a wrong type, or a string that the wire cannot carry is
 * ERR_INVALID_FIELD (or another code of common/json.h); then spec holds nothing. */
int execution_spec_parse(const char *json, size_t len, struct execution_spec *spec,
                         struct error *err) __attribute__((warn_unused_result));
void execution_spec_free(struct execution_spec *spec);
#define _cleanup_execution_spec_ _cleanup_(execution_spec_free)

/* "NAME=value\0" for each member of a sandbox's env (jsonb text), as SETUP carries it. */
int execution_env_parse(const char *json, size_t len, struct buf *env, struct error *err)
    __attribute__((warn_unused_result));

#endif
