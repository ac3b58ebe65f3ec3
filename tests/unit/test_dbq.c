/*
 * The statement queue against a real server: order, refusals, lost connections,
 * restarts, notifications. A second, blocking connection (the operator) breaks
 * things and looks at the outcome.
 */
#include <check.h>
#include <errno.h>
#include <libpq-fe.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/db.h"
#include "daemon/dbq.h"
#include "throwaway_pg.h"

static struct throwaway_pg pg;

struct fixture {
    struct loop *loop;
    struct log log;
    struct dbq *db;
    struct loop_timer *guard;
    struct loop_timer *later;
    PGconn *operator;
    int results; /* callbacks with a result */
    int errors;  /* callbacks with an error */
    int stop_at; /* of both together; 0: never */
    int ready;   /* calls of on_ready */
    int stop_ready;
    int notified;
    char payload[128];
    struct error last;
    bool idle;
    bool timed_out;
};

/* What one statement's callback saw. */
struct seen {
    struct fixture *f;
    int order; /* 1 for the first that was told */
    int calls;
    bool ok;
    char value[64]; /* first column of the first row */
    struct error err;
};

static void guard_fired(void *arg)
{
    struct fixture *f = arg;
    f->timed_out = true;
    loop_stop(f->loop);
}

static void run(struct fixture *f)
{
    f->timed_out = false;
    loop_timer_arm(f->guard, 60000);
    loop_run(f->loop);
    ck_assert_msg(!f->timed_out, "results %d errors %d ready %d", f->results, f->errors, f->ready);
}

static void run_until(struct fixture *f, int outcomes)
{
    f->stop_at = outcomes;
    if (f->results + f->errors < outcomes)
        run(f);
}

static void on_result(const PGresult *res, const struct error *err, void *arg)
{
    struct seen *seen = arg;
    struct fixture *f = seen->f;
    seen->calls++;
    seen->ok = res != NULL;
    if (res) {
        f->results++;
        ck_assert_ptr_null(err);
        if (PQntuples(res) > 0)
            snprintf(seen->value, sizeof(seen->value), "%s", PQgetvalue(res, 0, 0));
    } else {
        f->errors++;
        seen->err = *err;
        f->last = *err;
    }
    seen->order = f->results + f->errors;
    if (f->results + f->errors == f->stop_at)
        loop_stop(f->loop);
}

static void on_notify(const char *payload, void *arg)
{
    struct fixture *f = arg;
    f->notified++;
    snprintf(f->payload, sizeof(f->payload), "%s", payload);
    loop_stop(f->loop);
}

static void on_ready(void *arg)
{
    struct fixture *f = arg;
    if (++f->ready == f->stop_ready)
        loop_stop(f->loop);
}

static void run_until_ready(struct fixture *f, int times)
{
    f->stop_ready = times;
    if (f->ready < times)
        run(f);
}

static PGresult *sql(struct fixture *f, const char *text)
{
    PGresult *res = PQexec(f->operator, text);
    ck_assert_msg(PQresultStatus(res) == PGRES_COMMAND_OK || PQresultStatus(res) == PGRES_TUPLES_OK,
                  "%s: %s", text, PQerrorMessage(f->operator));
    return res;
}

static void sql_do(struct fixture *f, const char *text)
{
    PQclear(sql(f, text));
}

static int sql_int(struct fixture *f, const char *text)
{
    _cleanup_pgresult_ PGresult *res = sql(f, text);
    return atoi(PQgetvalue(res, 0, 0));
}

static void setup(struct fixture *f)
{
    struct error err = ERROR_INIT;
    char admin[256];
    memset(f, 0, sizeof(*f));
    f->loop = loop_new(&err);
    ck_assert_ptr_nonnull(f->loop);
    log_init(&f->log, "test_dbq");
    f->log.level = LOG_ERROR + 1;
    f->db = dbq_new(f->loop, &f->log, pg.conninfo, &err);
    ck_assert_msg(f->db != NULL, "%s", err.detail);
    f->guard = loop_timer_new(f->loop, guard_fired, f);
    snprintf(admin, sizeof(admin), "host=%s dbname=paddock user=postgres", pg.dir);
    f->operator= PQconnectdb(admin);
    ck_assert_int_eq(PQstatus(f->operator), CONNECTION_OK);
    sql_do(f, "SET client_min_messages = error");
    sql_do(f, "DELETE FROM projects");
}

