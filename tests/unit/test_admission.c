/*
 * Admission: outcomes by name, idempotency keys, and the limits of projects and
 * nodes when fifty clients come at once.
 */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/json.h"
#include "common/resource.h"
#include "db_fixture.h"

#define THREADS 50

/* --- admission ----------------------------------------------------------------------------- */

START_TEST(an_admitted_sandbox_is_as_asked_for)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    _cleanup_db_ struct db *listener = db_fixture_open();
    struct error err = ERROR_INIT;
    char sandbox[ID_TEXT_SIZE];

    free(raw(listener, "LISTEN paddock_1"));
    PGconn *conn = db_connection(listener, &err);
    ck_assert_ptr_nonnull(conn);
    make_sandbox(s.db, s.project, sandbox);
    ck_assert_int_eq(strncmp(sandbox, "0001", 4), 0);
    _cleanup_pgresult_ PGresult *res = run(s.db, STMT_SANDBOX_GET, s.project, sandbox);
    assert_column(res, "state", "queued");
    assert_column(res, "template", "base");
    assert_column(res, "memory_mb", "256");
    assert_column(res, "ttl_seconds", "3600");
    assert_column(res, "idle_seconds", NULL);
    ck_assert_ptr_nonnull(db_column(res, 0, "expires_at"));
    _cleanup_json_ json_t *json = resource_sandbox(res, 0);
    ck_assert_ptr_nonnull(json);
    /* ids are of one project only */
    char other[ID_TEXT_SIZE];
    make_project(s.db, "other", NULL, other);
    _cleanup_pgresult_ PGresult *none = run(s.db, STMT_SANDBOX_GET, other, sandbox);
    ck_assert_int_eq(PQntuples(none), 0);

    PQclear(PQexec(conn, "SELECT 1")); /* brings what was notified */
    PGnotify *note = PQnotifies(conn);
    ck_assert_ptr_nonnull(note);
    ck_assert_int_eq(note->extra[0], 's');
    ck_assert_str_eq(note->extra + 1, sandbox);
    PQfreemem(note);
}
END_TEST

START_TEST(a_key_answers_again_and_guards_its_input)
{
    _cleanup_scene_ struct scene s = open_scene("1", "9");
    char first[ID_TEXT_SIZE];
    char second[ID_TEXT_SIZE] = "";

    assert_text(admit_sandbox(s.db, s.project, "k", REQUEST_HASH, SANDBOX_REQUEST, first),
                "created");
    /* whatever the limits say now */
    assert_text(admit_sandbox(s.db, s.project, "k", REQUEST_HASH, SANDBOX_REQUEST, second),
                "replayed");
    ck_assert_str_eq(first, second);
    assert_text(admit_sandbox(s.db, s.project, "k", OTHER_HASH, SANDBOX_REQUEST, NULL),
                "idempotency_conflict");
    end_sandbox(&s, first);
    assert_text(admit_sandbox(s.db, s.project, "k", REQUEST_HASH, SANDBOX_REQUEST, second),
                "replayed");
    /* the same key of another project is another key; it is free when retention says so */
    char other[ID_TEXT_SIZE];
    make_project(s.db, "other", NULL, other);
    assert_text(admit_sandbox(s.db, other, "k", OTHER_HASH, SANDBOX_REQUEST, NULL), "created");
    free(raw(s.db, "UPDATE idempotency_keys SET created_at = now() - interval '8 days'"));
    PQclear(run(s.db, STMT_RETENTION_CLEAN, "9", "9", "9999", "864000", "9999"));
    assert_text(admit_sandbox(s.db, s.project, "k", REQUEST_HASH, SANDBOX_REQUEST, NULL),
                "replayed");
    PQclear(run(s.db, STMT_RETENTION_CLEAN, "9", "9", "9999", "604800", "9999"));
    assert_text(admit_sandbox(s.db, s.project, "k", OTHER_HASH, SANDBOX_REQUEST, second),
                "created");
    ck_assert_str_ne(first, second);
}
END_TEST

START_TEST(a_refused_request_frees_its_key)
{
    _cleanup_scene_ struct scene s = open_scene("1", "9");
    char sandbox[ID_TEXT_SIZE];

    make_sandbox(s.db, s.project, sandbox);
    assert_text(admit_sandbox(s.db, s.project, "k", REQUEST_HASH, SANDBOX_REQUEST, NULL),
                "project_limit");
    ck_assert_int_eq(raw_long(s.db, "SELECT count(*) FROM idempotency_keys"), 0);
    end_sandbox(&s, sandbox);
    assert_text(admit_sandbox(s.db, s.project, "k", OTHER_HASH, SANDBOX_REQUEST, NULL), "created");
}
END_TEST

