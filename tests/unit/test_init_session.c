/*
 * Killing and the session in paddock-init: whole trees whatever they do, other
 * executions untouched, RESET, the socket's end, and that every breach of the
 * protocol ends the guest with nothing left of it.
 */
#include "tests/unit/init_fixture.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- tests: killing ------------------------------------------------------------------------- */

START_TEST(signal_reaches_the_main_process)
{
    start_shell(1, "trap 'echo got; exit 9' USR1; echo up; while :; do sleep 0.01; done", PLENTY,
                false);
    _cleanup_outcome_ struct outcome o = {0};
    await_output(1, &o, "up\n");
    uint8_t number = SIGUSR1;
    send_frame(WIRE_SIGNAL, 0, 1, &number, 1);
    while (receive() && !take_frame(&o))
        ;
    ck_assert_int_eq(o.exit_code, 9);
    ck_assert_str_eq(out_text(&o), "up\ngot\n");
}
END_TEST

START_TEST(kill_ends_sessions_and_double_forks_that_ignore_term)
{
    char command[512];
    snprintf(command, sizeof(command),
             "trap '' TERM; "
             "setsid sh -c 'trap \"\" TERM; (sh -c \"trap \\\"\\\" TERM; echo deep; sleep 1000; : "
             "%s\" &) ; sleep 1000; : %s' & sleep 1000; : x",
             guest.word, guest.word);
    start_shell(1, command, PLENTY, false);
    _cleanup_outcome_ struct outcome o = {0};
    await_output(1, &o, "deep\n");
    send_kill(1, 20);
    while (receive() && !take_frame(&o))
        ;
    ck_assert_int_eq(o.killed, 1);
    ck_assert_int_eq(o.signal, SIGKILL);
    ck_assert(!anything_left());
}
END_TEST

START_TEST(kill_leaves_other_executions_alone)
{
    start_shell(1, "echo one; sleep 1000", PLENTY, false);
    _cleanup_outcome_ struct outcome one = {0};
    await_output(1, &one, "one\n");
    start_shell(2, "echo two; cat", PLENTY, true);
    _cleanup_outcome_ struct outcome two = {0};
    await_output(2, &two, "two\n");
    send_kill(1, 0);
    while (receive() && !take_frame(&one))
        ck_assert_uint_eq(guest.frame.stream, 1);
    ck_assert_int_eq(one.killed, 1);
    send_frame(WIRE_DATA, WIRE_STDIN, 2, "alive", 5);
    send_frame(WIRE_EOF, WIRE_STDIN, 2, NULL, 0);
    while (receive() && !take_frame(&two))
        ;
    ck_assert_int_eq(two.killed, 0);
    ck_assert_str_eq(out_text(&two), "two\nalive");
}
END_TEST

START_TEST(term_within_grace_is_enough)
{
    start_shell(1, "trap 'exit 6' TERM; echo up; while :; do sleep 0.01; done", PLENTY, false);
    _cleanup_outcome_ struct outcome o = {0};
    await_output(1, &o, "up\n");
    send_kill(1, PATIENCE_MS);
    while (receive() && !take_frame(&o))
        ;
    ck_assert_int_eq(o.exit_code, 6);
    ck_assert_int_eq(o.signal, 0);
    ck_assert_int_eq(o.killed, 1);
}
END_TEST

START_TEST(a_second_kill_shortens_the_grace)
{
    start_shell(1, "trap '' TERM; echo up; while :; do sleep 0.01; done", PLENTY, false);
    _cleanup_outcome_ struct outcome o = {0};
    await_output(1, &o, "up\n");
    send_kill(1, UINT32_MAX);
    send_kill(1, 0);
    while (receive() && !take_frame(&o))
        ;
    ck_assert_int_eq(o.signal, SIGKILL);
}
END_TEST

START_TEST(kill_reaches_the_stopped)
{
    start_shell(1, "echo up; kill -STOP $$; sleep 1000", PLENTY, false);
    _cleanup_outcome_ struct outcome o = {0};
    await_output(1, &o, "up\n");
    send_kill(1, PATIENCE_MS);
    while (receive() && !take_frame(&o))
        ;
    ck_assert_int_eq(o.signal, SIGTERM);
}
END_TEST

