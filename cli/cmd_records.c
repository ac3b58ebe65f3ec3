/* paddock usage (over REST) and paddock audit (from the database): records, as tables, JSON or
 * CSV. */
#include <stdio.h>
#include <string.h>

#include "cli/client.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/pairs.h"
#include "common/audit.h"
#include "common/json.h"
#include "common/text.h"

#define AUDIT_ROWS_DEFAULT "200"
#define AUDIT_ROWS_MAX 10000000

int cmd_usage(struct cli *cli, int argc, char **argv)
{
    static const char *const columns[] = {
        "day",   "sandboxes",       "executions",    "runtimeMs",    "pausedMs",
        "cpuMs", "memoryMbSeconds", "exportedBytes", "networkBytes", NULL};
    struct option_values none = {0}, from = {0}, to = {0}, csv = {0};
    const struct option_spec specs[] = {
        {"from", false, false, &from}, {"to", false, false, &to}, {"csv", false, true, &csv}};
    _cleanup_buf_ struct buf path = BUF_INIT(4096);
    _cleanup_buf_ struct buf query = BUF_INIT(4096);
    _cleanup_json_ json_t *answer = NULL;
    int status = options_parse(cli, argc, argv, specs, ARRAY_LEN(specs), &none, NULL);

    if (status != 0)
        return status;
    if (none.count > 0)
        return cli_usage(cli, "usage takes no operand");
    pairs_query(&query, "from", option_value(&from));
    pairs_query(&query, "to", option_value(&to));
    buf_printf(&path, "~/usage%s%s", query.len > 0 ? "?" : "",
               query.len > 0 ? buf_cstr(&query) + 1 : ""); /* pairs begin with an ampersand */
    answer = client_request(cli, "GET", buf_cstr(&path), NULL);
    if (answer == NULL)
        return cli_exit_status(&cli->err);
    if (csv.count > 0)
        output_csv(json_object_get(answer, "days"), columns);
    else if (cli->json)
        output_object(cli, answer);
    else
        output_table(cli, json_object_get(answer, "days"), columns);
    return CLI_OK;
}

/* The project's id, or NULL: unknown. */
static PGresult *find_project(struct cli *cli, const char *ref)
{
    const char *params[] = {ref};
    PGresult *res = db_exec(cli_db(cli), STMT_PROJECT_BY_NAME, params, &cli->err);

    if (res != NULL && PQntuples(res) == 0) {
        error_set(&cli->err, ERR_NOT_FOUND, "there is no such project");
        PQclear(res);
        res = NULL;
    }
    return res;
}

static bool is_time(const struct option_values *values)
{
    return values->count == 0 || text_is_time(values->at[0]);
}

int cmd_audit(struct cli *cli, int argc, char **argv)
{
    static const char *const columns[] = {"at",        "action",      "tokenId", "address",
                                          "sandboxId", "executionId", "detail",  NULL};
    static const char *const csv_columns[] = {"id",      "at",        "action",    "tokenId",
                                              "address", "requestId", "sandboxId", "executionId",
                                              "detail",  NULL};
    struct option_values none = {0}, project = {0}, action = {0}, after = {0}, before = {0},
                         limit = {0}, csv = {0};
    const struct option_spec specs[] = {
        {"project", false, false, &project}, {"action", false, false, &action},
        {"after", false, false, &after},     {"before", false, false, &before},
        {"limit", false, false, &limit},     {"csv", false, true, &csv},
    };
    _cleanup_pgresult_ PGresult *found = NULL;
    _cleanup_pgresult_ PGresult *res = NULL;
    _cleanup_json_ json_t *rows = NULL;
    int64_t number;
    int status = options_parse(cli, argc, argv, specs, ARRAY_LEN(specs), &none, NULL);

    if (status != 0)
        return status;
    if (none.count > 0)
        return cli_usage(cli, "audit takes no operand");
    if (limit.count > 0 && text_parse_i64(limit.at[0], 1, AUDIT_ROWS_MAX, &number) != 0)
        return cli_usage(cli, "--limit wants a number from 1 to %d", AUDIT_ROWS_MAX);
    if (action.count > 0 && !audit_action_is_known(action.at[0]))
        return cli_usage(cli, "there is no action %s", action.at[0]);
    if (!is_time(&after) || !is_time(&before))
        return cli_usage(cli, "--after and --before want a date and time of RFC 3339, as in "
                              "2026-01-02T03:04:05Z");
    if (cli_db(cli) == NULL)
        return cli_exit_status(&cli->err);
    if (project.count > 0 && (found = find_project(cli, project.at[0])) == NULL)
        return cli_exit_status(&cli->err);
    const char *params[] = {found != NULL ? db_column(found, 0, "id") : NULL,
                            option_value(&action),
                            option_value(&after),
                            option_value(&before),
                            NULL,
                            limit.count > 0 ? limit.at[0] : AUDIT_ROWS_DEFAULT};

    res = db_exec(cli_db(cli), STMT_AUDIT_LIST, params, &cli->err);
    if (res == NULL)
        return cli_exit_status(&cli->err);
    rows = output_rows(res);
    if (csv.count > 0)
        output_csv(rows, csv_columns);
    else
        output_table(cli, rows, columns);
    return CLI_OK;
}
