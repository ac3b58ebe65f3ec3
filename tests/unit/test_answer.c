/*
 * Waiters on handed-over connections, with rows of a real database and a socket
 * pair as the FastCGI connection: what is answered, when, in which records, and
 * what clients and web servers may do meanwhile.
 */
#include <check.h>
#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/id.h"
#include "common/json.h"
#include "daemon/answer.h"
#include "db_fixture.h"

#define REQUEST_ID "0f0f0f0f-bbbb-4ccc-8ddd-eeeeeeeeeeee"
#define TOKEN "0123456789abcdef"
#define OTHER_TOKEN "fedcba9876543210"
#define NOBODY "0001aaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"
#define FCGI_STDOUT 6
#define FCGI_END_REQUEST 3

struct fixture {
    struct daemon d;
    struct config config;
    struct db *db; /* the test's own, blocking */
    struct loop_timer *guard;
    struct loop_timer *pause;
    bool timed_out;
    unsigned ended; /* clients whose connection was closed */
    unsigned stop_at;
    char project[ID_TEXT_SIZE];
    char epoch[32];
    char sandbox[ID_TEXT_SIZE];
};

/* The web server's end of a connection. */
struct client {
    struct fixture *f;
    int fd;
    struct loop_io *io;
    struct buf in;
    bool closed;
    bool reset;
    /* parsed */
    struct buf text;
    int status;
    const char *body;
    json_t *json;
};

static void stop_cb(void *arg)
{
    struct fixture *f = arg;
    loop_stop(f->d.loop);
}

static void guard_fired(void *arg)
{
    struct fixture *f = arg;
    f->timed_out = true;
    loop_stop(f->d.loop);
}

static void loop_guarded(struct fixture *f)
{
    loop_timer_arm(f->guard, 30000);
    loop_run(f->d.loop);
    ck_assert(!f->timed_out);
}

static void loop_for(struct fixture *f, int64_t ms)
{
    loop_timer_arm(f->pause, ms);
    loop_guarded(f);
}

/* Until the database has answered all that was asked. */
static void loop_until_asked(struct fixture *f)
{
    dbq_when_idle(f->d.db, stop_cb, f);
    loop_guarded(f);
}

static void loop_until_ended(struct fixture *f, unsigned clients)
{
    f->stop_at = clients;
    if (f->ended < clients)
        loop_guarded(f);
}

/* The database outlives a test: what one revoked counts again for the next. */
static void make_token(struct fixture *f, const char *id)
{
    free(raw(f->db,
             "INSERT INTO tokens (id, project_id, secret_sha256, scopes)"
             " VALUES ('%s', '%s', sha256('x'), '{sandbox:write}') ON CONFLICT (id)"
             " DO UPDATE SET revoked_at = NULL, expires_at = NULL",
             id, f->project));
}

static void setup_with(struct fixture *f, const char *conninfo)
{
    struct error err = ERROR_INIT;
    memset(f, 0, sizeof(*f));
    f->config.daemon_connections_max = 512;
    f->config.limits_output_bytes = 1 << 20;
    f->config.web_body_max = 1 << 20;
    f->d.config = &f->config;
    log_init(&f->d.log, "test_answer");
    f->d.log.level = LOG_ERROR + 1;
    f->d.loop = loop_new(&err);
    f->d.db = dbq_new(f->d.loop, &f->d.log, conninfo, &err);
    ck_assert_msg(f->d.db != NULL, "%s", err.detail);
    f->d.answers = answers_new(&f->d, &err);
    ck_assert_ptr_nonnull(f->d.answers);
    f->guard = loop_timer_new(f->d.loop, guard_fired, f);
    f->pause = loop_timer_new(f->d.loop, stop_cb, f);
    dbq_start(f->d.db);
    f->db = db_fixture_open();
    make_project(f->db, "answers", NULL, f->project);
    make_token(f, TOKEN);
    make_token(f, OTHER_TOKEN);
    make_node(f->db, "1", "1000", f->epoch);
    make_sandbox(f->db, f->project, f->sandbox);
}

static void setup(struct fixture *f)
{
    setup_with(f, db_fixture_server()->conninfo);
}

static void teardown(struct fixture *f)
{
    answers_free(f->d.answers);
    dbq_free(f->d.db);
    loop_timer_free(f->guard);
    loop_timer_free(f->pause);
    loop_free(f->d.loop);
    db_free(f->db);
}

