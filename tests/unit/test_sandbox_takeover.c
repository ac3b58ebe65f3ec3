/*
 * What a main makes of the guests and rows that a former one left: the daemon's
 * real parts over a throwaway Postgres, with a keeper and guests played by the
 * test. The former daemon is SQL: what it claimed, and no more.
 */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/fdpass.h"
#include "common/wire.h"
#include "daemon/answer.h"
#include "daemon/keeper_link.h"
#include "daemon/node.h"
#include "daemon/sandbox.h"
#include "db_fixture.h"

#define GUARD_MS 30000
#define STREAM 5u
#define NO_ID "0001ffff-0000-4000-8000-000000000001"

struct fixture {
    struct daemon d; /* first: callbacks get it back as the fixture */
    struct config *config;
    struct db *db;
    int keeper; /* the test's end */
    int guest;  /* likewise, of the guest that was handed over; -1 */
    struct loop_timer *tick;
    bool registered, attached, empty;
    char project[ID_TEXT_SIZE];
    char epoch[32]; /* of the former daemon */
    char sandbox[ID_TEXT_SIZE];
    char execution[ID_TEXT_SIZE];
    uint8_t rx[WIRE_FRAME_MAX];
};

static struct fixture fixture;
static struct fixture *const f = &fixture;

static const char config_text[] = "[guest]\ntemplates = base node\nkill_grace = 0ms\n"
                                  "heartbeat = 60s\nheartbeat_timeout = 120s\n"
                                  "[limits]\noutput_bytes = 4K\n"
                                  "[daemon]\nscan = 600s\n"
                                  "[node]\nnumber = 1\n";

/* --- the loop ------------------------------------------------------------------------------- */

static void stop(void *arg)
{
    (void)arg;
    loop_stop(f->d.loop);
}

/* A short turn of the loop, so that the test can look again. */
static void turn(void)
{
    loop_timer_arm(f->tick, 2);
    loop_run(f->d.loop);
}

