/*
 * Strict numbers, UTF-8 (every code point, the RFC's bad forms), base64 and hex
 * by the RFC's vectors, percent-decoding, names, times.
 */
#include "common/text.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"

START_TEST(numbers_that_are_numbers)
{
    static const struct {
        const char *text;
        int64_t value;
    } cases[] = {{"0", 0},
                 {"7", 7},
                 {"-1", -1},
                 {"10", 10},
                 {"9223372036854775807", INT64_MAX},
                 {"-9223372036854775808", INT64_MIN}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int64_t value = 42;
        ck_assert_int_eq(text_parse_i64(cases[i].text, INT64_MIN, INT64_MAX, &value), 0);
        ck_assert_msg(value == cases[i].value, "%s read as %" PRId64, cases[i].text, value);
    }
}
END_TEST

START_TEST(numbers_that_are_not)
{
    static const char *const cases[] = {"",
                                        "-",
                                        "+1",
                                        " 1",
                                        "1 ",
                                        "01",
                                        "00",
                                        "-0",
                                        "-01",
                                        "1.0",
                                        "1e3",
                                        "0x10",
                                        "1_000",
                                        "١",
                                        "--1",
                                        "9223372036854775808",
                                        "-9223372036854775809",
                                        "99999999999999999999999999",
                                        "1\n",
                                        "nan"};
    int64_t value = 42;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        ck_assert_msg(text_parse_i64(cases[i], INT64_MIN, INT64_MAX, &value) == -1, "took \"%s\"",
                      cases[i]);
    ck_assert_int_eq(text_parse_i64(NULL, 0, 1, &value), -1);
    ck_assert_int_eq(value, 42);
}
END_TEST

START_TEST(bounds_are_inclusive)
{
    int64_t value = 0;

    ck_assert_int_eq(text_parse_i64("5", 5, 9, &value), 0);
    ck_assert_int_eq(text_parse_i64("9", 5, 9, &value), 0);
    ck_assert_int_eq(text_parse_i64("4", 5, 9, &value), -1);
    ck_assert_int_eq(text_parse_i64("10", 5, 9, &value), -1);
    ck_assert_int_eq(value, 9);
}
END_TEST

static size_t encode(uint32_t code, unsigned char out[4])
{
    if (code < 0x80) {
        out[0] = (unsigned char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (unsigned char)(0xc0 | code >> 6);
        out[1] = (unsigned char)(0x80 | (code & 63));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (unsigned char)(0xe0 | code >> 12);
        out[1] = (unsigned char)(0x80 | (code >> 6 & 63));
        out[2] = (unsigned char)(0x80 | (code & 63));
        return 3;
    }
    out[0] = (unsigned char)(0xf0 | code >> 18);
    out[1] = (unsigned char)(0x80 | (code >> 12 & 63));
    out[2] = (unsigned char)(0x80 | (code >> 6 & 63));
    out[3] = (unsigned char)(0x80 | (code & 63));
    return 4;
}

START_TEST(every_code_point_and_no_surrogate)
{
    for (uint32_t code = 0; code <= 0x1fffff; code++) {
        unsigned char bytes[4];
        size_t len = encode(code, bytes);
        bool valid = code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff);
        if (text_is_utf8(bytes, len) != valid)
            ck_abort_msg("U+%04" PRIX32, code);
        /* Cut anywhere it is no character any more. */
        for (size_t cut = 1; cut < len; cut++) {
            if (text_utf8_prefix(bytes, cut) != 0)
                ck_abort_msg("U+%04" PRIX32 " cut to %zu", code, cut);
        }
    }
}
END_TEST

START_TEST(utf8_bad_forms)
{
    static const char *const cases[] = {"\x80",             /* continuation alone */
                                        "\xc0\x80",         /* overlong NUL */
                                        "\xc1\xbf",         /* overlong */
                                        "\xe0\x9f\xbf",     /* overlong */
                                        "\xf0\x8f\xbf\xbf", /* overlong */
                                        "\xed\xa0\x80",     /* surrogate */
                                        "\xf4\x90\x80\x80", /* past the end */
                                        "\xf5\x80\x80\x80",
                                        "\xfe",
                                        "\xff",
                                        "\xc3(",
                                        "\xe2\x82(",
                                        "\xf0\x9f\x98(",
                                        "\xe2(\xa1"};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[32];
        int len = snprintf(text, sizeof(text), "é%s€", cases[i]);
        ck_assert_msg(text_utf8_prefix(text, (size_t)len) == 2, "case %zu", i);
    }
    ck_assert_uint_eq(text_utf8_prefix("", 0), 0);
    ck_assert(text_is_utf8(NULL, 0));
    ck_assert(text_is_utf8("a\0b", 3)); /* NUL is a character; who minds refuses it */
    ck_assert_uint_eq(text_utf8_prefix("ab\xe2\x82\xac", 4), 2);
}
END_TEST

START_TEST(base64_vectors)
{
    /* RFC 4648, section 10 */
    static const char *const cases[][2] = {{"", ""},
                                           {"f", "Zg=="},
                                           {"fo", "Zm8="},
                                           {"foo", "Zm9v"},
                                           {"foob", "Zm9vYg=="},
                                           {"fooba", "Zm9vYmE="},
                                           {"foobar", "Zm9vYmFy"},
                                           {"\xff\xff\xfe\xfb\xf0", "///++/A="}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *out = text_base64(cases[i][0], strlen(cases[i][0]));
        ck_assert_ptr_nonnull(out);
        ck_assert_str_eq(out, cases[i][1]);
        free(out);
    }
    char *out = text_base64("\0\0\0\0", 4);
    ck_assert_str_eq(out, "AAAAAA==");
    free(out);
    /* A length whose text cannot exist is refused before a byte is read. */
    ck_assert_ptr_null(text_base64("", SIZE_MAX));
    ck_assert_ptr_null(text_base64("", SIZE_MAX / 4 * 3));
}
END_TEST

