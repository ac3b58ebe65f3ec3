/*
 * paddock maintenance: retention and fencing, for cron and for hosts without a
 * running daemon. It may run beside daemons: the database lets one clean at a
 * time.
 */
#include <inttypes.h>
#include <stdio.h>

#include "cli/cli.h"
#include "cli/options.h"
#include "common/json.h"
#include "common/retention.h"
#include "common/text.h"

struct totals {
    int64_t outputs;
    int64_t sandboxes;
    int64_t keys;
    int64_t audits;
};

static int64_t number(const PGresult *res, const char *name)
{
    const char *text = db_column(res, 0, name);
    int64_t value = 0;

    return text != NULL && text_parse_i64(text, 0, INT64_MAX, &value) == 0 ? value : 0;
}

static bool is_true(const PGresult *res, const char *name)
{
    const char *text = db_column(res, 0, name);

    return text != NULL && text[0] == 't';
}

/* Batch after batch until nothing is left. *busy: another cleans. */
static int clean(struct cli *cli, struct db *db, struct totals *totals, bool *busy)
{
    struct retention_params params;

    retention_params_set(&params, cli_config(cli));
    for (;;) {
        _cleanup_pgresult_ PGresult *res = db_exec(db, STMT_RETENTION_CLEAN, params.at, &cli->err);

        if (res == NULL)
            return -1;
        *busy = is_true(res, "busy");
        totals->outputs += number(res, "outputs");
        totals->sandboxes += number(res, "sandboxes");
        totals->keys += number(res, "keys");
        totals->audits += number(res, "audits");
        if (*busy || !is_true(res, "more"))
            return 0;
    }
}

int cmd_maintenance(struct cli *cli, int argc, char **argv)
{
    /* No node of its own: every silent one is given up. */
    const char *no_node[] = {NULL};
    struct totals totals = {0};
    _cleanup_pgresult_ PGresult *fenced = NULL;
    bool busy = false;
    struct db *db;

    (void)argv;
    if (argc != 0)
        return cli_usage(cli, "maintenance takes no operand");
    db = cli_db(cli);
    if (db == NULL || (fenced = db_exec(db, STMT_NODES_FENCE, no_node, &cli->err)) == NULL ||
        clean(cli, db, &totals, &busy) < 0)
        return cli_exit_status(&cli->err);
    if (cli->json)
        printf("{\"nodesFenced\": %" PRId64 ", \"sandboxesLost\": %" PRId64 ", \"busy\": %s, "
               "\"outputs\": %" PRId64 ", \"sandboxes\": %" PRId64 ", \"keys\": %" PRId64
               ", \"audits\": %" PRId64 "}\n",
               number(fenced, "nodes"), number(fenced, "sandboxes"), busy ? "true" : "false",
               totals.outputs, totals.sandboxes, totals.keys, totals.audits);
    else
        printf("fenced %" PRId64 " nodes (%" PRId64 " sandboxes lost); cleaned %" PRId64
               " outputs, %" PRId64 " sandboxes, %" PRId64 " keys, %" PRId64 " audit records%s\n",
               number(fenced, "nodes"), number(fenced, "sandboxes"), totals.outputs,
               totals.sandboxes, totals.keys, totals.audits, busy ? "; another is cleaning" : "");
    return CLI_OK;
}