#define UNTIL(condition)                                                                           \
    for (int64_t until_ = clock_mono_ms() + GUARD_MS; !(condition); turn())                        \
    ck_assert_msg(clock_mono_ms() < until_, "it did not happen in time: %s", #condition)

static bool is(const char *table, const char *id, const char *wanted)
{
    char *now =
        raw(f->db, "SELECT concat_ws(' ', state, reason) FROM %s WHERE id = '%s'", table, id);
    bool same = now && strcmp(now, wanted) == 0;

    free(now);
    return same;
}

static void await_sandbox(const char *wanted)
{
    UNTIL(is("sandboxes", f->sandbox, wanted));
}

static void await_execution(const char *wanted)
{
    UNTIL(is("executions", f->execution, wanted));
}

/* --- the keeper ----------------------------------------------------------------------------- */

static void keeper_say(enum keeper_event event, const char *id, int fd, const char *reason,
                       int status, uint32_t oom_kills)
{
    struct keeper_report report;
    struct error err = ERROR_INIT;

    memset(&report, 0, sizeof(report));
    report.event = event;
    snprintf(report.id, sizeof(report.id), "%s", id);
    snprintf(report.reason, sizeof(report.reason), "%s", reason);
    report.killed = reason[0] != '\0';
    report.ending = event == KEEPER_HELD && fd < 0;
    report.exit_status = status;
    report.oom_kills = oom_kills;
    ck_assert_msg(fdpass_send(f->keeper, &report, sizeof(report), fd, &err) == 0, "%s", err.detail);
}

/* The next request; other ops than this one are passed over. */
static struct keeper_request await_request(enum keeper_op op)
{
    struct keeper_request request = {.op = 0};

    UNTIL(recv(f->keeper, &request, sizeof(request), MSG_DONTWAIT) == sizeof(request) &&
          request.op == op);
    return request;
}

static void expect_request(enum keeper_op op, const char *id, const char *reason)
{
    struct keeper_request request = await_request(op);

    ck_assert_str_eq(request.id, id);
    ck_assert_str_eq(request.reason, reason);
}

static void hold(const char *id)
{
    int fds[2];

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    keeper_say(KEEPER_HELD, id, fds[0], "", 0, 0);
    close(fds[0]);
    f->guest = fds[1];
}

/* --- the guest ------------------------------------------------------------------------------ */

static void say(enum wire_type type, uint8_t channel, uint32_t stream, const void *payload,
                size_t len)
{
    uint8_t frame[WIRE_HEADER_SIZE + 128];

    ck_assert_uint_le(len, 128);
    wire_header(frame, type, channel, stream);
    if (len > 0)
        memcpy(frame + WIRE_HEADER_SIZE, payload, len);
    ck_assert_int_eq(send(f->guest, frame, WIRE_HEADER_SIZE + len, MSG_NOSIGNAL),
                     (ssize_t)(WIRE_HEADER_SIZE + len));
}

static struct wire_frame hear(void)
{
    struct wire_frame frame;
    struct error err = ERROR_INIT;
    ssize_t len = -1;

    UNTIL((len = recv(f->guest, f->rx, sizeof(f->rx), MSG_DONTWAIT)) > 0);
    ck_assert_msg(wire_decode(f->rx, (size_t)len, WIRE_TO_GUEST, &frame, &err) == 0, "%s",
                  err.detail);
    return frame;
}

static struct wire_frame expect(enum wire_type type)
{
    struct wire_frame frame = hear();

    ck_assert_str_eq(wire_type_name(frame.type), wire_type_name(type));
    return frame;
}

static void answer_resync(uint32_t count)
{
    struct wire_frame frame = expect(WIRE_RESYNC);
    uint8_t payload[16];

    ck_assert_uint_eq(wire_get_u64(frame.payload), 2); /* this daemon's epoch */
    memcpy(payload, frame.payload, 8);
    wire_put_u32(payload + 8, WIRE_VERSION);
    wire_put_u32(payload + 12, count);
    say(WIRE_RESYNCED, 0, 0, payload, sizeof(payload));
}

static void say_live(const char *execution, unsigned flags, uint64_t sent, uint64_t received)
{
    struct wire_live live = {.pid = 9,
                             .state = WIRE_LIVE_RUNNING,
                             .flags = flags,
                             .stdout_bytes = sent,
                             .stdin_bytes = received};
    uint8_t payload[WIRE_LIVE_SIZE];

    id_to_bytes(execution, live.uuid);
    wire_live_put(payload, &live);
    say(WIRE_LIVE, 0, STREAM, payload, sizeof(payload));
}

static void put_exit(uint8_t payload[20], uint8_t code, uint8_t sig, bool killed)
{
    memset(payload, 0, 20);
    payload[0] = code;
    payload[1] = sig;
    payload[2] = killed;
}

static void say_over(const char *execution, uint8_t code, uint8_t sig, bool killed, uint64_t sent)
{
    uint8_t last[20];
    uint8_t payload[WIRE_OVER_MAX];
    struct wire_over over = {.stdout_bytes = sent,
                             .last = {.type = WIRE_EXIT, .payload = last, .payload_len = 20}};

    put_exit(last, code, sig, killed);
    id_to_bytes(execution, over.uuid);
    say(WIRE_OVER, 0, STREAM, payload, wire_over_put(payload, &over));
}

static void say_exit(uint32_t stream, uint8_t code, uint8_t sig, bool killed)
{
    uint8_t payload[20];

    put_exit(payload, code, sig, killed);
    say(WIRE_EXIT, 0, stream, payload, sizeof(payload));
}

static void expect_credits(void)
{
    for (unsigned channel = WIRE_STDOUT; channel <= WIRE_STDERR; channel++) {
        struct wire_frame frame = expect(WIRE_CREDIT);

        ck_assert_uint_eq(frame.stream, STREAM);
        ck_assert_uint_eq(frame.channel, channel);
    }
}

/* --- the scene ------------------------------------------------------------------------------ */

static void on_registered(struct daemon *d)
{
    (void)d;
    f->registered = true;
}

static void on_attached(struct daemon *d)
{
    f->attached = true;
    node_start(d->node, on_registered);
}

static void on_lost(struct daemon *d)
{
    (void)d;
    ck_abort_msg("the keeper is gone");
}

static void on_empty(struct daemon *d)
{
    (void)d;
    f->empty = true;
}

static void setup(void)
{
    struct error err = ERROR_INIT;
    int fds[2];

    memset(f, 0, sizeof(*f));
    f->guest = -1;
    f->config = config_parse(config_text, strlen(config_text), "test", &err);
    ck_assert_msg(f->config != NULL, "%s", err.detail);
    f->d.config = f->config;
    log_init(&f->d.log, "test_sandbox_takeover");
    f->d.log.level = getenv("TEST_LOG") ? LOG_DEBUG : LOG_ERROR + 1;
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    f->d.loop = loop_new(&err);
    f->keeper = fds[1];
    f->d.keeper = keeper_link_new(&f->d, fds[0], sandboxes_keeper_report, on_lost, &err);
    f->d.db = dbq_new(f->d.loop, &f->d.log, db_fixture_server()->conninfo, &err);
    f->d.node = node_new(&f->d, "{}", &err);
    f->d.answers = answers_new(&f->d, &err);
    f->d.sandboxes = sandboxes_new(&f->d, &err);
    ck_assert_msg(f->d.keeper && f->d.db && f->d.node && f->d.answers && f->d.sandboxes, "%s",
                  err.detail);
    f->tick = loop_timer_new(f->d.loop, stop, NULL);
    sandboxes_when_attached(f->d.sandboxes, on_attached);
    f->db = db_fixture_open();
    make_project(f->db, "demo", NULL, f->project);
    make_node(f->db, "1", "9", f->epoch);
}

static void teardown(void)
{
    sandboxes_free(f->d.sandboxes);
    answers_free(f->d.answers);
    node_free(f->d.node);
    dbq_free(f->d.db);
    keeper_link_free(f->d.keeper);
    close(f->keeper);
    if (f->guest >= 0)
        close(f->guest);
    loop_timer_free(f->tick);
    loop_free(f->d.loop);
    db_free(f->db);
    config_free(f->config);
}

static void former_ready(void)
{
    make_sandbox(f->db, f->project, f->sandbox);
    start_sandbox(f->db, f->sandbox, "1", f->epoch);
}

static void admit(const char *spec, const char *timeout_ms)
{
    char request[512];

    snprintf(request, sizeof(request),
             "{\"spec\":%s,\"timeoutMs\":%s,\"onTimeout\":\"kill\",\"background\":false,"
             "\"tag\":null}",
             spec, timeout_ms);
    PGresult *res = run(f->db, STMT_EXECUTION_ADMIT, f->project, f->sandbox, WHO, NULL,
                        REQUEST_HASH, "64", request);
    assert_column(res, "outcome", "created");
    snprintf(f->execution, sizeof(f->execution), "%s", db_column(res, 0, "id"));
    PQclear(res);
}

static void former_running(const char *spec, const char *timeout_ms)
{
    admit(spec, timeout_ms);
    PQclear(run(f->db, STMT_EXECUTION_CLAIM, f->execution, "1", f->epoch));
    ck_assert(is("executions", f->execution, "running"));
}

#define TRUE_SPEC "{\"argv\":[\"true\"]}"

/* The keeper has told all. */
static void begin(void)
{
    keeper_say(KEEPER_ATTACHED, "", -1, "", 0, 0);
    UNTIL(f->registered);
}

/* A sandbox whose guest is taken over, up to the end of its list. */
static void take_over(void)
{
    hold(f->sandbox);
    begin();
}

static void assert_works(void)
{
    struct wire_frame frame;
    uint8_t uuid[WIRE_UUID_SIZE];

    admit(TRUE_SPEC, "null");
    frame = expect(WIRE_EXEC);
    id_to_bytes(f->execution, uuid);
    ck_assert_mem_eq(frame.payload + 12, uuid, sizeof(uuid));
    uint32_t stream = frame.stream;
    (void)expect(WIRE_SPEC);
    const uint8_t pid[4] = {0, 0, 0, 9};
    say(WIRE_STARTED, 0, stream, pid, sizeof(pid));
    say_exit(stream, 0, 0, false);
    await_execution("succeeded");
}

/* --- tests: sandboxes ----------------------------------------------------------------------- */

START_TEST(a_ready_sandbox_goes_on)
{
    former_ready();
    take_over();
    answer_resync(0);
    ck_assert(is("sandboxes", f->sandbox, "ready"));
    assert_works();
    PQclear(run(f->db, STMT_SANDBOX_REQUEST_STOP, f->project, f->sandbox, WHO));
    expect_request(KEEPER_END, f->sandbox, "requested");
    keeper_say(KEEPER_ENDED, f->sandbox, -1, "requested", 137, 0);
    await_sandbox("terminated requested");
    expect_request(KEEPER_FORGET, f->sandbox, ""); /* once that is recorded */
}
END_TEST

START_TEST(what_is_not_held_is_ended)
{
    former_ready();
    former_running(TRUE_SPEC, "null");
    begin();
    ck_assert(is("sandboxes", f->sandbox, "failed daemon_restart"));
    ck_assert(is("executions", f->execution, "lost daemon_restart"));
}
END_TEST

struct ending {
    const char *reason; /* why a former main killed it; "": it did not */
    int status;
    uint32_t oom_kills;
    const char *wanted;
};

static const struct ending endings[] = {
    {"", 137, 1, "failed oom"},
    {"", 137, 0, "failed guest_crash"},
    {"", 0, 0, "failed guest_exit"},
    {"relay_protocol", 137, 0, "failed relay_protocol"},
    {"node_lost", 137, 0, "failed node_lost"},
};

START_TEST(an_end_that_was_not_recorded_has_its_true_reason)
{
    const struct ending *e = &endings[_i];

    former_ready();
    former_running(TRUE_SPEC, "null");
    keeper_say(KEEPER_ENDED, f->sandbox, -1, e->reason, e->status, e->oom_kills);
    begin();
    await_sandbox(e->wanted);
    ck_assert_int_eq(raw_long(f->db, "SELECT count(*) FROM executions WHERE state = 'lost'"), 1);
    expect_request(KEEPER_FORGET, f->sandbox, "");
}
END_TEST

/* It dies after the registration began, and before its row was read. */
START_TEST(an_end_while_it_is_adopted)
{
    former_ready();
    hold(f->sandbox);
    keeper_say(KEEPER_ATTACHED, "", -1, "", 0, 0);
    keeper_say(KEEPER_ENDED, f->sandbox, -1, "", 137, 2);
    await_sandbox("failed oom");
}
END_TEST

START_TEST(an_end_while_it_is_resynchronised)
{
    former_ready();
    former_running(TRUE_SPEC, "null");
    take_over();
    (void)expect(WIRE_RESYNC);
    keeper_say(KEEPER_ENDED, f->sandbox, -1, "", 1, 0);
    await_sandbox("failed guest_exit");
    ck_assert(is("executions", f->execution, "lost guest_exit"));
}
END_TEST

START_TEST(a_stop_that_was_asked_for_is_carried_out)
{
    former_ready();
    PQclear(run(f->db, STMT_SANDBOX_REQUEST_STOP, f->project, f->sandbox, WHO));
    take_over();
    expect_request(KEEPER_END, f->sandbox, "requested");
    keeper_say(KEEPER_ENDED, f->sandbox, -1, "requested", 137, 0);
    await_sandbox("terminated requested");
}
END_TEST

START_TEST(a_guest_on_its_way_out_is_waited_for)
{
    former_ready();
    keeper_say(KEEPER_HELD, f->sandbox, -1, "relay_lost", 0, 0); /* ending: no socket */
    begin();
    keeper_say(KEEPER_ENDED, f->sandbox, -1, "relay_lost", 137, 0);
    await_sandbox("failed relay_lost");
}
END_TEST

START_TEST(what_was_being_provisioned_is_ended)
{
    make_sandbox(f->db, f->project, f->sandbox);
    PQclear(run(f->db, STMT_SANDBOX_CLAIM, f->sandbox, "1", f->epoch));
    take_over();
    expect_request(KEEPER_END, f->sandbox, "daemon_restart");
    ck_assert(is("sandboxes", f->sandbox, "failed daemon_restart"));
    keeper_say(KEEPER_ENDED, f->sandbox, -1, "daemon_restart", 137, 0);
    expect_request(KEEPER_FORGET, f->sandbox, "");
}
END_TEST

START_TEST(a_guest_without_a_row_is_ended)
{
    hold(NO_ID);
    begin();
    expect_request(KEEPER_END, NO_ID, "daemon_restart");
    keeper_say(KEEPER_ENDED, NO_ID, -1, "daemon_restart", 137, 0);
    expect_request(KEEPER_FORGET, NO_ID, "");
}
END_TEST

START_TEST(a_guest_that_does_not_resynchronise)
{
    f->config->guest_heartbeat_timeout = 100;
    former_ready();
    take_over();
    (void)expect(WIRE_RESYNC);
    expect_request(KEEPER_END, f->sandbox, "relay_lost");
    keeper_say(KEEPER_ENDED, f->sandbox, -1, "relay_lost", 137, 0);
    await_sandbox("failed relay_lost");
}
END_TEST

START_TEST(a_guest_that_lies)
{
    former_ready();
    take_over();
    answer_resync(1);
    say(WIRE_EOF, WIRE_STDOUT, STREAM, NULL, 0);
    expect_request(KEEPER_END, f->sandbox, "relay_protocol");
    keeper_say(KEEPER_ENDED, f->sandbox, -1, "relay_protocol", 137, 0);
    await_sandbox("failed relay_protocol");
}
END_TEST

START_TEST(ttl_goes_on)
{
    former_ready();
    free(raw(f->db, "UPDATE sandboxes SET expires_at = clock_timestamp() + interval '300 ms'"
                    " RETURNING id"));
    take_over();
    answer_resync(0);
    expect_request(KEEPER_END, f->sandbox, "ttl");
    keeper_say(KEEPER_ENDED, f->sandbox, -1, "ttl", 137, 0);
    await_sandbox("expired ttl");
}
END_TEST

START_TEST(idle_time_goes_on)
{
    former_ready();
    /* it was idle for 60 of 61 seconds */
    free(raw(f->db, "UPDATE sandboxes SET idle_seconds = 61,"
                    " ready_at = clock_timestamp() - interval '60 s' RETURNING id"));
    take_over();
    answer_resync(0);
    expect_request(KEEPER_END, f->sandbox, "idle");
    keeper_say(KEEPER_ENDED, f->sandbox, -1, "idle", 137, 0);
    await_sandbox("expired idle");
}
END_TEST

START_TEST(a_shutdown_in_the_middle_of_it)
{
    former_ready();
    take_over();
    if (_i > 0)
        (void)expect(WIRE_RESYNC);
    sandboxes_shutdown(f->d.sandboxes, on_empty);
    expect_request(KEEPER_END, f->sandbox, "daemon_restart");
    keeper_say(KEEPER_ENDED, f->sandbox, -1, "daemon_restart", 137, 0);
    UNTIL(f->empty);
    ck_assert(is("sandboxes", f->sandbox, "failed daemon_restart"));
}
END_TEST

/* --- tests: executions ---------------------------------------------------------------------- */

static void assert_row(const char *wanted)
{
    assert_text(raw(f->db,
                    "SELECT concat_ws(' ', state, coalesce(exit_code::text, '-'),"
                    " coalesce(reason, '-'), encode(stdout, 'escape'), stdout_bytes,"
                    " coalesce(stdout_omitted_at::text, '-')) FROM executions WHERE id = '%s'",
                    f->execution),
                wanted);
}

START_TEST(what_runs_goes_on)
{
    former_ready();
    former_running(TRUE_SPEC, "null");
    take_over();
    answer_resync(1);
    say_live(f->execution, 0, 1000, 0);
    expect_credits();
    ck_assert(is("executions", f->execution, "running"));
    say(WIRE_DATA, WIRE_STDOUT, STREAM, "rest", 4);
    say_exit(STREAM, 0, 0, false);
    await_execution("succeeded");
    assert_row("succeeded 0 - rest 1004 0");
}
END_TEST

START_TEST(what_ended_meanwhile_is_recorded)
{
    former_ready();
    former_running(TRUE_SPEC, "null");
    take_over();
    answer_resync(1);
    say_over(f->execution, 3, 0, false, 20);
    await_execution("failed");
    assert_row("failed 3 -  20 0");
}
END_TEST

START_TEST(what_the_guest_does_not_know_is_lost)
{
    former_ready();
    former_running(TRUE_SPEC, "null");
    take_over();
    answer_resync(0);
    await_execution("lost daemon_restart");
    assert_works(); /* and nothing of it was sent to the guest */
}
END_TEST

START_TEST(what_nobody_recorded_is_killed)
{
    former_ready();
    take_over();
    answer_resync(1);
    say_live(NO_ID, 0, 0, 0);
    struct wire_frame frame = expect(WIRE_KILL);
    ck_assert_uint_eq(frame.stream, STREAM);
    expect_credits();
    say_exit(STREAM, 0, 9, true);
    assert_works();
}
END_TEST

/* A crash of Postgres took the claim, which is not waited for until it is on disk. */
START_TEST(a_claim_that_the_database_forgot)
{
    former_ready();
    admit(TRUE_SPEC, "null");
    take_over();
    answer_resync(1);
    if (_i == 0) {
        say_live(f->execution, 0, 0, 0);
        expect_credits(); /* and no second EXEC */
        say_exit(STREAM, 0, 0, false);
    } else {
        say_over(f->execution, 0, 0, false, 0);
    }
    await_execution("succeeded");
    assert_works();
}
END_TEST

START_TEST(the_guest_refuses_a_second_start)
{
    const uint8_t refused[5] = {0, 0, 0, EEXIST, WIRE_STEP_SPEC};
    struct wire_frame frame;

    former_ready();
    take_over();
    answer_resync(0);
    admit(TRUE_SPEC, "null");
    frame = expect(WIRE_EXEC);
    uint32_t stream = frame.stream;
    (void)expect(WIRE_SPEC);
    say(WIRE_FAILED, 0, stream, refused, sizeof(refused));
    await_execution("lost daemon_restart");
}
END_TEST

/* Admitted while the guest is being resynchronised: claimed at once, begun when it may. */
START_TEST(new_work_waits_for_the_list)
{
    struct wire_frame frame;

    former_ready();
    take_over();
    frame = expect(WIRE_RESYNC);
    uint8_t payload[16];
    memcpy(payload, frame.payload, 8);
    admit(TRUE_SPEC, "null");
    await_execution("running");
    wire_put_u32(payload + 8, WIRE_VERSION);
    wire_put_u32(payload + 12, 0);
    say(WIRE_RESYNCED, 0, 0, payload, sizeof(payload));
    frame = expect(WIRE_EXEC);
    uint32_t stream = frame.stream;
    (void)expect(WIRE_SPEC);
    const uint8_t pid[4] = {0, 0, 0, 9};
    say(WIRE_STARTED, 0, stream, pid, sizeof(pid));
    say_exit(stream, 0, 0, false);
    await_execution("succeeded");
}
END_TEST

static void on_idle(void *arg)
{
    (void)arg;
    f->empty = true;
}

/* As a client's hand-off announces it that was handed on by the former daemon. */
START_TEST(an_announcement_of_what_runs_already)
{
    struct wire_frame frame;

    former_ready();
    former_running(TRUE_SPEC, "60000");
    free(raw(f->db, "UPDATE executions SET started_at = clock_timestamp() - interval '55 s'"
                    " RETURNING id"));
    take_over();
    frame = expect(WIRE_RESYNC);
    uint8_t payload[16];
    memcpy(payload, frame.payload, 8);
    sandboxes_work(f->d.sandboxes, 'e', f->execution);
    for (int i = 0; i < 2; i++) { /* the claim, and the look */
        f->empty = false;
        dbq_when_idle(f->d.db, on_idle, NULL);
        UNTIL(f->empty);
    }
    ck_assert(is("executions", f->execution, "running"));
    wire_put_u32(payload + 8, WIRE_VERSION);
    wire_put_u32(payload + 12, 1);
    say(WIRE_RESYNCED, 0, 0, payload, sizeof(payload));
    say_live(f->execution, 0, 10, 0);
    expect_credits();
    (void)expect(WIRE_KILL); /* its time went on, too */
    say_exit(STREAM, 0, 15, true);
    await_execution("timed_out execution_timeout");
    assert_row("timed_out 143 execution_timeout  10 0");
}
END_TEST

START_TEST(new_work_for_a_guest_that_dies_instead)
{
    former_ready();
    take_over();
    (void)expect(WIRE_RESYNC);
    admit(TRUE_SPEC, "null");
    await_execution("running");
    keeper_say(KEEPER_ENDED, f->sandbox, -1, "", 137, 1);
    await_sandbox("failed oom");
    ck_assert(is("executions", f->execution, "lost oom"));
    UNTIL(sandboxes_count(f->d.sandboxes) == 0);
    sandboxes_shutdown(f->d.sandboxes, on_empty);
    UNTIL(f->empty); /* no execution is left waiting */
}
END_TEST

START_TEST(its_time_goes_on)
{
    former_ready();
    former_running(TRUE_SPEC, "60000");
    free(raw(f->db, "UPDATE executions SET started_at = clock_timestamp() - interval '59800 ms'"
                    " RETURNING id"));
    take_over();
    answer_resync(1);
    say_live(f->execution, 0, 0, 0);
    expect_credits();
    (void)expect(WIRE_KILL);
    say_exit(STREAM, 0, 15, true);
    await_execution("timed_out execution_timeout");
}
END_TEST

START_TEST(its_time_was_over_before)
{
    former_ready();
    former_running(TRUE_SPEC, "60000");
    take_over();
    answer_resync(1);
    if (_i == 0) {
        say_live(f->execution, WIRE_LIVE_KILLED, 0, 0);
        expect_credits();
        say_exit(STREAM, 0, 9, true);
    } else {
        say_over(f->execution, 0, 9, true, 0);
    }
    await_execution("timed_out execution_timeout");
}
END_TEST

START_TEST(stdin_goes_on)
{
    struct wire_frame frame;
    const uint8_t credit[4] = {0, 0, 1, 0};

    former_ready();
    former_running("{\"argv\":[\"cat\"],\"stdin\":\"sent rest\"}", "null");
    take_over();
    answer_resync(1);
    say_live(f->execution, WIRE_LIVE_STDIN, 0, 4);
    say(WIRE_CREDIT, WIRE_STDIN, STREAM, credit, sizeof(credit));
    expect_credits();
    frame = expect(WIRE_DATA);
    ck_assert_uint_eq(frame.payload_len, 5);
    ck_assert_mem_eq(frame.payload, " rest", 5);
    (void)expect(WIRE_EOF);
    say_exit(STREAM, 0, 0, false);
    await_execution("succeeded");
}
END_TEST

/* It received more than its row has: nobody knows what that was. */
START_TEST(stdin_that_cannot_be_gone_on_with)
{
    former_ready();
    former_running("{\"argv\":[\"cat\"],\"stdin\":\"four\"}", "null");
    take_over();
    answer_resync(1);
    say_live(f->execution, WIRE_LIVE_STDIN, 0, 5);
    (void)expect(WIRE_KILL);
    await_execution("lost daemon_restart");
}
END_TEST

/* --- tests: what differs is made equal ------------------------------------------------------ */

START_TEST(a_guest_that_nobody_knows_is_ended)
{
    struct keeper_request request;

    begin();
    request = await_request(KEEPER_LIST);
    keeper_say(KEEPER_LISTED, NO_ID, -1, "", 0, 0);
    keeper_say(KEEPER_LIST_END, request.id, -1, "", 0, 0);
    expect_request(KEEPER_END, NO_ID, "daemon_restart");
}
END_TEST

START_TEST(a_guest_that_the_keeper_does_not_have_is_no_more)
{
    struct keeper_request request;

    former_ready();
    take_over();
    answer_resync(0);
    request = await_request(KEEPER_LIST);
    keeper_say(KEEPER_LIST_END, request.id, -1, "", 0, 0);
    await_sandbox("failed guest_crash");
}
END_TEST

/* Rows that no daemon's start has seen: a former one's last statements came late. */
START_TEST(rows_that_nobody_holds_are_ended)
{
    former_ready();
    former_running(TRUE_SPEC, "null");
    char held[ID_TEXT_SIZE];
    memcpy(held, f->sandbox, sizeof(held));
    char lost[ID_TEXT_SIZE];
    memcpy(lost, f->execution, sizeof(lost));
    take_over();
    answer_resync(1);
    say_live(lost, 0, 0, 0);
    expect_credits();
    make_sandbox(f->db, f->project, f->sandbox);
    free(raw(f->db,
             "UPDATE sandboxes SET state = 'provisioning', provisioning_at = now()"
             " WHERE id = '%s' RETURNING id",
             f->sandbox));
    free(raw(f->db,
             "UPDATE sandboxes SET state = 'ready', ready_at = now() WHERE id = '%s'"
             " RETURNING id",
             f->sandbox));
    free(raw(f->db,
             "WITH e AS (INSERT INTO executions (sandbox_id, spec) VALUES ('%s', '{}')"
             " RETURNING id) SELECT id FROM e",
             held));
    char *id = raw(f->db, "UPDATE executions SET state = 'running', started_at = now()"
                          " WHERE state = 'queued' RETURNING id::text");
    snprintf(f->execution, sizeof(f->execution), "%s", id);
    free(id);
    /* the scan that each reconnect brings */
    free(raw(f->db, "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity"
                    " WHERE application_name = 'paddockd'"));
    await_sandbox("failed daemon_restart");
    await_execution("lost");
    ck_assert(is("sandboxes", held, "ready"));
    ck_assert(is("executions", lost, "running"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sandbox_takeover");
    TCase *tc = tcase_create("sandbox_takeover");

    tcase_add_checked_fixture(tc, db_fixture_reset, NULL);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 90);
    tcase_add_test(tc, a_ready_sandbox_goes_on);
    tcase_add_test(tc, what_is_not_held_is_ended);
    tcase_add_loop_test(tc, an_end_that_was_not_recorded_has_its_true_reason, 0,
                        (int)ARRAY_LEN(endings));
    tcase_add_test(tc, an_end_while_it_is_adopted);
    tcase_add_test(tc, an_end_while_it_is_resynchronised);
    tcase_add_test(tc, a_stop_that_was_asked_for_is_carried_out);
    tcase_add_test(tc, a_guest_on_its_way_out_is_waited_for);
    tcase_add_test(tc, what_was_being_provisioned_is_ended);
    tcase_add_test(tc, a_guest_without_a_row_is_ended);
    tcase_add_test(tc, a_guest_that_does_not_resynchronise);
    tcase_add_test(tc, a_guest_that_lies);
    tcase_add_test(tc, ttl_goes_on);
    tcase_add_test(tc, idle_time_goes_on);
    tcase_add_loop_test(tc, a_shutdown_in_the_middle_of_it, 0, 2);
    tcase_add_test(tc, what_runs_goes_on);
    tcase_add_test(tc, what_ended_meanwhile_is_recorded);
    tcase_add_test(tc, what_the_guest_does_not_know_is_lost);
    tcase_add_test(tc, what_nobody_recorded_is_killed);
    tcase_add_loop_test(tc, a_claim_that_the_database_forgot, 0, 2);
    tcase_add_test(tc, the_guest_refuses_a_second_start);
    tcase_add_test(tc, new_work_waits_for_the_list);
    tcase_add_test(tc, an_announcement_of_what_runs_already);
    tcase_add_test(tc, new_work_for_a_guest_that_dies_instead);
    tcase_add_test(tc, its_time_goes_on);
    tcase_add_loop_test(tc, its_time_was_over_before, 0, 2);
    tcase_add_test(tc, stdin_goes_on);
    tcase_add_test(tc, stdin_that_cannot_be_gone_on_with);
    tcase_add_test(tc, a_guest_that_nobody_knows_is_ended);
    tcase_add_test(tc, a_guest_that_the_keeper_does_not_have_is_no_more);
    tcase_add_test(tc, rows_that_nobody_holds_are_ended);
    suite_add_tcase(suite, tc);
    return db_fixture_run(suite);
}
