/*
 * The frame protocol: every frame type at and beyond each of its bounds, header
 * rules, spec records, and bytes at random. The table is read a second time here;
 * what it must contain is written out by hand where a mistake would be dangerous.
 */
#include <check.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/wire.h"

#define MAX WIRE_PAYLOAD_MAX
enum { RULE_CONTROL, RULE_STREAM };
static const struct {
    const char *name;
    unsigned type;
    enum wire_direction direction;
    int rule;
    size_t min;
    size_t max;
} frames[] = {
#define WIRE_FRAME(sym, value, direction, rule, min, max)                                          \
    {#sym, value, WIRE_##direction, RULE_##rule, min, max},
#include "common/wire_frames.def"
#undef WIRE_FRAME
};
#undef MAX

/* A message in memory of exactly its size, so that the sanitizer sees a read past its end. */
static int decode(unsigned type, unsigned channel, unsigned flags, uint32_t stream,
                  size_t payload_len, enum wire_direction direction)
{
    uint8_t *message = malloc(WIRE_HEADER_SIZE + payload_len);
    struct wire_frame frame;
    struct error err = ERROR_INIT;
    int rc;

    ck_assert_ptr_nonnull(message);
    wire_header(message, (enum wire_type)type, (uint8_t)channel, stream);
    message[2] = (uint8_t)(flags >> 8);
    message[3] = (uint8_t)flags;
    memset(message + WIRE_HEADER_SIZE, 0xa5, payload_len);
    rc = wire_decode(message, WIRE_HEADER_SIZE + payload_len, direction, &frame, &err);
    if (rc == 0) {
        ck_assert_uint_eq(frame.type, type);
        ck_assert_uint_eq(frame.channel, channel);
        ck_assert_uint_eq(frame.stream, stream);
        ck_assert_uint_eq(frame.payload_len, payload_len);
        ck_assert_ptr_eq(frame.payload, message + WIRE_HEADER_SIZE);
    } else {
        ck_assert_int_eq(rc, -1);
        ck_assert_int_eq(err.code, ERR_PROTOCOL);
        ck_assert_str_ne(err.detail, "");
    }
    free(message);
    return rc;
}

static enum wire_direction travels(size_t i)
{
    return frames[i].direction == WIRE_BOTH ? WIRE_TO_HOST : frames[i].direction;
}

static uint32_t stream_of(size_t i)
{
    return frames[i].rule == RULE_STREAM ? 0xdeadbeef : 0;
}

START_TEST(each_type_holds_its_payload_bounds)
{
    size_t i = (size_t)_i;
    unsigned type = frames[i].type;

    ck_assert_int_eq(decode(type, 0, 0, stream_of(i), frames[i].min, travels(i)), 0);
    ck_assert_int_eq(decode(type, 0, 0, stream_of(i), frames[i].max, travels(i)), 0);
    ck_assert_int_eq(decode(type, 0, 0, stream_of(i), frames[i].max + 1, travels(i)), -1);
    if (frames[i].min > 0)
        ck_assert_int_eq(decode(type, 0, 0, stream_of(i), frames[i].min - 1, travels(i)), -1);
}
END_TEST

START_TEST(each_type_travels_only_its_way)
{
    size_t i = (size_t)_i;
    unsigned type = frames[i].type;
    int to_guest = decode(type, 0, 0, stream_of(i), frames[i].min, WIRE_TO_GUEST);
    int to_host = decode(type, 0, 0, stream_of(i), frames[i].min, WIRE_TO_HOST);

    ck_assert_int_eq(to_guest, frames[i].direction == WIRE_TO_HOST ? -1 : 0);
    ck_assert_int_eq(to_host, frames[i].direction == WIRE_TO_GUEST ? -1 : 0);
}
END_TEST

START_TEST(each_type_keeps_its_stream_rule)
{
    size_t i = (size_t)_i;
    bool on_stream = frames[i].rule == RULE_STREAM;
    size_t min = frames[i].min;

    ck_assert_int_eq(decode(frames[i].type, 0, 0, 0, min, travels(i)), on_stream ? -1 : 0);
    ck_assert_int_eq(decode(frames[i].type, 0, 0, 1, min, travels(i)), on_stream ? 0 : -1);
    ck_assert_int_eq(decode(frames[i].type, 0, 0, UINT32_MAX, min, travels(i)), on_stream ? 0 : -1);
}
END_TEST

START_TEST(each_type_keeps_its_channels)
{
    size_t i = (size_t)_i;
    unsigned type = frames[i].type;
    bool has_channel = type == WIRE_DATA || type == WIRE_EOF || type == WIRE_CREDIT;

    for (unsigned channel = 0; channel < 256; channel++) {
        int rc = decode(type, channel, 0, stream_of(i), frames[i].min, travels(i));
        ck_assert_int_eq(rc, channel == 0 || (has_channel && channel <= 2) ? 0 : -1);
    }
}
END_TEST

START_TEST(flags_are_refused)
{
    size_t i = (size_t)_i;

    for (unsigned bit = 0; bit < 16; bit++)
        ck_assert_int_eq(
            decode(frames[i].type, 0, 1u << bit, stream_of(i), frames[i].min, travels(i)), -1);
}
END_TEST

START_TEST(unknown_types_are_refused)
{
    for (unsigned type = 0; type < 256; type++) {
        bool known = false;

        for (size_t i = 0; i < ARRAY_LEN(frames); i++)
            known = known || frames[i].type == type;
        ck_assert_int_eq(strcmp(wire_type_name(type), "?") != 0, known);
        if (!known) {
            for (size_t len = 0; len < 32; len++) {
                ck_assert_int_eq(decode(type, 0, 0, 0, len, WIRE_TO_GUEST), -1);
                ck_assert_int_eq(decode(type, 0, 0, 1, len, WIRE_TO_HOST), -1);
            }
        }
    }
    ck_assert_str_eq(wire_type_name(0), "?");
    ck_assert_str_eq(wire_type_name(1000), "?");
    ck_assert_str_eq(wire_type_name(WIRE_DATA), "DATA");
    ck_assert_str_eq(wire_type_name(WIRE_EOF), "EOF");
}
END_TEST

START_TEST(no_guest_frame_may_start_or_signal)
{
    static const enum wire_type orders[] = {WIRE_SETUP,  WIRE_PING, WIRE_EXEC,  WIRE_SPEC,
                                            WIRE_SIGNAL, WIRE_KILL, WIRE_RESET, WIRE_RESYNC};

    for (size_t i = 0; i < ARRAY_LEN(orders); i++) {
        for (size_t len = 0; len < 64; len++) {
            ck_assert_int_eq(decode(orders[i], 0, 0, 0, len, WIRE_TO_HOST), -1);
            ck_assert_int_eq(decode(orders[i], 0, 0, 7, len, WIRE_TO_HOST), -1);
        }
    }
}
END_TEST

START_TEST(short_and_long_messages_are_refused)
{
    uint8_t *message = calloc(1, WIRE_FRAME_MAX + 1);
    struct wire_frame frame;

    ck_assert_ptr_nonnull(message);
    wire_header(message, WIRE_DATA, WIRE_STDOUT, 1);
    for (size_t len = 0; len <= WIRE_HEADER_SIZE; len++) {
        struct error err = ERROR_INIT;
        uint8_t *exact = malloc(len > 0 ? len : 1);

        ck_assert_ptr_nonnull(exact);
        memcpy(exact, message, len);
        ck_assert_int_eq(wire_decode(exact, len, WIRE_TO_HOST, &frame, &err), -1);
        ck_assert_int_eq(err.code, ERR_PROTOCOL);
        free(exact);
    }
    struct error err = ERROR_INIT;
    ck_assert_int_eq(wire_decode(message, WIRE_FRAME_MAX, WIRE_TO_HOST, &frame, &err), 0);
    ck_assert_uint_eq(frame.payload_len, WIRE_PAYLOAD_MAX);
    ck_assert_int_eq(wire_decode(message, WIRE_FRAME_MAX + 1, WIRE_TO_HOST, &frame, &err), -1);
    free(message);
}
END_TEST

START_TEST(header_bytes_are_as_documented)
{
    static const uint8_t wanted[WIRE_HEADER_SIZE] = {10, 2, 0, 0, 0x01, 0x02, 0x03, 0x04};
    uint8_t header[WIRE_HEADER_SIZE];

    wire_header(header, WIRE_DATA, WIRE_STDERR, 0x01020304);
    ck_assert_mem_eq(header, wanted, sizeof(wanted));
}
END_TEST

START_TEST(integers_are_big_endian)
{
    static const uint8_t wanted[8] = {0xfe, 0xdc, 0xba, 0x98, 0x76, 0x54, 0x32, 0x10};
    uint8_t bytes[8];

    wire_put_u64(bytes, 0xfedcba9876543210u);
    ck_assert_mem_eq(bytes, wanted, 8);
    ck_assert_uint_eq(wire_get_u64(bytes), 0xfedcba9876543210u);
    ck_assert_uint_eq(wire_get_u32(bytes), 0xfedcba98u);
    wire_put_u32(bytes, UINT32_MAX);
    ck_assert_uint_eq(wire_get_u32(bytes), UINT32_MAX);
    wire_put_u32(bytes, 1);
    ck_assert_uint_eq(wire_get_u32(bytes), 1);
}
END_TEST

/* --- spec ------------------------------------------------------------------------------- */

static struct wire_frame frame_of(enum wire_type type, const uint8_t *payload, size_t len)
{
    return (struct wire_frame){.type = type, .stream = 3, .payload = payload, .payload_len = len};
}

START_TEST(live_reads_back_as_written_and_is_checked)
{
    const struct wire_live good = {.uuid = "0123456789abcde",
                                   .pid = 5,
                                   .state = WIRE_LIVE_RUNNING,
                                   .flags = WIRE_LIVE_FLAGS,
                                   .stdout_bytes = INT64_MAX,
                                   .stderr_bytes = 1,
                                   .stdin_bytes = 2};
    static const struct {
        size_t at;
        uint8_t byte;
    } bad[] = {{20, 0}, {20, 4},   {20, 1},   {21, 16}, {22, 1},
               {23, 1}, {24, 128}, {32, 128}, {40, 255}};
    uint8_t bytes[WIRE_LIVE_SIZE];
    struct error err = ERROR_INIT;
    struct wire_live got;
    struct wire_frame frame = frame_of(WIRE_LIVE, bytes, sizeof(bytes));

    wire_live_put(bytes, &good);
    ck_assert_int_eq(wire_live_get(&frame, &got, &err), 0);
    ck_assert_mem_eq(got.uuid, good.uuid, sizeof(good.uuid));
    ck_assert_uint_eq(got.pid, good.pid);
    ck_assert_int_eq(got.state, good.state);
    ck_assert_uint_eq(got.flags, good.flags);
    ck_assert_uint_eq(got.stdout_bytes, good.stdout_bytes);
    ck_assert_uint_eq(got.stderr_bytes, good.stderr_bytes);
    ck_assert_uint_eq(got.stdin_bytes, good.stdin_bytes);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        wire_live_put(bytes, &good);
        bytes[bad[i].at] = bad[i].byte;
        ck_assert_msg(wire_live_get(&frame, &got, &err) == -1, "case %zu", i);
        ck_assert_int_eq(err.code, ERR_PROTOCOL);
    }
}
END_TEST

