/* FastCGI response records, byte by byte, and at the sizes where they split. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "common/fcgi_record.h"

#define CONTENT_MAX ((size_t)65528)

START_TEST(a_short_answer_is_exact)
{
    static const uint8_t wanted[] = {
        1, 6, 0xab, 0xcd, 0, 2, 0, 0, 'h', 'i', /* FCGI_STDOUT "hi" */
        1, 6, 0xab, 0xcd, 0, 0, 0, 0,           /* its end */
        1, 3, 0xab, 0xcd, 0, 8, 0, 0,           /* FCGI_END_REQUEST */
        0, 0, 0,    0,    0, 0, 0, 0,
    };
    _cleanup_buf_ struct buf out = BUF_INIT(0);

    ck_assert_int_eq(fcgi_record_stdout(&out, 0xabcd, "hi", 2), 0);
    ck_assert_int_eq(fcgi_record_end(&out, 0xabcd), 0);
    ck_assert_uint_eq(out.len, sizeof(wanted));
    ck_assert_mem_eq(out.data, wanted, sizeof(wanted));
}
END_TEST

START_TEST(nothing_writes_no_record)
{
    _cleanup_buf_ struct buf out = BUF_INIT(0);

    /* an empty FCGI_STDOUT would end the stream */
    ck_assert_int_eq(fcgi_record_stdout(&out, 1, "x", 0), 0);
    ck_assert_int_eq(fcgi_record_stdout(&out, 1, NULL, 0), 0);
    ck_assert_uint_eq(out.len, 0);
}
END_TEST

START_TEST(a_request_is_exact)
{
    static const uint8_t wanted[] = {
        1,   1,   0,   7, 0, 8,   0, 0, 0, 1, 0,   0,   0,   0, 0, 0, /* responder */
        1,   4,   0,   7, 0, 13,  0, 0, 1, 2, 'A', 'b', 'c', 0, 3,    /* "A" "bc", "" "def" */
        'd', 'e', 'f', 1, 0, 'G',                                     /* "G" "" */
        1,   4,   0,   7, 0, 0,   0, 0, 1, 5, 0,   7,   0,   0, 0, 0,
    };
    static const char *const params[][2] = {{"A", "bc"}, {"", "def"}, {"G", ""}};
    _cleanup_buf_ struct buf out = BUF_INIT(0);

    ck_assert_int_eq(fcgi_record_request(&out, 7, params, 3), 0);
    ck_assert_uint_eq(out.len, sizeof(wanted));
    ck_assert_mem_eq(out.data, wanted, sizeof(wanted));
}
END_TEST

START_TEST(a_long_parameter_has_a_long_length_and_one_too_long_none)
{
    char value[70000];
    const char *const params[][2] = {{"K", value}};
    _cleanup_buf_ struct buf out = BUF_INIT(0);

    memset(value, 'v', sizeof(value));
    value[sizeof(value) - 1] = '\0';
    ck_assert_int_eq(fcgi_record_request(&out, 1, params, 1), -1);
    ck_assert_uint_eq(out.len, 0);
    value[128] = '\0';
    ck_assert_int_eq(fcgi_record_request(&out, 1, params, 1), 0);
    ck_assert_mem_eq(out.data + 24, "\1\x80\0\0\x80Kvv", 8);
}
END_TEST

