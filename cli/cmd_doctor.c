/*
 * paddock doctor: is this installation fit? Each check says what it found, or
 * what is wrong and how to mend it; what could not be judged is said, too, and
 * is no success. The host's own checks are those that paddockd makes before it
 * starts: they are asked of it (--report), not repeated here. Nothing is asked
 * for but what the configuration names, and PADDOCK_URL.
 */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/client.h"
#include "cli/migrate.h"
#include "cli/output.h"
#include "cli/probe.h"
#include "common/fdpass.h"
#include "common/json.h"
#include "common/text.h"

extern char **environ;

#define REPORT_MAX 65536
/* As the examples of the web servers have it. */
#define DEFAULT_URL "http://127.0.0.1"
/* A handler answers /healthz at once, or when its database does not connect (5 s). */
#define HEALTH_TIMEOUT_S 15
/* The first with the SQL-standard function bodies that the schema uses. */
#define POSTGRES_MIN 140000

struct doctor {
    struct cli *cli;
    json_t *findings;
    bool all_ok;
    bool database_ok;
    bool handlers_ok;
};

/* result: ok, failed or unchecked. */
static void add(struct doctor *doctor, const char *check, const char *result, const char *detail)
{
    bool ok = strcmp(result, "ok") == 0;

    doctor->all_ok = doctor->all_ok && ok;
    if (!doctor->cli->json) {
        printf("%-13s %s%s\n", check,
               ok                                 ? "ok: "
               : strcmp(result, "unchecked") == 0 ? "NOT CHECKED: "
                                                  : "FAILED: ",
               detail);
        (void)fflush(stdout);
    }
    (void)json_array_append_new(doctor->findings, json_pack("{s:s, s:s, s:s}", "check", check,
                                                            "result", result, "detail", detail));
}

/* A failure: what the command line's error says, and the mend. Takes the error. */
static void add_failure(struct doctor *doctor, const char *check, const char *mend)
{
    char text[900];

    (void)snprintf(text, sizeof(text), "%s; %s%s", doctor->cli->err.detail, mend,
                   geteuid() == 0 ? "" : " (or run paddock doctor as root, who sees more)");
    doctor->cli->err = (struct error)ERROR_INIT;
    add(doctor, check, "failed", text);
}

static bool check_config(struct doctor *doctor)
{
    const char *given = doctor->cli->config_path;
    const char *path = given != NULL ? given : CONFIG_DEFAULT_PATH;
    char text[400];

    if (cli_config(doctor->cli) == NULL) {
        add_failure(doctor, "configuration",
                    "correct that line (paddock config show --help-text lists the keys)");
        return false;
    }
    (void)snprintf(text, sizeof(text), "%.300s%s", path,
                   access(path, F_OK) == 0 ? "" : " is not there: every key has its default");
    add(doctor, "configuration", "ok", text);
    return true;
}

static void check_database(struct doctor *doctor)
{
    static const char name[] = "database";
    struct db *db = cli_db(doctor->cli);
    _cleanup_pgresult_ PGresult *res = NULL;
    char text[100];
    long version;

    if (db != NULL)
        res = db_exec(db, STMT_SERVER_VERSION, NULL, &doctor->cli->err);
    if (res == NULL) {
        add_failure(doctor, name,
                    "start Postgres, create its user and database, or set database.dsn");
        return;
    }
    version = strtol(PQgetvalue(res, 0, 0), NULL, 10);
    (void)snprintf(text, sizeof(text), "Postgres %ld.%ld%s", version / 10000, version % 10000,
                   version < POSTGRES_MIN ? " is too old: install 14 or newer" : "");
    doctor->database_ok = version >= POSTGRES_MIN;
    add(doctor, name, doctor->database_ok ? "ok" : "failed", text);
}

static void check_schema(struct doctor *doctor)
{
    static const char name[] = "schema";
    struct cli *cli = doctor->cli;
    PGconn *conn = doctor->database_ok ? db_connection(cli_db(cli), &cli->err) : NULL;
    char text[100];
    int version;

    if (conn == NULL) {
        cli->err = (struct error)ERROR_INIT;
        add(doctor, name, "unchecked", "mend database first");
        return;
    }
    version = migrate_check(conn, migrate_folder(), &cli->err);
    if (version < 0) {
        bool is_behind = cli->err.code == ERR_CONFLICT;
        add_failure(doctor, name, is_behind ? "run paddock db migrate" : "reinstall Paddock");
        return;
    }
    (void)snprintf(text, sizeof(text), "version %d, the newest", version);
    add(doctor, name, "ok", text);
}