static void teardown(struct fixture *f)
{
    dbq_free(f->db);
    loop_timer_free(f->guard);
    loop_timer_free(f->later);
    loop_free(f->loop);
    PQfinish(f->operator);
}

static void send_project(struct fixture *f, const char *name, struct seen *seen)
{
    struct error err = ERROR_INIT;
    const struct dbq_param params[] = {{.value = name}, {.value = "{}"}, {.value = NULL}};
    seen->f = f;
    ck_assert_msg(dbq_send(f->db, STMT_PROJECT_CREATE, params, on_result, seen, &err) == 0, "%s",
                  err.detail);
}

static void send_version(struct fixture *f, struct seen *seen)
{
    struct error err = ERROR_INIT;
    seen->f = f;
    ck_assert_int_eq(dbq_send(f->db, STMT_SERVER_VERSION, NULL, on_result, seen, &err), 0);
}

static void send_by_id(struct fixture *f, const char *id, struct seen *seen)
{
    struct error err = ERROR_INIT;
    const struct dbq_param params[] = {{.value = id}};
    seen->f = f;
    ck_assert_int_eq(dbq_send(f->db, STMT_SANDBOX_BY_ID, params, on_result, seen, &err), 0);
}

#define NOBODY "0001aaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"

/* Order and refusals ----------------------------------------------------------------- */

START_TEST(results_come_in_the_order_of_sending_each_for_its_own_statement)
{
    struct fixture f;
    static struct seen seen[500];
    char name[32];
    setup(&f);
    memset(seen, 0, sizeof(seen));
    dbq_start(f.db);
    for (int i = 0; i < 500; i++) {
        if (i % 3 == 0) {
            send_version(&f, &seen[i]);
        } else {
            snprintf(name, sizeof(name), "p%d", i);
            send_project(&f, name, &seen[i]);
        }
    }
    ck_assert_int_eq(f.results, 0); /* never from within dbq_send */
    run_until(&f, 500);
    ck_assert_int_eq(f.errors, 0);
    for (int i = 0; i < 500; i++) {
        ck_assert_int_eq(seen[i].calls, 1);
        ck_assert_int_eq(seen[i].order, i + 1);
        ck_assert_uint_eq(strlen(seen[i].value), i % 3 == 0 ? 6u : 36u);
    }
    ck_assert_int_eq(sql_int(&f, "SELECT count(*) FROM projects"), 333);
    teardown(&f);
}
END_TEST

START_TEST(a_refused_statement_aborts_no_other)
{
    struct fixture f;
    struct seen seen[5] = {0};
    setup(&f);
    dbq_start(f.db);
    send_project(&f, "good-1", &seen[0]);
    send_project(&f, "NOT A NAME", &seen[1]);
    send_project(&f, "ends-in-", &seen[2]);
    send_by_id(&f, "no uuid", &seen[3]);
    send_project(&f, "good-2", &seen[4]);
    run_until(&f, 5);
    ck_assert(seen[0].ok && seen[4].ok);
    ck_assert(!seen[1].ok && !seen[2].ok && !seen[3].ok);
    ck_assert_int_eq(seen[1].err.code, ERR_INTERNAL);
    ck_assert_str_eq(seen[1].err.detail, "PROJECT_CREATE: SQLSTATE 23514");
    ck_assert_str_eq(seen[2].err.detail, "PROJECT_CREATE: SQLSTATE 23514");
    ck_assert_str_eq(seen[3].err.detail, "SANDBOX_BY_ID: SQLSTATE 22P02");
    ck_assert_int_eq(sql_int(&f, "SELECT count(*) FROM projects"), 2);
    teardown(&f);
}
END_TEST

START_TEST(a_statement_that_cannot_be_prepared_is_refused_and_works_once_it_can)
{
    struct fixture f;
    struct seen seen[6] = {0};
    setup(&f);
    dbq_start(f.db);
    sql_do(&f, "ALTER VIEW sandbox_view RENAME TO gone_view");
    for (int i = 0; i < 3; i++)
        send_by_id(&f, NOBODY, &seen[i]); /* all three rely on the first one's PREPARE */
    send_version(&f, &seen[3]);
    run_until(&f, 4);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(seen[i].calls, 1);
        ck_assert_str_eq(seen[i].err.detail, "SANDBOX_BY_ID: SQLSTATE 42P01");
    }
    ck_assert(seen[3].ok);
    sql_do(&f, "ALTER VIEW gone_view RENAME TO sandbox_view");
    send_by_id(&f, NOBODY, &seen[4]);
    send_by_id(&f, NOBODY, &seen[5]);
    run_until(&f, 6);
    ck_assert(seen[4].ok && seen[5].ok);
    teardown(&f);
}
END_TEST