START_TEST(over_reads_back_as_written_and_is_checked)
{
    static const uint8_t last[20] = {4};
    struct wire_over good = {.uuid = "0123456789abcde",
                             .stdout_bytes = 7,
                             .stderr_bytes = 8,
                             .last = {.type = WIRE_EXIT, .payload = last, .payload_len = 20}};
    static const struct {
        size_t at;
        uint8_t byte;
    } bad[] = {{16, 128}, {24, 128}, {32, WIRE_DATA}, {32, WIRE_FAILED}, {32, 0}, {32, 255}};
    uint8_t bytes[WIRE_OVER_MAX];
    struct error err = ERROR_INIT;
    struct wire_over got;
    size_t len = wire_over_put(bytes, &good);
    struct wire_frame frame = frame_of(WIRE_OVER, bytes, len);

    ck_assert_uint_eq(len, WIRE_OVER_MAX);
    ck_assert_int_eq(wire_over_get(&frame, &got, &err), 0);
    ck_assert_mem_eq(got.uuid, good.uuid, sizeof(good.uuid));
    ck_assert_uint_eq(got.stdout_bytes, 7);
    ck_assert_uint_eq(got.stderr_bytes, 8);
    ck_assert_int_eq(got.last.type, WIRE_EXIT);
    ck_assert_uint_eq(got.last.stream, 3);
    ck_assert_mem_eq(got.last.payload, last, sizeof(last));
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        (void)wire_over_put(bytes, &good);
        bytes[bad[i].at] = bad[i].byte;
        ck_assert_msg(wire_over_get(&frame, &got, &err) == -1, "case %zu", i);
    }
    good.last.type = WIRE_FAILED;
    good.last.payload_len = 5;
    frame.payload_len = wire_over_put(bytes, &good);
    ck_assert_uint_eq(frame.payload_len, 38);
    ck_assert_int_eq(wire_over_get(&frame, &got, &err), 0);
}
END_TEST

