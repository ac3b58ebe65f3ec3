/*
 * A sandbox's life as the database keeps it: changed deadlines, cancelled
 * executions, policy, history, usage, audit, retention, and the fencing of
 * silent nodes.
 */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/json.h"
#include "common/policy.h"
#include "common/resource.h"
#include "db_fixture.h"

static void set_policy(const struct scene *s, const char *policy)
{
    PQclear(run(s->db, STMT_PROJECT_SET_POLICY, s->project, policy, WHO));
}

/* A request of SANDBOX_REQUEST's with these lifetimes (the rest of an object, or ""). */
static char *admit_with(const struct scene *s, const char *members, char *out)
{
    _cleanup_free_ char *request = NULL;

    ck_assert_int_gt(asprintf(&request,
                              "{\"template\":\"base\",\"cpus\":2,\"memoryMb\":512,"
                              "\"workspaceMb\":64,\"pids\":64,\"env\":{},\"labels\":{},"
                              "\"egress\":{\"mode\":\"none\"},\"exclusive\":false%s}",
                              members),
                     0);
    return admit_sandbox(s->db, s->project, NULL, NULL, request, out);
}

static char *update(const struct scene *s, const char *sandbox, const char *request)
{
    _cleanup_pgresult_ PGresult *res =
        run(s->db, STMT_SANDBOX_UPDATE, s->project, sandbox, WHO, request);

    return strdup(db_column(res, 0, "outcome"));
}

static void cancel(const struct scene *s, const char *sandbox, const char *execution,
                   const char *state)
{
    _cleanup_pgresult_ PGresult *res =
        run(s->db, STMT_EXECUTION_REQUEST_CANCEL, s->project, sandbox, execution, WHO);

    assert_column(res, "state", state);
}

static PGresult *finish(const struct scene *s, const char *execution, const char *state,
                        const char *reason, const char *exit_code, const char *oom_killed)
{
    return run(s->db, STMT_EXECUTION_FINISH, execution, "1", s->epoch, state, reason, NULL,
               exit_code, NULL, "\\x6f7574", "3", NULL, "\\x", "0", NULL, "5", oom_killed);
}

/* --- policy ------------------------------------------------------------------------------- */

START_TEST(a_policy_refuses_by_name)
{
    static const char *const cases[][3] = {
        {"{\"maxCpus\":1}", "", "limit_exceeded"},
        {"{\"maxMemoryMb\":511}", "", "limit_exceeded"},
        {"{\"maxWorkspaceMb\":63}", "", "limit_exceeded"},
        {"{\"maxPids\":63}", "", "limit_exceeded"},
        {"{\"maxTtlSeconds\":9}", ",\"ttlSeconds\":10", "limit_exceeded"},
        {"{\"maxTtlSeconds\":9}", ",\"ttlSeconds\":null", "limit_exceeded"},
        {"{\"maxIdleSeconds\":9}", ",\"idleSeconds\":10", "limit_exceeded"},
        {"{\"templates\":[\"node\"]}", "", "unsatisfiable"},
        {"{\"templates\":[]}", "", "unsatisfiable"},
        {"{\"egressModes\":[\"public\"]}", "", "unsatisfiable"},
        {"{\"maxSandboxes\":0}", "", "project_limit"},
        {"{\"maxCpus\":2,\"maxMemoryMb\":512,\"maxTtlSeconds\":10,\"templates\":[\"base\"],"
         "\"egressModes\":[\"none\"]}",
         ",\"ttlSeconds\":10", "created"},
    };
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        set_policy(&s, cases[i][0]);
        assert_text(admit_with(&s, cases[i][1], NULL), cases[i][2]);
    }
    raw_refused(s.db, "23514", "UPDATE projects SET policy = '{\"maxCpu\": 1}'");
    raw_refused(s.db, "23514", "UPDATE projects SET policy = '[]'");
}
END_TEST

START_TEST(lifetimes_left_open_are_the_policy_s)
{
    static const struct {
        const char *policy;
        const char *request;
        const char *ttl;
    } cases[] = {
        {"{}", "", NULL},
        {"{\"maxTtlSeconds\":100}", "", "100"},
        {"{\"maxTtlSeconds\":100,\"defaultTtlSeconds\":7}", "", "7"},
        {"{\"maxTtlSeconds\":7,\"defaultTtlSeconds\":100}", "", "7"}, /* no way round the limit */
        {"{\"defaultTtlSeconds\":7}", ",\"ttlSeconds\":null", NULL},
        {"{\"defaultTtlSeconds\":7}", ",\"ttlSeconds\":50", "50"},
    };
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char id[ID_TEXT_SIZE];
        set_policy(&s, cases[i].policy);
        assert_text(admit_with(&s, cases[i].request, id), "created");
        _cleanup_pgresult_ PGresult *row = run(s.db, STMT_SANDBOX_GET, s.project, id);
        assert_column(row, "ttl_seconds", cases[i].ttl);
        ck_assert((db_column(row, 0, "expires_in_ms") != NULL) == (cases[i].ttl != NULL));
    }
}
END_TEST

