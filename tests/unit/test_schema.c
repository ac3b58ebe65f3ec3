/*
 * What the database itself promises: state machines that no writer can break,
 * lives from claim to end, epoch fencing and the ends of what a former epoch
 * held, lists and tokens. (Admission: test_admission.c.)
 */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/json.h"
#include "common/resource.h"
#include "common/states.h"
#include "db_fixture.h"

/* --- states ------------------------------------------------------------------------------ */

enum kind { SANDBOX, EXECUTION, ARTIFACT };

static const struct {
    enum kind kind;
    int from;
    int to;
} transitions[] = {
#define SANDBOX_TRANSITION(from, to) {SANDBOX, SANDBOX_##from, SANDBOX_##to},
#define EXECUTION_TRANSITION(from, to) {EXECUTION, EXECUTION_##from, EXECUTION_##to},
#define ARTIFACT_TRANSITION(from, to) {ARTIFACT, ARTIFACT_##from, ARTIFACT_##to},
#include "common/states.def"
};

static const char *sandbox_name(int state)
{
    return sandbox_state_name((enum sandbox_state)state);
}

static const char *execution_name(int state)
{
    return execution_state_name((enum execution_state)state);
}

static const char *artifact_name(int state)
{
    return artifact_state_name((enum artifact_state)state);
}

static const struct {
    const char *name;
    const char *(*state_name)(int state);
} kinds[] = {[SANDBOX] = {"sandbox", sandbox_name},
             [EXECUTION] = {"execution", execution_name},
             [ARTIFACT] = {"artifact", artifact_name}};

static const char *const reasons[] = {
#define REASON(name, meaning) name,
#include "common/states.def"
};

START_TEST(transitions_are_those_of_the_programs)
{
    _cleanup_db_ struct db *db = db_fixture_open();

    for (size_t i = 0; i < ARRAY_LEN(transitions); i++) {
        const char *kind = kinds[transitions[i].kind].name;
        const char *(*name)(int) = kinds[transitions[i].kind].state_name;

        ck_assert_int_eq(raw_long(db,
                                  "SELECT count(*) FROM state_transitions WHERE kind = '%s' AND"
                                  " from_state = '%s' AND to_state = '%s'",
                                  kind, name(transitions[i].from), name(transitions[i].to)),
                         1);
    }
    ck_assert_int_eq(raw_long(db, "SELECT count(*) FROM state_transitions"),
                     ARRAY_LEN(transitions));
}
END_TEST

START_TEST(reasons_are_those_of_the_programs)
{
    _cleanup_db_ struct db *db = db_fixture_open();

    for (size_t i = 0; i < ARRAY_LEN(reasons); i++)
        assert_text(raw(db, "SELECT '%s'::end_reason", reasons[i]), reasons[i]);
    ck_assert_int_eq(raw_long(db, "SELECT count(*) FROM regexp_matches((SELECT"
                                  " pg_get_constraintdef(oid) FROM pg_constraint WHERE contypid ="
                                  " 'end_reason'::regtype), '''[a-z_]+''', 'g')"),
                     ARRAY_LEN(reasons));
    raw_refused(db, "23514", "SELECT 'because'::end_reason");
}
END_TEST

START_TEST(terminal_sandboxes_never_reopen)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char sandbox[ID_TEXT_SIZE];

    make_ready(&s, sandbox);
    end_sandbox(&s, sandbox);
    for (int to = 0; to < SANDBOX_STATE_COUNT; to++) {
        if (strcmp(sandbox_name(to), "terminated") != 0)
            raw_refused(s.db, "23514", "UPDATE sandboxes SET state = '%s'", sandbox_name(to));
    }
    raw_refused(s.db, "23514",
                "UPDATE sandboxes SET state = 'queued', ended_at = NULL,"
                " reason = NULL");
    raw_refused(s.db, "23514", "UPDATE sandboxes SET ended_at = NULL");
    raw_refused(s.db, "23514", "UPDATE sandboxes SET env = '{\"A\": \"b\"}'");
}
END_TEST

