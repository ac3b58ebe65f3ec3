/*
 * paddockd's main process as a whole, in a child of the test: start, the end by
 * signals and by losses, exit codes. The test is the keeper, the operator and a
 * handler.
 */
#include <check.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/fdpass.h"
#include "common/handoff.h"
#include "daemon/keeper/protocol.h"
#include "daemon/main_protocol.h"
#include "daemon/run.h"
#include "db_fixture.h"

#define POLLS_MAX 4000
#define NOBODY "0001aaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"

struct fixture {
    struct config *config;
    struct db *db;
    pid_t pid;
    int keeper; /* the test's end */
    int parent; /* likewise, of the supervisor's socket */
    char folder[64];
    char socket_path[96];
};

/* A millisecond between two looks at something that has no event. */
static void breathe(void)
{
    poll(NULL, 0, 1);
}

static void set(char **key, const char *value)
{
    free(*key);
    *key = strdup(value);
    ck_assert_ptr_nonnull(*key);
}

static void setup(struct fixture *f)
{
    /* The log of a daemon that is ended on purpose is no news. */
    static const char text[] = "[daemon]\nheartbeat = 200ms\n[log]\nlevel = error\n";
    struct error err = ERROR_INIT;
    memset(f, 0, sizeof(*f));
    f->config = config_parse(text, sizeof(text) - 1, "test", &err);
    ck_assert_msg(f->config != NULL, "%s", err.detail);
    snprintf(f->folder, sizeof(f->folder), "/tmp/test_run.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(f->folder));
    snprintf(f->socket_path, sizeof(f->socket_path), "%s/handoff.sock", f->folder);
    set(&f->config->daemon_handoff_socket, f->socket_path);
    set(&f->config->database_dsn, db_fixture_server()->conninfo);
    f->db = db_fixture_open();
    f->keeper = f->parent = -1;
}

static void teardown(struct fixture *f)
{
    if (f->keeper >= 0)
        close(f->keeper);
    if (f->parent >= 0)
        close(f->parent);
    unlink(f->socket_path);
    rmdir(f->folder);
    config_free(f->config);
    db_free(f->db);
}

static void launch(struct fixture *f)
{
    int pair[2];
    int parent[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, parent), 0);
    f->pid = fork();
    ck_assert_int_ge(f->pid, 0);
    if (f->pid == 0) {
        struct error err = ERROR_INIT;
        close(pair[1]);
        close(parent[1]);
        int code = daemon_run(f->config, pair[0], parent[0], "{}", &err);
        _exit(code != 0 && err.code == ERR_NONE ? code + 100 : code);
    }
    close(pair[0]);
    close(parent[0]);
    f->keeper = pair[1];
    f->parent = parent[1];
    struct error err = ERROR_INIT;
    struct keeper_report attached;
    memset(&attached, 0, sizeof(attached));
    attached.event = KEEPER_ATTACHED;
    /* One that cannot start may be gone by now. */
    (void)!fdpass_send(f->keeper, &attached, sizeof(attached), -1, &err);
}

static bool is_registered(struct fixture *f)
{
    return raw_long(f->db, "SELECT count(*) FROM nodes WHERE accepting") == 1;
}

static void launch_registered(struct fixture *f)
{
    launch(f);
    for (int i = 0; !is_registered(f); i++) {
        ck_assert_int_lt(i, POLLS_MAX);
        breathe();
    }
}

/* The exit code; 100 more when daemon_run gave no error with it. */
static int wait_exit(struct fixture *f)
{
    int status;
    ck_assert_int_eq(waitpid(f->pid, &status, 0), f->pid);
    ck_assert_msg(WIFEXITED(status), "status 0x%x", (unsigned)status);
    return WEXITSTATUS(status);
}