START_TEST(hex_is_lower_case)
{
    char out[9];

    text_hex("\x00\x0f\xa5\xff", 4, out);
    ck_assert_str_eq(out, "000fa5ff");
    text_hex("", 0, out);
    ck_assert_str_eq(out, "");
}
END_TEST

START_TEST(percent_decoding)
{
    static const struct {
        const char *text;
        const char *wanted; /* NULL: refused */
    } cases[] = {
        {"", ""},        {"plain", "plain"}, {"a+b", "a+b"},   {"%41%62", "Ab"}, {"%2F%2f", "//"},
        {"%c3%A9", "é"}, {"%25 41", "% 41"}, {"%2541", "%41"}, /* once, not twice */
        {"%", NULL},     {"%4", NULL},       {"a%4", NULL},    {"%zz", NULL},    {"%4g", NULL},
        {"%+1", NULL},   {"% 1", NULL},      {"%%41", NULL},   {"%00", NULL},    {"ab%00cd", NULL},
        {"%u0041", NULL}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *text = strdup(cases[i].text);
        int len = text_percent_decode(text);
        if (cases[i].wanted) {
            ck_assert_int_eq(len, (int)strlen(cases[i].wanted));
            ck_assert_str_eq(text, cases[i].wanted);
        } else {
            ck_assert_msg(len == -1, "took \"%s\"", cases[i].text);
        }
        free(text);
    }
}
END_TEST

START_TEST(names)
{
    static const char *const good[] = {"a", "ab", "a-b", "a1", "a--b", "node24"};
    static const char *const bad[] = {"",    "1a",  "-a", "a-", "A",   "aB", "a_b",       "a.b",
                                      "a/b", "a b", "..", "é",  "a\n", "-",  "abcdefghi", "a\x80"};

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        ck_assert_msg(text_is_name(good[i], 8), "refused \"%s\"", good[i]);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        ck_assert_msg(!text_is_name(bad[i], 8), "took \"%s\"", bad[i]);
    ck_assert(text_is_name("abcdefgh", 8));
    ck_assert(!text_is_name("a", 0));
    ck_assert(!text_is_name(NULL, 8));
}
END_TEST

START_TEST(times)
{
    static const char *const good[] = {
        "2026-01-02T03:04:05Z",      "2026-01-02T03:04:05.678Z",       "2024-02-29T00:00:00Z",
        "2000-02-29T23:59:59+14:00", "2026-12-31T23:59:59.123456789Z", "0001-01-01T00:00:00-05:30",
        "9999-12-31T23:59:59Z",
    };
    static const char *const bad[] = {
        "",
        "now",
        "epoch",
        "infinity",
        "2026-01-02",
        "2026-01-02 03:04:05Z",
        "2026-01-02t03:04:05z",
        "2026-01-02T03:04:05",
        "2026-01-02T03:04Z",
        "2026-01-02T03:04:05.Z",
        "2026-01-02T03:04:05.1234567890Z",
        "2026-01-02T24:00:00Z",
        "2026-01-02T23:60:00Z",
        "2026-01-02T23:59:60Z",
        "2026-00-02T03:04:05Z",
        "2026-13-02T03:04:05Z",
        "2026-01-00T03:04:05Z",
        "2026-01-32T03:04:05Z",
        "2026-04-31T03:04:05Z",
        "2026-02-29T03:04:05Z",
        "1900-02-29T03:04:05Z",
        "0000-01-01T00:00:00Z",
        "10000-01-01T00:00:00Z",
        "2026-01-02T03:04:05+15:00",
        "2026-01-02T03:04:05+00:60",
        "2026-01-02T03:04:05+0000",
        "2026-01-02T03:04:05 00:00",
        "2026-01-02T03:04:05Z ",
        " 2026-01-02T03:04:05Z",
        "2026-01-02T03:04:05ZZ",
        "2026-1-2T03:04:05Z",
        "-2026-01-02T03:04:05Z",
        "2026-01-02T03:04:05Z'; DROP TABLE sandboxes; --",
    };

    for (size_t i = 0; i < ARRAY_LEN(good); i++)
        ck_assert_msg(text_is_time(good[i]), "refused %s", good[i]);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        ck_assert_msg(!text_is_time(bad[i]), "took %s", bad[i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("text");
    TCase *tcase = tcase_create("text");
    SRunner *runner = srunner_create(suite);

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, numbers_that_are_numbers);
    tcase_add_test(tcase, numbers_that_are_not);
    tcase_add_test(tcase, bounds_are_inclusive);
    tcase_add_test(tcase, every_code_point_and_no_surrogate);
    tcase_add_test(tcase, utf8_bad_forms);
    tcase_add_test(tcase, base64_vectors);
    tcase_add_test(tcase, hex_is_lower_case);
    tcase_add_test(tcase, percent_decoding);
    tcase_add_test(tcase, names);
    tcase_add_test(tcase, times);
    suite_add_tcase(suite, tcase);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