static void client_readable(int fd, unsigned events, void *arg)
{
    struct client *c = arg;
    char data[65536];
    (void)events;
    ssize_t n = recv(fd, data, sizeof(data), MSG_DONTWAIT);
    if (n > 0) {
        ck_assert_int_eq(buf_append(&c->in, data, (size_t)n), 0);
        return;
    }
    c->closed = true;
    c->reset = n < 0;
    loop_io_free(c->io);
    c->io = NULL;
    if (++c->f->ended == c->f->stop_at)
        loop_stop(c->f->d.loop);
}

/* A new connection; its other end is returned. */
static int client_open(struct fixture *f, struct client *c)
{
    int pair[2];
    memset(c, 0, sizeof(*c));
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    c->f = f;
    c->fd = pair[1];
    c->io = loop_io_new(f->d.loop, c->fd, LOOP_READ, client_readable, c);
    ck_assert_ptr_nonnull(c->io);
    return pair[0];
}

static void client_close(struct client *c)
{
    loop_io_free(c->io);
    if (c->fd >= 0)
        close(c->fd);
    buf_free(&c->in);
    buf_free(&c->text);
    json_decref(c->json);
}

static struct handoff message(const struct fixture *f, enum handoff_wait wait, const char *id,
                              int64_t wait_ms)
{
    struct handoff msg = {.wait = wait,
                          .request_id = REQUEST_ID,
                          .token_id = TOKEN,
                          .fcgi_request_id = 7,
                          .wait_ms = wait_ms,
                          .status_done = 201,
                          .status_pending = 202};
    snprintf(msg.id, sizeof(msg.id), "%s", id);
    snprintf(msg.sandbox_id, sizeof(msg.sandbox_id), "%s", f->sandbox);
    return msg;
}

static void ask_as(struct fixture *f, struct client *c, const char *token, enum handoff_wait wait,
                   const char *id, int64_t wait_ms)
{
    struct handoff msg = message(f, wait, id, wait_ms);
    snprintf(msg.token_id, sizeof(msg.token_id), "%s", token);
    answers_add(f->d.answers, &msg, client_open(f, c));
}

static void ask(struct fixture *f, struct client *c, enum handoff_wait wait, const char *id,
                int64_t wait_ms)
{
    ask_as(f, c, TOKEN, wait, id, wait_ms);
}

/* The records: STDOUT …, an empty STDOUT, END_REQUEST, and nothing more. */
static void parse_records(struct client *c)
{
    size_t at = 0;
    bool stdout_ended = false;
    bool ended = false;
    while (at < c->in.len) {
        const uint8_t *header = (const uint8_t *)c->in.data + at;
        ck_assert(!ended);
        ck_assert_uint_ge(c->in.len - at, 8);
        size_t len = (size_t)header[4] << 8 | header[5];
        ck_assert_uint_eq(header[0], 1);
        ck_assert_uint_eq((unsigned)header[2] << 8 | header[3], 7);
        at += 8;
        ck_assert_uint_ge(c->in.len - at, len + header[6]);
        if (header[1] == FCGI_STDOUT) {
            ck_assert(!stdout_ended);
            ck_assert_int_eq(buf_append(&c->text, c->in.data + at, len), 0);
            stdout_ended = len == 0;
        } else {
            ck_assert_uint_eq(header[1], FCGI_END_REQUEST);
            ck_assert_uint_eq(len, 8);
            ck_assert_mem_eq(c->in.data + at, "\0\0\0\0\0", 5);
            ended = stdout_ended;
        }
        at += len + header[6];
    }
    ck_assert_msg(ended, "the answer of %zu bytes is not complete", c->in.len);
}

/* Status and JSON body of a client's complete answer. */
static json_t *parse(struct client *c)
{
    json_error_t error;
    ck_assert(c->closed && !c->reset);
    parse_records(c);
    const char *text = buf_cstr(&c->text);
    ck_assert_int_eq(sscanf(text, "Status: %d", &c->status), 1);
    ck_assert_ptr_nonnull(strstr(text, "X-Request-Id: " REQUEST_ID "\r\n"));
    const char *end = strstr(text, "\r\n\r\n");
    ck_assert_ptr_nonnull(end);
    c->body = end + 4;
    c->json = json_loads(c->body, 0, &error);
    return c->json;
}

static const char *member(const struct client *c, const char *name)
{
    const char *text = json_string_value(json_object_get(c->json, name));
    return text ? text : "(none)";
}

static void assert_answer(struct client *c, int status, const char *name, const char *value)
{
    ck_assert_ptr_nonnull(parse(c));
    ck_assert_int_eq(c->status, status);
    ck_assert_str_eq(member(c, name), value);
}

/* Nothing was written and nothing closed. */
static void assert_waiting(const struct client *c)
{
    ck_assert(!c->closed);
    ck_assert_uint_eq(c->in.len, 0);
}

