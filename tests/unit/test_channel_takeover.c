/*
 * A channel that takes a guest over: what comes before RESYNCED is dropped, what
 * the guest lists can be found and claimed, what nobody claims is killed, and a
 * guest that lists what cannot be ends its channel.
 */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/channel.h"

#define NONCE UINT64_C(77)
#define STREAMS_MAX 4u

struct seen {
    int resynced, ends, started, exits, failures, lost, pongs;
    enum channel_end end;
    struct channel_exit exit;
    uint64_t bytes;
};

static struct loop *loop;
static struct channel *channel;
static int guest;
static struct seen seen;
static uint8_t rx[WIRE_FRAME_MAX];
static uint8_t guest_rx[WIRE_FRAME_MAX];

static void on_hello(void *arg, uint32_t version)
{
    (void)arg;
    (void)version;
    ck_abort_msg("HELLO within a take-over");
}

static void on_ready(void *arg)
{
    (void)arg;
    ck_abort_msg("READY within a take-over");
}

static void on_pong(void *arg)
{
    (void)arg;
    seen.pongs++;
}

static void on_resynced(void *arg)
{
    (void)arg;
    seen.resynced++;
}

static void on_end(void *arg, enum channel_end end, const struct error *err)
{
    (void)arg;
    ck_assert(error_is_set(err));
    seen.ends++;
    seen.end = end;
}

static const struct channel_handler handler = {.on_hello = on_hello,
                                               .on_ready = on_ready,
                                               .on_pong = on_pong,
                                               .on_resynced = on_resynced,
                                               .on_end = on_end};

static void on_started(void *arg)
{
    (void)arg;
    seen.started++;
}

static void on_data(void *arg, enum wire_channel ch, const void *data, size_t len)
{
    (void)arg;
    (void)ch;
    (void)data;
    seen.bytes += len;
}

static void on_exit_result(void *arg, const struct channel_exit *result)
{
    (void)arg;
    seen.exits++;
    seen.exit = *result;
}

static void on_failed(void *arg, enum wire_step step, int errno_value)
{
    (void)arg;
    (void)step;
    (void)errno_value;
    seen.failures++;
}

static void on_lost(void *arg)
{
    (void)arg;
    seen.lost++;
}

static const struct channel_stream_handler stream_handler = {on_started, on_data, on_exit_result,
                                                             on_failed, on_lost};

static void stop(void *arg)
{
    (void)arg;
    loop_stop(loop);
}

static void turn(void)
{
    struct loop_timer *timer = loop_timer_new(loop, stop, NULL);

    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(loop_timer_arm(timer, 0), 0);
        loop_run(loop);
    }
    loop_timer_free(timer);
}

static void say(unsigned type, uint8_t ch, uint32_t stream, const void *payload, size_t len)
{
    uint8_t frame[WIRE_HEADER_SIZE + 256];

    ck_assert_uint_le(len, 256);
    wire_header(frame, (enum wire_type)type, ch, stream);
    if (len > 0)
        memcpy(frame + WIRE_HEADER_SIZE, payload, len);
    ck_assert_int_eq(send(guest, frame, WIRE_HEADER_SIZE + len, MSG_NOSIGNAL),
                     (ssize_t)(WIRE_HEADER_SIZE + len));
}

static void say_u32(unsigned type, uint8_t ch, uint32_t stream, uint32_t value)
{
    uint8_t payload[4];

    wire_put_u32(payload, value);
    say(type, ch, stream, payload, sizeof(payload));
}

static void say_resynced(uint64_t nonce, uint32_t version, uint32_t count)
{
    uint8_t payload[16];

    wire_put_u64(payload, nonce);
    wire_put_u32(payload + 8, version);
    wire_put_u32(payload + 12, count);
    say(WIRE_RESYNCED, 0, 0, payload, sizeof(payload));
}

static struct wire_live live_of(uint8_t uuid, unsigned flags)
{
    return (struct wire_live){.uuid = {uuid},
                              .pid = 9,
                              .state = WIRE_LIVE_RUNNING,
                              .flags = flags,
                              .stdout_bytes = 1000,
                              .stderr_bytes = 2000};
}

