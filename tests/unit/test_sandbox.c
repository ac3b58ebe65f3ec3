/*
 * Sandboxes and executions from admission to their end: the daemon's real parts
 * (loop, database, node, answers) over a throwaway Postgres, with a keeper and
 * guests that follow a script.
 */
#include <check.h>
#include <errno.h>
#include <malloc.h>
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
#include "daemon/sandbox_internal.h"
#include "db_fixture.h"

#define GUESTS_MAX 8
#define TICK_MS 2
#define GUARD_MS 30000
#define PID_OF_ALL 77

/* What the next guests do by themselves. */
struct script {
    bool refuse;     /* the keeper refuses to start it */
    bool hold_start; /* the keeper starts it when told (keeper_start) */
    bool mute;       /* the guest says nothing, not even HELLO */
    bool no_pong;
    bool hold_exec;   /* executions stay as they are when their spec is there */
    bool ignore_kill; /* of executions */
    bool hold_end;    /* the keeper reports the end when told (keeper_ended) */
    uint32_t version;
    uint8_t exit_code;
    uint32_t fail_errno; /* with fail_step: executions fail to start */
    uint8_t fail_step;
    size_t output_bytes; /* of stdout; else "hello\n" */
    uint32_t oom_kills;  /* as the keeper measures, like the next */
    bool no_usage;       /* it does not answer */
};

struct fake_stream {
    uint32_t id;
    size_t spec_size, spec_got;
    struct buf spec;
    size_t credit;
};

struct fake_guest {
    struct fixture *f;
    struct keeper_request start;
    int fd;
    struct loop_io *io;
    bool asked_to_end, reported;
    uint32_t setup_pids;
    struct buf env;
    int kills, pings;
    struct fake_stream stream; /* the last execution */
};

struct fixture {
    struct daemon d; /* first: callbacks get it back as the fixture */
    struct config *config;
    struct db *db;
    int keeper;
    struct loop_io *keeper_io;
    struct loop_timer *tick;
    int64_t deadline_ms;
    bool (*until)(struct fixture *f, const void *arg);
    const void *until_arg;
    bool registered, empty, keeper_lost;
    struct script script;
    struct fake_guest guests[GUESTS_MAX];
    int guest_count;
    int end_requests;
    char project[ID_TEXT_SIZE];
    char sandbox[ID_TEXT_SIZE];
    char execution[ID_TEXT_SIZE];
};

static struct fixture fixture;

/* --- the fake keeper ----------------------------------------------------------------------- */

static void guest_close(struct fake_guest *g)
{
    if (g->fd < 0)
        return;
    loop_io_free(g->io);
    close(g->fd);
    g->io = NULL;
    g->fd = -1;
}

static void keeper_say(struct fixture *f, const struct keeper_report *report, int fd)
{
    struct error err = ERROR_INIT;

    ck_assert_msg(fdpass_send(f->keeper, report, sizeof(*report), fd, &err) == 0, "%s", err.detail);
}

static void keeper_ended(struct fake_guest *g, int status, uint32_t oom_kills)
{
    struct keeper_report report = {.event = KEEPER_ENDED,
                                   .exit_status = status,
                                   .oom_kills = oom_kills,
                                   .killed = g->asked_to_end};

    if (g->reported)
        return;
    g->reported = true;
    memcpy(report.id, g->start.id, ID_SIZE);
    guest_close(g);
    keeper_say(g->f, &report, -1);
}

static void on_guest_io(int fd, unsigned events, void *arg);

static void guest_say(const struct fake_guest *g, enum wire_type type, uint8_t channel,
                      uint32_t stream, const void *payload, size_t len)
{
    static uint8_t frame[WIRE_FRAME_MAX];

    wire_header(frame, type, channel, stream);
    if (len > 0)
        memcpy(frame + WIRE_HEADER_SIZE, payload, len);
    ssize_t sent = send(g->fd, frame, WIRE_HEADER_SIZE + len, MSG_NOSIGNAL);
    /* The daemon may have let go of the guest while this was on its way, or before it had read all
     * that was said. */
    ck_assert_msg(sent == (ssize_t)(WIRE_HEADER_SIZE + len) ||
                      (sent < 0 && (errno == EPIPE || errno == ECONNRESET)),
                  "a guest's send: %zd, errno %d", sent, errno);
}

static void guest_say_u32(const struct fake_guest *g, enum wire_type type, uint32_t stream,
                          uint32_t value)
{
    uint8_t payload[4];

    wire_put_u32(payload, value);
    guest_say(g, type, 0, stream, payload, sizeof(payload));
}

static void keeper_start(struct fake_guest *g)
{
    struct keeper_report report = {.event = KEEPER_STARTED};
    int fds[2];

    memcpy(report.id, g->start.id, ID_SIZE);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    g->fd = fds[1];
    g->io = loop_io_new(g->f->d.loop, g->fd, LOOP_READ, on_guest_io, g);
    keeper_say(g->f, &report, fds[0]);
    close(fds[0]);
    if (!g->f->script.mute)
        guest_say_u32(g, WIRE_HELLO, 0, g->f->script.version);
}

static struct fake_guest *guest_of(struct fixture *f, const char *id)
{
    for (int i = 0; i < f->guest_count; i++)
        if (strcmp(f->guests[i].start.id, id) == 0)
            return &f->guests[i];
    ck_abort_msg("no such guest");
    return NULL;
}

static void on_start_request(struct fixture *f, const struct keeper_request *request)
{
    struct fake_guest *g = &f->guests[f->guest_count++];
    struct keeper_report refused = {.event = KEEPER_REFUSED, .text = "no room"};

    ck_assert_int_le(f->guest_count, GUESTS_MAX);
    *g = (struct fake_guest){.f = f, .start = *request, .fd = -1};
    if (f->script.refuse) {
        memcpy(refused.id, request->id, ID_SIZE);
        keeper_say(f, &refused, -1);
    } else if (!f->script.hold_start) {
        keeper_start(g);
    }
}