START_TEST(an_outcome_is_told_only_when_the_commit_is_done)
{
    struct fixture f;
    struct seen seen[2] = {0};
    setup(&f);
    /* Fails at commit, after the INSERT itself has returned its row. */
    sql_do(&f, "CREATE FUNCTION refuse_late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
               " IF NEW.name = 'late' THEN RAISE EXCEPTION 'late'; END IF; RETURN NULL; END $$");
    sql_do(&f, "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON projects DEFERRABLE INITIALLY"
               " DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse_late()");
    dbq_start(f.db);
    send_project(&f, "late", &seen[0]);
    send_project(&f, "after", &seen[1]);
    run_until(&f, 2);
    sql_do(&f, "DROP FUNCTION refuse_late CASCADE");
    ck_assert(!seen[0].ok);
    ck_assert_str_eq(seen[0].err.detail, "PROJECT_CREATE: SQLSTATE P0001");
    ck_assert(seen[1].ok);
    ck_assert_int_eq(sql_int(&f, "SELECT count(*) FROM projects"), 1);
    teardown(&f);
}
END_TEST

START_TEST(bytes_and_nulls_arrive_as_they_are)
{
    struct fixture f;
    struct error err = ERROR_INIT;
    struct seen seen = {.f = &f};
    char hash[32];
    setup(&f);
    for (size_t i = 0; i < sizeof(hash); i++)
        hash[i] = (char)(i * 8); /* begins with a NUL */
    const struct dbq_param params[] = {{.value = "00112233445566aa"},
                                       {.value = NULL},
                                       {.value = "name with 'quotes' and \\"},
                                       {.value = hash, .len = sizeof(hash), .binary = true},
                                       {.value = "{admin}"},
                                       {.value = NULL},
                                       {.value = NULL}};
    dbq_start(f.db);
    ck_assert_int_eq(dbq_send(f.db, STMT_TOKEN_CREATE, params, on_result, &seen, &err), 0);
    memset(hash, 0, sizeof(hash)); /* it was copied */
    run_until(&f, 1);
    ck_assert_msg(seen.ok, "%s", seen.err.detail);
    ck_assert_int_eq(
        sql_int(&f, "SELECT count(*) FROM tokens WHERE encode(secret_sha256, 'hex') ="
                    " '0008101820283038404850586068707880889098a0a8b0b8c0c8d0d8e0e8f0f8'"
                    " AND name = E'name with \\'quotes\\' and \\\\' AND expires_at IS NULL"),
        1);
    sql_do(&f, "DELETE FROM tokens");
    teardown(&f);
}
END_TEST

/* Lost races ------------------------------------------------------------------------- */

static void make_race(struct fixture *f, int losses)
{
    char text[512];
    sql_do(f, "DROP SEQUENCE IF EXISTS race CASCADE");
    sql_do(f, "CREATE SEQUENCE race");
    sql_do(f, "GRANT ALL ON race TO paddock");
    snprintf(text, sizeof(text),
             "CREATE OR REPLACE FUNCTION lose_race() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
             " IF NEW.name = 'race' AND nextval('race') <= %d THEN"
             " RAISE EXCEPTION 'lost' USING ERRCODE = '40001'; END IF; RETURN NEW; END $$",
             losses);
    sql_do(f, text);
    sql_do(f, "CREATE TRIGGER race BEFORE INSERT ON projects FOR EACH ROW"
              " EXECUTE FUNCTION lose_race()");
}

START_TEST(a_lost_race_is_run_again)
{
    struct fixture f;
    struct seen seen[2] = {0};
    setup(&f);
    make_race(&f, 3);
    dbq_start(f.db);
    send_project(&f, "race", &seen[0]);
    send_project(&f, "other", &seen[1]);
    run_until(&f, 2);
    sql_do(&f, "DROP FUNCTION lose_race CASCADE");
    ck_assert(seen[0].ok && seen[1].ok);
    ck_assert_int_eq(seen[0].order, 2); /* behind what was on its way */
    ck_assert_int_eq(sql_int(&f, "SELECT last_value FROM race"), 4);
    teardown(&f);
}
END_TEST

