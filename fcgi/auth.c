/*
 * Authentication and authorisation of a request (see auth.h). Called by
 * exchange.c before a body is read. What must stay true: nothing tells an
 * unknown token from a revoked or expired one, and nothing below a project is
 * told to a token that does not belong to it, not even that it exists.
 */
#include "fcgi/auth.h"

#include <string.h>
#include <strings.h>

static int refuse(struct error *err)
{
    return error_set(err, ERR_UNAUTHENTICATED, "a valid API token is needed");
}

static const char *bearer_text(const char *authorization)
{
    static const char scheme[] = "Bearer ";
    if (strncasecmp(authorization, scheme, sizeof(scheme) - 1) != 0)
        return NULL;
    authorization += sizeof(scheme) - 1;
    return authorization + strspn(authorization, " ");
}

int auth_token_from_headers(const char *authorization, const char *api_key, struct token *token,
                            struct error *err)
{
    const char *text = api_key;
    if (authorization) {
        text = bearer_text(authorization);
        if (!text || (api_key && strcmp(text, api_key) != 0))
            return refuse(err);
    }
    if (!text)
        return refuse(err);
    struct error ignored = ERROR_INIT;
    if (token_parse(text, token, &ignored) < 0)
        return refuse(err);
    return 0;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return -1;
}

static int hash_from_hex(const char *hex, uint8_t out[TOKEN_HASH_LEN])
{
    if (!hex || strlen(hex) != (size_t)TOKEN_HASH_LEN * 2)
        return -1;
    for (size_t i = 0; i < TOKEN_HASH_LEN; i++) {
        int high = hex_digit(hex[2 * i]);
        int low = hex_digit(hex[2 * i + 1]);
        if (high < 0 || low < 0)
            return -1;
        out[i] = (uint8_t)(high << 4 | low);
    }
    return 0;
}

static bool column_is_true(const PGresult *res, const char *name)
{
    const char *value = db_column(res, 0, name);
    return value && strcmp(value, "t") == 0;
}

/* Is the row that of this very token, and does it still count? The comparison is made for an
 * unknown token as well, against a hash that nothing has, so that both take the same way. */
static bool token_is_good(const PGresult *res, const struct token *token)
{
    uint8_t stored[TOKEN_HASH_LEN] = {0};
    bool found = PQntuples(res) == 1 && hash_from_hex(db_column(res, 0, "secret"), stored) == 0;
    bool equal = token_hash_equal(stored, token->hash);
    if (!found || !equal)
        return false;
    return !column_is_true(res, "revoked") && !column_is_true(res, "expired");
}

static unsigned scopes_from_text(const char *text)
{
    unsigned scopes = 0;
    char name[32];
    while (text && *text) {
        size_t len = strcspn(text, " ");
        if (len < sizeof(name)) {
            memcpy(name, text, len);
            name[len] = '\0';
            scopes |= (unsigned)scope_from_name(name);
        }
        text += len;
        text += strspn(text, " ");
    }
    return scopes;
}

static int check_project(const PGresult *res, struct auth *auth, struct error *err)
{
    const char *project = db_column(res, 0, "project");
    const char *owner = db_column(res, 0, "token_project");
    bool is_ours = project && (owner ? strcmp(owner, project) == 0
                                     : scope_satisfies(auth->scopes, SCOPE_ADMIN));
    if (!is_ours || strlen(project) >= sizeof(auth->project))
        return error_set(err, ERR_NOT_FOUND, "no such project");
    memcpy(auth->project, project, strlen(project) + 1);
    return 0;
}

int auth_check(struct db *db, const struct request *req, const struct route_match *match,
               struct auth *auth, struct error *err)
{
    struct token token;
    if (auth_token_from_headers(req->authorization, req->api_key, &token, err) < 0)
        return -1;
    const char *params[] = {token.id, match->project};
    _cleanup_pgresult_ PGresult *res = db_exec(db, STMT_AUTHENTICATE, params, err);
    if (!res)
        return -1;
    if (!token_is_good(res, &token))
        return refuse(err);

    *auth = (struct auth){.scopes = scopes_from_text(db_column(res, 0, "scopes"))};
    memcpy(auth->token_id, token.id, sizeof(auth->token_id));
    if (match->project && check_project(res, auth, err) < 0)
        return -1;
    const struct route *route = match->route;
    if (route->scope != SCOPE_NONE && !scope_satisfies(auth->scopes, route->scope))
        return error_set(err, ERR_FORBIDDEN, "the token lacks the scope %s",
                         scope_name(route->scope));
    if (route->access == ROUTE_ACCESS_INSTALLATION && db_column(res, 0, "token_project"))
        return error_set(err, ERR_FORBIDDEN,
                         "only a token of the installation may do this, not a project's own");
    if (match->project && column_is_true(res, "disabled"))
        return error_set(err, ERR_PROJECT_DISABLED, "the project is disabled");
    return 0;
}
