/*
 * The blocking connection over a real Postgres: every statement of the table,
 * kinds of failure, what is tried again and what never is, lost connections, a
 * server that restarts.
 */
#include <check.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "db_fixture.h"

START_TEST(every_statement_prepares_with_its_parameters)
{
    _cleanup_db_ struct db *db = db_fixture_open();
    struct error err = ERROR_INIT;
    PGconn *conn = db_connection(db, &err);

    ck_assert_ptr_nonnull(conn);
    for (int i = 0; i < STMT_COUNT; i++) {
        enum statement stmt = (enum statement)i;
        const char *name = statement_name(stmt);
        _cleanup_pgresult_ PGresult *prepared =
            PQprepare(conn, name, statement_text(stmt), 0, NULL);
        _cleanup_pgresult_ PGresult *described = PQdescribePrepared(conn, name);

        ck_assert_msg(PQresultStatus(prepared) == PGRES_COMMAND_OK, "%s: %s", name,
                      PQresultErrorMessage(prepared));
        ck_assert_int_eq(PQresultStatus(described), PGRES_COMMAND_OK);
        ck_assert_msg(PQnparams(described) == statement_params(stmt), "%s: %d parameters, not %d",
                      name, PQnparams(described), statement_params(stmt));
    }
}
END_TEST

START_TEST(results_of_both_kinds_come_back)
{
    _cleanup_db_ struct db *db = db_fixture_open();
    char epoch[ID_TEXT_SIZE];

    make_node(db, "7", "5", epoch);
    for (int i = 0; i < 3; i++) { /* prepared once, run often */
        _cleanup_pgresult_ PGresult *rows = run(db, STMT_NODE_HEARTBEAT, "7", epoch);
        _cleanup_pgresult_ PGresult *command =
            run(db, STMT_NODE_SET_ACCEPTING, "7", epoch, "false");

        assert_column(rows, "verdict", "current");
        ck_assert_int_eq(PQresultStatus(command), PGRES_COMMAND_OK);
        ck_assert_str_eq(PQcmdTuples(command), "1");
    }
    _cleanup_pgresult_ PGresult *none = run(db, STMT_NODE_HEARTBEAT, "7", "99");
    assert_column(none, "verdict", "taken_over");
    _cleanup_pgresult_ PGresult *nobody =
        run(db, STMT_PROJECT_GET, "0001aaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee");
    ck_assert_int_eq(PQntuples(nobody), 0);
    ck_assert_ptr_null(db_column(nobody, 0, "id"));
    _cleanup_pgresult_ PGresult *nulls = run(db, STMT_PROJECT_CREATE, "p", "{}", NULL);
    ck_assert_ptr_nonnull(db_column(nulls, 0, "id"));
    ck_assert_ptr_null(db_column(nulls, 0, "no_such_column"));
    ck_assert_ptr_null(db_column(nulls, -1, "id"));
}
END_TEST

START_TEST(failures_tell_the_sqlstate_and_no_parameter)
{
    _cleanup_db_ struct db *db = db_fixture_open();
    struct error err = ERROR_INIT;
    const char *const bad[] = {"s3cret-not-a-uuid", "s3cret"};
    const char *const bad_name[] = {"S3CRET-s3cret", "{}", NULL};

    ck_assert_ptr_null(db_exec(db, STMT_SANDBOX_GET, bad, &err));
    ck_assert_int_eq(err.code, ERR_INTERNAL);
    ck_assert_ptr_nonnull(strstr(err.detail, "SANDBOX_GET"));
    ck_assert_ptr_nonnull(strstr(err.detail, "22P02"));
    ck_assert_ptr_null(strstr(err.detail, "s3cret"));

    ck_assert_ptr_null(db_exec(db, STMT_PROJECT_CREATE, bad_name, &err));
    ck_assert_ptr_nonnull(strstr(err.detail, "23514"));
    ck_assert_ptr_null(strstr(err.detail, "s3cret"));
    /* the connection goes on */
    PQclear(run(db, STMT_SERVER_VERSION));
}
END_TEST

START_TEST(the_session_is_set_up)
{
    char conninfo[400];

    snprintf(conninfo, sizeof(conninfo), "%s options='-c work_mem=1234kB'",
             db_fixture_server()->conninfo);
    _cleanup_db_ struct db *db = db_new(conninfo, 10000, 4321);
    assert_text(raw(db, "SHOW statement_timeout"), "4321ms");
    assert_text(raw(db, "SHOW work_mem"), "1234kB");
    assert_text(raw(db, "SHOW client_encoding"), "UTF8");
    assert_text(raw(db, "SHOW application_name"), program_invocation_short_name);
    assert_text(raw(db, "SELECT usesuper FROM pg_user WHERE usename = current_user"), "f");
}
END_TEST