START_TEST(a_race_lost_for_ever_is_refused_after_three_more_tries)
{
    struct fixture f;
    struct seen seen[2] = {0};
    setup(&f);
    make_race(&f, 1000);
    dbq_start(f.db);
    send_project(&f, "race", &seen[0]);
    send_project(&f, "other", &seen[1]);
    run_until(&f, 2);
    sql_do(&f, "DROP FUNCTION lose_race CASCADE");
    ck_assert_int_eq(seen[0].err.code, ERR_CONFLICT);
    ck_assert_str_eq(seen[0].err.detail, "PROJECT_CREATE: SQLSTATE 40001");
    ck_assert(seen[1].ok);
    ck_assert_int_eq(sql_int(&f, "SELECT last_value FROM race"), 4);
    teardown(&f);
}
END_TEST

/* A full disk above all: whoever asked may try again. */
START_TEST(a_server_in_need_is_unavailable)
{
    static const char *const states[] = {"53100", "53200", "58030"};
    struct fixture f;
    struct seen seen[ARRAY_LEN(states)] = {0};
    char text[512];
    setup(&f);
    dbq_start(f.db);
    for (int i = 0; i < (int)ARRAY_LEN(states); i++) {
        snprintf(text, sizeof(text),
                 "CREATE OR REPLACE FUNCTION need() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                 " RAISE EXCEPTION 'need' USING ERRCODE = '%s'; END $$",
                 states[i]);
        sql_do(&f, text);
        if (i == 0)
            sql_do(&f, "CREATE TRIGGER need BEFORE INSERT ON projects FOR EACH ROW"
                       " EXECUTE FUNCTION need()");
        send_project(&f, "need", &seen[i]);
        run_until(&f, i + 1);
        ck_assert_int_eq(seen[i].err.code, ERR_DATABASE_UNAVAILABLE);
        ck_assert_int_gt(seen[i].err.retry_after_ms, 0);
    }
    sql_do(&f, "DROP FUNCTION need CASCADE");
    teardown(&f);
}
END_TEST

/* Lost connections ------------------------------------------------------------------- */

#define OURS "application_name = 'paddockd'"

static void listen_and_start(struct fixture *f)
{
    dbq_listen(f->db, "paddock_1", on_notify, on_ready, f);
    dbq_start(f->db);
    run_until_ready(f, 1);
}

static void later_fired(void *arg);

/* Runs the loop until a backend of ours waits for the operator's lock. */
static void run_until_blocked(struct fixture *f)
{
    if (!f->later)
        f->later = loop_timer_new(f->loop, later_fired, f);
    loop_timer_arm(f->later, 1);
    run(f);
}

static void later_fired(void *arg)
{
    struct fixture *f = arg;
    /* The operator is in a transaction: its snapshot of activity must be thrown away. */
    sql_do(f, "SELECT pg_stat_clear_snapshot()");
    if (sql_int(f, "SELECT count(*) FROM pg_stat_activity WHERE " OURS
                   " AND wait_event_type = 'Lock'") > 0)
        loop_stop(f->loop);
    else
        loop_timer_arm(f->later, 2);
}

START_TEST(statements_in_flight_survive_the_end_of_both_backends)
{
    struct fixture f;
    static struct seen seen[300];
    char name[32];
    setup(&f);
    memset(seen, 0, sizeof(seen));
    listen_and_start(&f);
    sql_do(&f, "BEGIN");
    sql_do(&f, "LOCK TABLE projects");
    for (int i = 0; i < 300; i++) { /* more than are on their way at once */
        snprintf(name, sizeof(name), "p%d", i);
        send_project(&f, name, &seen[i]);
    }
    run_until_blocked(&f);
    ck_assert_int_eq(sql_int(&f, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                                 " WHERE " OURS),
                     2);
    sql_do(&f, "COMMIT");
    run_until(&f, 300);
    for (int i = 0; i < 300; i++) {
        ck_assert_int_eq(seen[i].calls, 1);
        ck_assert(seen[i].ok);
        ck_assert_int_eq(seen[i].order, i + 1);
    }
    ck_assert_int_eq(sql_int(&f, "SELECT count(*) FROM projects"), 300);
    run_until_ready(&f, 2);
    teardown(&f);
}
END_TEST