START_TEST(an_answer_is_read_back_and_nothing_beyond_its_bytes)
{
    _cleanup_buf_ struct buf out = BUF_INIT(0);
    struct fcgi_record record;
    static const uint8_t padded[] = {1, 6, 0, 1, 0, 2, 3, 0, 'h', 'i', 0, 0, 0};

    ck_assert_int_eq(fcgi_record_stdout(&out, 1, "hello", 5), 0);
    ck_assert_int_eq(fcgi_record_end(&out, 1), 0);
    for (size_t len = 0; len < 13; len++)
        ck_assert_int_eq(fcgi_record_read(out.data, len, &record), 0);
    ck_assert_int_eq(fcgi_record_read(out.data, out.len, &record), 13);
    ck_assert(!record.is_end && record.content_len == 5 && memcmp(record.content, "hello", 5) == 0);
    ck_assert_int_eq(fcgi_record_read(out.data + 13, out.len - 13, &record), 8);
    ck_assert(!record.is_end && record.content_len == 0);
    ck_assert_int_eq(fcgi_record_read(out.data + 21, out.len - 21, &record), 16);
    ck_assert(record.is_end && !record.content);
    ck_assert_int_eq(fcgi_record_read(padded, sizeof(padded) - 1, &record), 0);
    ck_assert_int_eq(fcgi_record_read(padded, sizeof(padded), &record), sizeof(padded));
    ck_assert_uint_eq(record.content_len, 2);
    ck_assert_int_eq(fcgi_record_read("HTTP/1.1", 8, &record), -1);
}
END_TEST

START_TEST(large_content_splits_and_rejoins)
{
    static const size_t sizes[] = {1,      CONTENT_MAX - 1, CONTENT_MAX,     CONTENT_MAX + 1,
                                   65535,  65536,           2 * CONTENT_MAX, 2 * CONTENT_MAX + 1,
                                   1000000};
    size_t size = sizes[_i];
    _cleanup_buf_ struct buf out = BUF_INIT(0);
    char *data = malloc(size);
    size_t seen = 0;

    ck_assert_ptr_nonnull(data);
    for (size_t i = 0; i < size; i++)
        data[i] = (char)(i * 7 + i / 251);
    ck_assert_int_eq(fcgi_record_stdout(&out, 1, data, size), 0);
    for (size_t at = 0; at < out.len;) {
        const uint8_t *header = (const uint8_t *)out.data + at;
        size_t content = (size_t)header[4] << 8 | header[5];

        ck_assert_uint_ge(out.len - at, 8);
        ck_assert_uint_eq(header[1], 6);
        ck_assert_uint_gt(content, 0);
        ck_assert_uint_eq(header[6], 0);
        ck_assert_uint_le(content, out.len - at - 8);
        ck_assert_uint_le(content, size - seen);
        ck_assert_mem_eq(header + 8, data + seen, content);
        seen += content;
        at += 8 + content;
    }
    ck_assert_uint_eq(seen, size);
    ck_assert_uint_eq(out.len, size + 8 * ((size + CONTENT_MAX - 1) / CONTENT_MAX));
    free(data);
}
END_TEST

START_TEST(a_refusal_leaves_no_cut_record)
{
    _cleanup_buf_ struct buf out = BUF_INIT(100);
    char data[92] = {0};

    ck_assert_int_eq(fcgi_record_stdout(&out, 1, data, 10), 0);
    ck_assert_uint_eq(out.len, 18);
    ck_assert_int_eq(fcgi_record_stdout(&out, 1, data, 75), -1);
    ck_assert_uint_eq(out.len, 18);
    ck_assert_int_eq(fcgi_record_stdout(&out, 1, data, SIZE_MAX), -1);
    ck_assert_uint_eq(out.len, 18);
    ck_assert_int_eq(fcgi_record_stdout(&out, 1, data, 74), 0);
    ck_assert_uint_eq(out.len, 100);
    ck_assert_int_eq(fcgi_record_end(&out, 1), -1);
    ck_assert_uint_eq(out.len, 100);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fcgi_record");
    TCase *tc = tcase_create("records");

    tcase_add_test(tc, a_short_answer_is_exact);
    tcase_add_test(tc, nothing_writes_no_record);
    tcase_add_test(tc, a_request_is_exact);
    tcase_add_test(tc, a_long_parameter_has_a_long_length_and_one_too_long_none);
    tcase_add_test(tc, an_answer_is_read_back_and_nothing_beyond_its_bytes);
    tcase_add_loop_test(tc, large_content_splits_and_rejoins, 0, 9);
    tcase_add_test(tc, a_refusal_leaves_no_cut_record);
    suite_add_tcase(suite, tc);

    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
