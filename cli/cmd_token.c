/* paddock token …: API tokens. The secret is printed once, at creation, and stored as a hash. */
#include <stdio.h>
#include <string.h>

#include "cli/options.h"
#include "cli/output.h"
#include "common/buf.h"
#include "common/json.h"
#include "common/text.h"
#include "common/token.h"

/* "{sandbox:read,admin}": a Postgres array; the names are checked, so none needs quoting. */
static int scopes_array(struct cli *cli, const struct option_values *scopes, struct buf *out)
{
    for (size_t i = 0; i < scopes->count; i++) {
        if (scope_from_name(scopes->at[i]) == SCOPE_NONE)
            return cli_usage(cli, "unknown scope %s; known are sandbox:read, sandbox:write, admin",
                             scopes->at[i]);
        buf_printf(out, "%c%s", i == 0 ? '{' : ',', scopes->at[i]);
    }
    buf_append_str(out, "}");
    return 0;
}

static int print_created(struct cli *cli, const PGresult *res, const char *text)
{
    _cleanup_json_ json_t *rows = output_rows(res);
    json_t *row = json_array_get(rows, 0);

    if (row == NULL) {
        error_set(&cli->err, ERR_NOT_FOUND, "there is no such project");
        return CLI_NOT_FOUND;
    }
    json_object_set_new(row, "token", json_string(text));
    if (cli->json)
        output_object(cli, row);
    else
        puts(text);
    return CLI_OK;
}

int cmd_token_create(struct cli *cli, int argc, char **argv)
{
    struct option_values none = {0}, project = {0}, installation = {0}, scopes = {0}, name = {0},
                         expires = {0};
    const struct option_spec specs[] = {
        {"project", false, false, &project}, {"installation", false, true, &installation},
        {"scope", true, false, &scopes},     {"name", false, false, &name},
        {"expires", false, false, &expires},
    };
    _cleanup_buf_ struct buf array = BUF_INIT(4096);
    _cleanup_pgresult_ PGresult *res = NULL;
    _cleanup_free_ char *who = NULL;
    char text[TOKEN_TEXT_LEN + 1];
    char hash[2 + 2 * TOKEN_HASH_LEN + 1] = "\\x";
    struct token token;
    int64_t seconds;
    struct db *db;
    int status = options_parse(cli, argc, argv, specs, ARRAY_LEN(specs), &none, NULL);

    if (status != 0)
        return status;
    if (none.count > 0 || scopes.count == 0)
        return cli_usage(cli, "name at least one --scope, and no operand");
    if ((project.count > 0) == (installation.count > 0))
        return cli_usage(cli, "name either --project or --installation");
    if (expires.count > 0 && text_parse_i64(expires.at[0], 1, 10LL * 366 * 86400, &seconds) != 0)
        return cli_usage(cli, "--expires wants seconds from now, at most ten years");
    if ((status = scopes_array(cli, &scopes, &array)) != 0)
        return status;
    if (installation.count > 0 && strstr(buf_cstr(&array), "admin") == NULL)
        return cli_usage(cli, "a token of the installation needs --scope admin");
    if (token_new(text, &token, &cli->err) != 0)
        return cli_exit_status(&cli->err);
    text_hex(token.hash, sizeof(token.hash), hash + 2);
    if ((who = cli_who(cli)) == NULL)
        return CLI_FAILED;
    db = cli_db(cli);
    if (db != NULL) {
        const char *params[] = {token.id, option_value(&project), name.count > 0 ? name.at[0] : "",
                                hash,     buf_cstr(&array),       option_value(&expires),
                                who};

        res = db_exec(db, STMT_TOKEN_CREATE, params, &cli->err);
    }
    status = res != NULL ? print_created(cli, res, text) : cli_exit_status(&cli->err);
    explicit_bzero(text, sizeof(text));
    return status;
}

int cmd_token_list(struct cli *cli, int argc, char **argv)
{
    static const char *const columns[] = {"id",        "project",   "scopes",    "name",
                                          "createdAt", "expiresAt", "revokedAt", NULL};
    struct option_values none = {0}, project = {0};
    const struct option_spec specs[] = {{"project", false, false, &project}};
    _cleanup_pgresult_ PGresult *res = NULL;
    _cleanup_json_ json_t *rows = NULL;
    const char *params[1];
    struct db *db;
    int status = options_parse(cli, argc, argv, specs, ARRAY_LEN(specs), &none, NULL);

    if (status != 0)
        return status;
    if (none.count > 0)
        return cli_usage(cli, "token list takes no operand");
    params[0] = option_value(&project);
    db = cli_db(cli);
    res = db != NULL ? db_exec(db, STMT_TOKEN_LIST, params, &cli->err) : NULL;
    if (res == NULL)
        return cli_exit_status(&cli->err);
    rows = output_rows(res);
    output_table(cli, rows, columns);
    return CLI_OK;
}

int cmd_token_revoke(struct cli *cli, int argc, char **argv)
{
    _cleanup_pgresult_ PGresult *res = NULL;
    _cleanup_free_ char *who = NULL;
    struct db *db;

    if (argc != 1)
        return cli_usage(cli, "name one token id (the part between pdk_ and the second _)");
    if ((who = cli_who(cli)) == NULL)
        return CLI_FAILED;
    const char *params[] = {argv[0], NULL, who};

    db = cli_db(cli);
    res = db != NULL ? db_exec(db, STMT_TOKEN_REVOKE, params, &cli->err) : NULL;
    if (res == NULL)
        return cli_exit_status(&cli->err);
    if (PQntuples(res) == 0) {
        error_set(&cli->err, ERR_NOT_FOUND, "there is no token with this id");
        return CLI_NOT_FOUND;
    }
    if (cli->json)
        printf("{\"revoked\": \"%s\"}\n", PQgetvalue(res, 0, 0));
    else
        printf("revoked %s\n", PQgetvalue(res, 0, 0));
    return CLI_OK;
}
