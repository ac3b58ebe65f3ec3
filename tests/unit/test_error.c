/*
 * The error value: the table, cuts that keep UTF-8 whole, decoration from its
 * own text, errno.
 */
#include "common/error.h"

#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/text.h"

START_TEST(set_fills_all_and_returns_minus_one)
{
    struct error err = {.code = ERR_BUSY, .errno_value = 5, .retry_after_ms = 9, .field = "old"};

    ck_assert_int_eq(error_set(&err, ERR_NOT_FOUND, "no sandbox %d", 7), -1);
    ck_assert(error_is_set(&err));
    ck_assert_int_eq(err.code, ERR_NOT_FOUND);
    ck_assert_str_eq(err.detail, "no sandbox 7");
    ck_assert_str_eq(err.field, "");
    ck_assert_int_eq(err.errno_value, 0);
    ck_assert_int_eq(err.retry_after_ms, 0);
}
END_TEST

START_TEST(starts_unset)
{
    struct error err = ERROR_INIT;

    ck_assert(!error_is_set(&err));
    ck_assert_str_eq(err.detail, "");
}
END_TEST

START_TEST(field_is_named_and_cut)
{
    struct error err = ERROR_INIT;
    char field[300];

    ck_assert_int_eq(error_set_field(&err, ERR_INVALID_FIELD, "memoryMb", "must be %s", "less"),
                     -1);
    ck_assert_str_eq(err.field, "memoryMb");
    ck_assert_str_eq(err.detail, "must be less");
    memset(field, 'f', sizeof(field) - 1);
    field[sizeof(field) - 1] = '\0';
    error_set_field(&err, ERR_UNKNOWN_FIELD, field, "unknown");
    ck_assert_uint_eq(strlen(err.field), sizeof(err.field) - 1);
}
END_TEST

START_TEST(details_of_any_length_stay_utf8)
{
    static const char *const characters[] = {"a", "ä", "€", "😀"};

    for (size_t c = 0; c < 4; c++) {
        for (size_t shift = 0; shift < 4; shift++) {
            struct error err = ERROR_INIT;
            char text[2100] = "";
            for (size_t i = 0; i < shift; i++)
                strcat(text, "x");
            while (strlen(text) < 2000)
                strcat(text, characters[c]);
            error_set(&err, ERR_INTERNAL, "%s", text);
            size_t len = strlen(err.detail);
            ck_assert(text_is_utf8(err.detail, len));
            ck_assert_uint_ge(len, sizeof(err.detail) - 4);
            error_set_field(&err, ERR_INTERNAL, text, "%s", "x");
            ck_assert(text_is_utf8(err.field, strlen(err.field)));
            ck_assert_uint_ge(strlen(err.field), sizeof(err.field) - 4);
        }
    }
}
END_TEST

START_TEST(a_whole_character_at_the_end_survives_the_cut)
{
    struct error err = ERROR_INIT;
    char text[sizeof(err.detail) + 10];

    /* 511 bytes fit; the last four of them are one character. */
    memset(text, 'x', sizeof(text));
    memcpy(text + sizeof(err.detail) - 1 - 4, "😀", 4);
    text[sizeof(text) - 1] = '\0';
    error_set(&err, ERR_INTERNAL, "%s", text);
    ck_assert_uint_eq(strlen(err.detail), sizeof(err.detail) - 1);
}
END_TEST

START_TEST(errno_is_kept_and_told)
{
    struct error err = ERROR_INIT;

    errno = ENOENT;
    ck_assert_int_eq(error_set_errno(&err, "cannot open %s", "/x"), -1);
    ck_assert_int_eq(err.code, ERR_SYSTEM);
    ck_assert_int_eq(err.errno_value, ENOENT);
    ck_assert_str_eq(err.detail, "cannot open /x: No such file or directory");
    ck_assert_int_eq(errno, ENOENT);
    errno = EAGAIN;
    error_set(&err, ERR_BUSY, "x");
    error_prefix(&err, "y");
    ck_assert_int_eq(errno, EAGAIN);
}
END_TEST

