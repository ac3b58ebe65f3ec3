/*
 * Who asks, and may they: the token of a request against the route and the
 * project it names. The one place of the handlers that decides on access.
 */
#ifndef PADDOCK_FCGI_AUTH_H
#define PADDOCK_FCGI_AUTH_H

#include "common/db.h"
#include "common/error.h"
#include "common/id.h"
#include "common/token.h"
#include "fcgi/request.h"
#include "fcgi/route.h"

struct auth {
    char token_id[TOKEN_ID_LEN + 1];
    unsigned scopes;       /* bits of enum scope */
    char project[ID_SIZE]; /* the project's id; "" on routes without one */
};

/* The token of `Authorization: Bearer` or `X-API-Key` (NULL when absent). Both and different, or
 * neither, or none that reads as a token: ERR_UNAUTHENTICATED. */
int auth_token_from_headers(const char *authorization, const char *api_key, struct token *token,
                            struct error *err) __attribute__((warn_unused_result));

/* Returns 0 with auth filled, or -1: ERR_UNAUTHENTICATED (no, unknown, expired or revoked token:
 * not told apart), ERR_NOT_FOUND (the project is not there or is another token's),
 * ERR_FORBIDDEN, ERR_PROJECT_DISABLED, ERR_DATABASE_UNAVAILABLE. */
int auth_check(struct db *db, const struct request *req, const struct route_match *match,
               struct auth *auth, struct error *err) __attribute__((warn_unused_result));

#endif
