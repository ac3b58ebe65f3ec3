/* paddock project …: the tenants, straight in the database. */
#include <stdio.h>

#include "cli/options.h"
#include "cli/output.h"
#include "common/json.h"
#include "common/text.h"

int cmd_project_create(struct cli *cli, int argc, char **argv)
{
    struct option_values names = {0};
    struct option_values max = {0};
    const struct option_spec specs[] = {{"max-sandboxes", false, false, &max}};
    _cleanup_pgresult_ PGresult *res = NULL;
    _cleanup_json_ json_t *rows = NULL;
    const char *params[2];
    int64_t number;
    struct db *db;
    int status = options_parse(cli, argc, argv, specs, ARRAY_LEN(specs), &names, NULL);

    if (status != 0)
        return status;
    if (names.count != 1 || !text_is_name(names.at[0], 63))
        return cli_usage(cli, "a project's name is 1 to 63 of a-z, 0-9 and -, beginning with a "
                              "letter");
    if (option_value(&max) != NULL && text_parse_i64(option_value(&max), 0, 1000000, &number) != 0)
        return cli_usage(cli, "--max-sandboxes wants a number from 0 to 1000000");
    params[0] = names.at[0];
    params[1] = option_value(&max);
    db = cli_db(cli);
    res = db != NULL ? db_exec(db, STMT_PROJECT_CREATE, params, &cli->err) : NULL;
    if (res == NULL)
        return cli_exit_status(&cli->err);
    if (PQntuples(res) == 0) {
        error_set(&cli->err, ERR_STATE_CONFLICT, "a project named %s exists already", params[0]);
        return CLI_CONFLICT;
    }
    rows = output_rows(res);
    output_object(cli, json_array_get(rows, 0));
    return CLI_OK;
}

int cmd_project_list(struct cli *cli, int argc, char **argv)
{
    static const char *const columns[] = {"name", "id", "live", "maxSandboxes", "createdAt", NULL};
    _cleanup_pgresult_ PGresult *res = NULL;
    _cleanup_json_ json_t *rows = NULL;
    struct db *db;

    (void)argv;
    if (argc != 0)
        return cli_usage(cli, "project list takes no operand");
    db = cli_db(cli);
    res = db != NULL ? db_exec(db, STMT_PROJECT_LIST, NULL, &cli->err) : NULL;
    if (res == NULL)
        return cli_exit_status(&cli->err);
    rows = output_rows(res);
    output_table(cli, rows, columns);
    return CLI_OK;
}