START_TEST(kill_outruns_a_fork_bomb)
{
    char command[256];
    /* Bounded by GUEST_PROCESSES_MAX. The main process forks nothing: a shell that may not fork for
     * some seconds ends by itself. */
    snprintf(
        command, sizeof(command),
        "b() { echo forked; b | b & }; trap '' TERM; (while :; do b; done) 2>/dev/null & : %s; "
        "exec sleep 1000",
        guest.word);
    start_shell(1, command, PLENTY, false);
    _cleanup_outcome_ struct outcome o = {0};
    await_output(1, &o, "forked\n");
    send_kill(1, 0);
    while (receive() && !take_frame(&o))
        ;
    ck_assert_int_eq(o.killed, 1);
    ck_assert(!anything_left());
}
END_TEST

/* The process id of the supervisor, which is the parent of the main process. */
static pid_t parent_of_process(uint32_t pid)
{
    char path[64];
    char line[256];
    pid_t parent = 0;
    snprintf(path, sizeof(path), "/proc/%u/status", pid);
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof(line), file)) {
        if (strncmp(line, "PPid:", 5) == 0)
            parent = (pid_t)strtol(line + 5, NULL, 10);
    }
    fclose(file);
    return parent;
}

START_TEST(death_of_a_supervisor_ends_its_execution)
{
    start_shell(1, "sleep 1000 & wait", PLENTY, false);
    expect(WIRE_STARTED);
    pid_t supervisor = parent_of_process(wire_get_u32(guest.frame.payload));
    ck_assert_int_gt(supervisor, 1);
    ck_assert_int_ne(supervisor, guest.pid);
    ck_assert_int_eq(kill(supervisor, SIGKILL), 0);
    _cleanup_outcome_ struct outcome o = finish(1);
    ck_assert_int_eq(o.signal, SIGKILL);
    ck_assert_int_eq(o.killed, 0);
    _cleanup_outcome_ struct outcome next = run_shell("exit 0");
    ck_assert(!next.failed);
}
END_TEST

/* The parent of a shell that runs `command` and ends at once. The guest gets no quiet moment
 * meanwhile, in which it would make another supervisor ready. */
static long supervisor_of(const char *command)
{
    static const uint8_t nonce[8] = {1};
    char line[128];
    _cleanup_outcome_ struct outcome o = {0};
    snprintf(line, sizeof(line), "%s echo $PPID", command);
    start_shell(1, line, PLENTY, false);
    for (bool ended = false; !ended;) {
        struct pollfd polled = {.fd = guest.sock, .events = POLLIN};
        if (poll(&polled, 1, 10) == 0) {
            send_frame(WIRE_PING, 0, 0, nonce, sizeof(nonce));
            continue;
        }
        ck_assert(receive());
        if (guest.frame.type != WIRE_PONG)
            ended = take_frame(&o);
    }
    ck_assert(!o.failed);
    return strtol(out_text(&o), NULL, 10);
}

/* All answers to its pings have come. */
static void settle(void)
{
    send_frame(WIRE_PING, 0, 0, "settled", 8);
    do
        expect(WIRE_PONG);
    while (memcmp(guest.frame.payload, "settled", 8) != 0);
}

START_TEST(a_supervisor_that_is_left_alone_serves_again)
{
    /* A test that gets no CPU for a while cannot keep the guest awake. */
    bool again = false;
    long last = supervisor_of("");
    for (int i = 0; i < 50 && !again; i++) {
        long next = supervisor_of("");
        again = next == last;
        last = next;
    }
    ck_assert_msg(again, "each of 51 executions had a supervisor of its own");
    settle();
}
END_TEST

START_TEST(a_supervisor_that_leaves_a_process_serves_no_more)
{
    for (int i = 0; i < 5; i++) {
        long first = supervisor_of("(setsid sleep 1000 >/dev/null 2>&1 &);");
        ck_assert_int_ne(supervisor_of(""), first);
    }
    settle();
}
END_TEST

START_TEST(a_supervisor_that_killed_serves_no_more)
{
    _cleanup_outcome_ struct outcome o = {0};
    start_shell(1, "echo $PPID; exec sleep 1000", PLENTY, false);
    await_output(1, &o, "\n");
    send_kill(1, 0);
    while (receive() && !take_frame(&o))
        ;
    ck_assert_int_eq(o.killed, 1);
    ck_assert_int_ne(supervisor_of(""), strtol(out_text(&o), NULL, 10));
    settle();
}
END_TEST