START_TEST(a_statement_ended_by_the_operator_many_times_still_runs)
{
    struct fixture f;
    struct seen seen = {0};
    setup(&f);
    listen_and_start(&f);
    sql_do(&f, "BEGIN");
    sql_do(&f, "LOCK TABLE projects");
    send_project(&f, "patient", &seen);
    for (int i = 0; i < 5; i++) {
        run_until_blocked(&f);
        sql_do(&f, "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity WHERE"
                   " " OURS " AND wait_event_type = 'Lock'");
    }
    ck_assert_int_eq(seen.calls, 0);
    sql_do(&f, "COMMIT");
    run_until(&f, 1);
    ck_assert(seen.ok);
    teardown(&f);
}
END_TEST

START_TEST(statements_queued_while_the_server_is_away_run_when_it_is_back)
{
    struct fixture f;
    struct seen seen[21] = {0};
    char name[32];
    setup(&f);
    listen_and_start(&f);
    send_project(&f, "before", &seen[20]);
    run_until(&f, 1);
    ck_assert(throwaway_pg_halt(&pg));
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof(name), "p%d", i);
        send_project(&f, name, &seen[i]);
    }
    /* The loop finds out, and tries in vain for a while. */
    f.later = loop_timer_new(f.loop, guard_fired, &f);
    loop_timer_arm(f.later, 300);
    loop_run(f.loop);
    ck_assert(!dbq_is_connected(f.db));
    ck_assert_int_eq(f.results + f.errors, 1);
    ck_assert(throwaway_pg_resume(&pg));
    run_until(&f, 21);
    ck_assert_int_eq(f.errors, 0);
    for (int i = 0; i < 20; i++)
        ck_assert_int_eq(seen[i].order, i + 2);
    run_until_ready(&f, 2);
    PQreset(f.operator);
    ck_assert_int_eq(sql_int(&f, "SELECT count(*) FROM projects"), 21);
    teardown(&f);
}
END_TEST

START_TEST(a_statement_that_takes_the_server_down_is_refused_and_harms_no_other)
{
    struct fixture f;
    struct seen seen[5] = {0};
    setup(&f);
    /* The shell that COPY starts ends its parent: this backend, and Postgres with it. */
    sql_do(&f, "CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$"
               " BEGIN IF NEW.name = 'poison' THEN"
               " COPY (SELECT 1) TO PROGRAM 'kill -9 $PPID; cat'; END IF; RETURN NEW; END $$");
    sql_do(&f, "CREATE TRIGGER poison BEFORE INSERT ON projects FOR EACH ROW"
               " EXECUTE FUNCTION poison()");
    sql_do(&f, "CHECKPOINT");
    listen_and_start(&f);
    send_project(&f, "one", &seen[0]);
    send_project(&f, "two", &seen[1]);
    send_project(&f, "poison", &seen[2]);
    send_project(&f, "three", &seen[3]);
    send_project(&f, "four", &seen[4]);
    run_until(&f, 5);
    PQreset(f.operator);
    sql_do(&f, "SET client_min_messages = error");
    sql_do(&f, "DROP FUNCTION poison CASCADE");
    for (int i = 0; i < 5; i++)
        ck_assert_int_eq(seen[i].calls, 1);
    ck_assert(seen[0].ok && seen[1].ok && seen[3].ok && seen[4].ok);
    ck_assert_int_eq(seen[2].err.code, ERR_INTERNAL);
    ck_assert_ptr_nonnull(strstr(seen[2].err.detail, "3 times"));
    ck_assert_int_eq(seen[2].order, 3);
    teardown(&f);
}
END_TEST

START_TEST(a_server_that_stops_answering_is_left_for_another_connection)
{
    struct fixture f;
    struct seen seen[2] = {0};
    char text[128];
    setup(&f);
    dbq_set_timeouts(f.db, 500, 1000);
    listen_and_start(&f);
    send_version(&f, &seen[0]);
    run_until(&f, 1);
    /* The backend of the statements: the one that has not listened. */
    int pid =
        sql_int(&f, "SELECT pid FROM pg_stat_activity WHERE " OURS " AND query NOT LIKE 'LISTEN%'");
    ck_assert_int_eq(kill(pid, SIGSTOP), 0);
    send_project(&f, "elsewhere", &seen[1]);
    run_until(&f, 2);
    ck_assert(seen[1].ok);
    snprintf(text, sizeof(text), "SELECT count(*) FROM pg_stat_activity WHERE pid = %d", pid);
    ck_assert_int_eq(sql_int(&f, text), 1); /* it is still there, stopped */
    kill(pid, SIGCONT);
    kill(pid, SIGTERM);
    teardown(&f);
}
END_TEST

