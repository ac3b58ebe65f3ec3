/*
 * The growable buffer: ceilings, refusals that change nothing, byte order, use
 * at lengths that would overflow.
 */
#include "common/buf.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

START_TEST(appends_bytes_and_grows)
{
    _cleanup_buf_ struct buf buf = BUF_INIT(0);

    for (unsigned i = 0; i < 10000; i++) {
        char byte = (char)(i & 0x7f);
        ck_assert_int_eq(buf_append(&buf, &byte, 1), 0);
    }
    ck_assert_uint_eq(buf.len, 10000);
    for (unsigned i = 0; i < 10000; i++)
        ck_assert_int_eq(buf.data[i], (char)(i & 0x7f));
    ck_assert_int_eq(buf.overflowed, 0);
}
END_TEST

START_TEST(empty_append_needs_no_data)
{
    _cleanup_buf_ struct buf buf = BUF_INIT(1);

    ck_assert_int_eq(buf_append(&buf, NULL, 0), 0);
    ck_assert_int_eq(buf_append_str(&buf, ""), 0);
    ck_assert_int_eq(buf_printf(&buf, "%s", ""), 0);
    ck_assert_uint_eq(buf.len, 0);
    ck_assert_str_eq(buf_cstr(&buf), "");
}
END_TEST

START_TEST(ceiling_is_exact_and_refusal_changes_nothing)
{
    _cleanup_buf_ struct buf buf = BUF_INIT(8);

    ck_assert_int_eq(buf_append_str(&buf, "12345678"), 0);
    ck_assert_int_eq(buf.overflowed, 0);
    ck_assert_int_eq(buf_append(&buf, "9", 1), -1);
    ck_assert_int_eq(buf.overflowed, 1);
    ck_assert_uint_eq(buf.len, 8);
    /* The NUL does not count. */
    ck_assert_str_eq(buf_cstr(&buf), "12345678");
    buf_consume(&buf, 7);
    ck_assert_int_eq(buf_append_u64(&buf, 1), -1);
    ck_assert_int_eq(buf_append_u32(&buf, 1), 0);
    ck_assert_uint_eq(buf.len, 5);
    /* Once refused, it stays visible. */
    ck_assert_int_eq(buf.overflowed, 1);
    buf_clear(&buf);
    ck_assert_int_eq(buf.overflowed, 0);
}
END_TEST

START_TEST(memory_stays_near_the_ceiling)
{
    _cleanup_buf_ struct buf buf = BUF_INIT(1000);

    for (int i = 0; i < 1000; i++)
        ck_assert_int_eq(buf_append(&buf, "x", 1), 0);
    ck_assert_int_eq(buf_append(&buf, "x", 1), -1);
    ck_assert_ptr_nonnull(buf_cstr(&buf));
    ck_assert_uint_le(buf.cap, 1001);
}
END_TEST

START_TEST(lengths_that_would_wrap_are_refused)
{
    _cleanup_buf_ struct buf buf = BUF_INIT(0);

    ck_assert_int_eq(buf_append_str(&buf, "abc"), 0);
    ck_assert_ptr_null(buf_reserve(&buf, SIZE_MAX));
    ck_assert_ptr_null(buf_reserve(&buf, SIZE_MAX - 3));
    ck_assert_int_eq(buf.overflowed, 1);
    ck_assert_int_eq(buf_append(&buf, "", SIZE_MAX - 2), -1);
    ck_assert_str_eq(buf_cstr(&buf), "abc");
}
END_TEST

START_TEST(printf_measures_the_ceiling_before_it_writes)
{
    _cleanup_buf_ struct buf buf = BUF_INIT(10);

    ck_assert_int_eq(buf_printf(&buf, "%d-%s", 42, "abc"), 0);
    ck_assert_str_eq(buf_cstr(&buf), "42-abc");
    ck_assert_int_eq(buf_printf(&buf, "%s", "12345"), -1);
    ck_assert_str_eq(buf_cstr(&buf), "42-abc");
    ck_assert_int_eq(buf_printf(&buf, "%s", "1234"), 0);
    ck_assert_str_eq(buf_cstr(&buf), "42-abc1234");
}
END_TEST

START_TEST(printf_of_every_length_around_the_capacity)
{
    char text[200];

    for (size_t len = 0; len < sizeof(text); len++) {
        _cleanup_buf_ struct buf buf = BUF_INIT(0);
        memset(text, 'a', len);
        text[len] = '\0';
        ck_assert_int_eq(buf_append_str(&buf, "0123456789"), 0);
        ck_assert_int_eq(buf_printf(&buf, "%s", text), 0);
        ck_assert_uint_eq(buf.len, len + 10);
        ck_assert_str_eq(buf_cstr(&buf) + 10, text);
    }
}
END_TEST