START_TEST(a_spec_reads_back_as_written)
{
    _cleanup_buf_ struct buf spec = BUF_INIT(0);
    struct wire_record record;
    struct error err = ERROR_INIT;
    size_t offset = 0;
    static const struct {
        enum wire_spec_tag tag;
        const char *text;
        size_t len;
    } wanted[] = {
        {WIRE_SPEC_ARG, "node", 4},        {WIRE_SPEC_ARG, "", 0},
        {WIRE_SPEC_ENV, "A=", 2},          {WIRE_SPEC_ENV, "PATH=/bin:/usr/bin", 18},
        {WIRE_SPEC_CWD, "/workspace", 10}, {WIRE_SPEC_SCRIPT, "a\0b", 3},
        {WIRE_SPEC_SUFFIX, ".mjs", 4},     {WIRE_SPEC_STDIN, "", 0},
    };

    for (size_t i = 0; i < ARRAY_LEN(wanted); i++)
        ck_assert_int_eq(wire_spec_put(&spec, wanted[i].tag, wanted[i].text, wanted[i].len), 0);
    for (size_t i = 0; i < ARRAY_LEN(wanted); i++) {
        ck_assert_int_eq(wire_spec_next(spec.data, spec.len, &offset, &record, &err), 1);
        ck_assert_int_eq(record.tag, wanted[i].tag);
        ck_assert_uint_eq(record.len, wanted[i].len);
        ck_assert_mem_eq(record.data, wanted[i].text, wanted[i].len);
    }
    ck_assert_uint_eq(offset, spec.len);
    ck_assert_int_eq(wire_spec_next(spec.data, spec.len, &offset, &record, &err), 0);
}
END_TEST