/* --- conflicts: a trigger that fails a number of times ------------------------------------- */

static void fail_heartbeats(struct db *db, const char *sqlstate, int times)
{
    free(raw(db, "DROP SEQUENCE IF EXISTS tries CASCADE; CREATE SEQUENCE tries"));
    free(raw(db,
             "CREATE OR REPLACE FUNCTION fail_some() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
             " IF nextval('tries') <= %d THEN RAISE 'made to fail' USING ERRCODE = '%s'; END IF;"
             " RETURN NEW; END $$",
             times, sqlstate));
    free(raw(db, "CREATE OR REPLACE TRIGGER fail_some BEFORE UPDATE ON nodes FOR EACH ROW EXECUTE"
                 " FUNCTION fail_some()"));
}

static void drop_trigger(void)
{
    _cleanup_db_ struct db *db = db_fixture_open();

    free(raw(db, "DROP TRIGGER IF EXISTS fail_some ON nodes"));
    free(raw(db, "DROP SEQUENCE IF EXISTS tries"));
}

static long tries(struct db *db)
{
    return raw_long(db, "SELECT last_value FROM tries");
}

START_TEST(conflicts_are_tried_three_times)
{
    _cleanup_db_ struct db *db = db_fixture_open();
    struct error err = ERROR_INIT;
    char epoch[ID_TEXT_SIZE];

    make_node(db, "7", "5", epoch);
    const char *const params[] = {"7", epoch};
    fail_heartbeats(db, "40001", 2);
    _cleanup_pgresult_ PGresult *res = run(db, STMT_NODE_HEARTBEAT, "7", epoch);
    assert_column(res, "verdict", "current");
    ck_assert_int_eq(tries(db), 3);

    fail_heartbeats(db, "40P01", 100);
    ck_assert_ptr_null(db_exec(db, STMT_NODE_HEARTBEAT, params, &err));
    ck_assert_int_eq(err.code, ERR_CONFLICT);
    ck_assert_int_gt(err.retry_after_ms, 0);
    ck_assert_int_eq(tries(db), 3);
}
END_TEST

START_TEST(an_unknown_outcome_is_not_tried_again)
{
    _cleanup_db_ struct db *db = db_fixture_open();
    struct error err = ERROR_INIT;
    char epoch[ID_TEXT_SIZE];

    make_node(db, "7", "5", epoch);
    const char *const params[] = {"7", epoch};
    fail_heartbeats(db, "40003", 100); /* statement_completion_unknown */
    ck_assert_ptr_null(db_exec(db, STMT_NODE_HEARTBEAT, params, &err));
    ck_assert_int_eq(err.code, ERR_INTERNAL);
    ck_assert_int_eq(tries(db), 1);
}
END_TEST

START_TEST(a_server_in_need_is_unavailable)
{
    static const char *const states[] = {"53100", "53200", "57P01", "08006", "58030"};
    _cleanup_db_ struct db *db = db_fixture_open();
    struct error err = ERROR_INIT;
    char epoch[ID_TEXT_SIZE];

    make_node(db, "7", "5", epoch);
    const char *const params[] = {"7", epoch};
    for (size_t i = 0; i < ARRAY_LEN(states); i++) {
        fail_heartbeats(db, states[i], 100);
        ck_assert_ptr_null(db_exec(db, STMT_NODE_HEARTBEAT, params, &err));
        ck_assert_int_eq(err.code, ERR_DATABASE_UNAVAILABLE);
        ck_assert_int_gt(err.retry_after_ms, 0);
        ck_assert_int_eq(tries(db), 1);
    }
}
END_TEST

START_TEST(a_statement_that_takes_too_long_is_ended)
{
    _cleanup_db_ struct db *holder = db_fixture_open();
    _cleanup_db_ struct db *db = db_new(db_fixture_server()->conninfo, 10000, 100);
    struct error err = ERROR_INIT;
    char epoch[ID_TEXT_SIZE];

    make_node(holder, "7", "5", epoch);
    const char *const params[] = {"7", epoch};
    free(raw(holder, "BEGIN; SELECT * FROM nodes FOR UPDATE"));
    ck_assert_ptr_null(db_exec(db, STMT_NODE_HEARTBEAT, params, &err));
    ck_assert_int_eq(err.code, ERR_DATABASE_UNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(err.detail, "57014"));
    free(raw(holder, "COMMIT"));
    PQclear(run(db, STMT_NODE_HEARTBEAT, "7", epoch));
}
END_TEST