struct racer {
    const struct scene *s;
    unsigned created;
    unsigned refused;
};

static void *race(void *arg)
{
    struct racer *racer = arg;
    _cleanup_db_ struct db *db = db_fixture_open();

    for (int i = 0; i < 10; i++) {
        char *outcome = admit_sandbox(db, racer->s->project, NULL, NULL, SANDBOX_REQUEST, NULL);
        racer->created += strcmp(outcome, "created") == 0;
        racer->refused += strcmp(outcome, "project_limit") == 0;
        free(outcome);
    }
    return NULL;
}

START_TEST(parallel_creates_cannot_overshoot)
{
    _cleanup_scene_ struct scene s = open_scene("7", "100");
    struct racer racers[4];
    pthread_t threads[ARRAY_LEN(racers)];
    unsigned created = 0;
    unsigned refused = 0;

    for (size_t i = 0; i < ARRAY_LEN(racers); i++) {
        racers[i] = (struct racer){.s = &s};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, race, &racers[i]), 0);
    }
    for (size_t i = 0; i < ARRAY_LEN(racers); i++) {
        pthread_join(threads[i], NULL);
        created += racers[i].created;
        refused += racers[i].refused;
    }
    ck_assert_uint_eq(created, 7);
    ck_assert_uint_eq(refused, 33);
}
END_TEST

START_TEST(a_policy_is_read_strictly)
{
    static const char *const bad[] = {
        "{\"maxCpu\":1}",
        "{\"maxCpus\":-1}",
        "{\"maxCpus\":65}",
        "{\"maxCpus\":\"1\"}",
        "{\"templates\":\"base\"}",
        "{\"templates\":[1]}",
        "{\"templates\":[\"\"]}",
        "{\"egressModes\":[\"A\"]}",
        "{\"maxPids\":true}",
        "{\"maxPids\":15}",
        "{\"maxSandboxes\":1000001}",
        /* A sandbox cannot live for no time at all: every create would fail. */
        "{\"maxTtlSeconds\":0}",
        "{\"defaultTtlSeconds\":0}",
        "{\"maxIdleSeconds\":0}",
        "{\"defaultIdleSeconds\":0}",
        "{\"maxTtlSeconds\":31536001}",
        "{\"defaultTtlSeconds\":3,\"maxTtlSeconds\":2}",
        "{\"maxIdleSeconds\":2,\"defaultIdleSeconds\":3}",
    };

    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct error err = ERROR_INIT;
        _cleanup_json_ json_t *policy = json_loads(bad[i], 0, NULL);
        ck_assert_ptr_null(policy_from_json(policy, &err));
        ck_assert_ptr_nonnull(strstr(bad[i], err.field));
    }
    struct error err = ERROR_INIT;
    _cleanup_json_ json_t *given =
        json_loads("{\"maxCpus\":null,\"maxSandboxes\":0,\"templates\":[],\"egressModes\":null,"
                   "\"defaultTtlSeconds\":2,\"maxTtlSeconds\":2}",
                   0, NULL);
    _cleanup_json_ json_t *policy = policy_from_json(given, &err);
    _cleanup_free_ char *text = json_canonical(policy);
    ck_assert_str_eq(text, "{\"defaultTtlSeconds\":2,\"maxSandboxes\":0,\"maxTtlSeconds\":2,"
                           "\"templates\":[]}");
}
END_TEST

START_TEST(a_project_shows_every_limit)
{
    _cleanup_scene_ struct scene s = open_scene("3", "9");
    _cleanup_pgresult_ PGresult *res = run(s.db, STMT_PROJECT_GET, s.project);
    _cleanup_json_ json_t *project = resource_project(res, 0);
    const json_t *policy = json_object_get(project, "policy");

    ck_assert_int_eq(json_integer_value(json_object_get(policy, "maxSandboxes")), 3);
    ck_assert(json_is_null(json_object_get(policy, "templates")));
    ck_assert_uint_eq(json_object_size(policy), 11);
}
END_TEST

START_TEST(a_disabled_project_s_sandboxes_stop)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char queued[ID_TEXT_SIZE];
    char ready[ID_TEXT_SIZE];

    make_ready(&s, ready);
    make_sandbox(s.db, s.project, queued);
    PQclear(run(s.db, STMT_PROJECT_SET_DISABLED, "p", "true", WHO));
    _cleanup_pgresult_ PGresult *a = run(s.db, STMT_SANDBOX_GET, s.project, queued);
    _cleanup_pgresult_ PGresult *b = run(s.db, STMT_SANDBOX_GET, s.project, ready);
    assert_column(a, "state", "terminated");
    assert_column(b, "state", "stopping");
    assert_column(a, "reason", "project_disabled");
    assert_column(b, "reason", "project_disabled");
    assert_text(admit_sandbox(s.db, s.project, NULL, NULL, SANDBOX_REQUEST, NULL),
                "project_disabled");
    PQclear(run(s.db, STMT_PROJECT_SET_DISABLED, "p", "true", WHO)); /* again: nothing */
    PQclear(run(s.db, STMT_PROJECT_SET_DISABLED, "p", "false", WHO));
    make_sandbox(s.db, s.project, queued);
    assert_text(raw(s.db, "SELECT string_agg(action, ' ' ORDER BY id) FROM audit"
                          " WHERE action LIKE 'project.%%'"),
                "project.create project.disable project.enable");
}
END_TEST