START_TEST(the_server_ends_a_statement_after_the_statement_timeout)
{
    struct fixture f;
    struct seen seen[2] = {0};
    setup(&f);
    dbq_set_timeouts(f.db, 5000, 500);
    listen_and_start(&f);
    sql_do(&f, "BEGIN");
    sql_do(&f, "LOCK TABLE projects");
    send_project(&f, "slow", &seen[0]);
    send_version(&f, &seen[1]);
    run_until(&f, 2);
    sql_do(&f, "COMMIT");
    ck_assert_str_eq(seen[0].err.detail, "PROJECT_CREATE: SQLSTATE 57014");
    ck_assert(seen[1].ok);
    teardown(&f);
}
END_TEST

START_TEST(a_changed_result_type_is_survived)
{
    struct fixture f;
    struct seen seen[4] = {0};
    setup(&f);
    listen_and_start(&f);
    send_by_id(&f, NOBODY, &seen[0]);
    run_until(&f, 1);
    _cleanup_pgresult_ PGresult *def =
        sql(&f, "SELECT rtrim(pg_get_viewdef('sandbox_view'::regclass), ';')");
    char text[8192];
    const char *definition = PQgetvalue(def, 0, 0);
    const char *from = strstr(definition, "FROM sandboxes");
    ck_assert_ptr_nonnull(from);
    snprintf(text, sizeof(text), "CREATE OR REPLACE VIEW sandbox_view AS %.*s, 1 AS one %s",
             (int)(from - definition), definition, from);
    sql_do(&f, text);
    send_by_id(&f, NOBODY, &seen[1]);
    send_by_id(&f, NOBODY, &seen[2]);
    send_version(&f, &seen[3]);
    run_until(&f, 4);
    for (int i = 0; i < 4; i++)
        ck_assert_msg(seen[i].calls == 1 && seen[i].ok, "%d: %s", i, seen[i].err.detail);
    teardown(&f);
}
END_TEST

/* Many ------------------------------------------------------------------------------- */

START_TEST(thousands_queued_before_the_connection_all_run_in_order)
{
    struct fixture f;
    static struct seen seen[5000];
    setup(&f);
    memset(seen, 0, sizeof(seen));
    for (int i = 0; i < 5000; i++)
        send_version(&f, &seen[i]);
    dbq_start(f.db);
    run_until(&f, 5000);
    ck_assert_int_eq(f.errors, 0);
    for (int i = 0; i < 5000; i++)
        ck_assert_int_eq(seen[i].order, i + 1);
    teardown(&f);
}
END_TEST

START_TEST(the_queue_has_an_end_and_many_owners_are_forgotten_quickly)
{
    struct fixture f;
    struct error err = ERROR_INIT;
    struct seen *seen = calloc(65537, sizeof(*seen));
    ck_assert_ptr_nonnull(seen);
    setup(&f);
    for (int i = 0; i < 65536; i++)
        send_version(&f, &seen[i]);
    seen[65536].f = &f;
    ck_assert_int_eq(dbq_send(f.db, STMT_SERVER_VERSION, NULL, on_result, &seen[65536], &err), -1);
    ck_assert_int_eq(err.code, ERR_DATABASE_UNAVAILABLE);
    for (int i = 0; i < 65535; i++)
        dbq_forget(f.db, &seen[i]);
    dbq_start(f.db);
    run_until(&f, 1);
    ck_assert_int_eq(seen[65535].calls, 1);
    for (int i = 0; i < 65535; i++)
        ck_assert_int_eq(seen[i].calls, 0);
    teardown(&f);
    free(seen);
}
END_TEST

/* Owners ----------------------------------------------------------------------------- */

static void when_idle(void *arg)
{
    struct fixture *f = arg;
    f->idle = true;
    loop_stop(f->loop);
}

START_TEST(a_forgotten_owner_hears_nothing_and_its_statements_run)
{
    struct fixture f;
    struct seen gone = {0};
    struct seen stays = {0};
    setup(&f);
    send_project(&f, "gone-1", &gone);
    send_project(&f, "stays", &stays);
    send_project(&f, "gone-2", &gone);
    dbq_forget(f.db, &gone);
    dbq_start(f.db);
    dbq_when_idle(f.db, when_idle, &f);
    run(&f);
    ck_assert(f.idle);
    ck_assert_int_eq(gone.calls, 0);
    ck_assert_int_eq(stays.calls, 1);
    ck_assert_int_eq(sql_int(&f, "SELECT count(*) FROM projects"), 3);
    teardown(&f);
}
END_TEST

