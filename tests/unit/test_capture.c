/*
 * Head and tail retention against a plain model, at every size around the
 * limits, and cuts that never split a UTF-8 character.
 */
#include <check.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/text.h"
#include "daemon/capture.h"

static void feed(struct capture *capture, const char *data, size_t len, size_t piece)
{
    while (len > 0) {
        size_t take = piece < len ? piece : len;

        capture_append(capture, data, take);
        data += take;
        len -= take;
    }
}

/* What is kept of len counted bytes must be the first half and the last half of limit. */
static void check_counted(size_t limit, size_t len, size_t piece)
{
    char *data = malloc(len + 1);
    struct capture capture;
    struct capture_result result;
    size_t head = limit / 2;
    size_t tail = limit - head;

    for (size_t i = 0; i < len; i++)
        data[i] = (char)(0xf5 + i * 7 % 11); /* never UTF-8: the cuts stay where they are */
    capture_init(&capture, limit);
    feed(&capture, data, len, piece);
    capture_finish(&capture, &result);
    ck_assert_uint_eq(result.total, len);
    if (len <= limit) {
        ck_assert_int_eq(result.omitted_at, -1);
        ck_assert_uint_eq(result.len, len);
        if (len > 0)
            ck_assert_int_eq(memcmp(result.data, data, len), 0);
    } else {
        ck_assert_uint_eq(result.len, limit);
        ck_assert_int_eq(result.omitted_at, (int64_t)head);
        ck_assert_int_eq(memcmp(result.data, data, head), 0);
        ck_assert_int_eq(memcmp(result.data + head, data + len - tail, tail), 0);
    }
    free(result.data);
    free(data);
}

START_TEST(keeps_head_and_tail)
{
    static const size_t limits[] = {2, 3, 1024, 1025, 5000, 65536};
    static const size_t pieces[] = {1, 7, 1000, 65528, 1 << 20};

    for (size_t l = 0; l < sizeof(limits) / sizeof(limits[0]); l++) {
        for (size_t p = 0; p < sizeof(pieces) / sizeof(pieces[0]); p++) {
            size_t limit = limits[l];

            for (size_t len = limit < 8 ? 0 : limit - 8; len < limit + 9; len++)
                check_counted(limit, len, pieces[p]);
            check_counted(limit, limit / 2, pieces[p]);
            check_counted(limit, limit * 2 + 1, pieces[p]);
            check_counted(limit, limit * 3 + 11, pieces[p]);
        }
    }
}
END_TEST

START_TEST(allocates_as_it_grows)
{
    struct capture capture;
    char bytes[100] = {0};

    capture_init(&capture, 16 * 1024 * 1024);
    ck_assert_ptr_null(capture.head);
    ck_assert_ptr_null(capture.tail);
    capture_append(&capture, bytes, sizeof(bytes));
    ck_assert_uint_le(capture.head_cap, 1024);
    ck_assert_ptr_null(capture.tail);
    capture_free(&capture);
}
END_TEST

START_TEST(memory_is_bounded_and_the_total_exact)
{
    enum { LIMIT = 4096 };
    static char block[65536];
    struct capture capture;
    struct capture_result result;

    memset(block, 'x', sizeof(block));
    capture_init(&capture, LIMIT);
    for (int i = 0; i < 10000; i++)
        capture_append(&capture, block, sizeof(block));
    ck_assert_uint_le(capture.head_cap + capture.tail_cap, LIMIT);
    capture_finish(&capture, &result);
    ck_assert_uint_eq(result.total, 10000u * sizeof(block));
    ck_assert_uint_eq(result.len, LIMIT);
    free(result.data);
}
END_TEST

START_TEST(nothing_is_nothing)
{
    struct capture capture;
    struct capture_result result;

    capture_init(&capture, 1024);
    capture_append(&capture, "", 0);
    capture_finish(&capture, &result);
    ck_assert_ptr_null(result.data);
    ck_assert_uint_eq(result.len, 0);
    ck_assert_uint_eq(result.total, 0);
    ck_assert_int_eq(result.omitted_at, -1);
}
END_TEST