/* --- changes ------------------------------------------------------------------------------ */

START_TEST(an_update_changes_what_it_names)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char id[ID_TEXT_SIZE];

    make_ready(&s, id);
    assert_text(update(&s, id, "{\"ttlSeconds\":50,\"labels\":{\"a\":\"b\"}}"), "updated");
    _cleanup_pgresult_ PGresult *row = run(s.db, STMT_SANDBOX_GET, s.project, id);
    assert_column(row, "ttl_seconds", "50");
    assert_column(row, "labels", "{\"a\": \"b\"}");
    ck_assert_int_le(atoi(db_column(row, 0, "expires_in_ms")), 50000);
    ck_assert_int_gt(atoi(db_column(row, 0, "expires_in_ms")), 0);
    assert_text(update(&s, id, "{\"ttlSeconds\":null,\"idleSeconds\":9}"), "updated");
    _cleanup_pgresult_ PGresult *later = run(s.db, STMT_SANDBOX_GET, s.project, id);
    assert_column(later, "expires_at", NULL);
    assert_column(later, "labels", "{\"a\": \"b\"}");
    ck_assert_int_le(atoi(db_column(later, 0, "idle_in_ms")), 9000);

    set_policy(&s, "{\"maxTtlSeconds\":10}");
    assert_text(update(&s, id, "{\"ttlSeconds\":11}"), "limit_exceeded");
    assert_text(update(&s, id, "{\"ttlSeconds\":null}"), "limit_exceeded");
    assert_text(update(&s, id, "{\"labels\":{}}"), "updated");
    char other[ID_TEXT_SIZE];
    make_project(s.db, "other", NULL, other);
    _cleanup_pgresult_ PGresult *foreign =
        run(s.db, STMT_SANDBOX_UPDATE, other, id, WHO, "{\"labels\":{}}");
    assert_column(foreign, "outcome", "not_found");
    end_sandbox(&s, id);
    assert_text(update(&s, id, "{\"labels\":{}}"), "gone");
}
END_TEST

/* Whoever comes second is told so: never both. */
START_TEST(a_renewal_and_an_expiry_have_one_winner)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char late[ID_TEXT_SIZE];
    char early[ID_TEXT_SIZE];

    make_ready(&s, late);
    make_ready(&s, early);
    assert_text(update(&s, early, "{\"ttlSeconds\":60}"), "updated");
    _cleanup_pgresult_ PGresult *renewed = run(s.db, STMT_SANDBOX_STOP, early, "1", s.epoch, "ttl");
    assert_column(renewed, "state", "ready");

    free(raw(s.db, "UPDATE sandboxes SET expires_at = clock_timestamp() WHERE id = '%s'", late));
    /* Nobody has ended it yet; it is too late all the same. */
    assert_text(update(&s, late, "{\"ttlSeconds\":60}"), "gone");
    assert_text(admit_execution(s.db, s.project, late, NULL, NULL, "9", NULL), "gone");
    _cleanup_pgresult_ PGresult *stopped = run(s.db, STMT_SANDBOX_STOP, late, "1", s.epoch, "ttl");
    assert_column(stopped, "state", "stopping");
    assert_column(stopped, "reason", "ttl");
}
END_TEST

START_TEST(idle_is_judged_by_the_database)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char id[ID_TEXT_SIZE];
    char execution[ID_TEXT_SIZE];

    make_ready(&s, id);
    assert_text(update(&s, id, "{\"idleSeconds\":1}"), "updated");
    free(raw(s.db, "UPDATE sandboxes SET active_at = now() - interval '1 hour',"
                   " ready_at = now() - interval '1 hour'"));
    make_execution(s.db, s.project, id, execution);
    _cleanup_pgresult_ PGresult *busy = run(s.db, STMT_SANDBOX_STOP, id, "1", s.epoch, "idle");
    assert_column(busy, "state", "ready");
    assert_column(busy, "idle_in_ms", NULL);
    PQclear(run(s.db, STMT_EXECUTION_CLAIM, execution, "1", s.epoch));
    PQclear(finish(&s, execution, "succeeded", NULL, "0", "false"));
    _cleanup_pgresult_ PGresult *fresh = run(s.db, STMT_SANDBOX_STOP, id, "1", s.epoch, "idle");
    assert_column(fresh, "state", "ready");
    free(raw(s.db, "UPDATE executions SET ended_at = now() - interval '1 minute'"));
    PQclear(run(s.db, STMT_SANDBOX_ACTIVE, id, "1", s.epoch, "0"));
    _cleanup_pgresult_ PGresult *active = run(s.db, STMT_SANDBOX_STOP, id, "1", s.epoch, "idle");
    assert_column(active, "state", "ready");
    PQclear(run(s.db, STMT_SANDBOX_GET, s.project, id)); /* an inspection is no activity */
    free(raw(s.db, "UPDATE sandboxes SET active_at = now() - interval '1 minute'"));
    _cleanup_pgresult_ PGresult *idle = run(s.db, STMT_SANDBOX_STOP, id, "1", s.epoch, "idle");
    assert_column(idle, "state", "stopping");
}
END_TEST