START_TEST(an_owner_is_forgotten_in_flight_too)
{
    struct fixture f;
    struct seen gone = {0};
    setup(&f);
    listen_and_start(&f);
    sql_do(&f, "BEGIN");
    sql_do(&f, "LOCK TABLE projects");
    send_project(&f, "gone", &gone);
    run_until_blocked(&f);
    dbq_forget(f.db, &gone);
    sql_do(&f, "COMMIT");
    dbq_when_idle(f.db, when_idle, &f);
    run(&f);
    ck_assert_int_eq(gone.calls, 0);
    ck_assert_int_eq(sql_int(&f, "SELECT count(*) FROM projects"), 1);
    teardown(&f);
}
END_TEST

static void again(const PGresult *res, const struct error *err, void *arg)
{
    struct seen *seen = arg;
    on_result(res, err, arg);
    if (seen->calls < 10) {
        struct error send_err = ERROR_INIT;
        ck_assert_int_eq(dbq_send(seen->f->db, STMT_SERVER_VERSION, NULL, again, seen, &send_err),
                         0);
    }
}

START_TEST(a_callback_may_send)
{
    struct fixture f;
    struct seen seen = {.f = &f};
    struct error err = ERROR_INIT;
    setup(&f);
    dbq_start(f.db);
    ck_assert_int_eq(dbq_send(f.db, STMT_SERVER_VERSION, NULL, again, &seen, &err), 0);
    run_until(&f, 10);
    teardown(&f);
}
END_TEST

START_TEST(who_still_waits_at_the_end_is_told)
{
    struct fixture f;
    struct seen seen[3] = {0};
    setup(&f);
    listen_and_start(&f);
    sql_do(&f, "BEGIN");
    sql_do(&f, "LOCK TABLE projects");
    send_project(&f, "in-flight", &seen[0]);
    run_until_blocked(&f);
    send_project(&f, "queued", &seen[1]);
    dbq_free(f.db);
    f.db = NULL;
    sql_do(&f, "COMMIT");
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(seen[i].calls, 1);
        ck_assert_int_eq(seen[i].err.code, ERR_DATABASE_UNAVAILABLE);
    }
    teardown(&f);
}
END_TEST

/* Notifications ---------------------------------------------------------------------- */

START_TEST(a_notification_of_the_channel_is_passed_on)
{
    struct fixture f;
    setup(&f);
    listen_and_start(&f);
    sql_do(&f, "NOTIFY paddock_2, 'another node'");
    sql_do(&f, "NOTIFY paddock_1, 's0001'");
    run(&f);
    ck_assert_int_eq(f.notified, 1);
    ck_assert_str_eq(f.payload, "s0001");
    teardown(&f);
}
END_TEST

START_TEST(after_a_lost_listener_the_owner_is_told_to_scan_and_notifications_come_again)
{
    struct fixture f;
    struct seen seen = {0};
    setup(&f);
    listen_and_start(&f);
    ck_assert_int_eq(sql_int(&f, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                                 " WHERE " OURS " AND query LIKE 'LISTEN%'"),
                     1);
    run_until_ready(&f, 2);
    sql_do(&f, "NOTIFY paddock_1, 'again'");
    run(&f);
    ck_assert_str_eq(f.payload, "again");
    send_version(&f, &seen);
    run_until(&f, 1);
    ck_assert(seen.ok);
    teardown(&f);
}
END_TEST

START_TEST(notifications_come_while_statements_run)
{
    struct fixture f;
    static struct seen seen[200];
    setup(&f);
    memset(seen, 0, sizeof(seen));
    listen_and_start(&f);
    for (int i = 0; i < 200; i++)
        send_version(&f, &seen[i]);
    sql_do(&f, "NOTIFY paddock_1, 'meanwhile'");
    while (f.notified == 0)
        run(&f);
    run_until(&f, 200);
    teardown(&f);
}
END_TEST

/* Connecting ------------------------------------------------------------------------- */

START_TEST(a_conninfo_that_cannot_be_read_is_refused_without_quoting_it)
{
    struct error err = ERROR_INIT;
    struct log log;
    struct loop *loop = loop_new(&err);
    log_init(&log, "test_dbq");
    ck_assert_ptr_null(dbq_new(loop, &log, "host=/x password='secret", &err));
    ck_assert_int_eq(err.code, ERR_CONFIG);
    ck_assert_ptr_null(strstr(err.detail, "secret"));
    loop_free(loop);
}
END_TEST