static PGresult *view_row(struct fixture *f, enum statement stmt, const char *id)
{
    const char *const params[] = {id};
    struct error err = ERROR_INIT;
    PGresult *res = db_exec(f->db, stmt, params, &err);
    ck_assert_msg(res != NULL, "%s", err.detail);
    ck_assert_int_eq(PQntuples(res), 1);
    return res;
}

static void tell_sandbox(struct fixture *f, const char *id)
{
    _cleanup_pgresult_ PGresult *res = view_row(f, STMT_SANDBOX_BY_ID, id);
    answers_sandbox_row(f->d.answers, res, 0);
}

static void tell_execution(struct fixture *f, const char *id)
{
    _cleanup_pgresult_ PGresult *res = view_row(f, STMT_EXECUTION_BY_ID, id);
    answers_execution_row(f->d.answers, res, 0);
}

static void start(struct fixture *f)
{
    start_sandbox(f->db, f->sandbox, "1", f->epoch);
}

static void fail_sandbox(struct fixture *f)
{
    free(raw(f->db, "SELECT sandbox_close('%s', 'failed', 'oom')", f->sandbox));
}

static void finish(struct fixture *f, const char *execution, int output_bytes)
{
    free(raw(f->db, "UPDATE executions SET state = 'running', started_at = now() WHERE id = '%s'",
             execution));
    free(raw(f->db,
             "UPDATE executions SET state = 'succeeded', exit_code = 0, spec = NULL,"
             " ended_at = now(), stdout = repeat('x', %d)::bytea, stdout_bytes = %d"
             " WHERE id = '%s'",
             output_bytes, output_bytes, execution));
}

/* What is answered ------------------------------------------------------------------- */

START_TEST(a_wait_that_was_over_before_it_began_is_answered_from_the_row)
{
    struct fixture f;
    struct client c;
    setup(&f);
    start(&f);
    struct handoff msg = message(&f, HANDOFF_SANDBOX_READY, f.sandbox, 30000);
    snprintf(msg.location, sizeof(msg.location), "/api/v1/here");
    msg.replayed = true;
    answers_add(f.d.answers, &msg, client_open(&f, &c));
    ck_assert_uint_eq(answers_count(f.d.answers), 1);
    loop_until_ended(&f, 1);
    assert_answer(&c, 201, "state", "ready");
    ck_assert_str_eq(member(&c, "id"), f.sandbox);
    ck_assert_ptr_nonnull(strstr(c.text.data, "Location: /api/v1/here\r\n"));
    ck_assert_ptr_nonnull(strstr(c.text.data, "Idempotency-Replayed: true\r\n"));
    ck_assert_uint_eq(answers_count(f.d.answers), 0);
    client_close(&c);
    teardown(&f);
}
END_TEST

START_TEST(a_committed_row_answers_those_whose_wait_it_fulfils_and_no_other)
{
    struct fixture f;
    struct client ready[3];
    struct client end;
    struct client other;
    char elsewhere[ID_TEXT_SIZE];
    setup(&f);
    make_sandbox(f.db, f.project, elsewhere);
    for (int i = 0; i < 3; i++)
        ask(&f, &ready[i], HANDOFF_SANDBOX_READY, f.sandbox, 30000);
    ask(&f, &end, HANDOFF_SANDBOX_ENDED, f.sandbox, 30000);
    ask(&f, &other, HANDOFF_SANDBOX_READY, elsewhere, 30000);
    loop_until_asked(&f);
    tell_sandbox(&f, f.sandbox); /* still queued: fulfils nothing */
    loop_for(&f, 1);
    ck_assert_uint_eq(f.ended, 0);

    start(&f);
    tell_sandbox(&f, f.sandbox);
    loop_until_ended(&f, 3);
    for (int i = 0; i < 3; i++) {
        assert_answer(&ready[i], 201, "state", "ready");
        client_close(&ready[i]);
    }
    assert_waiting(&end);
    assert_waiting(&other);

    fail_sandbox(&f);
    tell_sandbox(&f, f.sandbox);
    loop_until_ended(&f, 4);
    assert_answer(&end, 201, "reason", "oom");
    assert_waiting(&other);
    client_close(&end);
    client_close(&other);
    teardown(&f);
}
END_TEST

START_TEST(a_sandbox_that_failed_is_no_longer_waited_for)
{
    struct fixture f;
    struct client c;
    setup(&f);
    ask(&f, &c, HANDOFF_SANDBOX_READY, f.sandbox, 30000);
    loop_until_asked(&f);
    fail_sandbox(&f);
    tell_sandbox(&f, f.sandbox);
    loop_until_ended(&f, 1);
    assert_answer(&c, 201, "state", "failed");
    client_close(&c);
    teardown(&f);
}
END_TEST