static void say_live(uint32_t stream, const struct wire_live *live)
{
    uint8_t payload[WIRE_LIVE_SIZE];

    wire_live_put(payload, live);
    say(WIRE_LIVE, 0, stream, payload, sizeof(payload));
}

static void say_over(uint32_t stream, uint8_t uuid, enum wire_type type, const void *last,
                     size_t len)
{
    struct wire_over over = {.uuid = {uuid},
                             .stdout_bytes = 10,
                             .stderr_bytes = 20,
                             .last = {.type = type, .payload = last, .payload_len = len}};
    uint8_t payload[WIRE_OVER_MAX];

    say(WIRE_OVER, 0, stream, payload, wire_over_put(payload, &over));
}

static void say_exit(uint32_t stream, uint8_t code, uint8_t sig, uint8_t killed)
{
    const uint8_t payload[20] = {code, sig, killed};

    say(WIRE_EXIT, 0, stream, payload, sizeof(payload));
}

static void expect(unsigned type, struct wire_frame *frame)
{
    struct error err = ERROR_INIT;
    ssize_t len = recv(guest, guest_rx, sizeof(guest_rx), MSG_DONTWAIT);

    ck_assert_msg(len > 0, "nothing but %s was to come", wire_type_name(type));
    ck_assert_msg(wire_decode(guest_rx, (size_t)len, WIRE_TO_GUEST, frame, &err) == 0, "%s",
                  err.detail);
    ck_assert_str_eq(wire_type_name(frame->type), wire_type_name(type));
}

static void expect_silence(void)
{
    ck_assert_int_eq(recv(guest, guest_rx, sizeof(guest_rx), MSG_DONTWAIT), -1);
}

static void setup(void)
{
    struct error err = ERROR_INIT;
    struct wire_frame frame;
    int fds[2];

    memset(&seen, 0, sizeof(seen));
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    guest = fds[1];
    loop = loop_new(&err);
    channel = channel_take_over(loop, fds[0], rx, STREAMS_MAX, NONCE, &handler, NULL, &err);
    ck_assert_ptr_nonnull(channel);
    expect(WIRE_RESYNC, &frame);
    ck_assert_uint_eq(wire_get_u64(frame.payload), NONCE);
}

static void teardown(void)
{
    channel_free(channel);
    turn();
    loop_free(loop);
    close(guest);
}

/* One stream, number 5, uuid 1. */
static void resync_one(unsigned flags)
{
    struct wire_live live = live_of(1, flags);

    say_resynced(NONCE, WIRE_VERSION, 1);
    say_live(5, &live);
    turn();
    ck_assert_int_eq(seen.resynced, 1);
}

static bool find(uint8_t number, struct channel_found *found)
{
    const uint8_t uuid[WIRE_UUID_SIZE] = {number};

    return channel_find(channel, uuid, found);
}

static void expect_credits(uint32_t stream)
{
    struct wire_frame frame;

    for (unsigned ch = WIRE_STDOUT; ch <= WIRE_STDERR; ch++) {
        expect(WIRE_CREDIT, &frame);
        ck_assert_uint_eq(frame.stream, stream);
        ck_assert_uint_eq(frame.channel, ch);
        ck_assert_uint_eq(wire_get_u32(frame.payload), CHANNEL_WINDOW);
    }
}

/* --- tests ---------------------------------------------------------------------------------- */

START_TEST(what_was_meant_for_the_former_daemon_is_dropped)
{
    const uint8_t pong[8] = {9};
    struct wire_live live = live_of(1, 0);

    say(WIRE_READY, 0, 0, NULL, 0);
    say(WIRE_PONG, 0, 0, pong, sizeof(pong));
    say(WIRE_DATA, WIRE_STDOUT, 3, "x", 1);
    say_exit(3, 0, 0, 0);
    say_resynced(NONCE - 1, WIRE_VERSION, 1);
    say_live(4, &live);
    turn();
    ck_assert_int_eq(seen.resynced, 0);
    say_resynced(NONCE, WIRE_VERSION, 0);
    turn();
    ck_assert_int_eq(seen.resynced, 1);
    ck_assert_int_eq(seen.ends + seen.pongs, 0);
}
END_TEST

