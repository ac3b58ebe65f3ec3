/*
 * Shared ground of the database tests. Everything goes through db_exec and the
 * statement table where the programs would; raw SQL only sets scenes and looks.
 */
#include "db_fixture.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PARAMS_MAX 16

static struct throwaway_pg server;

const struct throwaway_pg *db_fixture_server(void)
{
    return &server;
}

int db_fixture_run(Suite *suite)
{
    if (throwaway_pg_start(&server) != 0)
        return EXIT_FAILURE;
    if (!throwaway_pg_apply_schema(&server)) {
        throwaway_pg_stop(&server);
        return EXIT_FAILURE;
    }
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    if (failed > 0)
        throwaway_pg_dump_log(&server);
    throwaway_pg_stop(&server);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

struct db *db_fixture_open(void)
{
    struct db *db = db_new(server.conninfo, 10000, 10000);

    ck_assert_ptr_nonnull(db);
    return db;
}

void db_fixture_reset(void)
{
    _cleanup_db_ struct db *db = db_fixture_open();

    free(raw(db, "SET client_min_messages = error"));
    free(raw(db, "TRUNCATE projects, nodes, audit CASCADE"));
}

static PGresult *raw_result(struct db *db, const char *fmt, va_list args)
    __attribute__((format(printf, 2, 0)));
static PGresult *raw_result(struct db *db, const char *fmt, va_list args)
{
    struct error err = ERROR_INIT;
    PGconn *conn = db_connection(db, &err);
    char text[2000];

    ck_assert_msg(conn != NULL, "%s", err.detail);
    ck_assert_int_lt(vsnprintf(text, sizeof(text), fmt, args), (int)sizeof(text));
    return PQexec(conn, text);
}

static char *raw_value(PGresult *res)
{
    ExecStatusType status = PQresultStatus(res);
    char *value = NULL;

    ck_assert_msg(status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK, "%s",
                  PQresultErrorMessage(res));
    if (PQntuples(res) > 0 && PQnfields(res) > 0 && !PQgetisnull(res, 0, 0))
        value = strdup(PQgetvalue(res, 0, 0));
    PQclear(res);
    return value;
}

char *raw(struct db *db, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    char *value = raw_value(raw_result(db, fmt, args));
    va_end(args);
    return value;
}

long raw_long(struct db *db, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    char *value = raw_value(raw_result(db, fmt, args));
    va_end(args);
    ck_assert_ptr_nonnull(value);
    long number = strtol(value, NULL, 10);
    free(value);
    return number;
}

void raw_refused(struct db *db, const char *sqlstate, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    PGresult *res = raw_result(db, fmt, args);
    va_end(args);
    ck_assert_int_eq(PQresultStatus(res), PGRES_FATAL_ERROR);
    ck_assert_str_eq(PQresultErrorField(res, PG_DIAG_SQLSTATE), sqlstate);
    PQclear(res);
}

PGresult *run(struct db *db, enum statement stmt, ...)
{
    const char *params[PARAMS_MAX];
    struct error err = ERROR_INIT;
    va_list args;

    ck_assert_int_le(statement_params(stmt), PARAMS_MAX);
    va_start(args, stmt);
    for (int i = 0; i < statement_params(stmt); i++)
        params[i] = va_arg(args, const char *);
    va_end(args);
    PGresult *res = db_exec(db, stmt, params, &err);
    ck_assert_msg(res != NULL, "%s", err.detail);
    return res;
}

void assert_column(const PGresult *res, const char *name, const char *text)
{
    ck_assert_int_eq(PQntuples(res), 1);
    ck_assert_int_ge(PQfnumber(res, name), 0);
    ck_assert_pstr_eq(db_column(res, 0, name), text);
}

static void copy_id(char *out, const char *id)
{
    ck_assert_ptr_nonnull(id);
    ck_assert_uint_lt(strlen(id), ID_TEXT_SIZE);
    strcpy(out, id);
}

void make_project(struct db *db, const char *name, const char *max_sandboxes, char *out)
{
    char policy[64] = "{}";
    if (max_sandboxes)
        snprintf(policy, sizeof(policy), "{\"maxSandboxes\": %s}", max_sandboxes);
    _cleanup_pgresult_ PGresult *res = run(db, STMT_PROJECT_CREATE, name, policy, NULL);

    copy_id(out, db_column(res, 0, "id"));
}

void make_node(struct db *db, const char *number, const char *max_sandboxes, char *epoch_out)
{
    _cleanup_pgresult_ PGresult *res = run(db, STMT_NODE_REGISTER, number, "3600000", "0.1.0",
                                           max_sandboxes, "{base,node}", "{}", "{}");

    copy_id(epoch_out, db_column(res, 0, "epoch"));
}

static char *take_outcome(const PGresult *res, char *out)
{
    const char *id = db_column(res, 0, "id");

    if (out && id)
        copy_id(out, id);
    return strdup(db_column(res, 0, "outcome"));
}

char *admit_sandbox(struct db *db, const char *project, const char *key, const char *hash,
                    const char *request, char *out)
{
    _cleanup_pgresult_ PGresult *res =
        run(db, STMT_SANDBOX_ADMIT, project, WHO, key, hash, request);

    return take_outcome(res, out);
}

char *admit_execution(struct db *db, const char *project, const char *sandbox, const char *key,
                      const char *hash, const char *live_max, char *out)
{
    _cleanup_pgresult_ PGresult *res = run(db, STMT_EXECUTION_ADMIT, project, sandbox, WHO, key,
                                           hash, live_max, EXECUTION_REQUEST);

    return take_outcome(res, out);
}

void make_sandbox(struct db *db, const char *project, char *out)
{
    assert_text(admit_sandbox(db, project, NULL, NULL, SANDBOX_REQUEST, out), "created");
}

void make_execution(struct db *db, const char *project, const char *sandbox, char *out)
{
    assert_text(admit_execution(db, project, sandbox, NULL, NULL, "64", out), "created");
}

void start_sandbox(struct db *db, const char *sandbox, const char *node, const char *epoch)
{
    _cleanup_pgresult_ PGresult *claimed = run(db, STMT_SANDBOX_CLAIM, sandbox, node, epoch);
    _cleanup_pgresult_ PGresult *ready = run(db, STMT_SANDBOX_SET_READY, sandbox, node, epoch);

    assert_column(claimed, "state", "provisioning");
    assert_column(ready, "state", "ready");
}

struct scene open_scene(const char *max_sandboxes, const char *node_max)
{
    struct scene scene = {.db = db_fixture_open()};

    make_project(scene.db, "p", max_sandboxes, scene.project);
    make_node(scene.db, "1", node_max, scene.epoch);
    return scene;
}

void close_scene(struct scene *scene)
{
    db_free(scene->db);
}

void make_ready(const struct scene *s, char *sandbox)
{
    make_sandbox(s->db, s->project, sandbox);
    start_sandbox(s->db, sandbox, "1", s->epoch);
}

void end_sandbox(const struct scene *s, const char *sandbox)
{
    PQclear(run(s->db, STMT_SANDBOX_REQUEST_STOP, s->project, sandbox, WHO));
    _cleanup_pgresult_ PGresult *ended =
        run(s->db, STMT_SANDBOX_END, sandbox, "1", s->epoch, "terminated", "requested", "1000");

    assert_column(ended, "state", "terminated");
}
