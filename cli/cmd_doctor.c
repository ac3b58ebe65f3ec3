/*
 * paddock doctor: is this installation fit? Each check says what is missing and
 * how to mend it. The host's own checks (runsc, cgroups, images) are those that
 * paddockd makes before it starts; they are asked of it, not repeated here.
 */
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "cli/client.h"
#include "cli/output.h"
#include "common/json.h"

extern char **environ;

struct finding {
    bool ok;
    char text[900]; /* an error's detail, and how to mend it */
};

static void found(struct finding *finding, const struct error *err, const char *mend)
{
    finding->ok = false;
    snprintf(finding->text, sizeof(finding->text), "%s; %s", err->detail, mend);
}

static void check_config(struct cli *cli, struct finding *finding)
{
    if (cli_config(cli) == NULL)
        found(finding, &cli->err, "correct that line (paddock config show --help-text lists keys)");
}

static void check_database(struct cli *cli, struct finding *finding)
{
    struct db *db = cli_db(cli);
    _cleanup_pgresult_ PGresult *res = NULL;

    if (db == NULL || (res = db_exec(db, STMT_SERVER_VERSION, NULL, &cli->err)) == NULL) {
        found(finding, &cli->err,
              "start Postgres, create its user and database, or set database.dsn");
        return;
    }
    /* 14 is the first with the SQL-standard function bodies that the schema uses. */
    if (atoi(PQgetvalue(res, 0, 0)) < 140000) {
        finding->ok = false;
        snprintf(finding->text, sizeof(finding->text),
                 "Postgres %s is too old; install 14 or newer", PQgetvalue(res, 0, 0));
    }
}

static void check_schema(struct cli *cli, struct finding *finding)
{
    struct db *db = cli_db(cli);
    _cleanup_pgresult_ PGresult *res = NULL;

    if (db != NULL)
        res = db_exec(db, STMT_SCHEMA_VERSION, NULL, &cli->err);
    if (res == NULL)
        found(finding, &cli->err,
              cli->err.code == ERR_INTERNAL ? "run paddock db migrate"
                                            : "mend that first, then look again");
}

static void check_host(struct cli *cli, struct finding *finding)
{
    const char *program = PADDOCK_SBINDIR "/paddockd";
    const char *override = getenv("PADDOCKD");
    posix_spawn_file_actions_t actions;
    char *argv[5];
    pid_t pid;
    int status = -1;
    int failed;

    if (geteuid() != 0) {
        finding->ok = false;
        snprintf(finding->text, sizeof(finding->text), "only root can check the host; run as root");
        return;
    }
    if (override != NULL)
        program = override;
    argv[0] = (char *)(uintptr_t)program;
    argv[1] = (char *)(uintptr_t)"--check";
    argv[2] = cli->config_path != NULL ? (char *)(uintptr_t)"--config" : NULL;
    argv[3] = (char *)(uintptr_t)cli->config_path;
    argv[4] = NULL;
    fflush(stdout);
    /* What it says is for people; stdout stays what --json promises. */
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, 2, 1);
    failed = posix_spawn(&pid, program, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed == 0)
        waitpid(pid, &status, 0);
    if (failed != 0 || status != 0) {
        finding->ok = false;
        snprintf(finding->text, sizeof(finding->text), "%s --check refused (see its message)%s%s",
                 program, failed ? ": " : "", failed ? strerror(failed) : "");
    }
}

static void check_service(struct cli *cli, struct finding *finding)
{
    _cleanup_json_ json_t *answer = NULL;

    if (cli->url == NULL)
        cli->url = "http://127.0.0.1"; /* as the examples of the web servers have it */
    answer = client_request(cli, "GET", "/healthz", NULL);
    if (answer == NULL)
        found(finding, &cli->err,
              "start paddockd, paddock-fcgi and the web server, or set PADDOCK_URL");
}

static const struct {
    const char *name;
    void (*check)(struct cli *cli, struct finding *finding);
    bool stops_on_failure; /* what follows could not be judged */
} checks[] = {
    {"configuration", check_config, true}, {"database", check_database, false},
    {"schema", check_schema, false},       {"host", check_host, false},
    {"service", check_service, false},
};

int cmd_doctor(struct cli *cli, int argc, char **argv)
{
    _cleanup_json_ json_t *results = json_array();
    bool all_ok = true;

    (void)argv;
    if (argc != 0)
        return cli_usage(cli, "doctor takes no operand");
    for (size_t i = 0; i < ARRAY_LEN(checks); i++) {
        struct finding finding = {.ok = true, .text = "ok"};

        checks[i].check(cli, &finding);
        cli->err = (struct error)ERROR_INIT;
        all_ok = all_ok && finding.ok;
        if (!cli->json)
            printf("%-13s %s%s\n", checks[i].name, finding.ok ? "" : "FAILED: ", finding.text);
        json_array_append_new(results, json_pack("{s:s, s:b, s:s}", "check", checks[i].name, "ok",
                                                 (int)finding.ok, "detail", finding.text));
        if (!finding.ok && checks[i].stops_on_failure)
            break;
    }
    if (cli->json)
        output_table(cli, results, (const char *const[]){NULL});
    return all_ok ? CLI_OK : CLI_FAILED;
}