START_TEST(a_cancel_ends_what_waits_and_tells_of_what_runs)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char id[ID_TEXT_SIZE];
    char waits[ID_TEXT_SIZE];
    char runs[ID_TEXT_SIZE];

    make_ready(&s, id);
    make_execution(s.db, s.project, id, waits);
    make_execution(s.db, s.project, id, runs);
    PQclear(run(s.db, STMT_EXECUTION_CLAIM, runs, "1", s.epoch));
    cancel(&s, id, waits, "cancelled");
    cancel(&s, id, runs, "running");
    cancel(&s, id, runs, "running");
    ck_assert_int_eq(raw_long(s.db, "SELECT count(*) FROM audit WHERE action ="
                                    " 'execution.cancel'"),
                     2);
    _cleanup_pgresult_ PGresult *work = run(s.db, STMT_NODE_WORK, "1");
    ck_assert_int_eq(PQntuples(work), 1);
    assert_column(work, "kind", "c");
    assert_column(work, "id", runs);
    /* What is cancelled while it waits is not begun. */
    _cleanup_pgresult_ PGresult *claim = run(s.db, STMT_EXECUTION_CLAIM, waits, "1", s.epoch);
    ck_assert_int_eq(PQntuples(claim), 0);
    _cleanup_pgresult_ PGresult *done =
        finish(&s, runs, "cancelled", "execution_cancel", "143", "false");
    assert_column(done, "reason", "execution_cancel");
    cancel(&s, id, runs, "cancelled");
    _cleanup_pgresult_ PGresult *row = run(s.db, STMT_SANDBOX_GET, s.project, id);
    assert_column(row, "state", "ready");
}
END_TEST

START_TEST(a_cancel_that_terminates_ends_the_sandbox)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");

    for (int running = 0; running < 2; running++) {
        char id[ID_TEXT_SIZE];
        char execution[ID_TEXT_SIZE];
        make_ready(&s, id);
        make_execution(s.db, s.project, id, execution);
        free(raw(s.db, "UPDATE executions SET on_timeout = 'terminate'"));
        if (running)
            PQclear(run(s.db, STMT_EXECUTION_CLAIM, execution, "1", s.epoch));
        cancel(&s, id, execution, running ? "running" : "cancelled");
        if (running)
            PQclear(finish(&s, execution, "cancelled", "execution_cancel", "143", "false"));
        _cleanup_pgresult_ PGresult *row = run(s.db, STMT_SANDBOX_GET, s.project, id);
        assert_column(row, "state", "stopping");
        assert_column(row, "reason", "execution_cancel");
    }
}
END_TEST

START_TEST(a_cancel_that_terminates_ends_a_sandbox_that_waits)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char id[ID_TEXT_SIZE];
    char execution[ID_TEXT_SIZE];

    make_sandbox(s.db, s.project, id);
    make_execution(s.db, s.project, id, execution);
    free(raw(s.db, "UPDATE executions SET on_timeout = 'terminate'"));
    cancel(&s, id, execution, "cancelled");
    _cleanup_pgresult_ PGresult *row = run(s.db, STMT_SANDBOX_GET, s.project, id);
    assert_column(row, "state", "terminated");
    assert_column(row, "reason", "execution_cancel");
}
END_TEST

/* A daemon may have begun what reads as queued (its claim was forgotten with a crash of the
 * server), and clients may wait for it. */
START_TEST(a_cancel_of_what_waits_is_announced_too)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char id[ID_TEXT_SIZE];
    char execution[ID_TEXT_SIZE];
    _cleanup_db_ struct db *listener = db_fixture_open();
    struct error err = ERROR_INIT;

    make_ready(&s, id);
    make_execution(s.db, s.project, id, execution);
    free(raw(listener, "LISTEN paddock_1"));
    PGconn *conn = db_connection(listener, &err);
    ck_assert_ptr_nonnull(conn);
    cancel(&s, id, execution, "cancelled");
    PQclear(PQexec(conn, "SELECT 1")); /* brings what was announced */
    PGnotify *told = PQnotifies(conn);
    ck_assert_ptr_nonnull(told);
    ck_assert_int_eq(told->extra[0], 'c');
    ck_assert_str_eq(told->extra + 1, execution);
    PQfreemem(told);
}
END_TEST