/* Hands a connection over; returns the web server's end. */
static int hand_over(struct fixture *f, const char *sandbox)
{
    struct error err = ERROR_INIT;
    char data[HANDOFF_MAX];
    int pair[2];
    struct handoff msg = {.wait = HANDOFF_SANDBOX_READY,
                          .request_id = NOBODY,
                          .token_id = "0123456789abcdef",
                          .fcgi_request_id = 1,
                          .wait_ms = 60000,
                          .status_done = 201,
                          .status_pending = 202};
    snprintf(msg.id, sizeof(msg.id), "%s", sandbox);
    snprintf(msg.sandbox_id, sizeof(msg.sandbox_id), "%s", sandbox);
    int len = handoff_encode(&msg, data, sizeof(data), &err);
    ck_assert_msg(len > 0, "%s", err.detail);
    int sock = fdpass_connect(f->socket_path, &err);
    ck_assert_msg(sock >= 0, "%s", err.detail);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    ck_assert_int_eq(fdpass_send(sock, data, (size_t)len, pair[0], &err), 0);
    close(pair[0]);
    close(sock);
    return pair[1];
}

static void assert_answer(int fd, const char *status, const char *part)
{
    char text[4096];
    size_t len = 0;
    ssize_t n;
    while ((n = recv(fd, text + len, sizeof(text) - len, 0)) > 0)
        len += (size_t)n;
    ck_assert_int_eq(n, 0);
    ck_assert_ptr_nonnull(memmem(text, len, status, strlen(status)));
    ck_assert_ptr_nonnull(memmem(text, len, part, strlen(part)));
    close(fd);
}

START_TEST(sigterm_drains)
{
    struct fixture f;
    setup(&f);
    launch_registered(&f);
    kill(f.pid, SIGHUP); /* no harm */
    kill(f.pid, _i == 0 ? SIGTERM : SIGINT);
    ck_assert_int_eq(wait_exit(&f), 0);
    ck_assert_int_eq(raw_long(f.db, "SELECT accepting::int FROM nodes"), 0);
    teardown(&f);
}
END_TEST

START_TEST(a_hand_off_is_answered)
{
    struct fixture f;
    setup(&f);
    launch_registered(&f);
    assert_answer(hand_over(&f, NOBODY), "Status: 404", "not_found");
    kill(f.pid, SIGTERM);
    ck_assert_int_eq(wait_exit(&f), 0);
    teardown(&f);
}
END_TEST

START_TEST(who_waits_while_it_drains_is_told)
{
    struct fixture f;
    char project[ID_TEXT_SIZE];
    char sandbox[ID_TEXT_SIZE];
    char epoch[32];
    setup(&f);
    /* A sandbox of another node: nothing that happens here ends its wait. */
    make_project(f.db, "run", NULL, project);
    make_node(f.db, "2", "5", epoch);
    make_sandbox(f.db, project, sandbox);
    free(raw(f.db, "UPDATE nodes SET accepting = false"));
    launch_registered(&f);
    int fd = hand_over(&f, sandbox);
    kill(f.pid, SIGTERM);
    assert_answer(fd, "Status: 503", "daemon_unavailable");
    ck_assert_int_eq(wait_exit(&f), 0);
    teardown(&f);
}
END_TEST

static bool closing_waits(struct fixture *f)
{
    /* In a transaction the view is read once, unless it is told otherwise. */
    free(raw(f->db, "SELECT pg_stat_clear_snapshot()"));
    return raw_long(f->db, "SELECT count(*) FROM pg_stat_activity WHERE application_name ="
                           " 'paddockd' AND wait_event_type = 'Lock'"
                           " AND query LIKE '%%accepting%%'") == 1;
}

static bool beat_waits(struct fixture *f)
{
    free(raw(f->db, "SELECT pg_stat_clear_snapshot()"));
    return raw_long(f->db, "SELECT count(*) FROM pg_stat_activity WHERE application_name ="
                           " 'paddockd' AND wait_event_type = 'Lock'"
                           " AND query LIKE '%%node_heartbeat%%'") == 1;
}

