/* What an idempotency key is compared by: the canonical text of the normalised request and its
 * SHA-256. Two bodies that mean the same have the same. */
#ifndef PADDOCK_FCGI_FINGERPRINT_H
#define PADDOCK_FCGI_FINGERPRINT_H

#include <jansson.h>

#include "common/error.h"
#include "common/token.h"

struct fingerprint {
    char hex[2 + 2 * TOKEN_HASH_LEN + 1]; /* as a bytea literal: \x and hex digits */
};

/* Returns the canonical text (malloc'd; also what the database is given), NULL on failure. */
char *fingerprint_take(const json_t *request, struct fingerprint *print, struct error *err)
    __attribute__((warn_unused_result));

#endif