START_TEST(an_oom_kill_is_a_failure)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char id[ID_TEXT_SIZE];
    char execution[ID_TEXT_SIZE];

    make_ready(&s, id);
    make_execution(s.db, s.project, id, execution);
    PQclear(run(s.db, STMT_EXECUTION_CLAIM, execution, "1", s.epoch));
    _cleanup_pgresult_ PGresult *done = finish(&s, execution, "failed", NULL, "137", "true");
    assert_column(done, "oom_killed", "t");
    raw_refused(s.db, "23514",
                "UPDATE executions SET state = 'succeeded', exit_code = 0 WHERE id = '%s'",
                execution);
}
END_TEST

/* --- history, usage, audit ---------------------------------------------------------------- */

START_TEST(every_step_is_in_the_history)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char id[ID_TEXT_SIZE];

    make_ready(&s, id);
    free(raw(s.db, "UPDATE sandboxes SET state = 'paused'"));
    free(raw(s.db, "UPDATE sandboxes SET state = 'ready'"));
    end_sandbox(&s, id);
    assert_text(raw(s.db, "SELECT string_agg(concat_ws(':', state, reason), ' ' ORDER BY seq)"
                          " FROM sandbox_events"),
                "queued provisioning ready paused ready stopping:requested terminated:requested");
    assert_text(raw(s.db, "SELECT string_agg(kind, ' ' ORDER BY seq) FROM usage_intervals"),
                "running paused running");
    ck_assert_int_eq(raw_long(s.db, "SELECT count(*) FROM usage_intervals a JOIN usage_intervals b"
                                    " ON a.seq < b.seq WHERE a.ended_at IS NULL"
                                    " OR a.ended_at > b.begun_at"),
                     0);
}
END_TEST

START_TEST(intervals_do_not_overlap_when_the_clock_goes_back)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char id[ID_TEXT_SIZE];

    make_ready(&s, id);
    free(raw(s.db, "UPDATE usage_intervals SET begun_at = now() + interval '1 hour'"));
    free(raw(s.db, "UPDATE sandboxes SET state = 'paused'"));
    ck_assert_int_eq(raw_long(s.db, "SELECT count(*) FROM usage_intervals a, usage_intervals b"
                                    " WHERE a.seq = 1 AND b.seq = 2 AND b.begun_at >= a.ended_at"
                                    " AND a.ended_at >= a.begun_at"),
                     1);
    raw_refused(s.db, "23505",
                "INSERT INTO usage_intervals VALUES ('%s', 9, 'running', now(), NULL)", id);
}
END_TEST

START_TEST(nothing_lasts_less_than_no_time_when_the_clock_goes_back)
{
    static const char *const spans[] = {"queued_ms", "provision_ms", "total_ms"};
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char id[ID_TEXT_SIZE];
    char execution[ID_TEXT_SIZE];

    make_ready(&s, id);
    make_execution(s.db, s.project, id, execution);
    free(raw(s.db, "UPDATE sandboxes SET provisioning_at = created_at - interval '1 hour',"
                   " ready_at = created_at - interval '2 hours'"));
    _cleanup_pgresult_ PGresult *row = run(s.db, STMT_SANDBOX_GET, s.project, id);
    for (size_t i = 0; i < ARRAY_LEN(spans); i++)
        assert_column(row, spans[i], "0");
    PQclear(run(s.db, STMT_EXECUTION_CLAIM, execution, "1", s.epoch));
    _cleanup_pgresult_ PGresult *begun = run(s.db, STMT_EXECUTION_GET, s.project, id, execution);
    assert_column(begun, "duration_ms", NULL);
    free(raw(s.db, "UPDATE executions SET started_at = now() + interval '1 hour'"));
    _cleanup_pgresult_ PGresult *done = finish(&s, execution, "succeeded", NULL, "0", "false");
    assert_column(done, "duration_ms", "0");
}
END_TEST

START_TEST(usage_is_the_same_before_and_after_retention)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char old[ID_TEXT_SIZE];
    char live[ID_TEXT_SIZE];
    char execution[ID_TEXT_SIZE];

    make_ready(&s, old);
    make_execution(s.db, s.project, old, execution);
    end_sandbox(&s, old);
    make_ready(&s, live);
    PQclear(run(s.db, STMT_SANDBOXES_SET_CPU, "1", s.epoch, "{}", "{}"));
    char ids[64];
    snprintf(ids, sizeof(ids), "{%s}", live);
    PQclear(run(s.db, STMT_SANDBOXES_SET_CPU, "1", s.epoch, ids, "{2000}"));
    PQclear(run(s.db, STMT_SANDBOXES_SET_CPU, "1", s.epoch, ids, "{1500}")); /* never back */
    PQclear(run(s.db, STMT_SANDBOXES_SET_CPU, "1", "99", ids, "{9000}"));    /* an old epoch */
    free(raw(s.db, "UPDATE usage_intervals SET begun_at = ended_at - interval '2 seconds'"
                   " WHERE ended_at IS NOT NULL"));
    for (int round = 0; round < 2; round++) {
        _cleanup_pgresult_ PGresult *res =
            run(s.db, STMT_USAGE_BY_DAY, s.project, "2000-01-01", "2999-01-01");
        ck_assert_int_eq(PQntuples(res), 1);
        assert_column(res, "sandboxes", "2");
        assert_column(res, "executions", "1");
        assert_column(res, "cpu_us", "3000");
        ck_assert_int_ge(atoi(db_column(res, 0, "runtime_ms")), 2000);
        _cleanup_json_ json_t *day = resource_usage_day(res, 0);
        ck_assert_int_eq(json_integer_value(json_object_get(day, "cpuMs")), 3);
        if (round > 0)
            break;
        free(raw(s.db,
                 "UPDATE sandboxes SET ended_at = now() - interval '31 days' WHERE id ="
                 " '%s'",
                 old));
        _cleanup_pgresult_ PGresult *cleaned =
            run(s.db, STMT_RETENTION_CLEAN, "100", "604800", "2592000", "604800", "31536000");
        assert_column(cleaned, "sandboxes", "1");
        assert_column(cleaned, "more", "f");
        ck_assert_int_eq(raw_long(s.db, "SELECT count(*) FROM sandboxes"), 1);
    }
    _cleanup_pgresult_ PGresult *none =
        run(s.db, STMT_USAGE_BY_DAY, s.project, "2000-01-01", "2000-01-02");
    ck_assert_int_eq(PQntuples(none), 0);
}
END_TEST