START_TEST(terminal_executions_never_reopen)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char sandbox[ID_TEXT_SIZE];
    char execution[ID_TEXT_SIZE];

    make_ready(&s, sandbox);
    make_execution(s.db, s.project, sandbox, execution);
    PQclear(run(s.db, STMT_EXECUTION_CLAIM, execution, "1", s.epoch));
    PQclear(run(s.db, STMT_EXECUTION_FINISH, execution, "1", s.epoch, "succeeded", NULL, NULL, "0",
                NULL, "\\x", "0", NULL, "\\x", "0", NULL, "5", "false"));
    for (int to = 0; to < EXECUTION_STATE_COUNT; to++) {
        if (strcmp(execution_name(to), "succeeded") != 0)
            raw_refused(s.db, "23514", "UPDATE executions SET state = '%s'", execution_name(to));
    }
    raw_refused(s.db, "23514",
                "UPDATE executions SET state = 'running', ended_at = NULL,"
                " spec = '{}', exit_code = NULL");
    raw_refused(s.db, "23514", "UPDATE executions SET exit_code = 1");
}
END_TEST

START_TEST(every_step_outside_the_table_is_refused)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char sandbox[ID_TEXT_SIZE];

    make_sandbox(s.db, s.project, sandbox);
    /* The trigger speaks first, so the message tells it from the table's other checks. */
    for (int from = 0; from < SANDBOX_STATE_COUNT; from++) {
        for (int to = 0; to < SANDBOX_STATE_COUNT; to++) {
            if (from == to)
                continue;
            free(raw(s.db,
                     "DO $$ DECLARE message text := ''; BEGIN"
                     " ALTER TABLE sandboxes DISABLE TRIGGER sandboxes_transition;"
                     " UPDATE sandboxes SET state = '%s', reason = CASE WHEN '%s' IN ('stopping',"
                     " 'terminated', 'expired', 'failed') THEN 'ttl' END, env = '{}', ready_at ="
                     " now(), ended_at = CASE WHEN '%s' IN ('terminated', 'expired', 'failed')"
                     " THEN now() END;"
                     " ALTER TABLE sandboxes ENABLE TRIGGER sandboxes_transition;"
                     " BEGIN UPDATE sandboxes SET state = '%s'; EXCEPTION WHEN check_violation"
                     " THEN message := SQLERRM; END;"
                     " IF (message LIKE '%%may not go from%%') = %s THEN"
                     " RAISE 'from %s to %s: %%', message; END IF; END $$",
                     sandbox_name(from), sandbox_name(from), sandbox_name(from), sandbox_name(to),
                     sandbox_transition_allowed((enum sandbox_state)from, (enum sandbox_state)to)
                         ? "true"
                         : "false",
                     sandbox_name(from), sandbox_name(to)));
        }
    }
}
END_TEST

START_TEST(rows_begin_as_queued)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");

    raw_refused(s.db, "23514",
                "INSERT INTO sandboxes (id, project_id, node, state, ready_at, template, cpus,"
                " memory_mb, workspace_mb, pids) VALUES ('00010000-0000-4000-8000-000000000000',"
                " '%s', 1, 'ready', now(), 'base', 1, 1, 1, 1)",
                s.project);
    /* an id that names another node */
    raw_refused(s.db, "23514",
                "INSERT INTO sandboxes (id, project_id, node, template, cpus, memory_mb,"
                " workspace_mb, pids) VALUES ('00020000-0000-4000-8000-000000000000', '%s', 1,"
                " 'base', 1, 1, 1, 1)",
                s.project);
}
END_TEST

START_TEST(success_is_never_synthesised)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char sandbox[ID_TEXT_SIZE];
    char execution[ID_TEXT_SIZE];

    make_ready(&s, sandbox);
    make_execution(s.db, s.project, sandbox, execution);
    PQclear(run(s.db, STMT_EXECUTION_CLAIM, execution, "1", s.epoch));
    raw_refused(s.db, "23514",
                "UPDATE executions SET state = 'succeeded', ended_at = now(),"
                " spec = NULL");
    raw_refused(s.db, "23514",
                "UPDATE executions SET state = 'succeeded', ended_at = now(),"
                " spec = NULL, exit_code = 3");
    raw_refused(s.db, "23514",
                "UPDATE executions SET state = 'succeeded', ended_at = now(),"
                " spec = NULL, exit_code = 0, signal = 9");
}
END_TEST

/* --- lives --------------------------------------------------------------------------------- */