/* For every way in which characters of n bytes can lie across the two cuts. */
static void check_text(const char *character, size_t limit, size_t shift)
{
    size_t size = strlen(character);
    struct capture capture;
    struct capture_result result;

    capture_init(&capture, limit);
    for (size_t i = 0; i < shift; i++)
        capture_append(&capture, "a", 1);
    for (size_t i = 0; i < 2 * limit; i++)
        feed(&capture, character, size, 1);
    capture_finish(&capture, &result);
    ck_assert_uint_eq(result.total, shift + 2 * limit * size);
    ck_assert_int_ge(result.omitted_at, 0);
    ck_assert(text_is_utf8(result.data, (size_t)result.omitted_at));
    ck_assert(
        text_is_utf8(result.data + result.omitted_at, result.len - (size_t)result.omitted_at));
    /* No more than one character is given up at either cut. */
    ck_assert_uint_gt(result.len + 2 * size, limit);
    ck_assert_uint_le(result.len, limit);
    free(result.data);
}

START_TEST(no_character_is_split)
{
    static const char *const characters[] = {"z", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};

    for (size_t c = 0; c < 4; c++)
        for (size_t limit = 64; limit < 72; limit++)
            for (size_t shift = 0; shift < 5; shift++)
                check_text(characters[c], limit, shift);
}
END_TEST

/* Bytes that only look like a split character are left alone. */
START_TEST(binary_is_kept_to_the_byte)
{
    struct capture capture;
    struct capture_result result;

    capture_init(&capture, 8);
    capture_append(&capture, "\xff\xfe\xfd\xe2", 4); /* not UTF-8 before the cut */
    capture_append(&capture, "0123456789\x80\x80\x80\xff", 14);
    capture_finish(&capture, &result);
    ck_assert_uint_eq(result.len, 8);
    ck_assert_int_eq(result.omitted_at, 4);
    ck_assert_int_eq(memcmp(result.data, "\xff\xfe\xfd\xe2\x80\x80\x80\xff", 8), 0);
    free(result.data);
}
END_TEST

/* A character across the seam of head and tail, with nothing omitted. */
START_TEST(the_seam_is_no_cut)
{
    struct capture capture;
    struct capture_result result;

    capture_init(&capture, 8);
    capture_append(&capture, "abc\xe2\x82\xac!", 7);
    capture_finish(&capture, &result);
    ck_assert_uint_eq(result.len, 7);
    ck_assert_int_eq(result.omitted_at, -1);
    ck_assert_int_eq(memcmp(result.data, "abc\xe2\x82\xac!", 7), 0);
    free(result.data);
}
END_TEST

START_TEST(what_went_by_unseen_is_omitted_at_the_start)
{
    struct capture capture;
    struct capture_result result;

    capture_init(&capture, 10);
    capture_skip(&capture, 0); /* nothing went by */
    capture_append(&capture, "abc", 3);
    capture_finish(&capture, &result);
    ck_assert_int_eq(result.omitted_at, -1);
    free(result.data);

    capture_init(&capture, 10);
    capture_skip(&capture, 1000);
    capture_finish(&capture, &result);
    ck_assert_ptr_null(result.data);
    ck_assert_uint_eq(result.total, 1000);
    ck_assert_int_eq(result.omitted_at, 0);

    capture_init(&capture, 10);
    capture_skip(&capture, 1000);
    feed(&capture, "0123456789abcdefghij", 20, 3);
    capture_finish(&capture, &result);
    ck_assert_uint_eq(result.total, 1020);
    ck_assert_uint_eq(result.len, 10);
    ck_assert_int_eq(memcmp(result.data, "abcdefghij", 10), 0);
    ck_assert_int_eq(result.omitted_at, 0);
    free(result.data);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("capture");
    TCase *tc = tcase_create("capture");
    SRunner *runner;
    int failed;

    tcase_add_test(tc, keeps_head_and_tail);
    tcase_add_test(tc, allocates_as_it_grows);
    tcase_add_test(tc, memory_is_bounded_and_the_total_exact);
    tcase_add_test(tc, nothing_is_nothing);
    tcase_add_test(tc, no_character_is_split);
    tcase_add_test(tc, binary_is_kept_to_the_byte);
    tcase_add_test(tc, the_seam_is_no_cut);
    tcase_add_test(tc, what_went_by_unseen_is_omitted_at_the_start);
    suite_add_tcase(suite, tc);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