START_TEST(what_is_queued_is_committed_before_it_leaves_and_a_second_signal_does_not_wait)
{
    struct fixture f;
    setup(&f);
    launch_registered(&f);
    free(raw(f.db, "BEGIN"));
    free(raw(f.db, "LOCK TABLE nodes"));
    kill(f.pid, SIGTERM); /* NODE_SET_ACCEPTING waits for the lock */
    while (!closing_waits(&f))
        breathe();
    ck_assert_int_eq(waitpid(f.pid, NULL, WNOHANG), 0);
    if (_i == 0) {
        free(raw(f.db, "COMMIT"));
        ck_assert_int_eq(wait_exit(&f), 0);
        ck_assert_int_eq(raw_long(f.db, "SELECT accepting::int FROM nodes"), 0);
    } else {
        kill(f.pid, SIGTERM);
        ck_assert_int_eq(wait_exit(&f), 101);
        free(raw(f.db, "COMMIT"));
    }
    teardown(&f);
}
END_TEST

START_TEST(a_daemon_that_never_registered_stops_at_once)
{
    struct fixture f;
    setup(&f);
    set(&f.config->database_dsn, "host=/nonexistent user=x dbname=x");
    launch(&f);
    struct error err = ERROR_INIT;
    int sock;
    for (int i = 0; (sock = fdpass_connect(f.socket_path, &err)) < 0; i++) {
        ck_assert_int_lt(i, POLLS_MAX);
        breathe();
    }
    send(sock, "x", 1, 0);
    char byte;
    /* Refused by the running loop, which catches signals. */
    ck_assert_int_le(recv(sock, &byte, 1, 0), 0);
    close(sock);
    kill(f.pid, SIGTERM);
    ck_assert_int_eq(wait_exit(&f), 0);
    teardown(&f);
}
END_TEST

START_TEST(the_end_of_the_keeper_ends_the_daemon)
{
    struct fixture f;
    setup(&f);
    launch_registered(&f);
    close(f.keeper);
    f.keeper = -1;
    ck_assert_int_eq(wait_exit(&f), 101);
    teardown(&f);
}
END_TEST

/* Beats come and go meanwhile. */
static void expect_word(struct fixture *f, enum main_word word)
{
    struct main_saying said;
    do
        ck_assert_int_eq(recv(f->parent, &said, sizeof(said), 0), sizeof(said));
    while (said.word != word);
}

static void order_to_leave(struct fixture *f)
{
    static const struct main_order order = {.verb = MAIN_LEAVE};
    ck_assert_int_eq(send(f->parent, &order, sizeof(order), 0), sizeof(order));
}

START_TEST(it_beats_and_says_that_it_is_ready)
{
    struct fixture f;
    setup(&f);
    f.config->daemon_watchdog = 40;
    launch(&f);
    expect_word(&f, MAIN_READY);
    ck_assert(is_registered(&f));
    for (int i = 0; i < 5; i++)
        expect_word(&f, MAIN_BEAT);
    close(f.parent); /* a supervisor that is gone is the end */
    f.parent = -1;
    ck_assert_int_eq(wait_exit(&f), 101);
    teardown(&f);
}
END_TEST