START_TEST(an_execution_runs_once_and_keeps_its_result)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char sandbox[ID_TEXT_SIZE];
    char execution[ID_TEXT_SIZE];

    make_sandbox(s.db, s.project, sandbox);
    make_execution(s.db, s.project, sandbox, execution);
    _cleanup_pgresult_ PGresult *early = run(s.db, STMT_EXECUTION_CLAIM, execution, "1", s.epoch);
    ck_assert_int_eq(PQntuples(early), 0); /* the sandbox is not ready */
    start_sandbox(s.db, sandbox, "1", s.epoch);
    _cleanup_pgresult_ PGresult *queued = run(s.db, STMT_SANDBOX_QUEUED_EXECUTIONS, sandbox);
    assert_column(queued, "id", execution);
    _cleanup_pgresult_ PGresult *work = run(s.db, STMT_NODE_WORK, "1");
    assert_column(work, "kind", "e");
    _cleanup_pgresult_ PGresult *claimed = run(s.db, STMT_EXECUTION_CLAIM, execution, "1", s.epoch);
    assert_column(claimed, "spec", "{\"cmd\": [\"true\"]}");
    _cleanup_pgresult_ PGresult *again = run(s.db, STMT_EXECUTION_CLAIM, execution, "1", s.epoch);
    ck_assert_int_eq(PQntuples(again), 0);

    _cleanup_pgresult_ PGresult *done =
        run(s.db, STMT_EXECUTION_FINISH, execution, "1", s.epoch, "succeeded", NULL, NULL, "0",
            NULL, "\\x6100ff", "1003", "2", "\\x", "0", NULL, "1234", "false");
    assert_column(done, "state", "succeeded");
    /* a second finish, as after a lost connection, changes nothing */
    _cleanup_pgresult_ PGresult *twice =
        run(s.db, STMT_EXECUTION_FINISH, execution, "1", s.epoch, "failed", "oom", "late", "1",
            NULL, "\\x", "0", NULL, "\\x", "0", NULL, "1", "false");
    assert_column(twice, "state", "succeeded");
    assert_column(twice, "exit_code", "0");

    _cleanup_pgresult_ PGresult *got = run(s.db, STMT_EXECUTION_GET, s.project, sandbox, execution);
    _cleanup_json_ json_t *json = resource_execution(got, 0);
    ck_assert_ptr_nonnull(json);
    ck_assert_str_eq(json_string_value(json_object_get(json, "stdout")), "YQD/");
    ck_assert_int_eq(raw_long(s.db, "SELECT count(*) FROM executions WHERE spec IS NULL"), 1);
}
END_TEST

START_TEST(a_timeout_that_terminates_stops_the_sandbox_with_its_result)
{
    static const char *const asked[] = {"kill", "terminate"};
    static const char *const state[] = {"ready", "stopping"};
    static const char *const reason[] = {NULL, "execution_timeout"};
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");

    for (int i = 0; i < 2; i++) {
        char sandbox[ID_TEXT_SIZE];
        char execution[ID_TEXT_SIZE];
        make_ready(&s, sandbox);
        make_execution(s.db, s.project, sandbox, execution);
        free(raw(s.db, "UPDATE executions SET on_timeout = '%s' WHERE id = '%s'", asked[i],
                 execution));
        _cleanup_pgresult_ PGresult *claimed =
            run(s.db, STMT_EXECUTION_CLAIM, execution, "1", s.epoch);
        ck_assert_int_eq(PQntuples(claimed), 1);
        _cleanup_pgresult_ PGresult *done =
            run(s.db, STMT_EXECUTION_FINISH, execution, "1", s.epoch, "timed_out", NULL, NULL, NULL,
                "9", "\\x", "0", NULL, "\\x", "0", NULL, "1", "false");
        assert_column(done, "state", "timed_out");
        assert_text(raw(s.db, "SELECT state FROM sandboxes WHERE id = '%s'", sandbox), state[i]);
        /* a client's request comes too late to be the reason */
        if (reason[i]) {
            _cleanup_pgresult_ PGresult *late =
                run(s.db, STMT_SANDBOX_REQUEST_STOP, s.project, sandbox, WHO);
            assert_column(late, "reason", reason[i]);
        }
    }
}
END_TEST