START_TEST(a_wait_that_is_over_is_answered_with_the_state_as_it_is)
{
    struct fixture f;
    struct client now;
    struct client soon;
    setup(&f);
    ask(&f, &now, HANDOFF_SANDBOX_READY, f.sandbox, 0);
    loop_for(&f, 1); /* without a connection to the database yet, it would be 503 */
    loop_until_asked(&f);
    ask(&f, &soon, HANDOFF_SANDBOX_READY, f.sandbox, 40);
    loop_until_ended(&f, 2);
    assert_answer(&soon, 202, "state", "queued");
    client_close(&now);

    ask(&f, &now, HANDOFF_SANDBOX_READY, f.sandbox, 0);
    loop_until_ended(&f, 3);
    assert_answer(&now, 202, "state", "queued");
    client_close(&now);
    client_close(&soon);
    teardown(&f);
}
END_TEST

START_TEST(a_change_nobody_told_of_is_found_when_the_wait_is_over)
{
    struct fixture f;
    struct client c;
    setup(&f);
    ask(&f, &c, HANDOFF_SANDBOX_READY, f.sandbox, 800);
    loop_until_asked(&f);
    start(&f);
    loop_until_ended(&f, 1);
    assert_answer(&c, 201, "state", "ready");
    client_close(&c);
    teardown(&f);
}
END_TEST

START_TEST(a_row_that_does_not_exist_is_not_found)
{
    struct fixture f;
    struct client c[2];
    setup(&f);
    ask(&f, &c[0], HANDOFF_SANDBOX_ENDED, NOBODY, 30000);
    ask(&f, &c[1], HANDOFF_EXECUTION_ENDED, NOBODY, 30000);
    loop_until_ended(&f, 2);
    for (int i = 0; i < 2; i++) {
        assert_answer(&c[i], 404, "code", "not_found");
        ck_assert_str_eq(member(&c[i], "requestId"), REQUEST_ID);
        client_close(&c[i]);
    }
    teardown(&f);
}
END_TEST

START_TEST(an_execution_is_answered_when_it_ended)
{
    struct fixture f;
    struct client c[2];
    struct client other;
    char execution[ID_TEXT_SIZE];
    char another[ID_TEXT_SIZE];
    setup(&f);
    start(&f);
    make_execution(f.db, f.project, f.sandbox, execution);
    make_execution(f.db, f.project, f.sandbox, another);
    ask(&f, &c[0], HANDOFF_EXECUTION_ENDED, execution, 30000);
    ask(&f, &c[1], HANDOFF_EXECUTION_ENDED, execution, 30000);
    ask(&f, &other, HANDOFF_EXECUTION_ENDED, another, 30000);
    loop_until_asked(&f);
    tell_execution(&f, execution);
    finish(&f, execution, 5);
    tell_sandbox(&f, f.sandbox); /* says nothing of executions */
    loop_for(&f, 1);
    ck_assert_uint_eq(f.ended, 0);
    tell_execution(&f, execution);
    loop_until_ended(&f, 2);
    for (int i = 0; i < 2; i++) {
        assert_answer(&c[i], 201, "state", "succeeded");
        ck_assert_str_eq(member(&c[i], "stdout"), "xxxxx");
        client_close(&c[i]);
    }
    assert_waiting(&other);
    client_close(&other);
    teardown(&f);
}
END_TEST

START_TEST(the_end_of_a_sandbox_answers_its_executions)
{
    struct fixture f;
    struct client c;
    struct client early;
    struct client other;
    char execution[ID_TEXT_SIZE];
    char elsewhere[ID_TEXT_SIZE];
    char foreign[ID_TEXT_SIZE];
    setup(&f);
    make_execution(f.db, f.project, f.sandbox, execution);
    make_sandbox(f.db, f.project, elsewhere);
    make_execution(f.db, f.project, elsewhere, foreign);
    ask(&f, &c, HANDOFF_EXECUTION_ENDED, execution, 30000);
    struct handoff msg = message(&f, HANDOFF_EXECUTION_ENDED, foreign, 30000);
    snprintf(msg.sandbox_id, sizeof(msg.sandbox_id), "%s", elsewhere);
    answers_add(f.d.answers, &msg, client_open(&f, &other));
    loop_until_asked(&f);
    fail_sandbox(&f);
    ask(&f, &early, HANDOFF_EXECUTION_ENDED, execution, 30000); /* its first read is on its way */
    answers_sandbox_ended(f.d.answers, f.sandbox);
    answers_sandbox_ended(f.d.answers, f.sandbox);
    loop_until_ended(&f, 2);
    assert_answer(&c, 201, "state", "cancelled");
    assert_answer(&early, 201, "state", "cancelled");
    assert_waiting(&other);
    client_close(&c);
    client_close(&early);
    client_close(&other);
    teardown(&f);
}
END_TEST