/* --- the host, as paddockd sees it ------------------------------------------------------ */

/* posix_spawn wants char *const[], and changes nothing. */
static char *const *spawn_argv(const char *const argv[])
{
    union {
        const char *const *in;
        char *const *out;
    } view = {.in = argv};

    return view.out;
}

static int spawn_report(const char *const argv[], pid_t *pid, int *out_fd)
{
    posix_spawn_file_actions_t actions;
    int pipe_fds[2];
    int rc;

    if (pipe2(pipe_fds, O_CLOEXEC) < 0)
        return errno;
    rc = posix_spawn_file_actions_init(&actions);
    if (rc == 0) {
        rc = posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], 1);
        if (rc == 0)
            rc = posix_spawn(pid, argv[0], &actions, NULL, spawn_argv(argv), environ);
        posix_spawn_file_actions_destroy(&actions);
    }
    close(pipe_fds[1]);
    if (rc != 0)
        close(pipe_fds[0]);
    else
        *out_fd = pipe_fds[0];
    return rc;
}

/* Each of its checks has a time limit of its own. */
static json_t *read_report(int fd)
{
    _cleanup_buf_ struct buf text = BUF_INIT(REPORT_MAX);
    char piece[4096];
    ssize_t got;

    while ((got = read(fd, piece, sizeof(piece))) != 0) {
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 || buf_append(&text, piece, (size_t)got) < 0)
            return NULL;
    }
    return json_loadb(text.data != NULL ? text.data : "", text.len, 0, NULL);
}

static void add_report(struct doctor *doctor, const json_t *report, const char *program)
{
    size_t i;
    json_t *one;
    char text[400];

    if (json_array_size(report) == 0) {
        (void)snprintf(text, sizeof(text), "%s --report gave no report; install one of version %s",
                       program, PADDOCK_VERSION);
        add(doctor, "host", "failed", text);
        return;
    }
    json_array_foreach(report, i, one)
    {
        const char *check = json_string_value(json_object_get(one, "check"));
        const char *result = json_string_value(json_object_get(one, "result"));
        const char *detail = json_string_value(json_object_get(one, "detail"));

        add(doctor, check != NULL ? check : "host", result != NULL ? result : "failed",
            detail != NULL ? detail : "no detail");
    }
}

static void check_host(struct doctor *doctor)
{
    const char *config_path = doctor->cli->config_path;
    const char *own = getenv("PADDOCKD");
    const char *program = own != NULL ? own : PADDOCK_SBINDIR "/paddockd";
    const char *const argv[] = {program, "--report", config_path ? "--config" : NULL, config_path,
                                NULL};
    _cleanup_json_ json_t *report = NULL;
    _cleanup_close_ int fd = -1;
    pid_t pid;
    int rc;

    if (geteuid() != 0) {
        add(doctor, "host", "unchecked", "run paddock doctor as root");
        return;
    }
    rc = spawn_report(argv, &pid, &fd);
    if (rc != 0) {
        error_set(&doctor->cli->err, ERR_SYSTEM, "%s: %s", program, strerror(rc));
        add_failure(doctor, "host", "install paddockd there");
        return;
    }
    report = read_report(fd);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        continue;
    add_report(doctor, report, program);
}

/* --- the service ------------------------------------------------------------------------ */

static const char start_paddockd[] = "start paddockd (systemctl start paddockd)";

static bool is_true(const PGresult *res, int row, const char *column)
{
    const char *value = db_column(res, row, column);

    return value != NULL && value[0] == 't';
}