START_TEST(a_stop_is_asked_for_once)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char queued[ID_TEXT_SIZE];
    char live[ID_TEXT_SIZE];
    char execution[ID_TEXT_SIZE];

    make_sandbox(s.db, s.project, queued);
    make_execution(s.db, s.project, queued, execution);
    _cleanup_pgresult_ PGresult *ended =
        run(s.db, STMT_SANDBOX_REQUEST_STOP, s.project, queued, WHO);
    assert_column(ended, "state", "terminated");
    assert_column(ended, "reason", "requested");
    _cleanup_pgresult_ PGresult *cancelled = run(s.db, STMT_EXECUTION_BY_ID, execution);
    assert_column(cancelled, "state", "cancelled");
    assert_text(raw(s.db, "SELECT env::text FROM sandboxes"), "{}");

    make_ready(&s, live);
    for (int i = 0; i < 2; i++) {
        _cleanup_pgresult_ PGresult *res =
            run(s.db, STMT_SANDBOX_REQUEST_STOP, s.project, live, WHO);
        assert_column(res, "state", "stopping");
    }
    /* what ends it then does not change why */
    _cleanup_pgresult_ PGresult *end =
        run(s.db, STMT_SANDBOX_END, live, "1", s.epoch, "failed", "guest_crash", "1000");
    assert_column(end, "state", "terminated");
    assert_column(end, "reason", "requested");
    _cleanup_pgresult_ PGresult *later = run(s.db, STMT_SANDBOX_REQUEST_STOP, s.project, live, WHO);
    assert_column(later, "state", "terminated");
    char other[ID_TEXT_SIZE];
    make_project(s.db, "other", NULL, other);
    _cleanup_pgresult_ PGresult *none = run(s.db, STMT_SANDBOX_REQUEST_STOP, other, live, WHO);
    ck_assert_int_eq(PQntuples(none), 0);
}
END_TEST

START_TEST(a_ttl_is_judged_by_the_database)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char sandbox[ID_TEXT_SIZE];

    make_ready(&s, sandbox);
    _cleanup_pgresult_ PGresult *early = run(s.db, STMT_SANDBOX_STOP, sandbox, "1", s.epoch, "ttl");
    assert_column(early, "state", "ready");
    free(raw(s.db, "UPDATE sandboxes SET expires_at = now() - interval '1 ms'"));
    _cleanup_pgresult_ PGresult *due = run(s.db, STMT_SANDBOX_STOP, sandbox, "1", s.epoch, "ttl");
    assert_column(due, "state", "stopping");
    _cleanup_pgresult_ PGresult *end =
        run(s.db, STMT_SANDBOX_END, sandbox, "1", s.epoch, "expired", "ttl", "1000");
    assert_column(end, "state", "expired");
}
END_TEST

/* --- epochs -------------------------------------------------------------------------------- */