START_TEST(a_head_request_gets_no_body)
{
    struct fixture f;
    struct client c;
    setup(&f);
    start(&f);
    struct handoff msg = message(&f, HANDOFF_SANDBOX_READY, f.sandbox, 30000);
    msg.head_only = true;
    answers_add(f.d.answers, &msg, client_open(&f, &c));
    loop_until_ended(&f, 1);
    ck_assert_ptr_null(parse(&c));
    ck_assert_int_eq(c.status, 201);
    ck_assert_str_eq(c.body, "");
    client_close(&c);
    teardown(&f);
}
END_TEST

/* The database away ------------------------------------------------------------------ */

START_TEST(without_a_database_the_wait_ends_in_503)
{
    struct fixture f;
    struct client c[2];
    setup_with(&f, "host=/nonexistent user=x dbname=x");
    ask(&f, &c[0], HANDOFF_SANDBOX_READY, f.sandbox, 0);
    ask(&f, &c[1], HANDOFF_SANDBOX_READY, f.sandbox, 800);
    loop_until_ended(&f, 1);
    assert_waiting(&c[1]);
    loop_until_ended(&f, 2);
    for (int i = 0; i < 2; i++) {
        assert_answer(&c[i], 503, "code", "database_unavailable");
        ck_assert_ptr_nonnull(strstr(c[i].text.data, "Retry-After: 1\r\n"));
        client_close(&c[i]);
    }
    teardown(&f);
}
END_TEST

START_TEST(a_database_that_comes_back_within_the_wait_is_not_noticed_by_the_client)
{
    struct fixture f;
    struct client c;
    setup(&f);
    loop_for(&f, 1);
    ck_assert(throwaway_pg_halt(db_fixture_server()));
    ask(&f, &c, HANDOFF_SANDBOX_READY, f.sandbox, 30000);
    loop_for(&f, 100);
    assert_waiting(&c);
    ck_assert(throwaway_pg_resume(db_fixture_server()));
    loop_until_asked(&f);
    assert_waiting(&c);
    db_free(f.db);
    f.db = db_fixture_open();
    start(&f);
    tell_sandbox(&f, f.sandbox);
    loop_until_ended(&f, 1);
    assert_answer(&c, 201, "state", "ready");
    client_close(&c);
    teardown(&f);
}
END_TEST

START_TEST(a_statement_the_server_refuses_is_an_internal_error)
{
    struct fixture f;
    struct client c;
    setup(&f);
    free(raw(f.db, "ALTER VIEW sandbox_view RENAME TO away_view"));
    ask(&f, &c, HANDOFF_SANDBOX_READY, f.sandbox, 30000);
    loop_until_ended(&f, 1);
    free(raw(f.db, "ALTER VIEW away_view RENAME TO sandbox_view"));
    assert_answer(&c, 500, "code", "internal_error");
    ck_assert_ptr_null(strstr(c.text.data, "42P01"));
    client_close(&c);
    teardown(&f);
}
END_TEST

/* The other end ---------------------------------------------------------------------- */

/* Until the waiters are `count`; what the loop does has no event a test could wait for. */
static void loop_until_count(struct fixture *f, unsigned count)
{
    for (int i = 0; answers_count(f->d.answers) != count; i++) {
        ck_assert_int_lt(i, 10000);
        loop_for(f, 1);
    }
}

static unsigned count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned count = 0;
    ck_assert_ptr_nonnull(dir);
    while (readdir(dir))
        count++;
    closedir(dir);
    return count;
}

START_TEST(a_client_that_is_gone_is_forgotten_quietly)
{
    struct fixture f;
    struct client half;
    struct client whole;
    setup(&f);
    loop_for(&f, 20);
    loop_until_asked(&f);
    unsigned before = count_fds();
    ask(&f, &half, HANDOFF_SANDBOX_READY, f.sandbox, 30000);
    ask(&f, &whole, HANDOFF_SANDBOX_READY, f.sandbox, 30000);
    loop_until_asked(&f);
    ck_assert_int_eq(shutdown(half.fd, SHUT_WR), 0); /* lighttpd's tcp-fin-propagate */
    loop_until_count(&f, 1);
    loop_until_ended(&f, 1);
    ck_assert_uint_eq(half.in.len, 0);
    client_close(&half);
    client_close(&whole);
    loop_until_count(&f, 0);
    ck_assert_uint_eq(count_fds(), before);
    start(&f);
    tell_sandbox(&f, f.sandbox); /* nobody there */
    teardown(&f);
}
END_TEST