START_TEST(signals_and_kills_that_come_late_harm_no_other)
{
    for (uint32_t stream = 1; stream <= 50; stream++) {
        start_shell(stream, "exit 3", PLENTY, false);
        expect(WIRE_STARTED);
        /* Some reach the supervisor when the process has ended, some PID 1 only then. */
        send_frame(WIRE_SIGNAL, 0, stream, &(uint8_t){SIGCONT}, 1);
        send_kill(stream, 5000);
        _cleanup_outcome_ struct outcome o = finish(stream);
        ck_assert(!o.failed);
        ck_assert(o.exit_code == 3 || o.killed == 1);
        _cleanup_outcome_ struct outcome next = run_shell("exit 4");
        ck_assert(!next.failed);
        ck_assert_int_eq(next.exit_code, 4);
        ck_assert_int_eq(next.killed, 0);
    }
}
END_TEST

/* --- tests: the session --------------------------------------------------------------------- */

START_TEST(reset_forgets_and_kills)
{
    char command[256];
    snprintf(command, sizeof(command),
             "trap '' TERM; setsid sleep 1000 & echo up; sleep 1000; : %s", guest.word);
    start_shell(1, command, PLENTY, false);
    _cleanup_outcome_ struct outcome o = {0};
    await_output(1, &o, "up\n");
    send_exec(2, 100, 0, 0); /* its spec never comes */
    send_frame(WIRE_RESET, 0, 0, NULL, 0);
    expect(WIRE_HELLO);
    ck_assert(!anything_left());
    send_setup(5, 022, "", 0);
    expect(WIRE_READY);
    _cleanup_outcome_ struct outcome next = run_shell("umask; echo ${FROM_SETUP-none}");
    ck_assert_str_eq(out_text(&next), "0022\nnone\n");
}
END_TEST

START_TEST(reset_without_streams)
{
    send_frame(WIRE_RESET, 0, 0, NULL, 0);
    expect(WIRE_HELLO);
    send_frame(WIRE_RESET, 0, 0, NULL, 0);
    expect(WIRE_HELLO);
}
END_TEST

START_TEST(end_of_socket_leaves_no_process)
{
    char command[256];
    snprintf(command, sizeof(command),
             "trap '' TERM HUP; (setsid sh -c 'sleep 1000; : %s' &); echo up; sleep 1000; :",
             guest.word);
    start_shell(1, command, PLENTY, false);
    _cleanup_outcome_ struct outcome o = {0};
    await_output(1, &o, "up\n");
    _cleanup_outcome_ struct outcome left = {0};
    start_shell(2, "sleep 1000 & echo up", PLENTY, false);
    await_output(2, &left, "up\n");
    /* The teardown closes the socket and looks. */
}
END_TEST

START_TEST(host_that_does_not_read_blocks_nothing)
{
    static const uint8_t nonce[8];
    /* More answers and more output than any socket buffer holds, and nobody reads. */
    start_shell(1, "head -c 20000000 /dev/zero", PLENTY, false);
    int sent = 0;
    struct pollfd polled = {.fd = guest.sock, .events = POLLOUT};
    while (sent < 20000 && poll(&polled, 1, 0) == 1) {
        send_frame(WIRE_PING, 0, 0, nonce, sizeof(nonce));
        sent++;
    }
    int pongs = 0;
    _cleanup_outcome_ struct outcome o = {0};
    bool ended = false;
    while (!ended || pongs < sent) {
        ck_assert(receive());
        if (guest.frame.type == WIRE_PONG)
            pongs++;
        else
            ended |= take_frame(&o);
    }
    ck_assert_uint_eq(o.out[WIRE_STDOUT].len, 20000000);
}
END_TEST

static void send_header(unsigned type, unsigned channel, unsigned flags, uint32_t stream,
                        size_t payload_len)
{
    static uint8_t bytes[WIRE_FRAME_MAX + 16];
    memset(bytes, 0, sizeof(bytes));
    bytes[0] = (uint8_t)type;
    bytes[1] = (uint8_t)channel;
    bytes[3] = (uint8_t)flags;
    wire_put_u32(bytes + 4, stream);
    send_bytes(bytes, WIRE_HEADER_SIZE + payload_len);
}