START_TEST(an_old_epoch_writes_nothing)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char epoch[ID_TEXT_SIZE];
    char sandbox[ID_TEXT_SIZE];
    char ready[ID_TEXT_SIZE];
    char execution[ID_TEXT_SIZE];
    char running[ID_TEXT_SIZE];

    make_node(s.db, "1", "9", epoch);
    ck_assert_str_ne(epoch, s.epoch);
    make_sandbox(s.db, s.project, sandbox);
    make_sandbox(s.db, s.project, ready);
    start_sandbox(s.db, ready, "1", epoch);
    make_execution(s.db, s.project, ready, execution);
    make_execution(s.db, s.project, ready, running);
    PQclear(run(s.db, STMT_EXECUTION_CLAIM, running, "1", epoch));

    _cleanup_pgresult_ PGresult *beat = run(s.db, STMT_NODE_HEARTBEAT, "1", s.epoch);
    assert_column(beat, "verdict", "taken_over");
    _cleanup_pgresult_ PGresult *close_node =
        run(s.db, STMT_NODE_SET_ACCEPTING, "1", s.epoch, "false");
    ck_assert_str_eq(PQcmdTuples(close_node), "0");
    _cleanup_pgresult_ PGresult *claim = run(s.db, STMT_SANDBOX_CLAIM, sandbox, "1", s.epoch);
    ck_assert_int_eq(PQntuples(claim), 0);
    _cleanup_pgresult_ PGresult *stop = run(s.db, STMT_SANDBOX_STOP, ready, "1", s.epoch, "idle");
    assert_column(stop, "state", "ready");
    _cleanup_pgresult_ PGresult *end =
        run(s.db, STMT_SANDBOX_END, ready, "1", s.epoch, "failed", "oom", "1000");
    assert_column(end, "state", "ready");
    _cleanup_pgresult_ PGresult *start = run(s.db, STMT_EXECUTION_CLAIM, execution, "1", s.epoch);
    ck_assert_int_eq(PQntuples(start), 0);
    _cleanup_pgresult_ PGresult *finish =
        run(s.db, STMT_EXECUTION_FINISH, running, "1", s.epoch, "succeeded", NULL, NULL, "0", NULL,
            "\\x", "0", NULL, "\\x", "0", NULL, "1", "false");
    assert_column(finish, "state", "running");
    PQclear(run(s.db, STMT_SANDBOX_CLAIM, sandbox, "1", epoch));
    _cleanup_pgresult_ PGresult *set_ready =
        run(s.db, STMT_SANDBOX_SET_READY, sandbox, "1", s.epoch);
    assert_column(set_ready, "state", "provisioning");

    /* another node's current epoch is no better */
    char other_epoch[ID_TEXT_SIZE];
    make_node(s.db, "2", "9", other_epoch);
    _cleanup_pgresult_ PGresult *foreign =
        run(s.db, STMT_SANDBOX_END, ready, "2", other_epoch, "failed", "oom", "1000");
    assert_column(foreign, "state", "ready");
}
END_TEST

START_TEST(a_new_epoch_ends_what_the_former_held)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char epoch[ID_TEXT_SIZE];
    char queued[ID_TEXT_SIZE];
    char provisioning[ID_TEXT_SIZE];
    char ready[ID_TEXT_SIZE];
    char stopping[ID_TEXT_SIZE];
    char elsewhere[ID_TEXT_SIZE];
    char waiting[ID_TEXT_SIZE];
    char running[ID_TEXT_SIZE];

    make_sandbox(s.db, s.project, queued);
    make_sandbox(s.db, s.project, provisioning);
    PQclear(run(s.db, STMT_SANDBOX_CLAIM, provisioning, "1", s.epoch));
    make_ready(&s, stopping);
    PQclear(run(s.db, STMT_SANDBOX_REQUEST_STOP, s.project, stopping, WHO));
    make_ready(&s, ready);
    make_execution(s.db, s.project, ready, running);
    make_execution(s.db, s.project, ready, waiting);
    PQclear(run(s.db, STMT_EXECUTION_CLAIM, running, "1", s.epoch));
    free(raw(s.db, "UPDATE nodes SET accepting = false"));
    make_node(s.db, "2", "9", epoch);
    make_sandbox(s.db, s.project, elsewhere);
    PQclear(run(s.db, STMT_SANDBOX_CLAIM, elsewhere, "2", epoch));

    make_node(s.db, "1", "9", epoch);
    assert_text(raw(s.db, "SELECT state FROM sandboxes WHERE id = '%s'", queued), "queued");
    assert_text(raw(s.db, "SELECT state FROM sandboxes WHERE id = '%s'", elsewhere),
                "provisioning");
    assert_text(
        raw(s.db, "SELECT concat(state, ' ', reason) FROM sandboxes WHERE id = '%s'", provisioning),
        "failed daemon_restart");
    assert_text(
        raw(s.db, "SELECT concat(state, ' ', reason) FROM sandboxes WHERE id = '%s'", ready),
        "failed daemon_restart");
    assert_text(
        raw(s.db, "SELECT concat(state, ' ', reason) FROM sandboxes WHERE id = '%s'", stopping),
        "terminated requested");
    assert_text(
        raw(s.db, "SELECT concat(state, ' ', reason) FROM executions WHERE id = '%s'", running),
        "lost daemon_restart");
    assert_text(
        raw(s.db, "SELECT concat(state, ' ', reason) FROM executions WHERE id = '%s'", waiting),
        "lost daemon_restart");
    assert_text(raw(s.db, "SELECT accepting FROM nodes WHERE number = 1"), "t");
    /* what was queued is the new daemon's */
    _cleanup_pgresult_ PGresult *work = run(s.db, STMT_NODE_WORK, "1");
    assert_column(work, "id", queued);
    start_sandbox(s.db, queued, "1", epoch);
}
END_TEST