START_TEST(a_claimed_stream_goes_on)
{
    struct channel_found found;

    resync_one(0);
    expect_silence(); /* no credit for what nobody claims */
    ck_assert(!find(2, &found));
    ck_assert(find(1, &found));
    ck_assert_ptr_nonnull(found.stream);
    ck_assert_uint_eq(found.stdout_bytes, 1000);
    ck_assert_uint_eq(found.stderr_bytes, 2000);
    ck_assert(!found.takes_input && !found.killed);
    channel_claim(found.stream, NULL, &stream_handler, NULL);
    ck_assert(!find(1, &found));
    expect_credits(5);
    say(WIRE_DATA, WIRE_STDOUT, 5, "more", 4);
    say_exit(5, 3, 0, 0);
    turn();
    ck_assert_uint_eq(seen.bytes, 4);
    ck_assert_int_eq(seen.exits, 1);
    ck_assert_uint_eq(seen.exit.code, 3);
    ck_assert_int_eq(seen.ends, 0);
}
END_TEST

START_TEST(new_streams_have_new_numbers)
{
    static const uint8_t uuid[WIRE_UUID_SIZE] = {50};
    struct buf spec = BUF_INIT(0);
    struct error err = ERROR_INIT;
    struct wire_frame frame;

    resync_one(0);
    buf_append_str(&spec, "spec");
    ck_assert_ptr_nonnull(channel_exec(channel, uuid, &spec, NULL, &stream_handler, NULL, &err));
    expect(WIRE_EXEC, &frame);
    ck_assert_uint_eq(frame.stream, 6);
    ck_assert_mem_eq(frame.payload + 12, uuid, sizeof(uuid));
}
END_TEST

START_TEST(stdin_is_sent_from_where_it_stopped)
{
    struct wire_live live = live_of(1, WIRE_LIVE_STDIN);
    struct buf input = BUF_INIT(0);
    struct channel_found found;
    struct wire_frame frame;

    live.stdin_bytes = 4;
    say_resynced(NONCE, WIRE_VERSION, 1);
    say_live(5, &live);
    say_u32(WIRE_CREDIT, WIRE_STDIN, 5, 100); /* before anybody claims it */
    turn();
    expect_silence();
    ck_assert(find(1, &found));
    ck_assert(found.takes_input);
    ck_assert_uint_eq(found.stdin_bytes, 4);
    buf_append_str(&input, "sent rest");
    channel_claim(found.stream, &input, &stream_handler, NULL);
    ck_assert_uint_eq(channel_outgoing_bytes(channel), 0);
    expect_credits(5);
    expect(WIRE_DATA, &frame);
    ck_assert_uint_eq(frame.payload_len, 5);
    ck_assert_mem_eq(frame.payload, " rest", 5);
    expect(WIRE_EOF, &frame);
    expect_silence();
}
END_TEST

START_TEST(only_eof_was_missing)
{
    struct wire_live live = live_of(1, WIRE_LIVE_STDIN);
    struct buf input = BUF_INIT(0);
    struct channel_found found;
    struct wire_frame frame;

    live.stdin_bytes = 4;
    say_resynced(NONCE, WIRE_VERSION, 1);
    say_live(5, &live);
    turn();
    ck_assert(find(1, &found));
    buf_append_str(&input, "sent");
    channel_claim(found.stream, &input, &stream_handler, NULL);
    expect_credits(5);
    expect(WIRE_EOF, &frame);
    expect_silence();
}
END_TEST

START_TEST(ended_channels_get_no_credit)
{
    struct channel_found found;
    struct wire_frame frame;

    resync_one(WIRE_LIVE_STDOUT_EOF);
    ck_assert(find(1, &found));
    channel_claim(found.stream, NULL, &stream_handler, NULL);
    expect(WIRE_CREDIT, &frame);
    ck_assert_uint_eq(frame.channel, WIRE_STDERR);
    expect_silence();
    say(WIRE_DATA, WIRE_STDOUT, 5, "x", 1);
    turn();
    ck_assert_int_eq(seen.end, CHANNEL_VIOLATED);
}
END_TEST