START_TEST(a_client_that_leaves_while_the_row_is_read_is_forgotten)
{
    struct fixture f;
    struct client c;
    setup(&f);
    ask(&f, &c, HANDOFF_SANDBOX_READY, f.sandbox, 30000);
    client_close(&c);
    loop_until_count(&f, 0);
    loop_until_asked(&f);
    teardown(&f);
}
END_TEST

START_TEST(what_the_web_server_sends_is_dropped_and_does_not_spoil_the_answer)
{
    static const char abort_request[8] = {1, 2, 0, 7, 0, 0, 0, 0};
    struct fixture f;
    struct client c;
    setup(&f);
    ask(&f, &c, HANDOFF_SANDBOX_READY, f.sandbox, 30000);
    loop_until_asked(&f);
    ck_assert_int_eq(send(c.fd, abort_request, 8, 0), 8);
    loop_for(&f, 1);
    assert_waiting(&c);
    start(&f);
    ck_assert_int_eq(send(c.fd, abort_request, 8, 0), 8); /* unread when the answer is written */
    tell_sandbox(&f, f.sandbox);
    loop_until_ended(&f, 1);
    assert_answer(&c, 201, "state", "ready");
    client_close(&c);
    teardown(&f);
}
END_TEST

START_TEST(a_web_server_that_never_stops_sending_is_dropped)
{
    static const char noise[32768];
    struct fixture f;
    struct client c;
    setup(&f);
    ask(&f, &c, HANDOFF_SANDBOX_READY, f.sandbox, 30000);
    for (int i = 0; i < 8 && answers_count(f.d.answers) > 0; i++) {
        send(c.fd, noise, sizeof(noise), MSG_DONTWAIT | MSG_NOSIGNAL);
        loop_for(&f, 1);
    }
    loop_until_count(&f, 0);
    ck_assert_uint_eq(c.in.len, 0);
    client_close(&c);
    teardown(&f);
}
END_TEST

/* A sandbox with an ended execution whose answer is larger than any socket's buffer. */
static void ask_much(struct fixture *f, struct client *c)
{
    char execution[ID_TEXT_SIZE];
    struct handoff msg;
    int size = 4096;
    start(f);
    make_execution(f->db, f->project, f->sandbox, execution);
    finish(f, execution, 1000000);
    msg = message(f, HANDOFF_EXECUTION_ENDED, execution, 30000);
    int fd = client_open(f, c);
    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)), 0);
    answers_add(f->d.answers, &msg, fd);
}

START_TEST(an_answer_larger_than_the_socket_arrives_whole)
{
    struct fixture f;
    struct client c;
    setup(&f);
    ask_much(&f, &c);
    loop_until_ended(&f, 1);
    ck_assert_ptr_nonnull(parse(&c));
    ck_assert_int_eq(c.status, 201);
    ck_assert_uint_eq(json_string_length(json_object_get(c.json, "stdout")), 1000000);
    client_close(&c);
    teardown(&f);
}
END_TEST

START_TEST(a_reader_that_takes_nothing_is_dropped_after_a_while)
{
    struct fixture f;
    struct client c;
    setup(&f);
    answers_set_write_stall(f.d.answers, 80);
    ask_much(&f, &c);
    loop_io_set(c.io, 0);
    loop_until_count(&f, 0);
    loop_io_set(c.io, LOOP_READ);
    loop_until_ended(&f, 1);
    ck_assert_uint_gt(c.in.len, 0);
    ck_assert_uint_lt(c.in.len, 1000000);
    client_close(&c);
    teardown(&f);
}
END_TEST

/* false when this machine was so busy that the reader paused as long as one that is dropped. */
static bool slow_reader_gets_all(struct fixture *f, int64_t stall_ms)
{
    struct client c;
    char data[4096];
    int64_t began_ms = clock_mono_ms();
    int64_t turn_ms = began_ms;
    int64_t longest_ms = 0;
    answers_set_write_stall(f->d.answers, stall_ms);
    ask_much(f, &c);
    loop_io_free(c.io);
    c.io = NULL;
    /* Far longer in all than the stall, with a little progress each turn. */
    for (;;) {
        ssize_t n = recv(c.fd, data, sizeof(data), MSG_DONTWAIT);
        if (n == 0)
            break;
        if (n > 0)
            ck_assert_int_eq(buf_append(&c.in, data, (size_t)n), 0);
        int64_t now_ms = clock_mono_ms();
        longest_ms = now_ms - turn_ms > longest_ms ? now_ms - turn_ms : longest_ms;
        turn_ms = now_ms;
        loop_for(f, stall_ms / 160);
    }
    c.closed = true;
    bool in_time = longest_ms < stall_ms / 4;
    if (in_time) {
        ck_assert_ptr_nonnull(parse(&c));
        ck_assert_int_gt(clock_mono_ms() - began_ms, stall_ms);
    }
    client_close(&c);
    return in_time;
}