START_TEST(a_new_daemon_keeps_what_is_held)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char ready[ID_TEXT_SIZE];
    char stopping[ID_TEXT_SIZE];
    char provisioning[ID_TEXT_SIZE];
    char gone[ID_TEXT_SIZE];
    char running[ID_TEXT_SIZE];
    char waiting[ID_TEXT_SIZE];
    char held[4 * ID_TEXT_SIZE + 2];

    make_ready(&s, ready);
    make_execution(s.db, s.project, ready, running);
    PQclear(run(s.db, STMT_EXECUTION_CLAIM, running, "1", s.epoch));
    make_execution(s.db, s.project, ready, waiting);
    make_ready(&s, stopping);
    PQclear(run(s.db, STMT_SANDBOX_REQUEST_STOP, s.project, stopping, WHO));
    make_sandbox(s.db, s.project, provisioning);
    PQclear(run(s.db, STMT_SANDBOX_CLAIM, provisioning, "1", s.epoch));
    make_ready(&s, gone);
    snprintf(held, sizeof(held), "{%s,%s,%s}", ready, stopping, provisioning);
    _cleanup_pgresult_ PGresult *node =
        run(s.db, STMT_NODE_REGISTER, "1", "3600000", "0.1.0", "9", "{base,node}", "{}", held);
    const char *epoch = db_column(node, 0, "epoch");

    assert_text(raw(s.db, "SELECT state FROM sandboxes WHERE id = '%s'", ready), "ready");
    assert_text(raw(s.db, "SELECT state FROM sandboxes WHERE id = '%s'", stopping), "stopping");
    assert_text(
        raw(s.db, "SELECT concat(state, ' ', reason) FROM sandboxes WHERE id = '%s'", provisioning),
        "failed daemon_restart");
    assert_text(raw(s.db, "SELECT concat(state, ' ', reason) FROM sandboxes WHERE id = '%s'", gone),
                "failed daemon_restart");
    assert_text(raw(s.db, "SELECT state FROM executions WHERE id = '%s'", running), "running");
    assert_text(raw(s.db, "SELECT state FROM executions WHERE id = '%s'", waiting), "queued");

    _cleanup_pgresult_ PGresult *adopted = run(s.db, STMT_SANDBOX_ADOPT, ready, "1", epoch);
    assert_column(adopted, "state", "ready");
    assert_column(adopted, "idle_in_ms", NULL);
    _cleanup_pgresult_ PGresult *old = run(s.db, STMT_SANDBOX_ADOPT, ready, "1", s.epoch);
    ck_assert_int_eq(PQntuples(old), 0);
    _cleanup_pgresult_ PGresult *other = run(s.db, STMT_SANDBOX_ADOPT, ready, "2", epoch);
    ck_assert_int_eq(PQntuples(other), 0);
    _cleanup_pgresult_ PGresult *unended = run(s.db, STMT_SANDBOX_UNENDED_EXECUTIONS, ready);
    ck_assert_int_eq(PQntuples(unended), 2);
    ck_assert_str_eq(db_column(unended, 0, "timeout_ms"), "1000");
    ck_assert_ptr_nonnull(db_column(unended, 0, "ran_ms"));
    ck_assert_ptr_null(db_column(unended, 1, "ran_ms"));
    _cleanup_pgresult_ PGresult *claimed = run(s.db, STMT_NODE_CLAIMED, "1");
    ck_assert_int_eq(PQntuples(claimed), 2); /* the ready one, and what runs in it */
    free(raw(s.db, "UPDATE executions SET spec = spec || '{\"stdin\": \"a\\u00e9\"}'"));
    _cleanup_pgresult_ PGresult *input = run(s.db, STMT_EXECUTION_INPUT, running);
    assert_column(input, "stdin", "a\xc3\xa9");
}
END_TEST

struct claimer {
    struct db *db;
    const char *sandbox;
    const char *epoch;
    int rows;
};

