/*
 * API tokens: pdk_<id>_<secret>. id: 16 lower-case hex digits, public, the
 * database key. secret: 64 lower-case hex digits (32 bytes of getrandom), shown
 * once; only its SHA-256 is stored.
 */
#ifndef PADDOCK_COMMON_TOKEN_H
#define PADDOCK_COMMON_TOKEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"

#define TOKEN_ID_LEN 16
#define TOKEN_SECRET_LEN 64
#define TOKEN_TEXT_LEN (4 + TOKEN_ID_LEN + 1 + TOKEN_SECRET_LEN)
#define TOKEN_HASH_LEN 32

struct token {
    char id[TOKEN_ID_LEN + 1];
    uint8_t hash[TOKEN_HASH_LEN]; /* SHA-256 of the secret's 64 characters */
};

/* A fresh token: text (to show once) and what to store. */
int token_new(char text[TOKEN_TEXT_LEN + 1], struct token *token, struct error *err)
    __attribute__((warn_unused_result));
/* Strict parse; ERR_UNAUTHENTICATED for any other form. The text is not kept. */
int token_parse(const char *text, struct token *token, struct error *err)
    __attribute__((warn_unused_result));
/* Constant-time. */
bool token_hash_equal(const uint8_t a[TOKEN_HASH_LEN], const uint8_t b[TOKEN_HASH_LEN]);

/* SHA-256 of any bytes (request fingerprints, content addresses). */
int token_sha256(const void *data, size_t len, uint8_t out[TOKEN_HASH_LEN], struct error *err)
    __attribute__((warn_unused_result));

/* Scopes, as bits. admin includes all, write includes read. */
enum scope { SCOPE_NONE = 0, SCOPE_READ = 1, SCOPE_WRITE = 2, SCOPE_ADMIN = 4 };
/* "sandbox:read" … -> SCOPE_READ …; SCOPE_NONE for an unknown name. */
enum scope scope_from_name(const char *name);
const char *scope_name(enum scope scope);
/* Does a token that holds `held` (bits) satisfy `needed` (one scope)? Nothing satisfies SCOPE_NONE:
 * a route that needs a token but no scope does not ask. */
bool scope_satisfies(unsigned held, enum scope needed);

#endif