static void on_keeper_io(int fd, unsigned events, void *arg)
{
    struct fixture *f = arg;
    struct keeper_request request;
    struct fake_guest *g;

    (void)events;
    if (recv(fd, &request, sizeof(request), MSG_DONTWAIT) != (ssize_t)sizeof(request)) {
        loop_io_set(f->keeper_io, 0);
        return;
    }
    if (request.op == KEEPER_START) {
        on_start_request(f, &request);
    } else if (request.op == KEEPER_END) {
        f->end_requests++;
        g = guest_of(f, request.id);
        g->asked_to_end = true;
        if (!f->script.hold_end)
            keeper_ended(g, 137, 0);
    } else if (request.op == KEEPER_STATS && !f->script.no_usage) {
        struct keeper_report usage = {.event = KEEPER_USAGE, .oom_kills = f->script.oom_kills};

        memcpy(usage.id, request.id, ID_SIZE);
        keeper_say(f, &usage, -1);
    }
}

/* --- the fake guests ----------------------------------------------------------------------- */

static void guest_exit(const struct fake_guest *g, uint8_t code, uint8_t sig, bool killed)
{
    uint8_t payload[20] = {code, sig, killed, 0};

    wire_put_u64(payload + 4, 5000);
    guest_say(g, WIRE_EXIT, 0, g->stream.id, payload, sizeof(payload));
}