START_TEST(what_the_server_forgot_is_prepared_again)
{
    _cleanup_db_ struct db *db = db_fixture_open();

    PQclear(run(db, STMT_SCHEMA_VERSION));
    free(raw(db, "DEALLOCATE ALL"));
    PQclear(run(db, STMT_SCHEMA_VERSION));
    /* a migration changes what a prepared statement returns */
    free(raw(db, "ALTER TABLE schema_migrations ALTER version TYPE bigint"));
    _cleanup_pgresult_ PGresult *res = run(db, STMT_SCHEMA_VERSION);
    assert_column(res, "version", "0");
    free(raw(db, "ALTER TABLE schema_migrations ALTER version TYPE integer"));
    PQclear(run(db, STMT_SCHEMA_VERSION));
}
END_TEST

/* --- lost connections ---------------------------------------------------------------------- */

static int backend_pid(struct db *db)
{
    struct error err = ERROR_INIT;
    PGconn *conn = db_connection(db, &err);

    ck_assert_ptr_nonnull(conn);
    return PQbackendPID(conn);
}

/* Ends a session and waits until it is gone. */
static void terminate(struct db *other, int pid)
{
    assert_text(raw(other, "SELECT pg_terminate_backend(%d, 10000)", pid), "t");
}

START_TEST(a_connection_lost_while_idle_is_replaced)
{
    _cleanup_db_ struct db *other = db_fixture_open();
    _cleanup_db_ struct db *db = db_fixture_open();

    for (int i = 0; i < 5; i++) {
        int pid = backend_pid(db);

        PQclear(run(db, STMT_SERVER_VERSION));
        terminate(other, pid);
        PQclear(run(db, STMT_SERVER_VERSION));
        ck_assert_int_ne(backend_pid(db), pid);
    }
    terminate(other, backend_pid(db));
    struct error err = ERROR_INIT;
    ck_assert_int_eq(db_ensure(db, &err), 0);
}
END_TEST

START_TEST(notices_and_notifications_disturb_nothing)
{
    _cleanup_db_ struct db *other = db_fixture_open();
    _cleanup_db_ struct db *db = db_fixture_open();
    int pid = backend_pid(db);

    free(raw(db, "LISTEN noise; DROP TABLE IF EXISTS no_such_table"));
    for (int i = 0; i < 100; i++)
        free(raw(other, "NOTIFY noise, '%d'", i));
    PQclear(run(db, STMT_SERVER_VERSION));
    ck_assert_int_eq(backend_pid(db), pid);
}
END_TEST

struct killer {
    int victim;
    struct db *db; /* the killer's own */
};

/* Ends the victim's session as soon as it waits for a lock. */
static void *kill_when_waiting(void *arg)
{
    const struct killer *killer = arg;
    bool waiting = false;

    while (!waiting) {
        char *state = raw(killer->db,
                          "SELECT count(*) FROM pg_stat_activity WHERE pid = %d AND"
                          " wait_event_type = 'Lock'",
                          killer->victim);
        waiting = strcmp(state, "1") == 0;
        free(state);
    }
    terminate(killer->db, killer->victim);
    return NULL;
}

START_TEST(a_statement_that_was_sent_is_not_sent_again)
{
    _cleanup_db_ struct db *holder = db_fixture_open();
    _cleanup_db_ struct db *other = db_fixture_open();
    _cleanup_db_ struct db *db = db_fixture_open();
    struct error err = ERROR_INIT;
    char epoch[ID_TEXT_SIZE];
    pthread_t thread;

    make_node(holder, "7", "5", epoch);
    const char *const params[] = {"7", epoch};
    PQclear(run(db, STMT_NODE_HEARTBEAT, "7", epoch)); /* prepared */
    fail_heartbeats(holder, "40001", 0);               /* counts only */
    free(raw(holder, "BEGIN; SELECT * FROM nodes FOR UPDATE"));
    struct killer killer = {.victim = backend_pid(db), .db = other};
    ck_assert_int_eq(pthread_create(&thread, NULL, kill_when_waiting, &killer), 0);
    ck_assert_ptr_null(db_exec(db, STMT_NODE_HEARTBEAT, params, &err));
    pthread_join(thread, NULL);
    ck_assert_int_eq(err.code, ERR_DATABASE_UNAVAILABLE);
    ck_assert_int_gt(err.retry_after_ms, 0);
    free(raw(holder, "COMMIT"));
    assert_text(raw(holder, "SELECT is_called FROM tries"), "f");
    /* and the next statement finds a new connection at once */
    PQclear(run(db, STMT_NODE_HEARTBEAT, "7", epoch));
}
END_TEST