static const char *const actions[] = {
#define AUDIT_ACTION(name, meaning) name,
#include "common/audit_actions.def"
#undef AUDIT_ACTION
};

START_TEST(audit_actions_are_those_of_the_programs)
{
    _cleanup_db_ struct db *db = db_fixture_open();

    for (size_t i = 0; i < ARRAY_LEN(actions); i++)
        assert_text(raw(db, "SELECT '%s'::audit_action", actions[i]), actions[i]);
    ck_assert_int_eq(raw_long(db, "SELECT count(*) FROM regexp_matches((SELECT"
                                  " pg_get_constraintdef(oid) FROM pg_constraint WHERE contypid ="
                                  " 'audit_action'::regtype), '''[a-z.]+''', 'g')"),
                     ARRAY_LEN(actions));
}
END_TEST

START_TEST(the_audit_tells_who_and_never_content)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char id[ID_TEXT_SIZE];
    char execution[ID_TEXT_SIZE];

    make_ready(&s, id);
    make_execution(s.db, s.project, id, execution);
    PQclear(run(s.db, STMT_EXECUTION_CLAIM, execution, "1", s.epoch));
    PQclear(finish(&s, execution, "failed", NULL, "3", "false"));
    assert_text(update(&s, id, "{\"ttlSeconds\":50,\"labels\":{\"a\":\"s3cret\"}}"), "updated");
    end_sandbox(&s, id);
    assert_text(raw(s.db, "SELECT string_agg(concat_ws(',', action, token_id, address), ' '"
                          " ORDER BY id) FROM audit WHERE action <> 'project.create'"),
                "sandbox.create,0123456789abcdef,192.0.2.7"
                " execution.create,0123456789abcdef,192.0.2.7 execution.end"
                " sandbox.update,0123456789abcdef,192.0.2.7"
                " sandbox.terminate,0123456789abcdef,192.0.2.7 sandbox.end");
    /* SANDBOX_REQUEST's env, a label's value, a command */
    ck_assert_int_eq(raw_long(s.db, "SELECT count(*) FROM audit WHERE audit::text ~"
                                    " 's3cret|true\\['"),
                     0);
    _cleanup_pgresult_ PGresult *page =
        run(s.db, STMT_AUDIT_LIST, s.project, "execution.end", NULL, NULL, NULL, "10");
    ck_assert_int_eq(PQntuples(page), 1);
    _cleanup_json_ json_t *record = resource_audit(page, 0);
    ck_assert_str_eq(json_string_value(json_object_get(record, "executionId")), execution);
    ck_assert_int_eq(
        json_integer_value(json_object_get(json_object_get(record, "detail"), "exitCode")), 3);
}
END_TEST

/* --- retention ---------------------------------------------------------------------------- */