static void *claim(void *arg)
{
    struct claimer *claimer = arg;
    _cleanup_pgresult_ PGresult *res =
        run(claimer->db, STMT_SANDBOX_CLAIM, claimer->sandbox, "1", claimer->epoch);

    __atomic_store_n(&claimer->rows, PQntuples(res), __ATOMIC_SEQ_CST);
    return NULL;
}

START_TEST(a_claim_cannot_slip_past_a_new_epoch)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    _cleanup_db_ struct db *registrar = db_fixture_open();
    _cleanup_db_ struct db *db = db_fixture_open();
    struct error err = ERROR_INIT;
    char sandbox[ID_TEXT_SIZE];
    pthread_t thread;
    bool waits = false;

    make_sandbox(s.db, s.project, sandbox);
    free(raw(registrar, "BEGIN; SELECT node_register(1, 3600000, 'x', 9, '{base}', '{}', '{}')"));
    struct claimer claimer = {.db = db, .sandbox = sandbox, .epoch = s.epoch, .rows = -1};
    int pid = PQbackendPID(db_connection(db, &err));
    ck_assert_int_eq(pthread_create(&thread, NULL, claim, &claimer), 0);
    while (!waits && __atomic_load_n(&claimer.rows, __ATOMIC_SEQ_CST) < 0)
        waits = raw_long(s.db,
                         "SELECT count(*) FROM pg_stat_activity WHERE pid = %d AND"
                         " wait_event_type = 'Lock'",
                         pid) == 1;
    free(raw(registrar, "COMMIT"));
    pthread_join(thread, NULL);
    ck_assert_int_eq(claimer.rows, 0);
    assert_text(raw(s.db, "SELECT state FROM sandboxes"), "queued");
}
END_TEST

/* --- lists and tokens ---------------------------------------------------------------------- */

START_TEST(lists_page_without_loss_or_repeat)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "20");
    char sandbox[ID_TEXT_SIZE];
    char seen[8][ID_TEXT_SIZE];
    char time_us[32] = "";
    int count = 0;

    for (int i = 0; i < 7; i++)
        make_sandbox(s.db, s.project, sandbox);
    free(raw(s.db, "UPDATE sandboxes SET created_at = (SELECT max(created_at) FROM sandboxes)"
                   " WHERE id IN (SELECT id FROM sandboxes LIMIT 4)")); /* equal times */
    for (;;) {
        _cleanup_pgresult_ PGresult *page =
            run(s.db, STMT_SANDBOX_LIST, s.project, NULL, NULL, NULL, NULL, NULL,
                count ? time_us : NULL, count ? seen[count - 1] : NULL, "2");
        if (PQntuples(page) == 0)
            break;
        for (int row = 0; row < PQntuples(page); row++) {
            ck_assert_int_lt(count, 7);
            for (int i = 0; i < count; i++)
                ck_assert_str_ne(seen[i], db_column(page, row, "id"));
            snprintf(time_us, sizeof(time_us), "%s", db_column(page, row, "created_us"));
            strcpy(seen[count++], db_column(page, row, "id"));
        }
    }
    ck_assert_int_eq(count, 7);

    static const char *const filters[][3] = {/* state, template, labels */
                                             {"queued", NULL, NULL},
                                             {NULL, "base", NULL},
                                             {NULL, NULL, "{\"team\":\"a\"}"}};
    static const char *const misses[][3] = {
        {"ready", NULL, NULL}, {NULL, "node", NULL}, {NULL, NULL, "{\"team\":\"b\"}"}};
    for (int i = 0; i < 3; i++) {
        _cleanup_pgresult_ PGresult *hit =
            run(s.db, STMT_SANDBOX_LIST, s.project, filters[i][0], filters[i][1], filters[i][2],
                NULL, NULL, NULL, NULL, "50");
        _cleanup_pgresult_ PGresult *miss =
            run(s.db, STMT_SANDBOX_LIST, s.project, misses[i][0], misses[i][1], misses[i][2], NULL,
                NULL, NULL, NULL, "50");
        ck_assert_int_eq(PQntuples(hit), 7);
        ck_assert_int_eq(PQntuples(miss), 0);
    }
}
END_TEST