/* One record in memory of exactly its size. */
static int read_record(unsigned tag, const void *data, size_t len)
{
    uint8_t *spec = malloc(5 + len);
    struct wire_record record;
    struct error err = ERROR_INIT;
    size_t offset = 0;
    int rc;

    ck_assert_ptr_nonnull(spec);
    spec[0] = (uint8_t)tag;
    wire_put_u32(spec + 1, (uint32_t)len);
    memcpy(spec + 5, data, len);
    rc = wire_spec_next(spec, 5 + len, &offset, &record, &err);
    if (rc < 0) {
        ck_assert_int_eq(err.code, ERR_PROTOCOL);
        ck_assert_uint_eq(offset, 0);
    }
    free(spec);
    return rc;
}

START_TEST(spec_strings_hold_their_limits)
{
    char *text = malloc(WIRE_ARG_MAX + 1);

    ck_assert_ptr_nonnull(text);
    memset(text, 'x', WIRE_ARG_MAX + 1);
    ck_assert_int_eq(read_record(WIRE_SPEC_ARG, text, WIRE_ARG_MAX - 1), 1);
    ck_assert_int_eq(read_record(WIRE_SPEC_ARG, text, WIRE_ARG_MAX), -1);
    text[1] = '=';
    ck_assert_int_eq(read_record(WIRE_SPEC_ENV, text, WIRE_ARG_MAX - 1), 1);
    ck_assert_int_eq(read_record(WIRE_SPEC_ENV, text, WIRE_ARG_MAX), -1);
    text[0] = '/';
    ck_assert_int_eq(read_record(WIRE_SPEC_CWD, text, 4095), 1);
    ck_assert_int_eq(read_record(WIRE_SPEC_CWD, text, 4096), -1);
    ck_assert_int_eq(read_record(WIRE_SPEC_SCRIPT, text, WIRE_ARG_MAX), 1);
    ck_assert_int_eq(read_record(WIRE_SPEC_SUFFIX, ".0123456789abcd", 15), 1);
    ck_assert_int_eq(read_record(WIRE_SPEC_SUFFIX, ".0123456789abcde", 16), -1);
    ck_assert_int_eq(read_record(WIRE_SPEC_STDIN, text, 1), -1);
    free(text);
}
END_TEST