START_TEST(a_slow_reader_that_goes_on_reading_is_not_dropped)
{
    struct fixture f;
    int64_t stall_ms = 1000;
    setup(&f);
    while (!slow_reader_gets_all(&f, stall_ms)) {
        stall_ms *= 2;
        make_sandbox(f.db, f.project, f.sandbox);
    }
    teardown(&f);
}
END_TEST

START_TEST(a_reader_that_leaves_in_the_middle_is_forgotten)
{
    struct fixture f;
    struct client c;
    setup(&f);
    ask_much(&f, &c);
    loop_io_set(c.io, 0);
    loop_until_asked(&f);
    ck_assert_uint_eq(answers_count(f.d.answers), 1);
    client_close(&c);
    loop_until_count(&f, 0);
    teardown(&f);
}
END_TEST

/* Many, and the end ------------------------------------------------------------------ */

START_TEST(more_than_connections_max_hear_at_once_that_there_is_no_room)
{
    struct fixture f;
    static struct client c[17];
    setup(&f);
    f.config.daemon_connections_max = 16;
    for (int i = 0; i < 17; i++)
        ask_as(&f, &c[i], i % 2 ? TOKEN : OTHER_TOKEN, HANDOFF_SANDBOX_READY, f.sandbox, 30000);
    ck_assert_uint_eq(answers_count(f.d.answers), 16);
    loop_until_ended(&f, 1);
    assert_answer(&c[16], 503, "code", "daemon_unavailable");
    start(&f);
    tell_sandbox(&f, f.sandbox);
    loop_until_ended(&f, 17);
    for (int i = 0; i < 16; i++)
        assert_answer(&c[i], 201, "state", "ready");
    for (int i = 0; i < 17; i++)
        client_close(&c[i]);
    teardown(&f);
}
END_TEST

START_TEST(a_token_that_holds_half_of_the_connections_gets_the_state_as_it_is)
{
    struct fixture f;
    static struct client c[10];
    setup(&f);
    f.config.daemon_connections_max = 16;
    for (int i = 0; i < 8; i++)
        ask(&f, &c[i], HANDOFF_SANDBOX_READY, f.sandbox, 30000);
    loop_until_asked(&f);
    ask(&f, &c[8], HANDOFF_SANDBOX_READY, f.sandbox, 30000);
    loop_until_ended(&f, 1);
    assert_answer(&c[8], 202, "state", "queued");
    /* Another's wait has room. */
    ask_as(&f, &c[9], OTHER_TOKEN, HANDOFF_SANDBOX_READY, f.sandbox, 30000);
    loop_until_asked(&f);
    assert_waiting(&c[9]);
    start(&f);
    tell_sandbox(&f, f.sandbox);
    loop_until_ended(&f, 10);
    assert_answer(&c[0], 201, "state", "ready");
    assert_answer(&c[9], 201, "state", "ready");
    /* … and what was given back can be had again. */
    client_close(&c[0]);
    ask(&f, &c[0], HANDOFF_SANDBOX_ENDED, f.sandbox, 30000);
    loop_until_asked(&f);
    assert_waiting(&c[0]);
    for (int i = 0; i < 10; i++)
        client_close(&c[i]);
    teardown(&f);
}
END_TEST

static const char *const spoils[] = {"revoked_at = now()", "expires_at = now()"};

START_TEST(a_token_that_does_not_count_any_more_ends_its_waits_and_no_other)
{
    struct fixture f;
    struct client c[3];
    setup(&f);
    ask(&f, &c[0], HANDOFF_SANDBOX_READY, f.sandbox, 30000);
    ask(&f, &c[1], HANDOFF_SANDBOX_ENDED, f.sandbox, 30000);
    ask_as(&f, &c[2], OTHER_TOKEN, HANDOFF_SANDBOX_READY, f.sandbox, 30000);
    loop_until_asked(&f);
    free(raw(f.db, "UPDATE tokens SET %s WHERE id = '" TOKEN "'", spoils[_i]));
    loop_until_ended(&f, 2);
    assert_answer(&c[0], 401, "code", "unauthenticated");
    assert_answer(&c[1], 401, "code", "unauthenticated");
    assert_waiting(&c[2]);
    ck_assert_uint_eq(answers_count(f.d.answers), 1);
    start(&f);
    tell_sandbox(&f, f.sandbox);
    loop_until_ended(&f, 3);
    assert_answer(&c[2], 201, "state", "ready");
    for (int i = 0; i < 3; i++)
        client_close(&c[i]);
    teardown(&f);
}
END_TEST