/* Output within the credit, as the socket takes it; the rest when more is granted. */
static void guest_output(struct fake_guest *g)
{
    static uint8_t frame[WIRE_HEADER_SIZE + 32768];
    struct script *script = &g->f->script;

    wire_header(frame, WIRE_DATA, WIRE_STDOUT, g->stream.id);
    loop_io_set(g->io, LOOP_READ);
    while (script->output_bytes > 0 && g->stream.credit > 0) {
        size_t len = sizeof(frame) - WIRE_HEADER_SIZE;

        if (len > script->output_bytes)
            len = script->output_bytes;
        if (len > g->stream.credit)
            len = g->stream.credit;
        if (send(g->fd, frame, WIRE_HEADER_SIZE + len, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
            loop_io_set(g->io, LOOP_READ | LOOP_WRITE);
            return;
        }
        g->stream.credit -= len;
        script->output_bytes -= len;
    }
    if (script->output_bytes == 0)
        guest_exit(g, script->exit_code, 0, false);
}

static void guest_run(struct fake_guest *g)
{
    const struct script *script = &g->f->script;
    uint32_t id = g->stream.id;

    if (script->fail_errno) {
        uint8_t payload[5];

        wire_put_u32(payload, script->fail_errno);
        payload[4] = script->fail_step;
        guest_say(g, WIRE_FAILED, 0, id, payload, sizeof(payload));
        return;
    }
    guest_say_u32(g, WIRE_STARTED, id, 12);
    if (script->hold_exec)
        return;
    if (script->output_bytes > 0) {
        guest_output(g);
        return;
    }
    guest_say(g, WIRE_DATA, WIRE_STDOUT, id, "hello\n", 6);
    guest_say(g, WIRE_DATA, WIRE_STDERR, id, "oh\xff", 3);
    guest_say(g, WIRE_EOF, WIRE_STDOUT, id, NULL, 0);
    guest_exit(g, script->exit_code, 0, false);
}

static void on_frame(struct fake_guest *g, const struct wire_frame *frame)
{
    switch ((int)frame->type) {
    case WIRE_SETUP:
        g->setup_pids = wire_get_u32(frame->payload);
        buf_append(&g->env, frame->payload + 8, frame->payload_len - 8);
        guest_say(g, WIRE_READY, 0, 0, NULL, 0);
        break;
    case WIRE_PING:
        g->pings++;
        if (!g->f->script.no_pong)
            guest_say(g, WIRE_PONG, 0, 0, frame->payload, 8);
        break;
    case WIRE_EXEC:
        buf_free(&g->stream.spec);
        g->stream = (struct fake_stream){.id = frame->stream,
                                         .spec_size = wire_get_u32(frame->payload),
                                         .credit = wire_get_u32(frame->payload + 4)};
        break;
    case WIRE_SPEC:
        buf_append(&g->stream.spec, frame->payload, frame->payload_len);
        if (g->stream.spec.len == g->stream.spec_size)
            guest_run(g);
        break;
    case WIRE_CREDIT:
        g->stream.credit += wire_get_u32(frame->payload);
        guest_output(g);
        break;
    case WIRE_KILL:
        g->kills++;
        if (!g->f->script.ignore_kill)
            guest_exit(g, 0, 15, true);
        break;
    default:
        ck_abort_msg("an unexpected frame: %s", wire_type_name(frame->type));
    }
}

static void on_guest_io(int fd, unsigned events, void *arg)
{
    static uint8_t rx[WIRE_FRAME_MAX];
    struct fake_guest *g = arg;
    struct wire_frame frame;
    struct error err = ERROR_INIT;
    ssize_t len;

    if (events & LOOP_WRITE)
        guest_output(g);
    if (!(events & LOOP_READ))
        return;
    len = recv(fd, rx, sizeof(rx), MSG_DONTWAIT);
    if (len <= 0) {
        loop_io_set(g->io, 0);
        return;
    }
    ck_assert_msg(wire_decode(rx, (size_t)len, WIRE_TO_GUEST, &frame, &err) == 0, "%s", err.detail);
    on_frame(g, &frame);
}

/* --- the loop ------------------------------------------------------------------------------ */

static void on_tick(void *arg)
{
    struct fixture *f = arg;

    if (f->until(f, f->until_arg) || clock_mono_ms() > f->deadline_ms)
        loop_stop(f->d.loop);
    else
        loop_timer_arm(f->tick, TICK_MS);
}

static void run_until(struct fixture *f, bool (*until)(struct fixture *f, const void *arg),
                      const void *arg)
{
    f->until = until;
    f->until_arg = arg;
    f->deadline_ms = clock_mono_ms() + GUARD_MS;
    loop_timer_arm(f->tick, 0);
    loop_run(f->d.loop);
    ck_assert_msg(until(f, arg), "it did not happen in time");
}

static bool is_registered(struct fixture *f, const void *arg)
{
    (void)arg;
    return f->registered;
}

static bool is_empty(struct fixture *f, const void *arg)
{
    (void)arg;
    return f->empty;
}

static bool has_state(struct fixture *f, const char *table, const char *id, const char *state)
{
    char *now = raw(f->db, "SELECT state FROM %s WHERE id = '%s'", table, id);
    bool same = now && strcmp(now, state) == 0;

    free(now);
    return same;
}

static bool sandbox_has(struct fixture *f, const void *state)
{
    return has_state(f, "sandboxes", f->sandbox, state);
}

static bool execution_has(struct fixture *f, const void *state)
{
    return has_state(f, "executions", f->execution, state);
}

static bool guests_are(struct fixture *f, const void *count)
{
    return f->guest_count == *(const int *)count;
}

static bool end_requests_are(struct fixture *f, const void *count)
{
    return f->end_requests == *(const int *)count;
}

static bool spec_is_there(struct fixture *f, const void *arg)
{
    const struct fake_guest *g = &f->guests[0];

    (void)arg;
    return g->stream.spec_size > 0 && g->stream.spec.len == g->stream.spec_size;
}

static bool pings_are(struct fixture *f, const void *count)
{
    return f->guests[0].pings >= *(const int *)count;
}

static void until_sandbox(struct fixture *f, const char *state)
{
    run_until(f, sandbox_has, state);
}

static void until_execution(struct fixture *f, const char *state)
{
    run_until(f, execution_has, state);
}

/* --- set-up -------------------------------------------------------------------------------- */

/* Daemon, keeper, guests and the look at the database share this one thread, so the wait of a busy
 * machine is everybody's: only the tests of a time-out shorten theirs. */
static const char config_text[] = "[guest]\n"
                                  "templates = base node\n"
                                  "provision_timeout = 60s\n"
                                  "kill_grace = 0ms\n"
                                  "heartbeat = 100ms\n"
                                  "heartbeat_timeout = 60s\n"
                                  "tmp_mb = 3\n"
                                  "shm_mb = 4\n"
                                  "[limits]\n"
                                  "output_bytes = 4K\n"
                                  "[daemon]\n"
                                  "scan = 600s\n"
                                  "[node]\n"
                                  "number = 1\n";

static void on_registered(struct daemon *d)
{
    ((struct fixture *)d)->registered = true;
}

static void on_empty(struct daemon *d)
{
    ((struct fixture *)d)->empty = true;
}

static void on_idle(void *arg)
{
    ((struct fixture *)arg)->empty = true;
}

static void on_lost(struct daemon *d)
{
    ((struct fixture *)d)->keeper_lost = true;
}

static void setup(void)
{
    struct fixture *f = &fixture;
    struct error err = ERROR_INIT;
    int fds[2];

    memset(f, 0, sizeof(*f));
    f->script.version = WIRE_VERSION;
    f->config = config_parse(config_text, strlen(config_text), "test", &err);
    ck_assert_msg(f->config != NULL, "%s", err.detail);
    f->d.config = f->config;
    log_init(&f->d.log, "test_sandbox");
    f->d.log.level = getenv("TEST_LOG") ? LOG_DEBUG : LOG_ERROR + 1;
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    f->d.loop = loop_new(&err);
    f->keeper = fds[1];
    f->keeper_io = loop_io_new(f->d.loop, f->keeper, LOOP_READ, on_keeper_io, f);
    f->d.keeper = keeper_link_new(&f->d, fds[0], sandboxes_keeper_report, on_lost, &err);
    f->d.db = dbq_new(f->d.loop, &f->d.log, db_fixture_server()->conninfo, &err);
    f->d.node = node_new(&f->d, "{}", &err);
    f->d.answers = answers_new(&f->d, &err);
    f->d.sandboxes = sandboxes_new(&f->d, &err);
    ck_assert_msg(f->d.keeper && f->d.db && f->d.node && f->d.answers && f->d.sandboxes, "%s",
                  err.detail);
    f->tick = loop_timer_new(f->d.loop, on_tick, f);
    f->db = db_fixture_open();
    make_project(f->db, "demo", NULL, f->project);
    node_start(f->d.node, on_registered);
    run_until(f, is_registered, NULL);
}

static void teardown(void)
{
    struct fixture *f = &fixture;

    sandboxes_free(f->d.sandboxes);
    answers_free(f->d.answers);
    node_free(f->d.node);
    dbq_free(f->d.db);
    keeper_link_free(f->d.keeper);
    loop_io_free(f->keeper_io);
    close(f->keeper);
    for (int i = 0; i < f->guest_count; i++) {
        guest_close(&f->guests[i]);
        buf_free(&f->guests[i].env);
        buf_free(&f->guests[i].stream.spec);
    }
    loop_timer_free(f->tick);
    loop_free(f->d.loop);
    db_free(f->db);
    config_free(f->config);
}

/* Admits a sandbox; the numbers are JSON texts. */
static void create(struct fixture *f, const char *ttl, const char *idle)
{
    char request[1024];

    snprintf(request, sizeof(request),
             "{\"template\":\"node\",\"cpus\":2,\"memoryMb\":256,\"workspaceMb\":32,\"pids\":%d,"
             "\"ttlSeconds\":%s,\"idleSeconds\":%s,\"env\":{\"TOKEN\":\"s3cret\",\"E\":\"\"},"
             "\"labels\":{},\"egress\":{\"mode\":\"none\"},\"exclusive\":false}",
             PID_OF_ALL, ttl, idle);
    assert_text(admit_sandbox(f->db, f->project, NULL, REQUEST_HASH, request, f->sandbox),
                "created");
}

static void create_ready(struct fixture *f)
{
    create(f, "3600", "null");
    until_sandbox(f, "ready");
}

static void exec_full(struct fixture *f, const char *spec, const char *timeout_ms,
                      const char *on_timeout)
{
    char request[2048];
    PGresult *res;

    snprintf(
        request, sizeof(request),
        "{\"spec\":%s,\"timeoutMs\":%s,\"onTimeout\":\"%s\",\"background\":false,\"tag\":null}",
        spec, timeout_ms, on_timeout);
    res = run(f->db, STMT_EXECUTION_ADMIT, f->project, f->sandbox, WHO, NULL, REQUEST_HASH, "64",
              request);
    assert_column(res, "outcome", "created");
    snprintf(f->execution, sizeof(f->execution), "%s", db_column(res, 0, "id"));
    PQclear(res);
}

#define TRUE_SPEC "{\"argv\":[\"true\"],\"env\":{\"A\":\"b\"},\"cwd\":\"/tmp\"}"

static void exec_true(struct fixture *f)
{
    exec_full(f, TRUE_SPEC, "null", "kill");
}

static void request_stop(struct fixture *f)
{
    PQclear(run(f->db, STMT_SANDBOX_REQUEST_STOP, f->project, f->sandbox, WHO));
}

static void assert_ended(struct fixture *f, const char *state, const char *reason)
{
    char wanted[100];

    until_sandbox(f, state);
    snprintf(wanted, sizeof(wanted), "%s %s", state, reason);
    assert_text(
        raw(f->db, "SELECT state || ' ' || reason FROM sandboxes WHERE id = '%s'", f->sandbox),
        wanted);
    /* The object goes when the answer is in. */
    f->empty = false;
    sandboxes_shutdown(f->d.sandboxes, on_empty);
    run_until(f, is_empty, NULL);
    ck_assert_uint_eq(sandboxes_count(f->d.sandboxes), 0);
}

static void assert_execution(struct fixture *f, const char *wanted)
{
    assert_text(raw(f->db,
                    "SELECT concat_ws(' ', state, coalesce(exit_code::text, '-'),"
                    " coalesce(signal::text, '-'), coalesce(reason, '-'), coalesce(error, '-'))"
                    " FROM executions WHERE id = '%s'",
                    f->execution),
                wanted);
}

/* --- the usual course ---------------------------------------------------------------------- */

START_TEST(from_queued_to_terminated)
{
    struct fixture *f = &fixture;
    const struct fake_guest *g = &f->guests[0];
    struct error err = ERROR_INIT;
    struct wire_record record;
    size_t offset = 0;

    create_ready(f);
    ck_assert_int_eq(f->guest_count, 1);
    ck_assert_str_eq(g->start.id, f->sandbox);
    ck_assert_str_eq(g->start.template_name, "node");
    ck_assert_uint_eq(g->start.cpus, 2);
    ck_assert_uint_eq(g->start.memory_bytes, 256u << 20);
    ck_assert_uint_eq(g->start.workspace_bytes, 32u << 20);
    ck_assert_uint_eq(g->start.tmp_bytes, 3u << 20);
    ck_assert_uint_eq(g->start.shm_bytes, 4u << 20);
    ck_assert_uint_eq(g->start.pids, PID_OF_ALL);
    ck_assert_uint_eq(g->setup_pids, PID_OF_ALL);
    ck_assert_uint_eq(g->env.len, sizeof("TOKEN=s3cret") + sizeof("E="));
    ck_assert_ptr_nonnull(memmem(g->env.data, g->env.len, "TOKEN=s3cret", 13));

    exec_true(f);
    until_execution(f, "succeeded");
    assert_execution(f, "succeeded 0 - - -");
    assert_text(raw(f->db,
                    "SELECT concat_ws(' ', encode(stdout, 'escape'), stdout_bytes,"
                    " encode(stderr, 'hex'), stderr_bytes, stdout_omitted_at IS NULL, cpu_us)"
                    " FROM executions WHERE id = '%s'",
                    f->execution),
                "hello\n 6 6f68ff 3 t 5000");
    ck_assert_int_eq(
        wire_spec_next(g->stream.spec.data, g->stream.spec.len, &offset, &record, &err), 1);
    ck_assert_int_eq(record.tag, WIRE_SPEC_ARG);
    ck_assert_int_eq(memcmp(record.data, "true", 4), 0);

    f->script.exit_code = 7;
    exec_true(f);
    until_execution(f, "failed");
    assert_execution(f, "failed 7 - - -");

    request_stop(f);
    assert_ended(f, "terminated", "requested");
    ck_assert_int_eq(f->end_requests, 1);
}
END_TEST

START_TEST(an_execution_admitted_before_ready)
{
    struct fixture *f = &fixture;
    int one = 1;

    f->script.hold_start = true;
    create(f, "3600", "null");
    run_until(f, guests_are, &one);
    exec_true(f);
    keeper_start(&f->guests[0]);
    until_execution(f, "succeeded");
}
END_TEST

START_TEST(output_beyond_the_limit)
{
    struct fixture *f = &fixture;

    f->script.output_bytes = 3000000;
    create_ready(f);
    exec_true(f);
    until_execution(f, "succeeded");
    assert_text(raw(f->db,
                    "SELECT concat_ws(' ', octet_length(stdout), stdout_bytes, stdout_omitted_at)"
                    " FROM executions WHERE id = '%s'",
                    f->execution),
                "4096 3000000 2048");
}
END_TEST

START_TEST(an_execution_that_cannot_start)
{
    struct fixture *f = &fixture;

    create_ready(f);
    f->script.fail_errno = 2;
    f->script.fail_step = WIRE_STEP_EXEC;
    exec_true(f);
    until_execution(f, "failed");
    assert_execution(f, "failed 127 - - the command cannot be executed: No such file or directory");
    f->script.fail_step = WIRE_STEP_CWD;
    exec_true(f);
    until_execution(f, "failed");
    assert_execution(f, "failed - - - the working directory cannot be entered: No such file or "
                        "directory");
}
END_TEST

/* No handler would admit it, but a row is data. */
START_TEST(an_execution_with_a_malformed_description)
{
    struct fixture *f = &fixture;

    create_ready(f);
    exec_full(f, "{\"argv\": [], \"x\": 1}", "null", "kill");
    until_execution(f, "failed");
    ck_assert_int_eq(raw_long(f->db,
                              "SELECT count(*) FROM executions WHERE id = '%s' AND exit_code IS "
                              "NULL AND error LIKE 'it was not given to the guest: %%'",
                              f->execution),
                     1);
    exec_true(f); /* and the sandbox lives */
    until_execution(f, "succeeded");
}
END_TEST

/* --- provisioning that fails --------------------------------------------------------------- */

START_TEST(provision_timeout)
{
    struct fixture *f = &fixture;

    f->script.mute = true;
    f->config->guest_provision_timeout = 200;
    create(f, "3600", "null");
    assert_ended(f, "failed", "provision_timeout");
    ck_assert_int_eq(f->end_requests, 1);
}
END_TEST

START_TEST(the_keeper_refuses)
{
    struct fixture *f = &fixture;

    f->script.refuse = true;
    create(f, "3600", "null");
    assert_ended(f, "failed", "provision_failed");
    ck_assert_int_eq(f->end_requests, 0);
}
END_TEST

START_TEST(a_guest_of_another_version)
{
    struct fixture *f = &fixture;

    f->script.version = WIRE_VERSION + 1;
    create(f, "3600", "null");
    assert_ended(f, "failed", "provision_failed");
}
END_TEST

START_TEST(a_guest_that_dies_before_it_is_ready)
{
    struct fixture *f = &fixture;
    int one = 1;

    f->script.hold_start = f->script.mute = true;
    create(f, "3600", "null");
    run_until(f, guests_are, &one);
    keeper_start(&f->guests[0]);
    keeper_ended(&f->guests[0], 1, 0);
    assert_ended(f, "failed", "provision_failed");
}
END_TEST

/* The client changes its mind while the keeper is still starting the guest. */
START_TEST(a_stop_before_the_guest_is_there)
{
    struct fixture *f = &fixture;
    int one = 1;

    f->script.hold_start = true;
    create(f, "3600", "null");
    run_until(f, guests_are, &one);
    request_stop(f);
    until_sandbox(f, "stopping");
    /* The daemon's look at the row is behind this one of ours. */
    for (int i = 0; i < 2; i++) {
        f->empty = false;
        dbq_when_idle(f->d.db, on_idle, f);
        run_until(f, is_empty, NULL);
    }
    keeper_start(&f->guests[0]);
    assert_ended(f, "terminated", "requested");
    ck_assert_int_eq(f->end_requests, 1);
}
END_TEST

START_TEST(a_stop_while_queued)
{
    struct fixture *f = &fixture;
    char first[ID_TEXT_SIZE];

    create(f, "3600", "null");
    request_stop(f); /* before the loop ran at all */
    memcpy(first, f->sandbox, sizeof(first));
    create_ready(f); /* what was announced before is done with */
    ck_assert_int_eq(f->guest_count, 1);
    ck_assert_str_eq(f->guests[0].start.id, f->sandbox);
    ck_assert_uint_eq(sandboxes_count(f->d.sandboxes), 1);
    memcpy(f->sandbox, first, sizeof(first));
    assert_ended(f, "terminated", "requested");
}
END_TEST

/* --- guests that end, break or stall ------------------------------------------------------- */

struct ending {
    int status;
    uint32_t oom_kills;
    const char *reason;
};

static const struct ending endings[] = {
    {0, 0, "guest_exit"},   {1, 0, "guest_exit"}, {137, 0, "guest_crash"}, {128, 0, "guest_crash"},
    {-1, 0, "guest_crash"}, {137, 2, "oom"},      {0, 2, "guest_exit"},    {1, 1, "oom"},
    {2, 0, "guest_crash"},  {3, 0, "guest_exit"},
};

START_TEST(a_guest_ends_by_itself)
{
    struct fixture *f = &fixture;

    create_ready(f);
    f->script.hold_exec = true;
    exec_true(f);
    until_execution(f, "running");
    keeper_ended(&f->guests[0], endings[_i].status, endings[_i].oom_kills);
    assert_ended(f, "failed", endings[_i].reason);
    ck_assert_int_eq(f->end_requests, 0);
    ck_assert_int_eq(raw_long(f->db,
                              "SELECT count(*) FROM executions WHERE id = '%s' AND state = 'lost'"
                              " AND reason = '%s'",
                              f->execution, endings[_i].reason),
                     1);
}
END_TEST

START_TEST(a_protocol_violation)
{
    struct fixture *f = &fixture;

    create_ready(f);
    guest_say(&f->guests[0], WIRE_READY, 0, 0, NULL, 0);
    assert_ended(f, "failed", "relay_protocol");
    ck_assert_int_eq(f->end_requests, 1);
}
END_TEST

/* The result that came before the violation counts. */
START_TEST(a_result_and_then_a_violation)
{
    struct fixture *f = &fixture;

    create_ready(f);
    f->script.hold_exec = true;
    exec_true(f);
    run_until(f, spec_is_there, NULL);
    guest_exit(&f->guests[0], 0, 0, false);
    guest_exit(&f->guests[0], 0, 0, false);
    assert_ended(f, "failed", "relay_protocol");
    assert_execution(f, "succeeded 0 - - -");
}
END_TEST

START_TEST(a_guest_without_a_heartbeat)
{
    struct fixture *f = &fixture;
    int three = 3;

    create_ready(f);
    run_until(f, pings_are, &three);
    f->script.no_pong = true;
    f->config->guest_heartbeat_timeout = 200;
    assert_ended(f, "failed", "relay_lost");
}
END_TEST

/* Its socket ends, but the keeper says nothing: it is ended through the keeper after a while. */
START_TEST(a_socket_that_closes)
{
    struct fixture *f = &fixture;

    create_ready(f);
    guest_close(&f->guests[0]);
    assert_ended(f, "failed", "relay_lost");
    ck_assert_int_eq(f->end_requests, 1);
}
END_TEST

/* The client's stop is committed when the guest crashes: the row keeps the client's reason. */
START_TEST(a_stop_and_a_crash_at_once)
{
    struct fixture *f = &fixture;

    create_ready(f);
    f->script.hold_exec = true;
    exec_true(f);
    until_execution(f, "running");
    request_stop(f);
    keeper_ended(&f->guests[0], 137, 0);
    assert_ended(f, "terminated", "requested");
    ck_assert(execution_has(f, "lost"));
}
END_TEST

/* The other order: the crash is on its way when the stop is committed. */
START_TEST(a_crash_and_a_stop_while_ending)
{
    struct fixture *f = &fixture;
    int one = 1;

    create_ready(f);
    f->script.hold_end = true;
    request_stop(f);
    run_until(f, end_requests_are, &one);
    ck_assert(sandbox_has(f, "stopping"));
    request_stop(f); /* again: harmless */
    keeper_ended(&f->guests[0], 0, 0);
    assert_ended(f, "terminated", "requested");
    ck_assert_int_eq(f->end_requests, 1);
}
END_TEST

/* --- time ---------------------------------------------------------------------------------- */

START_TEST(ttl)
{
    struct fixture *f = &fixture;

    create(f, "1", "null");
    until_sandbox(f, "ready");
    assert_ended(f, "expired", "ttl");
    ck_assert_int_eq(raw_long(f->db,
                              "SELECT count(*) FROM sandboxes WHERE id = '%s'"
                              " AND ended_at >= expires_at",
                              f->sandbox),
                     1);
}
END_TEST

/* The deadline was moved in the row: the daemon's timer asks, and lets it live. */
START_TEST(ttl_that_is_not_due)
{
    struct fixture *f = &fixture;

    create(f, "1", "null");
    until_sandbox(f, "ready");
    free(raw(f->db,
             "UPDATE sandboxes SET expires_at = expires_at + interval '1500 ms' WHERE id = '%s'"
             " RETURNING id",
             f->sandbox));
    assert_ended(f, "expired", "ttl");
    ck_assert_int_eq(raw_long(f->db,
                              "SELECT count(*) FROM sandboxes WHERE id = '%s'"
                              " AND ended_at >= expires_at",
                              f->sandbox),
                     1);
}
END_TEST

START_TEST(idle)
{
    struct fixture *f = &fixture;

    f->script.hold_exec = true;
    create(f, "3600", "1");
    until_sandbox(f, "ready");
    exec_full(f, TRUE_SPEC, "1500", "kill"); /* longer than it may be idle */
    until_execution(f, "timed_out");
    ck_assert(sandbox_has(f, "ready"));
    assert_ended(f, "expired", "idle");
    ck_assert_int_eq(raw_long(f->db,
                              "SELECT count(*) FROM sandboxes s, executions e"
                              " WHERE s.id = '%s' AND e.id = '%s'"
                              " AND s.ended_at >= e.ended_at + interval '900 ms'",
                              f->sandbox, f->execution),
                     1);
}
END_TEST

static bool time_is_over(struct fixture *f, const void *until_ms)
{
    (void)f;
    return clock_mono_ms() >= *(const int64_t *)until_ms;
}

START_TEST(idle_that_the_database_refused_is_asked_again)
{
    struct fixture *f = &fixture;

    create(f, "3600", "5");
    until_sandbox(f, "ready");
    /* one that the daemon has not heard of */
    free(raw(f->db,
             "INSERT INTO executions (sandbox_id, spec) VALUES ('%s', '{}');"
             "UPDATE executions SET state = 'running', started_at = clock_timestamp()",
             f->sandbox));
    int64_t asked_ms = clock_mono_ms() + 6500; /* and refused */
    run_until(f, time_is_over, &asked_ms);
    ck_assert(sandbox_has(f, "ready"));
    free(raw(f->db, "DELETE FROM executions"));
    assert_ended(f, "expired", "idle");
}
END_TEST

START_TEST(execution_timeout_kills_the_tree)
{
    struct fixture *f = &fixture;

    create_ready(f);
    f->script.hold_exec = true;
    exec_full(f, TRUE_SPEC, "50", "kill");
    until_execution(f, "timed_out");
    assert_execution(f, "timed_out 143 15 execution_timeout -");
    ck_assert_int_eq(f->guests[0].kills, 1);
    f->script.hold_exec = false;
    exec_full(f, TRUE_SPEC, "60000", "kill"); /* the sandbox lives */
    until_execution(f, "succeeded");
    ck_assert(sandbox_has(f, "ready"));
}
END_TEST

START_TEST(execution_timeout_that_terminates)
{
    struct fixture *f = &fixture;

    create_ready(f);
    f->script.hold_exec = true;
    exec_full(f, TRUE_SPEC, "50", "terminate");
    assert_ended(f, "terminated", "execution_timeout");
    assert_execution(f, "timed_out 143 15 execution_timeout -");
}
END_TEST

/* The guest answers PING but not KILL. */
START_TEST(an_execution_that_cannot_be_killed)
{
    struct fixture *f = &fixture;

    create_ready(f);
    f->script.hold_exec = f->script.ignore_kill = true;
    exec_full(f, TRUE_SPEC, "50", "kill");
    assert_ended(f, "failed", "relay_lost");
    assert_execution(f, "lost - - relay_lost -");
}
END_TEST

START_TEST(a_cancel_kills_the_tree)
{
    struct fixture *f = &fixture;

    create_ready(f);
    f->script.hold_exec = true;
    exec_true(f);
    until_execution(f, "running");
    PQclear(run(f->db, STMT_EXECUTION_REQUEST_CANCEL, f->project, f->sandbox, f->execution, WHO));
    until_execution(f, "cancelled");
    assert_execution(f, "cancelled 143 15 execution_cancel -");
    ck_assert_int_eq(f->guests[0].kills, 1);
    ck_assert(sandbox_has(f, "ready"));
}
END_TEST

START_TEST(a_cancel_whose_announcement_was_lost_is_found)
{
    struct fixture *f = &fixture;

    create_ready(f);
    f->script.hold_exec = true;
    exec_true(f);
    until_execution(f, "running");
    free(raw(f->db, "UPDATE executions SET cancel_requested_at = now()"));
    sandboxes_work(f->d.sandboxes, 'c', f->execution); /* as a scan does */
    until_execution(f, "cancelled");
    sandboxes_work(f->d.sandboxes, 'c', f->execution); /* it is over: nothing */
    ck_assert(sandbox_has(f, "ready"));
}
END_TEST

static bool no_execution_is_held(struct fixture *f, const void *arg)
{
    (void)arg;
    return idmap_count(f->d.sandboxes->executions) == 0;
}

/* Its guest is being ended, and with that the row will be: it has that reason, and no other. */
START_TEST(a_cancel_of_what_ends_with_its_sandbox)
{
    struct fixture *f = &fixture;
    int one = 1;

    create_ready(f);
    f->script.hold_exec = true;
    f->script.hold_end = true;
    exec_true(f);
    until_execution(f, "running");
    request_stop(f);
    run_until(f, end_requests_are, &one);
    PQclear(run(f->db, STMT_EXECUTION_REQUEST_CANCEL, f->project, f->sandbox, f->execution, WHO));
    sandboxes_work(f->d.sandboxes, 'c', f->execution);
    run_until(f, no_execution_is_held, NULL);
    ck_assert(execution_has(f, "running"));
    keeper_ended(&f->guests[0], 0, 0);
    assert_ended(f, "terminated", "requested");
    assert_execution(f, "lost - - requested -");
}
END_TEST

START_TEST(an_oom_kill_is_one_execution_s)
{
    struct fixture *f = &fixture;

    create_ready(f);
    f->script.exit_code = 1;
    f->script.oom_kills = 1;
    exec_true(f);
    until_execution(f, "failed");
    assert_execution(f, "failed 137 - - -");
    ck_assert_int_eq(raw_long(f->db, "SELECT count(*) FROM executions WHERE oom_killed"), 1);
    exec_true(f); /* and not the next one's */
    until_execution(f, "failed");
    assert_execution(f, "failed 1 - - -");
    f->script.oom_kills = 2;
    f->script.exit_code = 3; /* a code of its own stays */
    exec_true(f);
    until_execution(f, "failed");
    assert_execution(f, "failed 3 - - -");
    ck_assert_int_eq(raw_long(f->db, "SELECT count(*) FROM executions WHERE oom_killed"), 2);
}
END_TEST

START_TEST(a_failure_is_recorded_though_nobody_measures)
{
    struct fixture *f = &fixture;

    create_ready(f);
    f->script.exit_code = 1;
    f->script.no_usage = true;
    exec_true(f);
    until_execution(f, "failed");
    assert_execution(f, "failed 1 - - -");
}
END_TEST

START_TEST(changed_lifetimes_hold_at_once)
{
    struct fixture *f = &fixture;

    create(f, "3600", "3600");
    until_sandbox(f, "ready");
    _cleanup_pgresult_ PGresult *idle_set = run(f->db, STMT_SANDBOX_UPDATE, f->project, f->sandbox,
                                                WHO, "{\"ttlSeconds\":null,\"idleSeconds\":1}");
    assert_column(idle_set, "outcome", "updated");
    until_sandbox(f, "expired");
    create(f, "null", "null");
    until_sandbox(f, "ready");
    _cleanup_pgresult_ PGresult *ttl_set =
        run(f->db, STMT_SANDBOX_UPDATE, f->project, f->sandbox, WHO, "{\"ttlSeconds\":1}");
    assert_column(ttl_set, "outcome", "updated");
    assert_ended(f, "expired", "ttl");
}
END_TEST

/* --- shutdown, repetition, lost answers ---------------------------------------------------- */

START_TEST(shutdown_ends_every_guest)
{
    struct fixture *f = &fixture;
    char first[ID_TEXT_SIZE];

    create_ready(f);
    memcpy(first, f->sandbox, sizeof(first));
    f->script.hold_exec = true;
    exec_true(f);
    until_execution(f, "running");
    create_ready(f);
    f->script.hold_start = true;
    create(f, "3600", "null"); /* this one is in the middle of it, or still queued */
    ck_assert_uint_eq(sandboxes_count(f->d.sandboxes), 2);
    sandboxes_shutdown(f->d.sandboxes, on_empty);
    run_until(f, is_empty, NULL);
    ck_assert_int_eq(raw_long(f->db, "SELECT count(*) FROM sandboxes WHERE state = 'failed'"
                                     " AND reason = 'daemon_restart'"),
                     2);
    ck_assert_int_eq(raw_long(f->db, "SELECT count(*) FROM sandboxes WHERE state = 'queued'"), 1);
    assert_execution(f, "lost - - daemon_restart -");
}
END_TEST

START_TEST(shutdown_of_nothing)
{
    struct fixture *f = &fixture;

    sandboxes_shutdown(f->d.sandboxes, on_empty);
    ck_assert(!f->empty); /* not from within */
    run_until(f, is_empty, NULL);
}
END_TEST

START_TEST(announcing_twice_is_harmless)
{
    struct fixture *f = &fixture;
    int one = 1;

    f->script.hold_start = true;
    create(f, "3600", "null");
    run_until(f, guests_are, &one);
    for (int i = 0; i < 50; i++)
        sandboxes_work(f->d.sandboxes, 's', f->sandbox);
    keeper_start(&f->guests[0]);
    until_sandbox(f, "ready");
    exec_true(f);
    for (int i = 0; i < 50; i++)
        sandboxes_work(f->d.sandboxes, 'e', f->execution);
    until_execution(f, "succeeded");
    for (int i = 0; i < 50; i++) {
        sandboxes_work(f->d.sandboxes, 'e', f->execution);
        sandboxes_work(f->d.sandboxes, 's', f->sandbox);
    }
    sandboxes_work(f->d.sandboxes, 'e', "nonsense");
    sandboxes_work(f->d.sandboxes, 's', "");
    sandboxes_work(f->d.sandboxes, 'x', f->sandbox);
    request_stop(f);
    assert_ended(f, "terminated", "requested");
    ck_assert_int_eq(f->guest_count, 1);
    assert_execution(f, "succeeded 0 - - -");
}
END_TEST

/* A claim whose answer was lost with the connection: the row says running, nobody runs it. */
START_TEST(an_execution_that_was_claimed_for_nobody)
{
    struct fixture *f = &fixture;
    char *id;

    create_ready(f);
    f->script.hold_exec = true;
    free(raw(f->db,
             "WITH e AS (INSERT INTO executions (sandbox_id, spec) VALUES ('%s', '{}')"
             " RETURNING id) SELECT id FROM e",
             f->sandbox));
    id = raw(f->db, "UPDATE executions SET state = 'running', started_at = now()"
                    " RETURNING id::text");
    snprintf(f->execution, sizeof(f->execution), "%s", id);
    free(id);
    sandboxes_work(f->d.sandboxes, 'e', f->execution);
    until_execution(f, "lost");
    assert_execution(f, "lost - - - the database's answer to its claim was lost");
}
END_TEST

/* The answer to a claim was lost with its connection: claiming again is given the row. */
START_TEST(a_sandbox_whose_claim_was_not_answered)
{
    struct fixture *f = &fixture;

    create(f, "3600", "null");
    free(raw(f->db,
             "UPDATE sandboxes SET state = 'provisioning', provisioning_at = now()"
             " WHERE id = '%s' RETURNING id",
             f->sandbox));
    sandboxes_work(f->d.sandboxes, 's', f->sandbox);
    until_sandbox(f, "ready");
    ck_assert_int_eq(f->guest_count, 1);
}
END_TEST

START_TEST(a_deleted_row)
{
    struct fixture *f = &fixture;
    int one = 1;

    create_ready(f);
    free(raw(f->db, "DELETE FROM sandboxes RETURNING id"));
    sandboxes_work(f->d.sandboxes, 's', f->sandbox);
    run_until(f, end_requests_are, &one);
    f->empty = false;
    sandboxes_shutdown(f->d.sandboxes, on_empty);
    run_until(f, is_empty, NULL);
}
END_TEST

/* Thousands of executions leave nothing behind. */
START_TEST(memory_stays_flat)
{
    struct fixture *f = &fixture;
    size_t after_warm_up = 0;

    create_ready(f);
    for (int i = 0; i < 1000; i++) {
        exec_true(f);
        until_execution(f, "succeeded");
        if (i == 299)
            after_warm_up = mallinfo2().uordblks;
    }
    ck_assert_uint_lt(mallinfo2().uordblks, after_warm_up + 64 * 1024);
}
END_TEST

/* The daemon goes while everything is under way: nothing is touched after it is freed. */
START_TEST(freed_in_the_middle)
{
    struct fixture *f = &fixture;

    f->script.hold_exec = true;
    create_ready(f);
    exec_full(f, TRUE_SPEC, "60000", "kill");
    until_execution(f, "running");
    create(f, "3600", "null");
    exec_true(f);
    /* teardown frees it as it stands */
}
END_TEST

static void add_tests(TCase *tc)
{
    tcase_add_test(tc, from_queued_to_terminated);
    tcase_add_test(tc, an_execution_admitted_before_ready);
    tcase_add_test(tc, output_beyond_the_limit);
    tcase_add_test(tc, an_execution_that_cannot_start);
    tcase_add_test(tc, an_execution_with_a_malformed_description);
    tcase_add_test(tc, provision_timeout);
    tcase_add_test(tc, the_keeper_refuses);
    tcase_add_test(tc, a_guest_of_another_version);
    tcase_add_test(tc, a_guest_that_dies_before_it_is_ready);
    tcase_add_test(tc, a_stop_before_the_guest_is_there);
    tcase_add_test(tc, a_stop_while_queued);
    tcase_add_loop_test(tc, a_guest_ends_by_itself, 0, (int)ARRAY_LEN(endings));
    tcase_add_test(tc, a_protocol_violation);
    tcase_add_test(tc, a_result_and_then_a_violation);
    tcase_add_test(tc, a_guest_without_a_heartbeat);
    tcase_add_test(tc, a_socket_that_closes);
    tcase_add_test(tc, a_stop_and_a_crash_at_once);
    tcase_add_test(tc, a_crash_and_a_stop_while_ending);
    tcase_add_test(tc, ttl);
    tcase_add_test(tc, ttl_that_is_not_due);
    tcase_add_test(tc, idle);
    tcase_add_test(tc, idle_that_the_database_refused_is_asked_again);
    tcase_add_test(tc, execution_timeout_kills_the_tree);
    tcase_add_test(tc, execution_timeout_that_terminates);
    tcase_add_test(tc, an_execution_that_cannot_be_killed);
    tcase_add_test(tc, a_cancel_kills_the_tree);
    tcase_add_test(tc, a_cancel_whose_announcement_was_lost_is_found);
    tcase_add_test(tc, a_cancel_of_what_ends_with_its_sandbox);
    tcase_add_test(tc, an_oom_kill_is_one_execution_s);
    tcase_add_test(tc, a_failure_is_recorded_though_nobody_measures);
    tcase_add_test(tc, changed_lifetimes_hold_at_once);
    tcase_add_test(tc, shutdown_ends_every_guest);
    tcase_add_test(tc, shutdown_of_nothing);
    tcase_add_test(tc, announcing_twice_is_harmless);
    tcase_add_test(tc, an_execution_that_was_claimed_for_nobody);
    tcase_add_test(tc, a_sandbox_whose_claim_was_not_answered);
    tcase_add_test(tc, a_deleted_row);
    tcase_add_test(tc, memory_stays_flat);
    tcase_add_test(tc, freed_in_the_middle);
}

int main(void)
{
    Suite *suite = suite_create("sandbox");
    TCase *tc = tcase_create("sandbox");

    tcase_add_checked_fixture(tc, db_fixture_reset, NULL);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 300); /* a guard; a busy machine takes its time */
    add_tests(tc);
    suite_add_tcase(suite, tc);
    return db_fixture_run(suite);
}
