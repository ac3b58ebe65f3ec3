/*
 * The channel against a scripted guest at the other end of a socket pair: the
 * handshake, credit both ways, turns among streams, and every violation, each
 * of which must end the channel once and nothing else.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/channel.h"

#define MAX_STREAMS 8u

struct record {
    int hello, ready, pong, ended;
    uint32_t version;
    enum channel_end end;
    char detail[512];
    int started, exited, failed, lost;
    struct channel_exit result;
    enum wire_step step;
    int errno_value;
    size_t out, err;
};

static struct loop *loop;
static struct channel *channel;
static int guest = -1;
static struct record seen;
static uint8_t rx[WIRE_FRAME_MAX];
static uint8_t guest_rx[WIRE_FRAME_MAX];

/* --- the host's side ----------------------------------------------------------------------- */

static void on_hello(void *arg, uint32_t version)
{
    (void)arg;
    seen.hello++;
    seen.version = version;
}

static void on_ready(void *arg)
{
    (void)arg;
    seen.ready++;
}

static void on_pong(void *arg)
{
    (void)arg;
    seen.pong++;
}

static void on_end(void *arg, enum channel_end end, const struct error *err)
{
    (void)arg;
    seen.ended++;
    seen.end = end;
    snprintf(seen.detail, sizeof(seen.detail), "%s", err->detail);
}

static const struct channel_handler handler = {
    .on_hello = on_hello, .on_ready = on_ready, .on_pong = on_pong, .on_end = on_end};

static void on_started(void *arg)
{
    (void)arg;
    seen.started++;
}

static void on_data(void *arg, enum wire_channel ch, const void *data, size_t len)
{
    (void)arg;
    (void)data;
    *(ch == WIRE_STDOUT ? &seen.out : &seen.err) += len;
}

static void on_exit_result(void *arg, const struct channel_exit *result)
{
    (void)arg;
    seen.exited++;
    seen.result = *result;
}

static void on_failed(void *arg, enum wire_step step, int errno_value)
{
    (void)arg;
    seen.failed++;
    seen.step = step;
    seen.errno_value = errno_value;
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
    loop_stop(arg);
}

/* Lets the loop see all that lies in the socket: everything here is in one process, so a few turns
 * are enough. */
static void turn(void)
{
    struct loop_timer *timer = loop_timer_new(loop, stop, loop);

    for (int i = 0; i < 6; i++) {
        ck_assert_int_eq(loop_timer_arm(timer, 0), 0);
        loop_run(loop);
    }
    loop_timer_free(timer);
}

/* --- the guest's side ---------------------------------------------------------------------- */