START_TEST(sandbox_refusals_have_names)
{
    _cleanup_scene_ struct scene s = open_scene("2", "1");
    char project[ID_TEXT_SIZE];
    char sandbox[ID_TEXT_SIZE];

    assert_text(admit_sandbox(s.db, s.project, NULL, NULL,
                              "{\"template\":\"windows\",\"cpus\":1,\"memoryMb\":1}", NULL),
                "unsatisfiable");
    make_sandbox(s.db, s.project, sandbox);
    assert_text(admit_sandbox(s.db, s.project, NULL, NULL, SANDBOX_REQUEST, NULL), "no_capacity");
    free(raw(s.db, "UPDATE nodes SET max_sandboxes = 5"));
    make_sandbox(s.db, s.project, sandbox);
    assert_text(admit_sandbox(s.db, s.project, NULL, NULL, SANDBOX_REQUEST, NULL), "project_limit");

    make_project(s.db, "free", NULL, project);
    free(raw(s.db, "UPDATE nodes SET accepting = false"));
    assert_text(admit_sandbox(s.db, project, NULL, NULL, SANDBOX_REQUEST, NULL),
                "daemon_unavailable");
    free(raw(s.db, "UPDATE nodes SET accepting = true, heartbeat_at = now() - interval '2 hours'"));
    assert_text(admit_sandbox(s.db, project, NULL, NULL, SANDBOX_REQUEST, NULL),
                "daemon_unavailable");
    free(raw(s.db, "UPDATE projects SET disabled_at = now() WHERE name = 'free'"));
    assert_text(admit_sandbox(s.db, project, NULL, NULL, SANDBOX_REQUEST, NULL),
                "project_disabled");
    assert_text(admit_sandbox(s.db, "99999999-9999-4999-8999-999999999999", NULL, NULL,
                              SANDBOX_REQUEST, NULL),
                "not_found");
    make_project(s.db, "nothing-allowed", "0", project);
    assert_text(admit_sandbox(s.db, project, NULL, NULL, SANDBOX_REQUEST, NULL), "project_limit");
}
END_TEST

/* Its disk is full, or it restarts: that passes, and a client asks again. */
START_TEST(a_template_of_a_node_that_takes_no_work_is_not_one_that_nobody_offers)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "2");
    char epoch[ID_TEXT_SIZE];

    make_node(s.db, "2", "2", epoch);
    free(raw(s.db, "UPDATE nodes SET templates = '{other}' WHERE number = 2"));
    free(raw(s.db, "UPDATE nodes SET accepting = false WHERE number = 1"));
    assert_text(admit_sandbox(s.db, s.project, NULL, NULL, SANDBOX_REQUEST, NULL),
                "daemon_unavailable");
    free(raw(s.db, "UPDATE nodes SET heartbeat_at = now() - interval '2 hours' WHERE number = 1"));
    assert_text(admit_sandbox(s.db, s.project, NULL, NULL, SANDBOX_REQUEST, NULL), "unsatisfiable");
}
END_TEST

START_TEST(nodes_fill_evenly_and_only_where_the_template_is)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "2");
    char epoch[ID_TEXT_SIZE];
    char sandbox[ID_TEXT_SIZE];

    make_node(s.db, "43981", "2", epoch); /* 0xabcd */
    for (int i = 0; i < 4; i++)
        make_sandbox(s.db, s.project, sandbox);
    assert_text(admit_sandbox(s.db, s.project, NULL, NULL, SANDBOX_REQUEST, NULL), "no_capacity");
    ck_assert_int_eq(raw_long(s.db, "SELECT count(*) FROM sandboxes WHERE id::text LIKE 'abcd%%'"),
                     2);
    free(raw(s.db, "UPDATE nodes SET max_sandboxes = 9, templates = CASE number WHEN 1 THEN"
                   " '{node}' ELSE '{base}' END::text[]"));
    for (int i = 0; i < 4; i++) {
        make_sandbox(s.db, s.project, sandbox);
        ck_assert_int_eq(strncmp(sandbox, "abcd", 4), 0);
    }
}
END_TEST

