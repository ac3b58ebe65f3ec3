/* paddock db …: the schema. */
#include <stdio.h>

#include "cli/cli.h"
#include "cli/migrate.h"

static void say_applied(int version, const char *name, void *arg)
{
    const struct cli *cli = arg;

    (void)version;
    if (!cli->json)
        printf("applied %s\n", name);
}

int cmd_db_migrate(struct cli *cli, int argc, char **argv)
{
    struct db *db;
    PGconn *conn;
    int applied;

    (void)argv;
    if (argc != 0)
        return cli_usage(cli, "db migrate takes no operand");
    db = cli_db(cli);
    conn = db != NULL ? db_connection(db, &cli->err) : NULL;
    if (conn == NULL)
        return cli_exit_status(&cli->err);
    applied = migrate_apply(conn, migrate_folder(), say_applied, cli, &cli->err);
    if (applied < 0)
        return cli_exit_status(&cli->err);
    if (cli->json)
        printf("{\"applied\": %d}\n", applied);
    else if (applied == 0)
        puts("the schema is current");
    return CLI_OK;
}