START_TEST(retention_deletes_by_age_in_batches)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char id[ID_TEXT_SIZE];
    char execution[ID_TEXT_SIZE];

    make_ready(&s, id);
    for (int i = 0; i < 5; i++) {
        make_execution(s.db, s.project, id, execution);
        PQclear(run(s.db, STMT_EXECUTION_CLAIM, execution, "1", s.epoch));
        PQclear(finish(&s, execution, "succeeded", NULL, "0", "false"));
    }
    make_execution(s.db, s.project, id, execution); /* never by age: it lives */
    _cleanup_pgresult_ PGresult *young =
        run(s.db, STMT_RETENTION_CLEAN, "2", "60", "60", "60", "60");
    assert_column(young, "outputs", "0");
    free(raw(s.db, "UPDATE executions SET ended_at = now() - interval '61 seconds'"
                   " WHERE ended_at IS NOT NULL"));
    for (int left = 5; left > 0; left -= 2) {
        _cleanup_pgresult_ PGresult *batch =
            run(s.db, STMT_RETENTION_CLEAN, "2", "60", "60", "60", "60");
        assert_column(batch, "outputs", left >= 2 ? "2" : "1");
        assert_column(batch, "more", left >= 2 ? "t" : "f");
    }
    assert_text(raw(s.db, "SELECT concat_ws(' ', count(*), sum(octet_length(stdout)),"
                          " sum(stdout_bytes)) FROM executions WHERE output_expired"),
                "5 0 15");
    /* All of it is told as missing. */
    _cleanup_pgresult_ PGresult *rows =
        run(s.db, STMT_EXECUTION_LIST, s.project, id, "succeeded", NULL, NULL, NULL, NULL, "9");
    _cleanup_json_ json_t *expired = resource_execution(rows, 0);
    _cleanup_json_ json_t *omitted =
        json_loads("{\"stdout\":{\"at\":0,\"bytes\":3},\"stderr\":null}", 0, NULL);
    ck_assert(json_equal(json_object_get(expired, "omitted"), omitted));
    /* The rest of a result stays. */
    assert_text(raw(s.db, "SELECT DISTINCT state || exit_code FROM executions WHERE"
                          " output_expired"),
                "succeeded0");
}
END_TEST

/* However many there were: a step stays small, and usage is the same at every step. */
START_TEST(retention_of_a_sandbox_with_many_executions_is_many_steps)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char busy[ID_TEXT_SIZE];
    char quiet[ID_TEXT_SIZE];
    int steps = 0;

    make_ready(&s, busy);
    end_sandbox(&s, busy);
    make_ready(&s, quiet);
    end_sandbox(&s, quiet);
    free(raw(s.db, "ALTER TABLE executions DISABLE TRIGGER USER"));
    free(raw(s.db,
             "INSERT INTO executions (sandbox_id, state, exit_code, started_at, ended_at,"
             " output_expired) SELECT '%s', 'succeeded', 0, now(), now() - interval '9 hours', true"
             " FROM generate_series(1, 45)",
             busy));
    free(raw(s.db, "ALTER TABLE executions ENABLE TRIGGER USER"));
    free(raw(s.db, "UPDATE sandboxes SET ended_at = now() - interval '9 hours'"));
    for (bool more = true; more; steps++) {
        _cleanup_pgresult_ PGresult *step =
            run(s.db, STMT_RETENTION_CLEAN, "2", "60", "60", "60", "9999");
        more = db_column(step, 0, "more")[0] == 't';
        ck_assert_int_ge(raw_long(s.db, "SELECT count(*) FROM executions"), 45 - 20 * (steps + 1));
        _cleanup_pgresult_ PGresult *used =
            run(s.db, STMT_USAGE_BY_DAY, s.project, "2000-01-01", "2999-01-01");
        assert_column(used, "executions", "45");
        assert_column(used, "sandboxes", "2");
    }
    ck_assert_int_eq(steps, 3);
    ck_assert_int_eq(raw_long(s.db, "SELECT count(*) FROM sandboxes"), 0);
}
END_TEST

START_TEST(one_cleans_at_a_time)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    _cleanup_db_ struct db *other = db_fixture_open();

    free(raw(other, "BEGIN"));
    PQclear(run(other, STMT_RETENTION_CLEAN, "2", "60", "60", "60", "60"));
    _cleanup_pgresult_ PGresult *busy =
        run(s.db, STMT_RETENTION_CLEAN, "2", "60", "60", "60", "60");
    assert_column(busy, "busy", "t");
    free(raw(other, "COMMIT"));
    _cleanup_pgresult_ PGresult *free_now =
        run(s.db, STMT_RETENTION_CLEAN, "2", "60", "60", "60", "60");
    assert_column(free_now, "busy", "f");
}
END_TEST

/* --- nodes -------------------------------------------------------------------------------- */

/* Since a node was found silent. */
static void let_a_lease_pass(const struct scene *s)
{
    free(raw(s->db, "UPDATE nodes SET silent_at = silent_at - lease_ms * interval '1 ms'"));
}

/* When the database is back, every node seems silent to the first that asks. */
START_TEST(an_outage_of_the_database_fences_no_node)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char id[ID_TEXT_SIZE];

    make_ready(&s, id);
    free(raw(s.db, "UPDATE nodes SET heartbeat_at = now() - interval '5 hours'"));
    PQclear(run(s.db, STMT_NODES_FENCE, "2"));
    _cleanup_pgresult_ PGresult *beat = run(s.db, STMT_NODE_HEARTBEAT, "1", s.epoch);
    assert_column(beat, "verdict", "current");
    /* It falls silent for once and all: counted from there. */
    free(raw(s.db, "UPDATE nodes SET heartbeat_at = now() - interval '3 hours',"
                   " silent_at = now() - interval '4 hours'"));
    _cleanup_pgresult_ PGresult *anew = run(s.db, STMT_NODES_FENCE, "2");
    assert_column(anew, "nodes", "0");
    let_a_lease_pass(&s);
    _cleanup_pgresult_ PGresult *fenced = run(s.db, STMT_NODES_FENCE, "2");
    assert_column(fenced, "nodes", "1");
}
END_TEST