START_TEST(what_was_starting_may_start_or_fail)
{
    struct wire_live live = live_of(1, 0);
    const uint8_t failed[5] = {0, 0, 0, ENOENT, WIRE_STEP_EXEC};
    struct channel_found found;

    live.state = WIRE_LIVE_STARTING;
    live.pid = 0;
    say_resynced(NONCE, WIRE_VERSION, 2);
    say_live(5, &live);
    live.uuid[0] = 2;
    say_live(6, &live);
    turn();
    ck_assert(find(1, &found));
    channel_claim(found.stream, NULL, &stream_handler, NULL);
    say_u32(WIRE_STARTED, 0, 5, 44);
    say(WIRE_FAILED, 0, 6, failed, sizeof(failed)); /* nobody claimed this one yet */
    turn();
    ck_assert_int_eq(seen.started, 1);
    ck_assert(find(2, &found));
    ck_assert_ptr_null(found.stream);
    ck_assert(found.failed);
    ck_assert_int_eq(found.errno_value, ENOENT);
    ck_assert_int_eq(found.step, WIRE_STEP_EXEC);
    ck_assert_int_eq(seen.ends, 0);
}
END_TEST

START_TEST(ends_before_and_meanwhile_are_found)
{
    const uint8_t exited[20] = {7};
    struct wire_live live = live_of(2, WIRE_LIVE_KILLED);
    struct channel_found found;

    say_resynced(NONCE, WIRE_VERSION, 2);
    say_over(3, 1, WIRE_EXIT, exited, sizeof(exited));
    say_live(4, &live);
    turn();
    say_exit(4, 0, 9, 1);
    turn();
    ck_assert(find(1, &found));
    ck_assert_ptr_null(found.stream);
    ck_assert(!found.failed);
    ck_assert_uint_eq(found.exit.code, 7);
    ck_assert_uint_eq(found.stdout_bytes, 10);
    ck_assert_uint_eq(found.stderr_bytes, 20);
    ck_assert(find(2, &found));
    ck_assert_ptr_null(found.stream);
    ck_assert_uint_eq(found.exit.signal, 9);
    ck_assert(found.exit.killed);
    ck_assert_uint_eq(found.stdout_bytes, 1000);
    ck_assert_int_eq(seen.ends + seen.exits, 0);
}
END_TEST

static bool is_two(void *arg, const uint8_t uuid[WIRE_UUID_SIZE])
{
    (void)arg;
    return uuid[0] == 2;
}

START_TEST(what_nobody_claims_is_killed)
{
    struct wire_live live = live_of(1, WIRE_LIVE_STDIN);
    struct channel_found found;
    struct wire_frame frame;

    say_resynced(NONCE, WIRE_VERSION, 2);
    say_live(5, &live);
    live.uuid[0] = 2;
    say_live(6, &live);
    turn();
    ck_assert_uint_eq(channel_kill_strays(channel, is_two, NULL), 1);
    ck_assert_uint_eq(channel_kill_strays(channel, is_two, NULL), 0);
    expect(WIRE_KILL, &frame);
    ck_assert_uint_eq(frame.stream, 5);
    ck_assert_uint_eq(wire_get_u32(frame.payload), 0);
    expect_credits(5); /* so that it can end */
    expect_silence();
    say(WIRE_DATA, WIRE_STDOUT, 5, "last words", 10);
    say_exit(5, 0, 9, 1);
    turn();
    ck_assert_int_eq(seen.exits + seen.ends + (int)seen.bytes, 0);
    ck_assert(!find(1, &found));
    ck_assert(find(2, &found));
}
END_TEST