/* What is wrong with the node's row, and how to mend it; false when nothing is. */
static bool node_is_wrong(struct doctor *doctor, const PGresult *res)
{
    const struct config *config = cli_config(doctor->cli);
    struct error *err = &doctor->cli->err;
    long long number = (long long)config->node_number;
    int row = 0;

    while (row < PQntuples(res) && strtoll(db_column(res, row, "number"), NULL, 10) != number)
        row++;
    if (row == PQntuples(res))
        error_set(err, ERR_DAEMON_UNAVAILABLE, "no paddockd ever came up as node %lld", number);
    else if (!is_true(res, row, "live"))
        error_set(err, ERR_DAEMON_UNAVAILABLE, "node %lld gave its last sign of life at %s", number,
                  db_column(res, row, "heartbeat_at"));
    else if (!is_true(res, row, "accepting"))
        error_set(err, ERR_DAEMON_UNAVAILABLE, "node %lld stops, or was stopped", number);
    else if (strcmp(db_column(res, row, "version"), PADDOCK_VERSION) != 0)
        error_set(err, ERR_DAEMON_UNAVAILABLE, "node %lld runs version %s, not %s", number,
                  db_column(res, row, "version"), PADDOCK_VERSION);
    return error_is_set(err);
}

static void check_daemon(struct doctor *doctor)
{
    static const char name[] = "paddockd";
    struct cli *cli = doctor->cli;
    const char *path = cli_config(cli)->daemon_handoff_socket;
    _cleanup_pgresult_ PGresult *res = NULL;
    _cleanup_close_ int sock = fdpass_connect(path, &cli->err);
    char text[200];

    if (sock < 0) {
        add_failure(doctor, name, start_paddockd);
        return;
    }
    if (doctor->database_ok)
        res = db_exec(cli_db(cli), STMT_HEALTH_NODES, NULL, &cli->err);
    if (res == NULL) {
        cli->err = (struct error)ERROR_INIT;
        add(doctor, name, "unchecked", "mend database and schema first");
    } else if (node_is_wrong(doctor, res)) {
        add_failure(doctor, name, start_paddockd);
    } else {
        (void)snprintf(text, sizeof(text), "node %lld takes work",
                       (long long)cli_config(cli)->node_number);
        add(doctor, name, "ok", text);
    }
}

static void check_handlers(struct doctor *doctor)
{
    static const char name[] = "handlers";
    const char *path = cli_config(doctor->cli)->web_socket;
    int status = probe_handlers(path, &doctor->cli->err);
    char text[300];

    if (status < 0) {
        add_failure(doctor, name, "start paddock-fcgi (systemctl start paddock-fcgi)");
        return;
    }
    doctor->handlers_ok = status == 200;
    (void)snprintf(text, sizeof(text), "%s answers /healthz with %d%s", path, status,
                   status == 503   ? "; mend database, then look again"
                   : status != 200 ? "; see the log of paddock-fcgi"
                                   : "");
    add(doctor, name, doctor->handlers_ok ? "ok" : "failed", text);
}

static void check_web_server(struct doctor *doctor)
{
    static const char name[] = "web server";
    struct cli *cli = doctor->cli;
    bool is_default = cli->url == NULL || cli->url[0] == '\0';
    _cleanup_json_ json_t *answer = NULL;
    char text[300];

    if (is_default)
        cli->url = DEFAULT_URL;
    cli->answer_timeout_s = HEALTH_TIMEOUT_S;
    answer = client_request(cli, "GET", "/healthz", NULL);
    if (answer == NULL) {
        (void)snprintf(
            text, sizeof(text), "%s%s",
            doctor->handlers_ok
                ? "start the web server, give it web.socket and the group of web.user, or set "
                  "PADDOCK_URL to where it is"
                : "mend handlers, then look again",
            is_default ? " (it is not set)" : "");
        add_failure(doctor, name, text);
        return;
    }
    (void)snprintf(text, sizeof(text), "%.200s answers /healthz%s", cli->url,
                   is_default ? " (PADDOCK_URL is not set)" : "");
    add(doctor, name, "ok", text);
}

int cmd_doctor(struct cli *cli, int argc, char **argv)
{
    _cleanup_json_ json_t *findings = json_array();
    struct doctor doctor = {.cli = cli, .findings = findings, .all_ok = true};

    (void)argv;
    if (argc != 0)
        return cli_usage(cli, "doctor takes no operand");
    if (check_config(&doctor)) {
        check_database(&doctor);
        check_schema(&doctor);
        check_host(&doctor);
        check_daemon(&doctor);
        check_handlers(&doctor);
        check_web_server(&doctor);
    } else {
        add(&doctor, "all others", "unchecked", "mend configuration first");
    }
    if (cli->json)
        output_table(cli, findings, (const char *const[]){NULL});
    return doctor.all_ok ? CLI_OK : CLI_FAILED;
}
