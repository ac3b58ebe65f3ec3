/* FastCGI response records, byte by byte, and at the sizes where they split. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "common/fcgi_record.h"

#define CONTENT_MAX 65528u

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
    tcase_add_loop_test(tc, large_content_splits_and_rejoins, 0, 9);
    tcase_add_test(tc, a_refusal_leaves_no_cut_record);
    suite_add_tcase(suite, tc);

    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