START_TEST(integers_are_big_endian)
{
    static const unsigned char wanted[] = {0xab, 0x01, 0x02, 0xde, 0xad, 0xbe, 0xef, 0x01,
                                           0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef};
    _cleanup_buf_ struct buf buf = BUF_INIT(0);

    ck_assert_int_eq(buf_append_u8(&buf, 0xab), 0);
    ck_assert_int_eq(buf_append_u16(&buf, 0x0102), 0);
    ck_assert_int_eq(buf_append_u32(&buf, 0xdeadbeef), 0);
    ck_assert_int_eq(buf_append_u64(&buf, 0x0123456789abcdef), 0);
    ck_assert_uint_eq(buf.len, sizeof(wanted));
    ck_assert_mem_eq(buf.data, wanted, sizeof(wanted));
}
END_TEST

START_TEST(reserve_gives_room_without_length)
{
    _cleanup_buf_ struct buf buf = BUF_INIT(100);

    ck_assert_int_eq(buf_append_str(&buf, "head"), 0);
    char *room = buf_reserve(&buf, 96);
    ck_assert_ptr_nonnull(room);
    memset(room, 'z', 96);
    ck_assert_uint_eq(buf.len, 4);
    buf.len += 96;
    ck_assert_int_eq(buf.data[0], 'h');
    ck_assert_int_eq(buf.data[99], 'z');
    ck_assert_ptr_nonnull(buf_reserve(&buf, 0));
    ck_assert_ptr_null(buf_reserve(&buf, 1));
    ck_assert_int_eq(buf.overflowed, 1);
}
END_TEST

START_TEST(consume_drops_at_most_all)
{
    _cleanup_buf_ struct buf buf = BUF_INIT(0);

    buf_consume(&buf, 5); /* of nothing */
    ck_assert_int_eq(buf_append_str(&buf, "abcdef"), 0);
    buf_consume(&buf, 0);
    buf_consume(&buf, 2);
    ck_assert_str_eq(buf_cstr(&buf), "cdef");
    buf_consume(&buf, SIZE_MAX);
    ck_assert_uint_eq(buf.len, 0);
    ck_assert_int_eq(buf_append_str(&buf, "again"), 0);
    ck_assert_str_eq(buf_cstr(&buf), "again");
}
END_TEST

START_TEST(usable_after_free)
{
    struct buf buf = BUF_INIT(4);

    ck_assert_int_eq(buf_append_str(&buf, "full"), 0);
    ck_assert_int_eq(buf_append_str(&buf, "!"), -1);
    buf_free(&buf);
    ck_assert_ptr_null(buf.data);
    ck_assert_int_eq(buf.overflowed, 0);
    ck_assert_int_eq(buf_append_str(&buf, "more"), 0);
    ck_assert_int_eq(buf_append_str(&buf, "!"), -1); /* the ceiling stayed */
    buf_free(&buf);
    buf_free(&buf);
}
END_TEST

START_TEST(bytes_may_be_nul)
{
    _cleanup_buf_ struct buf buf = BUF_INIT(0);

    ck_assert_int_eq(buf_append(&buf, "a\0b", 3), 0);
    ck_assert_uint_eq(buf.len, 3);
    ck_assert_mem_eq(buf_cstr(&buf), "a\0b\0", 4);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("buf");
    TCase *tcase = tcase_create("buf");
    SRunner *runner = srunner_create(suite);

    tcase_add_test(tcase, appends_bytes_and_grows);
    tcase_add_test(tcase, empty_append_needs_no_data);
    tcase_add_test(tcase, ceiling_is_exact_and_refusal_changes_nothing);
    tcase_add_test(tcase, memory_stays_near_the_ceiling);
    tcase_add_test(tcase, lengths_that_would_wrap_are_refused);
    tcase_add_test(tcase, printf_measures_the_ceiling_before_it_writes);
    tcase_add_test(tcase, printf_of_every_length_around_the_capacity);
    tcase_add_test(tcase, integers_are_big_endian);
    tcase_add_test(tcase, reserve_gives_room_without_length);
    tcase_add_test(tcase, consume_drops_at_most_all);
    tcase_add_test(tcase, usable_after_free);
    tcase_add_test(tcase, bytes_may_be_nul);
    suite_add_tcase(suite, tcase);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