START_TEST(a_silent_node_is_fenced_once)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char ready[ID_TEXT_SIZE];
    char queued[ID_TEXT_SIZE];
    char execution[ID_TEXT_SIZE];

    make_ready(&s, ready);
    make_sandbox(s.db, s.project, queued);
    make_execution(s.db, s.project, ready, execution);
    _cleanup_pgresult_ PGresult *alive = run(s.db, STMT_NODES_FENCE, NULL);
    assert_column(alive, "nodes", "0");
    free(raw(s.db, "UPDATE nodes SET heartbeat_at = now() - interval '2 hours'"));
    _cleanup_pgresult_ PGresult *self = run(s.db, STMT_NODES_FENCE, "1");
    assert_column(self, "nodes", "0");
    _cleanup_pgresult_ PGresult *seen = run(s.db, STMT_NODES_FENCE, "2");
    assert_column(seen, "nodes", "0");
    _cleanup_pgresult_ PGresult *soon = run(s.db, STMT_NODES_FENCE, "2");
    assert_column(soon, "nodes", "0");
    let_a_lease_pass(&s);
    _cleanup_pgresult_ PGresult *fenced = run(s.db, STMT_NODES_FENCE, "2");
    assert_column(fenced, "nodes", "1");
    assert_column(fenced, "sandboxes", "2");
    _cleanup_pgresult_ PGresult *again = run(s.db, STMT_NODES_FENCE, "2");
    assert_column(again, "nodes", "0");
    _cleanup_pgresult_ PGresult *row = run(s.db, STMT_SANDBOX_GET, s.project, ready);
    assert_column(row, "state", "failed");
    assert_column(row, "reason", "node_lost");
    /* It may have begun on the node that is silent. */
    _cleanup_pgresult_ PGresult *e = run(s.db, STMT_EXECUTION_GET, s.project, ready, execution);
    assert_column(e, "state", "lost");

    /* The old daemon wakes: it is told, and changes nothing. */
    _cleanup_pgresult_ PGresult *beat = run(s.db, STMT_NODE_HEARTBEAT, "1", s.epoch);
    assert_column(beat, "verdict", "fenced");
    ck_assert_int_eq(raw_long(s.db, "SELECT count(*) FROM nodes n WHERE node_is_live(n)"), 0);
    char epoch[ID_TEXT_SIZE];
    make_node(s.db, "1", "9", epoch);
    _cleanup_pgresult_ PGresult *new_beat = run(s.db, STMT_NODE_HEARTBEAT, "1", epoch);
    assert_column(new_beat, "verdict", "current");
    _cleanup_pgresult_ PGresult *late = run(s.db, STMT_NODE_HEARTBEAT, "1", s.epoch);
    assert_column(late, "verdict", "taken_over");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("lifecycle");
    TCase *tc = tcase_create("lifecycle");

    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, db_fixture_reset, NULL);
    tcase_add_test(tc, a_policy_refuses_by_name);
    tcase_add_test(tc, lifetimes_left_open_are_the_policy_s);
    tcase_add_test(tc, parallel_creates_cannot_overshoot);
    tcase_add_test(tc, a_policy_is_read_strictly);
    tcase_add_test(tc, a_project_shows_every_limit);
    tcase_add_test(tc, a_disabled_project_s_sandboxes_stop);
    tcase_add_test(tc, an_update_changes_what_it_names);
    tcase_add_test(tc, a_renewal_and_an_expiry_have_one_winner);
    tcase_add_test(tc, idle_is_judged_by_the_database);
    tcase_add_test(tc, a_cancel_ends_what_waits_and_tells_of_what_runs);
    tcase_add_test(tc, a_cancel_that_terminates_ends_the_sandbox);
    tcase_add_test(tc, a_cancel_that_terminates_ends_a_sandbox_that_waits);
    tcase_add_test(tc, a_cancel_of_what_waits_is_announced_too);
    tcase_add_test(tc, an_oom_kill_is_a_failure);
    tcase_add_test(tc, every_step_is_in_the_history);
    tcase_add_test(tc, intervals_do_not_overlap_when_the_clock_goes_back);
    tcase_add_test(tc, nothing_lasts_less_than_no_time_when_the_clock_goes_back);
    tcase_add_test(tc, usage_is_the_same_before_and_after_retention);
    tcase_add_test(tc, audit_actions_are_those_of_the_programs);
    tcase_add_test(tc, the_audit_tells_who_and_never_content);
    tcase_add_test(tc, retention_deletes_by_age_in_batches);
    tcase_add_test(tc, retention_of_a_sandbox_with_many_executions_is_many_steps);
    tcase_add_test(tc, one_cleans_at_a_time);
    tcase_add_test(tc, an_outage_of_the_database_fences_no_node);
    tcase_add_test(tc, a_silent_node_is_fenced_once);
    suite_add_tcase(suite, tc);
    return db_fixture_run(suite);
}