START_TEST(execution_outcomes_have_names)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char sandbox[ID_TEXT_SIZE];
    char first[ID_TEXT_SIZE];
    char second[ID_TEXT_SIZE] = "";

    make_sandbox(s.db, s.project, sandbox);
    /* queued sandboxes take executions: they wait for it */
    assert_text(admit_execution(s.db, s.project, sandbox, "k", REQUEST_HASH, "2", first),
                "created");
    assert_text(admit_execution(s.db, s.project, sandbox, "k", REQUEST_HASH, "2", second),
                "replayed");
    ck_assert_str_eq(first, second);
    assert_text(admit_execution(s.db, s.project, sandbox, "k", OTHER_HASH, "2", NULL),
                "idempotency_conflict");
    assert_text(admit_execution(s.db, s.project, sandbox, NULL, NULL, "1", NULL), "project_limit");
    free(raw(s.db, "UPDATE sandboxes SET exclusive = true"));
    assert_text(admit_execution(s.db, s.project, sandbox, "b", REQUEST_HASH, "9", NULL), "busy");
    free(raw(s.db, "UPDATE sandboxes SET exclusive = false"));
    assert_text(admit_execution(s.db, s.project, sandbox, "b", REQUEST_HASH, "9", NULL), "created");

    char project[ID_TEXT_SIZE];
    make_project(s.db, "other", NULL, project);
    assert_text(admit_execution(s.db, project, sandbox, NULL, NULL, "9", NULL), "not_found");
    start_sandbox(s.db, sandbox, "1", s.epoch);
    free(raw(s.db, "UPDATE sandboxes SET state = 'paused'"));
    assert_text(admit_execution(s.db, s.project, sandbox, NULL, NULL, "9", NULL), "state_conflict");
    free(raw(s.db, "UPDATE sandboxes SET state = 'ready'"));
    free(raw(s.db, "UPDATE nodes SET heartbeat_at = now() - interval '2 hours'"));
    assert_text(admit_execution(s.db, s.project, sandbox, NULL, NULL, "9", NULL),
                "daemon_unavailable");
    free(raw(s.db, "UPDATE nodes SET heartbeat_at = now()"));
    PQclear(run(s.db, STMT_SANDBOX_REQUEST_STOP, s.project, sandbox, WHO));
    assert_text(admit_execution(s.db, s.project, sandbox, NULL, NULL, "9", NULL), "gone");
    end_sandbox(&s, sandbox);
    assert_text(admit_execution(s.db, s.project, sandbox, NULL, NULL, "9", NULL), "gone");
    assert_text(admit_execution(s.db, s.project, sandbox, "k", REQUEST_HASH, "9", NULL),
                "replayed");
}
END_TEST

/* What the commit of the open transaction waits for; ends it. */
static void assert_commit(struct db *db, const char *expected)
{
    _cleanup_free_ char *setting = raw(db, "SELECT current_setting('synchronous_commit')");

    ck_assert_str_eq(setting, expected);
    free(raw(db, "ROLLBACK"));
}

START_TEST(only_a_key_of_an_execution_makes_its_admission_wait_for_the_disk)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char sandbox[ID_TEXT_SIZE];
    char other[ID_TEXT_SIZE];

    make_sandbox(s.db, s.project, sandbox);
    free(raw(s.db, "SET synchronous_commit = on"));
    free(raw(s.db, "BEGIN"));
    make_sandbox(s.db, s.project, other);
    assert_commit(s.db, "off");
    free(raw(s.db, "BEGIN"));
    make_execution(s.db, s.project, sandbox, other);
    assert_commit(s.db, "off");
    free(raw(s.db, "BEGIN"));
    assert_text(admit_execution(s.db, s.project, sandbox, "k", REQUEST_HASH, "9", other),
                "created");
    assert_commit(s.db, "on");
    free(raw(s.db, "BEGIN"));
    PQclear(run(s.db, STMT_FLUSH));
    assert_commit(s.db, "on");
}
END_TEST

/* --- concurrency --------------------------------------------------------------------------- */

struct worker {
    pthread_barrier_t *barrier;
    const char *project;
    const char *key; /* NULL: none */
    char id[ID_TEXT_SIZE];
    char *outcome;
};

static void *admit_at_once(void *arg)
{
    struct worker *worker = arg;
    _cleanup_db_ struct db *db = db_fixture_open();
    struct error err = ERROR_INIT;

    (void)db_connection(db, &err);
    pthread_barrier_wait(worker->barrier);
    worker->outcome = admit_sandbox(db, worker->project, worker->key,
                                    worker->key ? REQUEST_HASH : NULL, SANDBOX_REQUEST, worker->id);
    return NULL;
}