START_TEST(malformed_frames_end_the_guest)
{
    static const struct {
        unsigned type, channel, flags;
        uint32_t stream;
        size_t payload_len;
    } frames[] = {
        {0, 0, 0, 0, 0},                            /* no such type */
        {99, 0, 0, 0, 0},                           /* no such type */
        {WIRE_HELLO, 0, 0, 0, 4},                   /* wrong direction */
        {WIRE_PING, 0, 0, 0, 7},                    /* too short */
        {WIRE_PING, 0, 1, 0, 8},                    /* flags */
        {WIRE_PING, 0, 0, 3, 8},                    /* a stream on a control frame */
        {WIRE_EXEC, 0, 0, 0, 28},                   /* none on a stream frame */
        {WIRE_DATA, 3, 0, 1, 8},                    /* no such channel */
        {WIRE_DATA, 0, 0, 1, WIRE_PAYLOAD_MAX + 1}, /* too long */
        {WIRE_SETUP, 0, 0, 0, 8},                   /* a second one */
        {WIRE_SIGNAL, 0, 0, 1, 1},                  /* signal 0 */
        {WIRE_RESYNC, 0, 0, 0, 7},                  /* too short */
        {WIRE_LIVE, 0, 0, 1, 48},                   /* wrong direction */
    };
    int which = _i;
    start_shell(1, "trap '' TERM; echo up; sleep 1000; :", PLENTY, false);
    _cleanup_outcome_ struct outcome o = {0};
    await_output(1, &o, "up\n");
    ck_assert_uint_eq(ARRAY_LEN(frames), 13);
    send_header(frames[which].type, frames[which].channel, frames[which].flags,
                frames[which].stream, frames[which].payload_len);
    expect_violation();
}
END_TEST

/* Sends until the guest is gone. */
static void flood_stdin(void)
{
    static uint8_t bytes[WIRE_FRAME_MAX];
    wire_header(bytes, WIRE_DATA, WIRE_STDIN, 1);
    for (size_t sent = 0; sent <= (size_t)3 * INIT_STDIN_WINDOW_BYTES; sent += WIRE_PAYLOAD_MAX) {
        if (send(guest.sock, bytes, sizeof(bytes), MSG_NOSIGNAL) < 0)
            return;
    }
}

/* What is well-formed and not allowed to this execution. */
START_TEST(breaches_of_a_stream_end_the_guest)
{
    static const uint8_t zeros[WIRE_PAYLOAD_MAX];
    bool with_stdin = _i < 3;
    start_shell(1, "echo up; sleep 1000; :", PLENTY, with_stdin);
    _cleanup_outcome_ struct outcome o = {0};
    await_output(1, &o, "up\n");
    switch (_i) {
    case 0: /* more than the window, which sleep does not empty */
        flood_stdin();
        break;
    case 1: /* after its own EOF */
        send_frame(WIRE_EOF, WIRE_STDIN, 1, NULL, 0);
        send_frame(WIRE_DATA, WIRE_STDIN, 1, zeros, 1);
        break;
    case 2:
        send_frame(WIRE_DATA, WIRE_STDOUT, 1, zeros, 1);
        break;
    case 3: /* no stdin channel */
        send_frame(WIRE_DATA, WIRE_STDIN, 1, zeros, 1);
        break;
    case 4:
        send_u32(WIRE_CREDIT, WIRE_STDIN, 1, 1);
        break;
    case 5:
        send_frame(WIRE_EOF, WIRE_STDOUT, 1, NULL, 0);
        break;
    case 6:
        send_frame(WIRE_SPEC, 0, 1, zeros, 1);
        break;
    case 7:
        send_exec(1, 10, 0, 0);
        break;
    case 8:
        send_exec(2, WIRE_SPEC_MAX + 1, 0, 0);
        break;
    default: /* more spec than announced */
        send_exec(2, 10, 0, 0);
        send_frame(WIRE_SPEC, 0, 2, zeros, 11);
        break;
    }
    expect_violation();
}
END_TEST

START_TEST(frames_of_ended_streams_are_ignored)
{
    uint8_t number = SIGTERM;
    _cleanup_outcome_ struct outcome o = run_shell("exit 0");
    ck_assert(!o.failed);
    send_frame(WIRE_DATA, WIRE_STDIN, 1, "x", 1);
    send_frame(WIRE_EOF, WIRE_STDIN, 1, NULL, 0);
    send_u32(WIRE_CREDIT, WIRE_STDOUT, 1, 5);
    send_frame(WIRE_SIGNAL, 0, 1, &number, 1);
    send_kill(1, 0);
    _cleanup_outcome_ struct outcome next = run_shell("exit 8");
    ck_assert_int_eq(next.exit_code, 8);
}
END_TEST