START_TEST(tokens_belong_expire_and_end)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "20");

    PQclear(run(s.db, STMT_TOKEN_CREATE, "0123456789abcdef", "p", "ci", REQUEST_HASH,
                "{sandbox:read,sandbox:write}", "3600", WHO));
    _cleanup_pgresult_ PGresult *by_name = run(s.db, STMT_AUTHENTICATE, "0123456789abcdef", "p");
    assert_column(by_name, "scopes", "sandbox:read sandbox:write");
    assert_column(by_name, "project", s.project);
    assert_column(by_name, "token_project", s.project);
    assert_column(by_name, "secret", &REQUEST_HASH[2]);
    assert_column(by_name, "disabled", "f");
    assert_column(by_name, "revoked", "f");
    assert_column(by_name, "expired", "f");
    _cleanup_pgresult_ PGresult *by_id =
        run(s.db, STMT_AUTHENTICATE, "0123456789abcdef", s.project);
    assert_column(by_id, "project", s.project);
    _cleanup_pgresult_ PGresult *nowhere = run(s.db, STMT_AUTHENTICATE, "0123456789abcdef", "q");
    assert_column(nowhere, "project", NULL);
    _cleanup_pgresult_ PGresult *unknown = run(s.db, STMT_AUTHENTICATE, "fedcba9876543210", "p");
    ck_assert_int_eq(PQntuples(unknown), 0);

    free(raw(s.db, "UPDATE tokens SET expires_at = now()"));
    PQclear(run(s.db, STMT_TOKEN_REVOKE, "0123456789abcdef", NULL, WHO));
    free(raw(s.db, "UPDATE projects SET disabled_at = now()"));
    _cleanup_pgresult_ PGresult *over = run(s.db, STMT_AUTHENTICATE, "0123456789abcdef", "p");
    assert_column(over, "expired", "t");
    assert_column(over, "revoked", "t");
    assert_column(over, "disabled", "t");

    /* no token without a project but an admin's; none for a project that is not there */
    raw_refused(s.db, "23514",
                "INSERT INTO tokens (id, secret_sha256, scopes) VALUES"
                " ('00000000000000aa', '%s', '{sandbox:write}')",
                REQUEST_HASH);
    _cleanup_pgresult_ PGresult *none = run(s.db, STMT_TOKEN_CREATE, "00000000000000bb", "q", "",
                                            REQUEST_HASH, "{sandbox:read}", NULL, WHO);
    ck_assert_int_eq(PQntuples(none), 0);
    _cleanup_pgresult_ PGresult *admin = run(s.db, STMT_TOKEN_CREATE, "00000000000000cc", NULL, "",
                                             REQUEST_HASH, "{admin}", NULL, WHO);
    assert_column(admin, "project_id", NULL);
    assert_column(admin, "expires_at", NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("schema");
    TCase *tc = tcase_create("states");

    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, db_fixture_reset, NULL);
    tcase_add_test(tc, transitions_are_those_of_the_programs);
    tcase_add_test(tc, reasons_are_those_of_the_programs);
    tcase_add_test(tc, terminal_sandboxes_never_reopen);
    tcase_add_test(tc, terminal_executions_never_reopen);
    tcase_add_test(tc, every_step_outside_the_table_is_refused);
    tcase_add_test(tc, rows_begin_as_queued);
    tcase_add_test(tc, success_is_never_synthesised);
    suite_add_tcase(suite, tc);

    tc = tcase_create("lives");
    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, db_fixture_reset, NULL);
    tcase_add_test(tc, an_execution_runs_once_and_keeps_its_result);
    tcase_add_test(tc, a_timeout_that_terminates_stops_the_sandbox_with_its_result);
    tcase_add_test(tc, a_stop_is_asked_for_once);
    tcase_add_test(tc, a_ttl_is_judged_by_the_database);
    tcase_add_test(tc, an_old_epoch_writes_nothing);
    tcase_add_test(tc, a_new_epoch_ends_what_the_former_held);
    tcase_add_test(tc, a_claim_cannot_slip_past_a_new_epoch);
    tcase_add_test(tc, a_new_daemon_keeps_what_is_held);
    tcase_add_test(tc, lists_page_without_loss_or_repeat);
    tcase_add_test(tc, tokens_belong_expire_and_end);
    suite_add_tcase(suite, tc);

    return db_fixture_run(suite);
}