START_TEST(a_long_context_gives_way_to_the_reason)
{
    struct error err = ERROR_INIT;
    char text[1000];

    memset(text, 'p', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    errno = EACCES;
    error_set_errno(&err, "%s", text);
    ck_assert_uint_eq(strlen(err.detail), sizeof(err.detail) - 1);
    ck_assert_ptr_nonnull(strstr(err.detail, "pp: Permission denied"));
    errno = 99999; /* no such error */
    error_set_errno(&err, "odd");
    ck_assert_ptr_nonnull(strstr(err.detail, "99999"));
}
END_TEST

START_TEST(prefix_keeps_the_rest)
{
    struct error err = ERROR_INIT;

    error_set_field(&err, ERR_CONFIG, "guest.cpus", "too many");
    err.retry_after_ms = 50;
    ck_assert_int_eq(error_prefix(&err, "%s:%d", "file", 3), -1);
    ck_assert_str_eq(err.detail, "file:3: too many");
    ck_assert_str_eq(err.field, "guest.cpus");
    ck_assert_int_eq(err.code, ERR_CONFIG);
    ck_assert_int_eq(err.retry_after_ms, 50);
    for (int i = 0; i < 200; i++)
        error_prefix(&err, "again");
    ck_assert_uint_eq(strlen(err.detail), sizeof(err.detail) - 1);
    ck_assert_int_eq(strncmp(err.detail, "again: again: ", 14), 0);
}
END_TEST

START_TEST(a_field_of_a_member_is_a_path)
{
    struct error err = ERROR_INIT;

    error_set_field(&err, ERR_INVALID_FIELD, "mode", "wrong");
    ck_assert_int_eq(error_prefix_field(&err, "egress"), -1);
    ck_assert_str_eq(err.field, "egress.mode");
    ck_assert_str_eq(err.detail, "wrong");
    error_set(&err, ERR_UNKNOWN_FIELD, "a name that may not be repeated");
    error_prefix_field(&err, "policy");
    ck_assert_str_eq(err.field, "policy");
    for (int i = 0; i < 100; i++)
        error_prefix_field(&err, "\xc3\xa4");
    ck_assert_uint_le(strlen(err.field), sizeof(err.field) - 1);
    ck_assert_uint_ge(strlen(err.field), sizeof(err.field) - 2);
}
END_TEST

START_TEST(arguments_may_be_the_error_itself)
{
    struct error err = ERROR_INIT;

    error_set_field(&err, ERR_INTERNAL, "name", "inner");
    error_set_field(&err, ERR_BUSY, err.field, "outer (%s)", err.detail);
    ck_assert_str_eq(err.field, "name");
    ck_assert_str_eq(err.detail, "outer (inner)");
    error_prefix(&err, "%s", err.detail);
    ck_assert_str_eq(err.detail, "outer (inner): outer (inner)");
}
END_TEST

START_TEST(format_signs_in_data_are_data)
{
    struct error err = ERROR_INIT;

    error_set(&err, ERR_INTERNAL, "%s", "%n%s%d");
    error_prefix(&err, "%s", "%x");
    ck_assert_str_eq(err.detail, "%x: %n%s%d");
}
END_TEST

START_TEST(table_is_whole)
{
    ck_assert_int_eq(error_code_status(ERR_NOT_FOUND), 404);
    ck_assert_str_eq(error_code_name(ERR_NOT_FOUND), "not_found");
    ck_assert_str_eq(error_code_title(ERR_NOT_FOUND), "Not found");
    for (unsigned i = 1; i < ERR_COUNT; i++) {
        enum error_code code = (enum error_code)i;
        ck_assert_int_eq(error_code_from_name(error_code_name(code)), code);
        ck_assert_int_ge(error_code_status(code), 400);
        ck_assert_int_le(error_code_status(code), 599);
        ck_assert_uint_gt(strlen(error_code_title(code)), 0);
    }
}
END_TEST

START_TEST(out_of_the_table_reads_as_internal)
{
    static const unsigned odd[] = {ERR_NONE, ERR_COUNT, ERR_COUNT + 1, 100000, 0xffffffff};

    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
        ck_assert_str_eq(error_code_name((enum error_code)odd[i]), "internal_error");
        ck_assert_int_eq(error_code_status((enum error_code)odd[i]), 500);
        ck_assert_str_eq(error_code_title((enum error_code)odd[i]), "Internal error");
    }
    ck_assert_int_eq(error_code_from_name("no_such_code"), ERR_INTERNAL);
    ck_assert_int_eq(error_code_from_name(""), ERR_INTERNAL);
    ck_assert_int_eq(error_code_from_name("NOT_FOUND"), ERR_INTERNAL);
    ck_assert_int_eq(error_code_from_name(NULL), ERR_INTERNAL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("error");
    TCase *tcase = tcase_create("error");
    SRunner *runner = srunner_create(suite);

    tcase_add_test(tcase, set_fills_all_and_returns_minus_one);
    tcase_add_test(tcase, starts_unset);
    tcase_add_test(tcase, field_is_named_and_cut);
    tcase_add_test(tcase, details_of_any_length_stay_utf8);
    tcase_add_test(tcase, a_whole_character_at_the_end_survives_the_cut);
    tcase_add_test(tcase, errno_is_kept_and_told);
    tcase_add_test(tcase, a_long_context_gives_way_to_the_reason);
    tcase_add_test(tcase, prefix_keeps_the_rest);
    tcase_add_test(tcase, a_field_of_a_member_is_a_path);
    tcase_add_test(tcase, arguments_may_be_the_error_itself);
    tcase_add_test(tcase, format_signs_in_data_are_data);
    tcase_add_test(tcase, table_is_whole);
    tcase_add_test(tcase, out_of_the_table_reads_as_internal);
    suite_add_tcase(suite, tcase);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