static void accept_cb(int fd, unsigned events, void *arg)
{
    struct fixture *f = arg;
    (void)events;
    int conn = accept(fd, NULL, NULL);
    if (conn >= 0 && ++f->notified == 3)
        loop_stop(f->loop);
    /* Never answered; the descriptor goes with the test's process. */
}

START_TEST(a_server_that_accepts_and_says_nothing_is_given_up_and_tried_again)
{
    struct fixture f;
    struct error err = ERROR_INIT;
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    char folder[] = "/tmp/test_dbq.XXXXXX";
    char conninfo[128];
    setup(&f);
    dbq_free(f.db);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/.s.PGSQL.5432", folder);
    int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(sock, (const struct sockaddr *)&addr, sizeof(addr)), 0);
    ck_assert_int_eq(listen(sock, 8), 0);
    snprintf(conninfo, sizeof(conninfo), "host=%s user=x dbname=x", folder);
    f.db = dbq_new(f.loop, &f.log, conninfo, &err);
    ck_assert_ptr_nonnull(f.db);
    dbq_set_timeouts(f.db, 50, 50);
    struct loop_io *io = loop_io_new(f.loop, sock, LOOP_READ, accept_cb, &f);
    dbq_start(f.db);
    run(&f);
    ck_assert_int_eq(f.notified, 3);
    loop_io_free(io);
    close(sock);
    unlink(addr.sun_path);
    rmdir(folder);
    teardown(&f);
}
END_TEST

static void server_start(void)
{
    if (throwaway_pg_start(&pg) != 0 || !throwaway_pg_apply_schema(&pg))
        exit(1);
}

int main(void)
{
    server_start();
    Suite *suite = suite_create("dbq");
    TCase *tc = tcase_create("dbq");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, results_come_in_the_order_of_sending_each_for_its_own_statement);
    tcase_add_test(tc, a_refused_statement_aborts_no_other);
    tcase_add_test(tc, a_statement_that_cannot_be_prepared_is_refused_and_works_once_it_can);
    tcase_add_test(tc, an_outcome_is_told_only_when_the_commit_is_done);
    tcase_add_test(tc, bytes_and_nulls_arrive_as_they_are);
    tcase_add_test(tc, a_lost_race_is_run_again);
    tcase_add_test(tc, a_race_lost_for_ever_is_refused_after_three_more_tries);
    tcase_add_test(tc, a_server_in_need_is_unavailable);
    tcase_add_test(tc, statements_in_flight_survive_the_end_of_both_backends);
    tcase_add_test(tc, a_statement_ended_by_the_operator_many_times_still_runs);
    tcase_add_test(tc, statements_queued_while_the_server_is_away_run_when_it_is_back);
    tcase_add_test(tc, a_statement_that_takes_the_server_down_is_refused_and_harms_no_other);
    tcase_add_test(tc, a_server_that_stops_answering_is_left_for_another_connection);
    tcase_add_test(tc, the_server_ends_a_statement_after_the_statement_timeout);
    tcase_add_test(tc, a_changed_result_type_is_survived);
    tcase_add_test(tc, thousands_queued_before_the_connection_all_run_in_order);
    tcase_add_test(tc, the_queue_has_an_end_and_many_owners_are_forgotten_quickly);
    tcase_add_test(tc, a_forgotten_owner_hears_nothing_and_its_statements_run);
    tcase_add_test(tc, an_owner_is_forgotten_in_flight_too);
    tcase_add_test(tc, a_callback_may_send);
    tcase_add_test(tc, who_still_waits_at_the_end_is_told);
    tcase_add_test(tc, a_notification_of_the_channel_is_passed_on);
    tcase_add_test(tc,
                   after_a_lost_listener_the_owner_is_told_to_scan_and_notifications_come_again);
    tcase_add_test(tc, notifications_come_while_statements_run);
    tcase_add_test(tc, a_conninfo_that_cannot_be_read_is_refused_without_quoting_it);
    tcase_add_test(tc, a_server_that_accepts_and_says_nothing_is_given_up_and_tried_again);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    if (failed > 0)
        throwaway_pg_dump_log(&pg);
    throwaway_pg_stop(&pg);
    return failed == 0 ? 0 : 1;
}