/* All workers admit at the same time; returns how many got this outcome. */
static int admit_all(struct worker workers[THREADS], const char *outcome)
{
    pthread_barrier_t barrier;
    pthread_t threads[THREADS];
    int count = 0;

    ck_assert_int_eq(pthread_barrier_init(&barrier, NULL, THREADS), 0);
    for (int i = 0; i < THREADS; i++) {
        workers[i].barrier = &barrier;
        ck_assert_int_eq(pthread_create(&threads[i], NULL, admit_at_once, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        ck_assert_ptr_nonnull(workers[i].outcome);
        count += strcmp(workers[i].outcome, outcome) == 0;
    }
    pthread_barrier_destroy(&barrier);
    return count;
}

static int count_outcome(const struct worker workers[THREADS], const char *outcome)
{
    int count = 0;

    for (int i = 0; i < THREADS; i++)
        count += strcmp(workers[i].outcome, outcome) == 0;
    return count;
}

static void free_outcomes(struct worker workers[THREADS])
{
    for (int i = 0; i < THREADS; i++)
        free(workers[i].outcome);
}

START_TEST(fifty_of_one_key_make_one_sandbox)
{
    _cleanup_scene_ struct scene s = open_scene("1", "9");
    struct worker workers[THREADS];

    memset(workers, 0, sizeof(workers));
    for (int i = 0; i < THREADS; i++) {
        workers[i].project = s.project;
        workers[i].key = "the-key";
    }
    ck_assert_int_eq(admit_all(workers, "created"), 1);
    ck_assert_int_eq(count_outcome(workers, "replayed"), THREADS - 1);
    for (int i = 1; i < THREADS; i++)
        ck_assert_str_eq(workers[i].id, workers[0].id);
    ck_assert_int_eq(raw_long(s.db, "SELECT count(*) FROM sandboxes"), 1);
    free_outcomes(workers);
}
END_TEST

START_TEST(a_project_limit_holds_under_a_storm)
{
    _cleanup_scene_ struct scene s = open_scene("10", "1000");
    struct worker workers[THREADS];

    memset(workers, 0, sizeof(workers));
    for (int i = 0; i < THREADS; i++)
        workers[i].project = s.project;
    ck_assert_int_eq(admit_all(workers, "created"), 10);
    ck_assert_int_eq(count_outcome(workers, "project_limit"), THREADS - 10);
    ck_assert_int_eq(raw_long(s.db, "SELECT count(*) FROM sandboxes"), 10);
    free_outcomes(workers);
}
END_TEST

/* Many projects, so that no project's lock puts them in a row. */
START_TEST(nodes_fill_to_the_brim_and_not_over_it)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "13");
    static char projects[THREADS][ID_TEXT_SIZE];
    struct worker workers[THREADS];
    char epoch[ID_TEXT_SIZE];

    make_node(s.db, "2", "13", epoch);
    make_node(s.db, "3", "13", epoch);
    memset(workers, 0, sizeof(workers));
    for (int i = 0; i < THREADS; i++) {
        char name[32];
        snprintf(name, sizeof(name), "p%d", i);
        make_project(s.db, name, NULL, projects[i]);
        workers[i].project = projects[i];
    }
    ck_assert_int_eq(admit_all(workers, "created"), 39);
    ck_assert_int_eq(count_outcome(workers, "no_capacity"), THREADS - 39);
    ck_assert_int_eq(raw_long(s.db, "SELECT count(*) FROM (SELECT node FROM sandboxes GROUP BY node"
                                    " HAVING count(*) = 13) x"),
                     3);
    free_outcomes(workers);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("admission");
    TCase *tc = tcase_create("admission");
    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, db_fixture_reset, NULL);
    tcase_add_test(tc, an_admitted_sandbox_is_as_asked_for);
    tcase_add_test(tc, a_key_answers_again_and_guards_its_input);
    tcase_add_test(tc, a_refused_request_frees_its_key);
    tcase_add_test(tc, sandbox_refusals_have_names);
    tcase_add_test(tc, a_template_of_a_node_that_takes_no_work_is_not_one_that_nobody_offers);
    tcase_add_test(tc, nodes_fill_evenly_and_only_where_the_template_is);
    tcase_add_test(tc, execution_outcomes_have_names);
    tcase_add_test(tc, only_a_key_of_an_execution_makes_its_admission_wait_for_the_disk);
    tcase_add_test(tc, fifty_of_one_key_make_one_sandbox);
    tcase_add_test(tc, a_project_limit_holds_under_a_storm);
    tcase_add_test(tc, nodes_fill_to_the_brim_and_not_over_it);
    suite_add_tcase(suite, tc);

    return db_fixture_run(suite);
}