START_TEST(hundreds_wait_at_once_each_for_its_own)
{
    struct fixture f;
    static struct client c[400];
    static char ids[100][ID_TEXT_SIZE];
    setup(&f);
    f.config.daemon_connections_max = 1024;
    for (int i = 0; i < 100; i++)
        make_sandbox(f.db, f.project, ids[i]);
    for (int i = 0; i < 400; i++)
        ask(&f, &c[i], HANDOFF_SANDBOX_READY, ids[i % 100], 30000);
    loop_until_asked(&f);
    for (int i = 0; i < 100; i++) {
        start_sandbox(f.db, ids[i], "1", f.epoch);
        tell_sandbox(&f, ids[i]);
    }
    loop_until_ended(&f, 400);
    for (int i = 0; i < 400; i++) {
        assert_answer(&c[i], 201, "state", "ready");
        ck_assert_str_eq(member(&c[i], "id"), ids[i % 100]);
        client_close(&c[i]);
    }
    teardown(&f);
}
END_TEST

START_TEST(at_the_end_of_the_daemon_everybody_is_told)
{
    struct fixture f;
    struct client c[3];
    setup(&f);
    for (int i = 0; i < 3; i++)
        ask(&f, &c[i], HANDOFF_SANDBOX_READY, f.sandbox, 30000);
    loop_until_asked(&f);
    struct error err = ERROR_INIT;
    answers_free(f.d.answers);
    f.d.answers = answers_new(&f.d, &err);
    loop_until_ended(&f, 3);
    for (int i = 0; i < 3; i++) {
        assert_answer(&c[i], 503, "code", "daemon_unavailable");
        client_close(&c[i]);
    }
    teardown(&f);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("answer");
    TCase *tc = tcase_create("answer");
    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, db_fixture_reset, NULL);
    tcase_add_test(tc, a_wait_that_was_over_before_it_began_is_answered_from_the_row);
    tcase_add_test(tc, a_committed_row_answers_those_whose_wait_it_fulfils_and_no_other);
    tcase_add_test(tc, a_sandbox_that_failed_is_no_longer_waited_for);
    tcase_add_test(tc, a_wait_that_is_over_is_answered_with_the_state_as_it_is);
    tcase_add_test(tc, a_change_nobody_told_of_is_found_when_the_wait_is_over);
    tcase_add_test(tc, a_row_that_does_not_exist_is_not_found);
    tcase_add_test(tc, an_execution_is_answered_when_it_ended);
    tcase_add_test(tc, the_end_of_a_sandbox_answers_its_executions);
    tcase_add_test(tc, a_head_request_gets_no_body);
    tcase_add_test(tc, without_a_database_the_wait_ends_in_503);
    tcase_add_test(tc, a_database_that_comes_back_within_the_wait_is_not_noticed_by_the_client);
    tcase_add_test(tc, a_statement_the_server_refuses_is_an_internal_error);
    tcase_add_test(tc, a_client_that_is_gone_is_forgotten_quietly);
    tcase_add_test(tc, a_client_that_leaves_while_the_row_is_read_is_forgotten);
    tcase_add_test(tc, what_the_web_server_sends_is_dropped_and_does_not_spoil_the_answer);
    tcase_add_test(tc, a_web_server_that_never_stops_sending_is_dropped);
    tcase_add_test(tc, an_answer_larger_than_the_socket_arrives_whole);
    tcase_add_test(tc, a_reader_that_takes_nothing_is_dropped_after_a_while);
    tcase_add_test(tc, a_slow_reader_that_goes_on_reading_is_not_dropped);
    tcase_add_test(tc, a_reader_that_leaves_in_the_middle_is_forgotten);
    tcase_add_test(tc, more_than_connections_max_hear_at_once_that_there_is_no_room);
    tcase_add_test(tc, a_token_that_holds_half_of_the_connections_gets_the_state_as_it_is);
    tcase_add_loop_test(tc, a_token_that_does_not_count_any_more_ends_its_waits_and_no_other, 0,
                        (int)ARRAY_LEN(spoils));
    tcase_add_test(tc, hundreds_wait_at_once_each_for_its_own);
    tcase_add_test(tc, at_the_end_of_the_daemon_everybody_is_told);
    suite_add_tcase(suite, tc);
    return db_fixture_run(suite);
}