static void say(unsigned type, uint8_t ch, uint32_t stream, const void *payload, size_t len)
{
    static uint8_t frame[WIRE_FRAME_MAX + 64];

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

static void say_data(uint8_t ch, uint32_t stream, size_t len)
{
    static const uint8_t zeros[WIRE_PAYLOAD_MAX];

    say(WIRE_DATA, ch, stream, zeros, len);
}

static void say_exit(uint32_t stream, uint8_t code, uint8_t sig, uint8_t killed, uint8_t last)
{
    uint8_t payload[20] = {code, sig, killed, last};

    wire_put_u64(payload + 4, 1234);
    say(WIRE_EXIT, 0, stream, payload, sizeof(payload));
}

static void say_failed(uint32_t stream, uint32_t errno_value, uint8_t step)
{
    uint8_t payload[5];

    wire_put_u32(payload, errno_value);
    payload[4] = step;
    say(WIRE_FAILED, 0, stream, payload, sizeof(payload));
}

/* The next frame from the host; false when there is none. */
static bool hear(struct wire_frame *frame)
{
    struct error err = ERROR_INIT;
    ssize_t len = recv(guest, guest_rx, sizeof(guest_rx), MSG_DONTWAIT);

    if (len <= 0)
        return false;
    ck_assert_msg(wire_decode(guest_rx, (size_t)len, WIRE_TO_GUEST, frame, &err) == 0, "%s",
                  err.detail);
    return true;
}

static void expect(unsigned type, struct wire_frame *frame)
{
    ck_assert_msg(hear(frame), "no frame, %s expected", wire_type_name(type));
    ck_assert_msg(frame->type == type, "%s came, %s expected", wire_type_name(frame->type),
                  wire_type_name(type));
}

static void expect_silence(void)
{
    struct wire_frame frame;

    ck_assert_msg(!hear(&frame), "an unexpected frame");
}

/* --- set-up -------------------------------------------------------------------------------- */

static void setup(void)
{
    struct error err = ERROR_INIT;
    int fds[2];

    memset(&seen, 0, sizeof(seen));
    loop = loop_new(&err);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    guest = fds[1];
    channel = channel_new(loop, fds[0], rx, MAX_STREAMS, &handler, NULL, &err);
    ck_assert_ptr_nonnull(channel);
}

static void teardown(void)
{
    channel_free(channel);
    channel = NULL;
    if (guest >= 0)
        close(guest);
    loop_free(loop);
}

static void make_ready(void)
{
    struct buf env = BUF_INIT(0);
    struct error err = ERROR_INIT;
    struct wire_frame frame;

    say_u32(WIRE_HELLO, 0, 0, WIRE_VERSION);
    turn();
    ck_assert_int_eq(seen.hello, 1);
    buf_append(&env, "A=1\0B=2", 8);
    ck_assert_int_eq(channel_setup(channel, 77, 022, &env, &err), 0);
    ck_assert_uint_eq(env.len, 0);
    expect(WIRE_SETUP, &frame);
    ck_assert_uint_eq(frame.payload_len, 16);
    ck_assert_uint_eq(wire_get_u32(frame.payload), 77);
    ck_assert_uint_eq(wire_get_u32(frame.payload + 4), 022);
    ck_assert_int_eq(memcmp(frame.payload + 8, "A=1\0B=2", 8), 0);
    say(WIRE_READY, 0, 0, NULL, 0);
    turn();
    ck_assert_int_eq(seen.ready, 1);
}

/* Opens a stream; its spec has spec_len bytes, its stdin input_len (-1: none). */
static struct channel_stream *open_stream(size_t spec_len, ssize_t input_len)
{
    static const uint8_t uuid[WIRE_UUID_SIZE] = "0123456789abcdef";
    struct buf spec = BUF_INIT(0);
    struct buf input = BUF_INIT(0);
    struct error err = ERROR_INIT;
    struct channel_stream *stream;

    for (size_t i = 0; i < spec_len; i++)
        buf_append_u8(&spec, (uint8_t)(i * 31));
    for (ssize_t i = 0; i < input_len; i++)
        buf_append_u8(&input, (uint8_t)(i * 17));
    stream = channel_exec(channel, uuid, &spec, input_len >= 0 ? &input : NULL, &stream_handler,
                          NULL, &err);
    buf_free(&spec);
    buf_free(&input);
    return stream;
}

/* A stream whose EXEC and SPEC the guest has read. */
static uint32_t running_stream(ssize_t input_len)
{
    struct wire_frame frame;
    uint32_t id;

    ck_assert_ptr_nonnull(open_stream(10, input_len));
    expect(WIRE_EXEC, &frame);
    id = frame.stream;
    ck_assert_uint_eq(wire_get_u32(frame.payload), 10);
    ck_assert_uint_eq(wire_get_u32(frame.payload + 4), CHANNEL_WINDOW);
    ck_assert_uint_eq(wire_get_u32(frame.payload + 8), CHANNEL_WINDOW);
    expect(WIRE_SPEC, &frame);
    ck_assert_uint_eq(frame.payload_len, 10);
    say_u32(WIRE_STARTED, 0, id, 42);
    turn();
    ck_assert_int_eq(seen.started, 1);
    return id;
}

static void expect_violation(void)
{
    turn();
    ck_assert_msg(seen.ended == 1 && seen.end == CHANNEL_VIOLATED, "ended=%d end=%d", seen.ended,
                  (int)seen.end);
    ck_assert_str_ne(seen.detail, "");
}

static void expect_no_violation(void)
{
    turn();
    ck_assert_msg(seen.ended == 0, "%s", seen.detail);
}

/* --- what must work ------------------------------------------------------------------------ */

START_TEST(an_execution_from_start_to_exit)
{
    struct wire_frame frame;
    uint32_t id;

    make_ready();
    id = running_stream(-1);
    expect_silence();
    say_data(WIRE_STDOUT, id, 100);
    say_data(WIRE_STDERR, id, 7);
    say(WIRE_EOF, WIRE_STDOUT, id, NULL, 0);
    say(WIRE_EOF, WIRE_STDERR, id, NULL, 0);
    say_exit(id, 3, 0, 0, 0);
    turn();
    ck_assert_uint_eq(seen.out, 100);
    ck_assert_uint_eq(seen.err, 7);
    ck_assert_int_eq(seen.exited, 1);
    ck_assert_uint_eq(seen.result.code, 3);
    ck_assert_uint_eq(seen.result.cpu_us, 1234);
    ck_assert(!seen.result.killed);
    ck_assert_int_eq(seen.ended, 0);
    ck_assert(!hear(&frame));
}
END_TEST

START_TEST(a_refused_execution)
{
    struct wire_frame frame;

    make_ready();
    ck_assert_ptr_nonnull(open_stream(10, -1));
    expect(WIRE_EXEC, &frame);
    say_failed(frame.stream, 2, WIRE_STEP_EXEC);
    expect_no_violation();
    ck_assert_int_eq(seen.failed, 1);
    ck_assert_int_eq(seen.step, WIRE_STEP_EXEC);
    ck_assert_int_eq(seen.errno_value, 2);
}
END_TEST

/* A spec of 16 MiB goes out in pieces as the guest reads, in order, without a byte lost. */
START_TEST(a_large_spec_is_fed_as_it_drains)
{
    enum { LEN = WIRE_SPEC_MAX };
    struct wire_frame frame;
    size_t got = 0;

    make_ready();
    ck_assert_ptr_nonnull(open_stream(LEN, -1));
    expect(WIRE_EXEC, &frame);
    ck_assert_uint_eq(wire_get_u32(frame.payload), LEN);
    while (got < LEN) {
        if (!hear(&frame)) {
            ck_assert_uint_ge(channel_outgoing_bytes(channel), 1);
            turn();
            continue;
        }
        ck_assert_int_eq(frame.type, WIRE_SPEC);
        for (size_t i = 0; i < frame.payload_len; i += 1021)
            ck_assert_uint_eq(frame.payload[i], (uint8_t)((got + i) * 31));
        got += frame.payload_len;
    }
    turn();
    ck_assert_uint_eq(got, LEN);
    ck_assert_uint_eq(channel_outgoing_bytes(channel), 0);
    expect_silence();
}
END_TEST

START_TEST(stdin_keeps_to_the_guests_credit)
{
    struct wire_frame frame;
    uint32_t id;
    size_t got = 0;

    make_ready();
    id = running_stream(100000);
    expect_silence(); /* no credit yet */
    say_u32(WIRE_CREDIT, WIRE_STDIN, id, 10);
    turn();
    expect(WIRE_DATA, &frame);
    ck_assert_uint_eq(frame.payload_len, 10);
    ck_assert_uint_eq(frame.channel, WIRE_STDIN);
    ck_assert_uint_eq(frame.payload[9], (uint8_t)(9 * 17));
    expect_silence();
    say_u32(WIRE_CREDIT, WIRE_STDIN, id, 500000);
    turn();
    for (got = 10; got < 100000; got += frame.payload_len) {
        expect(WIRE_DATA, &frame);
        ck_assert_uint_eq(frame.payload[0], (uint8_t)(got * 17));
    }
    ck_assert_uint_eq(got, 100000);
    expect(WIRE_EOF, &frame);
    ck_assert_uint_eq(frame.channel, WIRE_STDIN);
    expect_silence();
    say_u32(WIRE_CREDIT, WIRE_STDIN, id, 10); /* under way when EOF was sent */
    expect_no_violation();
    expect_silence();
}
END_TEST

START_TEST(empty_stdin_ends_at_once)
{
    struct wire_frame frame;

    make_ready();
    running_stream(0);
    expect(WIRE_EOF, &frame);
    expect_silence();
}
END_TEST

/* The guest may grant stdin as soon as it has the whole spec. */
START_TEST(stdin_credit_before_started)
{
    struct wire_frame frame;

    make_ready();
    ck_assert_ptr_nonnull(open_stream(10, 5));
    expect(WIRE_EXEC, &frame);
    expect(WIRE_SPEC, &frame);
    say_u32(WIRE_CREDIT, WIRE_STDIN, frame.stream, 1000);
    expect_no_violation();
    expect(WIRE_DATA, &frame);
    ck_assert_uint_eq(frame.payload_len, 5);
    expect(WIRE_EOF, &frame);
}
END_TEST

START_TEST(credit_comes_back_in_batches)
{
    struct wire_frame frame;
    uint32_t id;

    make_ready();
    id = running_stream(-1);
    say_data(WIRE_STDOUT, id, CHANNEL_WINDOW / 8);
    say_data(WIRE_STDOUT, id, CHANNEL_WINDOW / 8);
    say_data(WIRE_STDOUT, id, CHANNEL_WINDOW / 8);
    turn();
    expect_silence();
    say_data(WIRE_STDOUT, id, CHANNEL_WINDOW / 8);
    turn();
    expect(WIRE_CREDIT, &frame);
    ck_assert_uint_eq(frame.channel, WIRE_STDOUT);
    ck_assert_uint_eq(wire_get_u32(frame.payload), CHANNEL_WINDOW / 2);
    expect_silence();
    /* After EOF nothing is granted any more. */
    say_data(WIRE_STDOUT, id, CHANNEL_WINDOW / 8);
    say_data(WIRE_STDOUT, id, CHANNEL_WINDOW / 8);
    say_data(WIRE_STDOUT, id, CHANNEL_WINDOW / 8);
    say_data(WIRE_STDOUT, id, CHANNEL_WINDOW / 8);
    say(WIRE_EOF, WIRE_STDOUT, id, NULL, 0);
    turn();
    expect_silence();
    ck_assert_uint_eq(seen.out, CHANNEL_WINDOW);
}
END_TEST

/* With exact accounting output can go on for ever. */
START_TEST(output_beyond_many_windows)
{
    struct wire_frame frame;
    size_t credit = CHANNEL_WINDOW;
    size_t sent = 0;
    uint32_t id;

    make_ready();
    id = running_stream(-1);
    while (sent < (size_t)64 * CHANNEL_WINDOW) {
        size_t len = credit < 60000 ? credit : 60000;

        if (len > 0) {
            say_data(WIRE_STDERR, id, len);
            credit -= len;
            sent += len;
        }
        turn();
        while (hear(&frame)) {
            ck_assert_int_eq(frame.type, WIRE_CREDIT);
            ck_assert_uint_eq(frame.channel, WIRE_STDERR);
            credit += wire_get_u32(frame.payload);
        }
        ck_assert_uint_le(credit, CHANNEL_WINDOW);
    }
    ck_assert_uint_eq(seen.err, sent);
    ck_assert_int_eq(seen.ended, 0);
}
END_TEST

START_TEST(kill_comes_before_the_rest_of_stdin)
{
    struct wire_frame frame;
    struct channel_stream *stream;
    uint32_t id;

    make_ready();
    stream = open_stream(10, 1000);
    expect(WIRE_EXEC, &frame);
    id = frame.stream;
    expect(WIRE_SPEC, &frame);
    channel_kill(stream, 1500);
    channel_kill(stream, 1); /* once is enough */
    expect(WIRE_KILL, &frame);
    ck_assert_uint_eq(wire_get_u32(frame.payload), 1500);
    expect_silence();
    say_u32(WIRE_STARTED, 0, id, 9);
    say_u32(WIRE_CREDIT, WIRE_STDIN, id, 9999);
    turn();
    expect_silence();
    say_exit(id, 0, 15, 1, 0);
    expect_no_violation();
    ck_assert_int_eq(seen.exited, 1);
    ck_assert(seen.result.killed);
    ck_assert_uint_eq(seen.result.signal, 15);
}
END_TEST

/* KILL crosses EXIT: the guest ended it by itself and says so. */
START_TEST(exit_that_crosses_kill)
{
    struct wire_frame frame;
    struct channel_stream *stream;
    uint32_t id;

    make_ready();
    stream = open_stream(10, -1);
    expect(WIRE_EXEC, &frame);
    id = frame.stream;
    say_u32(WIRE_STARTED, 0, id, 9);
    say_exit(id, 0, 0, 0, 0);
    channel_kill(stream, 10);
    expect_no_violation();
    ck_assert_int_eq(seen.exited, 1);
    ck_assert(!seen.result.killed);
}
END_TEST

/* KILL waits until all of the spec is out: a guest that reads it earlier could still start. */
START_TEST(kill_waits_for_the_spec)
{
    struct wire_frame frame;
    struct channel_stream *stream;
    size_t got = 0;

    make_ready();
    stream = open_stream(1 << 20, -1);
    channel_kill(stream, 10);
    expect(WIRE_EXEC, &frame);
    while (got < 1 << 20) {
        if (!hear(&frame)) {
            turn();
            continue;
        }
        ck_assert_int_eq(frame.type, WIRE_SPEC);
        got += frame.payload_len;
    }
    turn();
    expect(WIRE_KILL, &frame);
}
END_TEST

/* A huge spec of one stream does not hold up another's frames. */
START_TEST(streams_take_turns)
{
    struct wire_frame frame;
    uint32_t first;
    unsigned before = 0;

    make_ready();
    ck_assert_ptr_nonnull(open_stream(8 << 20, -1));
    expect(WIRE_EXEC, &frame);
    first = frame.stream;
    ck_assert_ptr_nonnull(open_stream(10, -1));
    for (;;) {
        if (!hear(&frame)) {
            turn();
            continue;
        }
        if (frame.stream != first)
            break;
        before++;
    }
    ck_assert_int_eq(frame.type, WIRE_EXEC);
    ck_assert_uint_le(before, 8); /* what the socket had taken before */
}
END_TEST

START_TEST(ping_and_pong)
{
    struct wire_frame frame;
    uint8_t nonce[8];

    make_ready();
    ck_assert(channel_ping(channel));
    ck_assert(!channel_ping(channel));
    expect(WIRE_PING, &frame);
    memcpy(nonce, frame.payload, sizeof(nonce));
    say(WIRE_PONG, 0, 0, nonce, sizeof(nonce));
    expect_no_violation();
    ck_assert_int_eq(seen.pong, 1);
    ck_assert(channel_ping(channel));
}
END_TEST

/* A guest that reads nothing: the channel holds what it was given and not a byte more, the number
 * of streams is bounded, and a PING stays unanswered, which is how its owner learns. */
START_TEST(a_stalled_reader)
{
    make_ready();
    for (unsigned i = 0; i < MAX_STREAMS; i++)
        ck_assert_ptr_nonnull(open_stream(1 << 20, 1 << 16));
    ck_assert_ptr_null(open_stream(10, -1));
    ck_assert(channel_ping(channel));
    for (int i = 0; i < 100; i++) {
        turn();
        ck_assert(!channel_ping(channel));
    }
    ck_assert_uint_le(channel_outgoing_bytes(channel),
                      (size_t)MAX_STREAMS * ((1u << 20) + (1u << 16)));
    ck_assert_int_eq(seen.ended, 0);
    ck_assert_int_eq(seen.pong, 0);
}
END_TEST

/* Credit counts when it was sent, not when it was due: without reading, no guest gets more. */
START_TEST(credit_that_was_not_sent_is_no_credit)
{
    uint32_t id;

    make_ready();
    id = running_stream(-1);
    ck_assert_ptr_nonnull(open_stream(1 << 20, -1)); /* fills the socket */
    turn();
    say_data(WIRE_STDOUT, id, 60000);
    say_data(WIRE_STDOUT, id, 60000);
    turn();
    say_data(WIRE_STDOUT, id, 60000);
    say_data(WIRE_STDOUT, id, 60000);
    expect_no_violation();
    say_data(WIRE_STDOUT, id, 60000);
    expect_violation();
}
END_TEST

START_TEST(stream_numbers_come_back_late)
{
    struct wire_frame frame;
    uint32_t last = 0;

    make_ready();
    for (int i = 0; i < 1000; i++) {
        ck_assert_ptr_nonnull(open_stream(1, -1));
        expect(WIRE_EXEC, &frame);
        ck_assert_uint_gt(frame.stream, last);
        last = frame.stream;
        expect(WIRE_SPEC, &frame);
        say_failed(last, 12, WIRE_STEP_FORK);
        turn();
    }
    ck_assert_int_eq(seen.failed, 1000);
}
END_TEST

START_TEST(end_of_file)
{
    make_ready();
    ck_assert_ptr_nonnull(open_stream(10, -1));
    close(guest);
    guest = -1;
    turn();
    ck_assert_int_eq(seen.ended, 1);
    ck_assert_int_eq(seen.end, CHANNEL_CLOSED);
    ck_assert_int_eq(seen.lost, 0);
    ck_assert_ptr_null(open_stream(10, -1));
    ck_assert(!channel_ping(channel));
    channel_free(channel);
    channel = NULL;
    ck_assert_int_eq(seen.lost, 1); /* the owner's end of it ends the streams */
}
END_TEST

/* A guest that ends without having read all of ours: its own last frames count. */
START_TEST(last_frames_before_the_end)
{
    struct wire_frame frame;

    make_ready();
    ck_assert_ptr_nonnull(open_stream(1 << 20, -1));
    expect(WIRE_EXEC, &frame);
    say_failed(frame.stream, 12, WIRE_STEP_SPEC);
    close(guest);
    guest = -1;
    turn();
    ck_assert_int_eq(seen.failed, 1);
    ck_assert_int_eq(seen.ended, 1);
    ck_assert_int_eq(seen.end, CHANNEL_CLOSED);
}
END_TEST

START_TEST(a_setup_too_large_is_refused)
{
    struct buf env = BUF_INIT(0);
    struct error err = ERROR_INIT;

    say_u32(WIRE_HELLO, 0, 0, WIRE_VERSION);
    turn();
    ck_assert_ptr_nonnull(buf_reserve(&env, WIRE_PAYLOAD_MAX));
    memset(env.data, 'x', WIRE_PAYLOAD_MAX);
    env.len = WIRE_PAYLOAD_MAX - 7;
    ck_assert_int_eq(channel_setup(channel, 1, 0, &env, &err), -1);
    ck_assert_int_eq(err.code, ERR_LIMIT_EXCEEDED);
    env.len = WIRE_PAYLOAD_MAX - 8;
    ck_assert_int_eq(channel_setup(channel, 1, 0, &env, &err), 0);
    buf_free(&env);
}
END_TEST

/* --- violations ---------------------------------------------------------------------------- */

/* Each is one guest of its own. `id` is a running stream with stdin; `spec` one whose EXEC went
 * out, with its whole spec. */
enum violation {
    SECOND_HELLO,
    READY_TWICE,
    PONG_WITHOUT_PING,
    PONG_OF_ANOTHER,
    PONG_TWICE,
    STARTED_TWICE,
    STARTED_PROCESS_0,
    STARTED_ON_UNKNOWN,
    DATA_ON_UNKNOWN,
    DATA_BEFORE_STARTED,
    DATA_ON_STDIN,
    DATA_AFTER_EOF,
    DATA_AFTER_EXIT,
    DATA_BEYOND_CREDIT,
    DATA_BEYOND_CREDIT_IN_A_FRAME,
    EOF_TWICE,
    EOF_ON_STDIN,
    EOF_BEFORE_STARTED,
    CREDIT_ON_STDOUT,
    CREDIT_OF_NOTHING,
    CREDIT_OVERFLOW,
    EXIT_BEFORE_STARTED,
    EXIT_TWICE,
    EXIT_KILLED_UNASKED,
    EXIT_BAD_SIGNAL,
    EXIT_BAD_FLAG,
    EXIT_BAD_PADDING,
    FAILED_AFTER_STARTED,
    FAILED_ERRNO_0,
    FAILED_BAD_STEP,
    FAILED_TWICE,
    FRAME_FOR_THE_GUEST,
    UNKNOWN_TYPE,
    SHORT_FRAME,
    OVERSIZE,
    STREAM_0_DATA,
    HELLO_ON_A_STREAM,
    VIOLATION_COUNT
};

static void pong(uint64_t nonce)
{
    uint8_t payload[8];

    wire_put_u64(payload, nonce);
    say(WIRE_PONG, 0, 0, payload, sizeof(payload));
}

static void ping(uint64_t *nonce)
{
    struct wire_frame frame;

    ck_assert(channel_ping(channel));
    expect(WIRE_PING, &frame);
    *nonce = wire_get_u64(frame.payload);
}

static void say_raw(size_t len)
{
    static uint8_t raw[WIRE_FRAME_MAX + 1];

    wire_header(raw, WIRE_DATA, 1, 1);
    ck_assert_int_eq(send(guest, raw, len, MSG_NOSIGNAL), (ssize_t)len);
}

/* Sends len bytes while the host has more to send than the socket takes, so that no CREDIT goes
 * out. */
static void spend_window(uint8_t ch, uint32_t id, size_t len)
{
    ck_assert_ptr_nonnull(open_stream(1 << 20, -1));
    turn();
    while (len > 0) {
        size_t piece = len < 60000 ? len : 60000;

        say_data(ch, id, piece);
        len -= piece;
        expect_no_violation();
    }
}

static void violate_control(enum violation what)
{
    uint64_t nonce;

    if (what == SECOND_HELLO) {
        say_u32(WIRE_HELLO, 0, 0, WIRE_VERSION);
    } else if (what == READY_TWICE) {
        say(WIRE_READY, 0, 0, NULL, 0);
    } else if (what == PONG_WITHOUT_PING) {
        pong(1);
    } else if (what == PONG_OF_ANOTHER) {
        ping(&nonce);
        pong(nonce + 1);
    } else if (what == PONG_TWICE) {
        ping(&nonce);
        pong(nonce);
        pong(nonce);
    }
}

static void violate_stream(enum violation what, uint32_t id, uint32_t spec)
{
    switch ((int)what) {
    case STARTED_TWICE:
        say_u32(WIRE_STARTED, 0, id, 5);
        break;
    case STARTED_PROCESS_0:
        say_u32(WIRE_STARTED, 0, spec, 0);
        break;
    case STARTED_ON_UNKNOWN:
        say_u32(WIRE_STARTED, 0, 999, 5);
        break;
    case DATA_ON_UNKNOWN:
        say_data(WIRE_STDOUT, 999, 1);
        break;
    case DATA_BEFORE_STARTED:
        say_data(WIRE_STDOUT, spec, 1);
        break;
    case DATA_ON_STDIN:
        say_data(WIRE_STDIN, id, 1);
        break;
    case DATA_AFTER_EOF:
        say(WIRE_EOF, WIRE_STDOUT, id, NULL, 0);
        say_data(WIRE_STDOUT, id, 1);
        break;
    case DATA_AFTER_EXIT:
        say_exit(id, 0, 0, 0, 0);
        say_data(WIRE_STDOUT, id, 1);
        break;
    case DATA_BEYOND_CREDIT: /* by one byte */
        spend_window(WIRE_STDOUT, id, CHANNEL_WINDOW);
        say_data(WIRE_STDOUT, id, 1);
        break;
    case DATA_BEYOND_CREDIT_IN_A_FRAME:
        spend_window(WIRE_STDERR, id, CHANNEL_WINDOW - 10);
        say_data(WIRE_STDERR, id, 11);
        break;
    case EOF_TWICE:
        say(WIRE_EOF, WIRE_STDERR, id, NULL, 0);
        say(WIRE_EOF, WIRE_STDERR, id, NULL, 0);
        break;
    case EOF_ON_STDIN:
        say(WIRE_EOF, WIRE_STDIN, id, NULL, 0);
        break;
    case EOF_BEFORE_STARTED:
        say(WIRE_EOF, WIRE_STDOUT, spec, NULL, 0);
        break;
    case CREDIT_ON_STDOUT:
        say_u32(WIRE_CREDIT, WIRE_STDOUT, id, 1);
        break;
    case CREDIT_OF_NOTHING:
        say_u32(WIRE_CREDIT, WIRE_STDIN, id, 0);
        break;
    case CREDIT_OVERFLOW:
        say_u32(WIRE_CREDIT, WIRE_STDIN, id, 1u << 30);
        say_u32(WIRE_CREDIT, WIRE_STDIN, id, UINT32_MAX);
        break;
    default:
        break;
    }
}

static void violate_end(enum violation what, uint32_t id, uint32_t spec)
{
    switch ((int)what) {
    case EXIT_BEFORE_STARTED:
        say_exit(spec, 0, 0, 0, 0);
        break;
    case EXIT_TWICE:
        say_exit(id, 0, 0, 0, 0);
        say_exit(id, 0, 0, 0, 0);
        break;
    case EXIT_KILLED_UNASKED:
        say_exit(id, 0, 9, 1, 0);
        break;
    case EXIT_BAD_SIGNAL:
        say_exit(id, 0, 65, 0, 0);
        break;
    case EXIT_BAD_FLAG:
        say_exit(id, 0, 0, 2, 0);
        break;
    case EXIT_BAD_PADDING:
        say_exit(id, 0, 0, 0, 1);
        break;
    case FAILED_AFTER_STARTED:
        say_failed(id, 2, WIRE_STEP_EXEC);
        break;
    case FAILED_ERRNO_0:
        say_failed(spec, 0, WIRE_STEP_EXEC);
        break;
    case FAILED_BAD_STEP:
        say_failed(spec, 2, 6);
        break;
    case FAILED_TWICE:
        say_failed(spec, 2, WIRE_STEP_EXEC);
        say_failed(spec, 2, WIRE_STEP_EXEC);
        break;
    case FRAME_FOR_THE_GUEST:
        say_u32(WIRE_KILL, 0, id, 1);
        break;
    case UNKNOWN_TYPE:
        say(200, 0, id, NULL, 0);
        break;
    case SHORT_FRAME:
        say_raw(5);
        break;
    case OVERSIZE:
        say_raw(WIRE_FRAME_MAX + 1);
        break;
    case STREAM_0_DATA:
        say_data(WIRE_STDOUT, 0, 1);
        break;
    case HELLO_ON_A_STREAM:
        say_u32(WIRE_HELLO, 0, id, WIRE_VERSION);
        break;
    default:
        break;
    }
}

START_TEST(every_violation_ends_the_channel)
{
    struct wire_frame frame;
    uint32_t id;
    uint32_t spec;

    make_ready();
    id = running_stream(1000);
    ck_assert_ptr_nonnull(open_stream(10, -1));
    expect(WIRE_EXEC, &frame);
    spec = frame.stream;
    expect(WIRE_SPEC, &frame);
    expect_no_violation();
    violate_control((enum violation)_i);
    violate_stream((enum violation)_i, id, spec);
    violate_end((enum violation)_i, id, spec);
    expect_violation();
    /* Nothing is heard of it any more, nothing is sent to it. */
    ck_assert(!channel_ping(channel));
    ck_assert_ptr_null(open_stream(10, -1));
    if (_i != OVERSIZE && _i != SHORT_FRAME)
        say_u32(WIRE_HELLO, 0, 0, WIRE_VERSION);
    turn();
    ck_assert_int_eq(seen.ended, 1);
    while (hear(&frame))
        ck_assert_int_ne(frame.type, WIRE_PING);
}
END_TEST

/* Before HELLO was answered nothing but HELLO is allowed. */
START_TEST(violations_of_the_handshake)
{
    struct wire_frame frame;
    struct buf env = BUF_INIT(0);
    struct error err = ERROR_INIT;

    if (_i == 0) {
        say(WIRE_READY, 0, 0, NULL, 0);
    } else if (_i == 1) {
        say_data(WIRE_STDOUT, 1, 1);
    } else {
        say_u32(WIRE_HELLO, 0, 0, WIRE_VERSION);
        if (_i == 2)
            say(WIRE_READY, 0, 0, NULL, 0); /* SETUP was not sent yet */
        turn();
        if (_i == 3) {
            ck_assert_int_eq(channel_setup(channel, 1, 0, &env, &err), 0);
            expect(WIRE_SETUP, &frame);
            say_u32(WIRE_STARTED, 0, 1, 1);
        }
        if (_i == 4)
            say_u32(WIRE_HELLO, 0, 0, WIRE_VERSION);
    }
    expect_violation();
}
END_TEST

/* CREDIT on stdin of a stream that has none. */
START_TEST(credit_without_stdin)
{
    uint32_t id;

    make_ready();
    id = running_stream(-1);
    say_u32(WIRE_CREDIT, WIRE_STDIN, id, 1);
    expect_violation();
}
END_TEST

/* STARTED while the spec is still being sent. */
START_TEST(started_before_the_spec)
{
    struct wire_frame frame;

    make_ready();
    ck_assert_ptr_nonnull(open_stream(4 << 20, -1));
    expect(WIRE_EXEC, &frame);
    say_u32(WIRE_STARTED, 0, frame.stream, 1);
    expect_violation();
}
END_TEST

/* Descriptors that come along are dropped or refused; never kept. */
START_TEST(descriptors_are_not_taken)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    uint8_t frame[WIRE_HEADER_SIZE];
    struct iovec iov = {.iov_base = frame, .iov_len = sizeof(frame)};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof(control.bytes)};
    struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
    int pipe_fds[2];
    char byte;

    make_ready();
    wire_header(frame, WIRE_READY, 0, 0);
    ck_assert_int_eq(pipe(pipe_fds), 0);
    cmsg->cmsg_level = SOL_SOCKET;
    cmsg->cmsg_type = SCM_RIGHTS;
    cmsg->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(cmsg), &pipe_fds[1], sizeof(int));
    ck_assert_int_eq(sendmsg(guest, &msg, 0), (ssize_t)sizeof(frame));
    close(pipe_fds[1]);
    expect_violation();
    /* The writing end is held by nobody. */
    ck_assert_int_eq(read(pipe_fds[0], &byte, 1), 0);
    close(pipe_fds[0]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("channel");
    TCase *tc = tcase_create("channel");
    SRunner *runner;
    int failed;

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, an_execution_from_start_to_exit);
    tcase_add_test(tc, a_refused_execution);
    tcase_add_test(tc, a_large_spec_is_fed_as_it_drains);
    tcase_add_test(tc, stdin_keeps_to_the_guests_credit);
    tcase_add_test(tc, empty_stdin_ends_at_once);
    tcase_add_test(tc, stdin_credit_before_started);
    tcase_add_test(tc, credit_comes_back_in_batches);
    tcase_add_test(tc, output_beyond_many_windows);
    tcase_add_test(tc, kill_comes_before_the_rest_of_stdin);
    tcase_add_test(tc, exit_that_crosses_kill);
    tcase_add_test(tc, kill_waits_for_the_spec);
    tcase_add_test(tc, streams_take_turns);
    tcase_add_test(tc, ping_and_pong);
    tcase_add_test(tc, a_stalled_reader);
    tcase_add_test(tc, credit_that_was_not_sent_is_no_credit);
    tcase_add_test(tc, stream_numbers_come_back_late);
    tcase_add_test(tc, end_of_file);
    tcase_add_test(tc, last_frames_before_the_end);
    tcase_add_test(tc, a_setup_too_large_is_refused);
    tcase_add_loop_test(tc, every_violation_ends_the_channel, 0, VIOLATION_COUNT);
    tcase_add_loop_test(tc, violations_of_the_handshake, 0, 5);
    tcase_add_test(tc, credit_without_stdin);
    tcase_add_test(tc, started_before_the_spec);
    tcase_add_test(tc, descriptors_are_not_taken);
    suite_add_tcase(suite, tc);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