START_TEST(a_claimed_stream_is_lost_with_its_channel_and_an_unclaimed_one_is_not_told)
{
    struct wire_live live = live_of(1, 0);
    struct channel_found found;

    say_resynced(NONCE, WIRE_VERSION, 2);
    say_live(5, &live);
    live.uuid[0] = 2;
    say_live(6, &live);
    turn();
    ck_assert(find(1, &found));
    channel_claim(found.stream, NULL, &stream_handler, NULL);
    channel_free(channel);
    channel = NULL;
    ck_assert_int_eq(seen.lost, 1);
}
END_TEST

START_TEST(another_version_is_no_violation)
{
    say_resynced(NONCE, WIRE_VERSION + 1, 3);
    turn();
    ck_assert_int_eq(seen.ends, 1);
    ck_assert_int_eq(seen.end, CHANNEL_FOREIGN);
    ck_assert_int_eq(seen.resynced, 0);
}
END_TEST

enum breach {
    COUNT_TOO_LARGE,
    NUMBER_TAKEN,
    NO_SUCH_STATE,
    NO_SUCH_EXIT,
    NO_SUCH_FAILURE,
    OTHER_FRAME,
    LIVE_AFTERWARDS,
    RESYNCED_AGAIN,
    DATA_WITHOUT_CREDIT,
    KILLED_WITHOUT_KILL,
    BREACHES
};

START_TEST(a_list_that_cannot_be_ends_the_channel)
{
    struct wire_live live = live_of(1, 0);
    const uint8_t signal_65[20] = {0, 65};
    const uint8_t no_errno[5] = {0, 0, 0, 0, WIRE_STEP_EXEC};

    say_resynced(NONCE, WIRE_VERSION,
                 _i == COUNT_TOO_LARGE  ? WIRE_STREAMS_MAX + WIRE_OVERS_MAX + 1
                 : _i < LIVE_AFTERWARDS ? 2
                                        : 1);
    if (_i == NO_SUCH_STATE)
        live.state = (enum wire_live_state)9;
    if (_i != COUNT_TOO_LARGE)
        say_live(5, &live);
    if (_i == NUMBER_TAKEN || _i == LIVE_AFTERWARDS)
        say_live(5 + WIRE_STREAMS_MAX * (_i == NUMBER_TAKEN), &live);
    if (_i == NO_SUCH_EXIT)
        say_over(6, 2, WIRE_EXIT, signal_65, sizeof(signal_65));
    if (_i == NO_SUCH_FAILURE)
        say_over(6, 2, WIRE_FAILED, no_errno, sizeof(no_errno));
    if (_i == OTHER_FRAME)
        say(WIRE_EOF, WIRE_STDOUT, 5, NULL, 0);
    if (_i == RESYNCED_AGAIN)
        say_resynced(NONCE, WIRE_VERSION, 0);
    if (_i == DATA_WITHOUT_CREDIT)
        say(WIRE_DATA, WIRE_STDOUT, 5, "x", 1);
    if (_i == KILLED_WITHOUT_KILL)
        say_exit(5, 0, 9, 1);
    turn();
    ck_assert_int_eq(seen.ends, 1);
    ck_assert_int_eq(seen.end, CHANNEL_VIOLATED);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("channel_takeover");
    TCase *tc = tcase_create("channel_takeover");
    SRunner *runner;
    int failed;

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, what_was_meant_for_the_former_daemon_is_dropped);
    tcase_add_test(tc, a_claimed_stream_goes_on);
    tcase_add_test(tc, new_streams_have_new_numbers);
    tcase_add_test(tc, stdin_is_sent_from_where_it_stopped);
    tcase_add_test(tc, only_eof_was_missing);
    tcase_add_test(tc, ended_channels_get_no_credit);
    tcase_add_test(tc, what_was_starting_may_start_or_fail);
    tcase_add_test(tc, ends_before_and_meanwhile_are_found);
    tcase_add_test(tc, what_nobody_claims_is_killed);
    tcase_add_test(tc, a_claimed_stream_is_lost_with_its_channel_and_an_unclaimed_one_is_not_told);
    tcase_add_test(tc, another_version_is_no_violation);
    tcase_add_loop_test(tc, a_list_that_cannot_be_ends_the_channel, 0, BREACHES);
    suite_add_tcase(suite, tc);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