START_TEST(spec_strings_of_a_wrong_form_are_refused)
{
    ck_assert_int_eq(read_record(WIRE_SPEC_ARG, "a\0b", 3), -1);
    ck_assert_int_eq(read_record(WIRE_SPEC_ARG, "a\0", 2), -1);
    ck_assert_int_eq(read_record(WIRE_SPEC_ENV, "A=\0", 3), -1);
    ck_assert_int_eq(read_record(WIRE_SPEC_ENV, "=value", 6), -1);
    ck_assert_int_eq(read_record(WIRE_SPEC_ENV, "NAME", 4), -1);
    ck_assert_int_eq(read_record(WIRE_SPEC_ENV, "", 0), -1);
    ck_assert_int_eq(read_record(WIRE_SPEC_CWD, "relative", 8), -1);
    ck_assert_int_eq(read_record(WIRE_SPEC_CWD, "", 0), -1);
    ck_assert_int_eq(read_record(WIRE_SPEC_CWD, "/a\0", 3), -1);
    ck_assert_int_eq(read_record(WIRE_SPEC_SUFFIX, "/../x", 5), -1);
    for (unsigned tag = 0; tag < 256; tag++) {
        if (tag < WIRE_SPEC_ARG || tag > WIRE_SPEC_STDIN)
            ck_assert_int_eq(read_record(tag, "A=/", 3), -1);
    }
}
END_TEST

START_TEST(a_cut_spec_is_refused)
{
    _cleanup_buf_ struct buf spec = BUF_INIT(0);

    ck_assert_int_eq(wire_spec_put(&spec, WIRE_SPEC_ARG, "hello", 5), 0);
    for (size_t len = 1; len < spec.len; len++) {
        struct wire_record record;
        struct error err = ERROR_INIT;
        size_t offset = 0;
        char *exact = malloc(len);

        ck_assert_ptr_nonnull(exact);
        memcpy(exact, spec.data, len);
        ck_assert_int_eq(wire_spec_next(exact, len, &offset, &record, &err), -1);
        ck_assert_int_eq(err.code, ERR_PROTOCOL);
        free(exact);
    }
    /* a length near 4 GiB must not wrap */
    struct wire_record record;
    struct error err = ERROR_INIT;
    size_t offset = 0;
    memset(spec.data + 1, 0xff, 4);
    ck_assert_int_eq(wire_spec_next(spec.data, spec.len, &offset, &record, &err), -1);
    offset = spec.len + 1;
    ck_assert_int_eq(wire_spec_next(spec.data, spec.len, &offset, &record, &err), -1);
    offset = 0;
    ck_assert_int_eq(wire_spec_next(spec.data, WIRE_SPEC_MAX + 1, &offset, &record, &err), -1);
}
END_TEST