START_TEST(a_restart_is_survived_with_backoff)
{
    const struct throwaway_pg *server = db_fixture_server();
    _cleanup_db_ struct db *db = db_fixture_open();
    struct error err = ERROR_INIT;
    int64_t longest = 0;

    PQclear(run(db, STMT_SERVER_VERSION));
    ck_assert(throwaway_pg_restart(server));
    PQclear(run(db, STMT_SERVER_VERSION));

    ck_assert(throwaway_pg_halt(server));
    ck_assert_ptr_null(db_exec(db, STMT_SERVER_VERSION, NULL, &err));
    ck_assert_int_eq(err.code, ERR_DATABASE_UNAVAILABLE);
    ck_assert_int_eq(err.retry_after_ms, 50);
    for (int64_t wanted = 100; wanted <= 400; wanted *= 2) {
        /* waits as long as it is told, never longer than the backoff at hand */
        do {
            ck_assert_int_le(err.retry_after_ms, wanted / 2);
            poll(NULL, 0, (int)err.retry_after_ms);
            ck_assert_int_eq(db_ensure(db, &err), -1);
            ck_assert_int_eq(err.code, ERR_DATABASE_UNAVAILABLE);
            ck_assert_int_gt(err.retry_after_ms, 0);
        } while (err.retry_after_ms < wanted);
        ck_assert_int_eq(err.retry_after_ms, wanted);
    }
    while (longest < 2000) {
        poll(NULL, 0, (int)err.retry_after_ms);
        ck_assert_int_eq(db_ensure(db, &err), -1);
        ck_assert_int_le(err.retry_after_ms, 2000);
        if (err.retry_after_ms > longest)
            longest = err.retry_after_ms;
    }

    ck_assert(throwaway_pg_resume(server));
    while (db_ensure(db, &err) < 0) {
        ck_assert_int_eq(err.code, ERR_DATABASE_UNAVAILABLE);
        poll(NULL, 0, (int)err.retry_after_ms);
    }
    PQclear(run(db, STMT_SERVER_VERSION));
    /* a success forgets the backoff */
    _cleanup_db_ struct db *other = db_fixture_open();
    terminate(other, backend_pid(db));
    PQclear(run(db, STMT_SERVER_VERSION));
}
END_TEST

START_TEST(connection_strings_that_cannot_work)
{
    static const struct {
        const char *conninfo;
        enum error_code code;
    } cases[] = {
        {"host=/nowhere dbname=paddock password=s3cret", ERR_DATABASE_UNAVAILABLE},
        {"host=/tmp s3cret", ERR_CONFIG},
        {"host=/tmp password='s3cret", ERR_CONFIG},
        {"postgresql://u:s3cret%zz@h/d", ERR_CONFIG},
        {"no_such_keyword=s3cret", ERR_CONFIG},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        _cleanup_db_ struct db *db = db_new(cases[i].conninfo, 1000, 1000);
        struct error err = ERROR_INIT;

        ck_assert_ptr_null(db_connection(db, &err));
        ck_assert_int_eq(err.code, cases[i].code);
        ck_assert_str_ne(err.detail, "");
        ck_assert_ptr_null(strstr(err.detail, "s3cret"));
        ck_assert_ptr_null(strchr(err.detail, '\n'));
        ck_assert_ptr_null(db_exec(db, STMT_SERVER_VERSION, NULL, &err));
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("db");
    TCase *tc = tcase_create("statements");

    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, db_fixture_reset, drop_trigger);
    tcase_add_test(tc, every_statement_prepares_with_its_parameters);
    tcase_add_test(tc, results_of_both_kinds_come_back);
    tcase_add_test(tc, failures_tell_the_sqlstate_and_no_parameter);
    tcase_add_test(tc, the_session_is_set_up);
    tcase_add_test(tc, conflicts_are_tried_three_times);
    tcase_add_test(tc, an_unknown_outcome_is_not_tried_again);
    tcase_add_test(tc, a_server_in_need_is_unavailable);
    tcase_add_test(tc, a_statement_that_takes_too_long_is_ended);
    tcase_add_test(tc, what_the_server_forgot_is_prepared_again);
    suite_add_tcase(suite, tc);

    tc = tcase_create("connection");
    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, db_fixture_reset, drop_trigger);
    tcase_add_test(tc, a_connection_lost_while_idle_is_replaced);
    tcase_add_test(tc, notices_and_notifications_disturb_nothing);
    tcase_add_test(tc, a_statement_that_was_sent_is_not_sent_again);
    tcase_add_test(tc, a_restart_is_survived_with_backoff);
    tcase_add_test(tc, connection_strings_that_cannot_work);
    suite_add_tcase(suite, tc);

    return db_fixture_run(suite);
}
