/* paddock project …: the tenants, straight in the database. */
#include <stdio.h>
#include <string.h>

#include "cli/options.h"
#include "cli/output.h"
#include "common/json.h"
#include "common/policy.h"
#include "common/resource.h"
#include "common/text.h"

/* Prints the one row of a statement on a project. */
static int print_project(struct cli *cli, const PGresult *res)
{
    _cleanup_json_ json_t *project = NULL;

    if (res == NULL)
        return cli_exit_status(&cli->err);
    if (PQntuples(res) == 0) {
        error_set(&cli->err, ERR_NOT_FOUND, "there is no such project");
        return CLI_NOT_FOUND;
    }
    project = resource_project(res, 0);
    output_object(cli, project);
    return CLI_OK;
}

int cmd_project_create(struct cli *cli, int argc, char **argv)
{
    struct option_values names = {0};
    struct option_values max = {0};
    const struct option_spec specs[] = {{"max-sandboxes", false, false, &max}};
    _cleanup_pgresult_ PGresult *res = NULL;
    _cleanup_free_ char *policy = NULL;
    _cleanup_free_ char *who = NULL;
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
    if (asprintf(&policy, max.count > 0 ? "{\"maxSandboxes\": %s}" : "{}", max.at[0]) < 0 ||
        (who = cli_who(cli)) == NULL)
        return CLI_FAILED;
    db = cli_db(cli);
    if (db != NULL) {
        const char *params[] = {names.at[0], policy, who};

        res = db_exec(db, STMT_PROJECT_CREATE, params, &cli->err);
    }
    if (res != NULL && PQntuples(res) == 0) {
        error_set(&cli->err, ERR_STATE_CONFLICT, "a project named %s exists already", names.at[0]);
        return CLI_CONFLICT;
    }
    return print_project(cli, res);
}

/* NAME=VALUE to a member: a number, null, or names separated by commas. */
static int set_member(struct cli *cli, const char *pair, json_t *policy)
{
    const char *value = strchr(pair, '=');
    _cleanup_free_ char *name = value != NULL ? strndup(pair, (size_t)(value - pair)) : NULL;
    int64_t number;

    if (name == NULL)
        return cli_usage(cli,
                         "a limit is NAME=VALUE, as in maxSandboxes=10 or templates=base,node");
    value++;
    if (strcmp(value, "null") == 0)
        return json_object_set_new(policy, name, json_null());
    if (text_parse_i64(value, 0, INT64_MAX, &number) == 0)
        return json_object_set_new(policy, name, json_integer(number));
    json_t *names = json_array();

    while (*value != '\0') {
        size_t len = strcspn(value, ",");

        json_array_append_new(names, json_stringn(value, len));
        value += len + (value[len] == ',');
    }
    return json_object_set_new(policy, name, names);
}

/* The policy as it is, with the members changed that are named. */
static json_t *changed_policy(struct cli *cli, const PGresult *res, int argc, char **argv)
{
    _cleanup_json_ json_t *project = resource_project(res, 0);
    json_t *policy = json_object_get(project, "policy");

    for (int i = 0; i < argc; i++) {
        if (set_member(cli, argv[i], policy) != 0)
            return NULL;
    }
    return policy_from_json(policy, &cli->err);
}

int cmd_project_policy(struct cli *cli, int argc, char **argv)
{
    _cleanup_pgresult_ PGresult *res = NULL;
    _cleanup_json_ json_t *policy = NULL;
    _cleanup_free_ char *text = NULL;
    _cleanup_free_ char *who = NULL;
    struct db *db;

    if (argc < 1)
        return cli_usage(cli, "name a project, and what to change: NAME=VALUE...");
    const char *by_name[] = {argv[0]};

    db = cli_db(cli);
    res = db != NULL ? db_exec(db, STMT_PROJECT_BY_NAME, by_name, &cli->err) : NULL;
    if (res == NULL || PQntuples(res) == 0 || argc == 1)
        return print_project(cli, res);
    policy = changed_policy(cli, res, argc - 1, argv + 1);
    if (policy == NULL)
        return error_is_set(&cli->err) ? cli_exit_status(&cli->err) : CLI_USAGE;
    text = json_canonical(policy);
    who = cli_who(cli);
    if (text == NULL || who == NULL)
        return CLI_FAILED;
    const char *params[] = {db_column(res, 0, "id"), text, who};
    _cleanup_pgresult_ PGresult *done = db_exec(db, STMT_PROJECT_SET_POLICY, params, &cli->err);

    return print_project(cli, done);
}

static int set_disabled(struct cli *cli, int argc, char **argv, const char *disabled)
{
    _cleanup_pgresult_ PGresult *res = NULL;
    _cleanup_free_ char *who = NULL;
    struct db *db;

    if (argc != 1)
        return cli_usage(cli, "name one project");
    if ((who = cli_who(cli)) == NULL)
        return CLI_FAILED;
    const char *params[] = {argv[0], disabled, who};

    db = cli_db(cli);
    res = db != NULL ? db_exec(db, STMT_PROJECT_SET_DISABLED, params, &cli->err) : NULL;
    return print_project(cli, res);
}

int cmd_project_disable(struct cli *cli, int argc, char **argv)
{
    return set_disabled(cli, argc, argv, "true");
}

int cmd_project_enable(struct cli *cli, int argc, char **argv)
{
    return set_disabled(cli, argc, argv, "false");
}

int cmd_project_list(struct cli *cli, int argc, char **argv)
{
    static const char *const columns[] = {"name",      "id",         "live", "policy.maxSandboxes",
                                          "createdAt", "disabledAt", NULL};
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