START_TEST(a_refused_record_leaves_no_half_behind)
{
    _cleanup_buf_ struct buf spec = BUF_INIT(12);

    ck_assert_int_eq(wire_spec_put(&spec, WIRE_SPEC_ARG, "ab", 2), 0);
    ck_assert_uint_eq(spec.len, 7);
    ck_assert_int_eq(wire_spec_put(&spec, WIRE_SPEC_ARG, "c", 1), -1);
    ck_assert_uint_eq(spec.len, 7);
    ck_assert_int_eq(wire_spec_put(&spec, WIRE_SPEC_STDIN, NULL, 0), 0);
    ck_assert_uint_eq(spec.len, 12);
}
END_TEST

/* Touches every byte: a record that points outside is seen by the sanitizer. */
static size_t sum_of(const uint8_t *data, size_t len)
{
    size_t sum = 0;

    for (size_t i = 0; i < len; i++)
        sum += data[i];
    return sum;
}

START_TEST(random_bytes_never_crash)
{
    unsigned short seed[3] = {0x330e, 0x1234, (unsigned short)_i};
    uint8_t bytes[64];

    for (int round = 0; round < 50000; round++) {
        size_t len = (size_t)nrand48(seed) % (sizeof(bytes) + 1);
        uint8_t *exact = malloc(len > 0 ? len : 1);
        struct error err = ERROR_INIT;
        struct wire_frame frame;
        struct wire_record record;
        size_t offset = 0;
        int rc;

        ck_assert_ptr_nonnull(exact);
        for (size_t i = 0; i < len; i++)
            exact[i] = (uint8_t)(nrand48(seed) >> 8);
        if (len > 4 && (round & 1)) {
            /* near misses: small types, no flags, small lengths */
            exact[0] %= 20;
            exact[1] %= 4;
            exact[2] = exact[3] = 0;
        }
        rc = wire_decode(exact, len, round & 2 ? WIRE_TO_GUEST : WIRE_TO_HOST, &frame, &err);
        ck_assert(rc == 0 || err.code == ERR_PROTOCOL);
        do {
            rc = wire_spec_next(exact, len, &offset, &record, &err);
            if (rc == 1)
                ck_assert_uint_le(sum_of(record.data, record.len), 255 * len);
        } while (rc == 1);
        ck_assert_uint_le(offset, len);
        free(exact);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("wire");
    TCase *tc = tcase_create("frames");
    int count = (int)ARRAY_LEN(frames);

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, each_type_holds_its_payload_bounds, 0, count);
    tcase_add_loop_test(tc, each_type_travels_only_its_way, 0, count);
    tcase_add_loop_test(tc, each_type_keeps_its_stream_rule, 0, count);
    tcase_add_loop_test(tc, each_type_keeps_its_channels, 0, count);
    tcase_add_loop_test(tc, flags_are_refused, 0, count);
    tcase_add_test(tc, unknown_types_are_refused);
    tcase_add_test(tc, no_guest_frame_may_start_or_signal);
    tcase_add_test(tc, short_and_long_messages_are_refused);
    tcase_add_test(tc, header_bytes_are_as_documented);
    tcase_add_test(tc, integers_are_big_endian);
    suite_add_tcase(suite, tc);

    tc = tcase_create("spec");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, live_reads_back_as_written_and_is_checked);
    tcase_add_test(tc, over_reads_back_as_written_and_is_checked);
    tcase_add_test(tc, a_spec_reads_back_as_written);
    tcase_add_test(tc, spec_strings_hold_their_limits);
    tcase_add_test(tc, spec_strings_of_a_wrong_form_are_refused);
    tcase_add_test(tc, a_cut_spec_is_refused);
    tcase_add_test(tc, a_refused_record_leaves_no_half_behind);
    tcase_add_loop_test(tc, random_bytes_never_crash, 0, 4);
    suite_add_tcase(suite, tc);

    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