START_TEST(it_leaves_the_node_open_and_those_who_wait_to_the_next)
{
    struct fixture f;
    struct error err = ERROR_INIT;
    char project[ID_TEXT_SIZE];
    char sandbox[ID_TEXT_SIZE];
    char epoch[32];
    setup(&f);
    /* The look below is to stay the last that its connection was asked. */
    f.config->daemon_heartbeat = 60000;
    /* A sandbox of another node: nothing that happens here ends its wait. */
    make_project(f.db, "run", NULL, project);
    make_node(f.db, "2", "5", epoch);
    make_sandbox(f.db, project, sandbox);
    free(raw(f.db, "UPDATE nodes SET accepting = false"));
    launch_registered(&f);
    int web_server = hand_over(&f, sandbox);
    while (_i > 0 && raw_long(f.db, "SELECT count(*) FROM pg_stat_activity WHERE application_name ="
                                    " 'paddockd' AND query LIKE '%%sandbox_view%%'") == 0)
        breathe(); /* else it may still be in the door's socket */
    order_to_leave(&f);
    expect_word(&f, MAIN_LEFT);
    ck_assert_int_eq(raw_long(f.db, "SELECT count(*) FROM nodes WHERE accepting"), 1);
    /* The next main's door. */
    int door = fdpass_listen(f.socket_path, 0600, 5, &err);
    ck_assert_msg(door >= 0, "%s", err.detail);
    int from = accept(door, NULL, NULL);
    char text[HANDOFF_MAX];
    struct handoff msg;
    int fd = -1;
    ssize_t len = fdpass_recv(from, text, sizeof(text), &fd, &err);
    ck_assert_int_gt(len, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_msg(handoff_decode(text, (size_t)len, &msg, &err) == 0, "%s", err.detail);
    ck_assert_str_eq(msg.id, sandbox);
    ck_assert_int_eq(msg.wait, HANDOFF_SANDBOX_READY);
    ck_assert_int_gt(msg.wait_ms, 0);
    ck_assert_int_le(msg.wait_ms, 60000);
    ck_assert_int_eq(wait_exit(&f), 102);
    /* It is the same connection, and open. */
    ck_assert_int_eq(send(fd, "answer", 6, 0), 6);
    ck_assert_int_eq(recv(web_server, text, sizeof(text), 0), 6);
    close(fd);
    close(web_server);
    close(from);
    close(door);
    teardown(&f);
}
END_TEST

START_TEST(what_is_queued_is_committed_before_it_makes_way)
{
    struct fixture f;
    setup(&f);
    f.config->daemon_heartbeat = 200;
    launch_registered(&f);
    free(raw(f.db, "BEGIN"));
    free(raw(f.db, "LOCK TABLE nodes"));
    while (!beat_waits(&f))
        breathe();
    order_to_leave(&f);
    breathe();
    ck_assert_int_eq(waitpid(f.pid, NULL, WNOHANG), 0);
    free(raw(f.db, "COMMIT"));
    ck_assert_int_eq(wait_exit(&f), 102);
    teardown(&f);
}
END_TEST

START_TEST(a_takeover_of_the_node_ends_the_daemon)
{
    struct fixture f;
    char epoch[32];
    setup(&f);
    launch_registered(&f);
    make_node(f.db, "1", "5", epoch);
    ck_assert_int_eq(wait_exit(&f), 164);
    teardown(&f);
}
END_TEST

START_TEST(a_dsn_that_cannot_be_read_is_a_configuration_error)
{
    struct fixture f;
    setup(&f);
    set(&f.config->database_dsn, "what is this");
    launch(&f);
    ck_assert_int_eq(wait_exit(&f), 64);
    teardown(&f);
}
END_TEST

START_TEST(a_socket_that_cannot_be_made_stops_the_start)
{
    struct fixture f;
    setup(&f);
    set(&f.config->daemon_handoff_socket, "/nonexistent/handoff.sock");
    launch(&f);
    ck_assert_int_eq(wait_exit(&f), 1);
    teardown(&f);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("run");
    TCase *tc = tcase_create("run");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, db_fixture_reset, NULL);
    tcase_add_loop_test(tc, sigterm_drains, 0, 2);
    tcase_add_test(tc, a_hand_off_is_answered);
    tcase_add_test(tc, who_waits_while_it_drains_is_told);
    tcase_add_loop_test(
        tc, what_is_queued_is_committed_before_it_leaves_and_a_second_signal_does_not_wait, 0, 2);
    tcase_add_test(tc, a_daemon_that_never_registered_stops_at_once);
    tcase_add_test(tc, the_end_of_the_keeper_ends_the_daemon);
    tcase_add_test(tc, it_beats_and_says_that_it_is_ready);
    tcase_add_loop_test(tc, it_leaves_the_node_open_and_those_who_wait_to_the_next, 0, 2);
    tcase_add_test(tc, what_is_queued_is_committed_before_it_makes_way);
    tcase_add_test(tc, a_takeover_of_the_node_ends_the_daemon);
    tcase_add_test(tc, a_dsn_that_cannot_be_read_is_a_configuration_error);
    tcase_add_test(tc, a_socket_that_cannot_be_made_stops_the_start);
    suite_add_tcase(suite, tc);
    return db_fixture_run(suite);
}