START_TEST(exec_before_setup_ends_the_guest)
{
    send_exec(1, 10, 0, 0);
    expect_violation();
}
END_TEST

START_TEST(malformed_setup_ends_the_guest)
{
    if (_i == 0)
        send_setup(10, 022, "A=b", 3); /* no NUL */
    else if (_i == 1)
        send_setup(10, 022, "novalue", 8);
    else if (_i == 2)
        send_setup(10, 022, "=x", 3);
    else if (_i == 3)
        send_setup(10, 010000, "", 0);
    else
        send_setup(0, 022, "", 0);
    expect_violation();
}
END_TEST

START_TEST(missing_controller_and_file_are_no_error)
{
    ck_assert_int_eq(unlink(guest.pids_path), 0);
    ck_assert_int_eq(unlink(guest.environment_path), 0);
    send_setup(10, 022, "", 0);
    expect(WIRE_READY);
}
END_TEST

START_TEST(a_limit_that_cannot_be_set_ends_the_guest)
{
    ck_assert_int_eq(unlink(guest.pids_path), 0);
    ck_assert_int_eq(mkdir(guest.pids_path, 0755), 0);
    send_setup(10, 022, "", 0);
    ck_assert(!receive());
    close(guest.sock);
    ck_assert_int_eq(guest_status(), INIT_EXIT_INTERNAL);
}
END_TEST

START_TEST(a_stream_socket_is_refused)
{
    int pair[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0)
        _exit(init_run(pair[1], &guest.options));
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(WEXITSTATUS(status), INIT_EXIT_INTERNAL);
}
END_TEST

/* --- the suite ------------------------------------------------------------------------------ */

static void add_ready_tests(Suite *suite)
{
    TCase *ready = tcase_create("ready");
    tcase_set_timeout(ready, 120);
    tcase_add_checked_fixture(ready, setup, teardown);
    const TTest *tests[] = {
        signal_reaches_the_main_process,
        kill_ends_sessions_and_double_forks_that_ignore_term,
        kill_leaves_other_executions_alone,
        term_within_grace_is_enough,
        a_second_kill_shortens_the_grace,
        kill_reaches_the_stopped,
        kill_outruns_a_fork_bomb,
        death_of_a_supervisor_ends_its_execution,
        a_supervisor_that_is_left_alone_serves_again,
        a_supervisor_that_leaves_a_process_serves_no_more,
        a_supervisor_that_killed_serves_no_more,
        signals_and_kills_that_come_late_harm_no_other,
        reset_forgets_and_kills,
        reset_without_streams,
        end_of_socket_leaves_no_process,
        host_that_does_not_read_blocks_nothing,
        frames_of_ended_streams_are_ignored,
    };
    for (size_t i = 0; i < ARRAY_LEN(tests); i++)
        tcase_add_test(ready, tests[i]);
    tcase_add_loop_test(ready, malformed_frames_end_the_guest, 0, 13);
    tcase_add_loop_test(ready, breaches_of_a_stream_end_the_guest, 0, 10);
    suite_add_tcase(suite, ready);
}

static void add_fresh_tests(Suite *suite)
{
    TCase *fresh = tcase_create("fresh");
    tcase_set_timeout(fresh, 120);
    tcase_add_checked_fixture(fresh, start_guest, teardown);
    tcase_add_test(fresh, exec_before_setup_ends_the_guest);
    tcase_add_test(fresh, missing_controller_and_file_are_no_error);
    tcase_add_test(fresh, a_limit_that_cannot_be_set_ends_the_guest);
    tcase_add_test(fresh, a_stream_socket_is_refused);
    tcase_add_loop_test(fresh, malformed_setup_ends_the_guest, 0, 5);
    suite_add_tcase(suite, fresh);
}

int main(void)
{
    if (geteuid() != 0)
        return 1; /* it gives up privileges, so it needs some */
    guest_uid = GUEST_UID + 1;
    Suite *suite = suite_create("init_session");
    add_ready_tests(suite);
    add_fresh_tests(suite);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
