/*
 * Tokens: round trip, hostile forms, the hash by a fixed vector, scopes and what
 * includes what.
 */
#include "common/token.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "common/text.h"

#define ID "0123456789abcdef"
#define SECRET "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

START_TEST(a_new_token_parses_to_itself)
{
    char earlier[TOKEN_TEXT_LEN + 1] = "";

    for (int i = 0; i < 50; i++) {
        struct error err = ERROR_INIT;
        struct token made;
        struct token read;
        char text[TOKEN_TEXT_LEN + 1];
        memset(text, 'X', sizeof(text));
        ck_assert_int_eq(token_new(text, &made, &err), 0);
        ck_assert_uint_eq(strlen(text), TOKEN_TEXT_LEN);
        ck_assert_int_eq(token_parse(text, &read, &err), 0);
        ck_assert_str_eq(made.id, read.id);
        ck_assert(token_hash_equal(made.hash, read.hash));
        ck_assert_uint_eq(strlen(read.id), TOKEN_ID_LEN);
        ck_assert_mem_eq(text + 4, read.id, TOKEN_ID_LEN);
        ck_assert_str_ne(text, earlier);
        ck_assert_str_ne(text + 4 + TOKEN_ID_LEN, earlier + 4 + TOKEN_ID_LEN);
        memcpy(earlier, text, sizeof(text));
    }
}
END_TEST

START_TEST(only_the_one_form)
{
    static const char *const bad[] = {"",
                                      "pdk_",
                                      "pdk_" ID,
                                      "pdk_" ID "_",
                                      "pdk_" ID "-" SECRET,
                                      "pdk-" ID "_" SECRET,
                                      "PDK_" ID "_" SECRET,
                                      "pdk_0123456789ABCDEF_" SECRET,
                                      "pdk_" ID "_" SECRET "0",
                                      "pdk_" ID "_" SECRET " ",
                                      " pdk_" ID "_" SECRET,
                                      "pdk_" ID "0_" SECRET,
                                      "pdk_" ID "_g0112233445566778899aabbccddeeff0011223344556677"
                                      "8899aabbccddeeff",
                                      "pdk_" ID "_00112233445566778899aabbccddeeff0011223344556677"
                                      "8899aabbccddeef"};

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct error err = ERROR_INIT;
        struct token token;
        ck_assert_msg(token_parse(bad[i], &token, &err) == -1, "took \"%s\"", bad[i]);
        ck_assert_int_eq(err.code, ERR_UNAUTHENTICATED);
        ck_assert_ptr_null(strstr(err.detail, "0011"));
    }
    struct error err = ERROR_INIT;
    struct token token;
    ck_assert_int_eq(token_parse(NULL, &token, &err), -1);
    ck_assert_int_eq(token_parse("pdk_" ID "_" SECRET, &token, &err), 0);
}
END_TEST

START_TEST(the_hash_is_of_the_secrets_characters)
{
    struct error err = ERROR_INIT;
    struct token token;
    uint8_t hash[TOKEN_HASH_LEN];

    ck_assert_int_eq(token_parse("pdk_" ID "_" SECRET, &token, &err), 0);
    ck_assert_int_eq(token_sha256(SECRET, TOKEN_SECRET_LEN, hash, &err), 0);
    ck_assert(token_hash_equal(token.hash, hash));
    for (size_t i = 0; i < TOKEN_HASH_LEN; i++) {
        hash[i] ^= 1;
        ck_assert(!token_hash_equal(token.hash, hash));
        hash[i] ^= 1;
    }
}
END_TEST

START_TEST(sha256_vectors)
{
    /* FIPS 180-2, appendix B, and the empty message */
    static const char *const cases[][2] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct error err = ERROR_INIT;
        uint8_t hash[TOKEN_HASH_LEN];
        char hex[2 * TOKEN_HASH_LEN + 1];
        ck_assert_int_eq(token_sha256(cases[i][0], strlen(cases[i][0]), hash, &err), 0);
        text_hex(hash, sizeof(hash), hex);
        ck_assert_str_eq(hex, cases[i][1]);
    }
    struct error err = ERROR_INIT;
    uint8_t hash[TOKEN_HASH_LEN];
    ck_assert_int_eq(token_sha256(NULL, 0, hash, &err), 0);
}
END_TEST

START_TEST(scope_names)
{
    ck_assert_int_eq(scope_from_name("sandbox:read"), SCOPE_READ);
    ck_assert_int_eq(scope_from_name("sandbox:write"), SCOPE_WRITE);
    ck_assert_int_eq(scope_from_name("admin"), SCOPE_ADMIN);
    ck_assert_int_eq(scope_from_name("Admin"), SCOPE_NONE);
    ck_assert_int_eq(scope_from_name("admin "), SCOPE_NONE);
    ck_assert_int_eq(scope_from_name("none"), SCOPE_NONE);
    ck_assert_int_eq(scope_from_name(""), SCOPE_NONE);
    ck_assert_int_eq(scope_from_name(NULL), SCOPE_NONE);
    ck_assert_str_eq(scope_name(SCOPE_READ), "sandbox:read");
    ck_assert_str_eq(scope_name(SCOPE_WRITE), "sandbox:write");
    ck_assert_str_eq(scope_name(SCOPE_ADMIN), "admin");
    ck_assert_str_eq(scope_name(SCOPE_NONE), "none");
}
END_TEST

START_TEST(admin_includes_all_and_write_includes_read)
{
    /* [held][needed: read, write, admin] */
    static const bool wanted[8][3] = {
        [0] = {false, false, false},
        [SCOPE_READ] = {true, false, false},
        [SCOPE_WRITE] = {true, true, false},
        [SCOPE_READ | SCOPE_WRITE] = {true, true, false},
        [SCOPE_ADMIN] = {true, true, true},
        [SCOPE_ADMIN | SCOPE_READ] = {true, true, true},
        [SCOPE_ADMIN | SCOPE_WRITE] = {true, true, true},
        [SCOPE_ADMIN | SCOPE_WRITE | SCOPE_READ] = {true, true, true}};

    for (unsigned held = 0; held < 8; held++) {
        ck_assert_int_eq(scope_satisfies(held, SCOPE_READ), wanted[held][0]);
        ck_assert_int_eq(scope_satisfies(held, SCOPE_WRITE), wanted[held][1]);
        ck_assert_int_eq(scope_satisfies(held, SCOPE_ADMIN), wanted[held][2]);
        ck_assert(!scope_satisfies(held, SCOPE_NONE));
    }
    /* Bits that mean nothing give nothing. */
    ck_assert(!scope_satisfies(~7U, SCOPE_READ));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("token");
    TCase *tcase = tcase_create("token");
    SRunner *runner = srunner_create(suite);

    tcase_add_test(tcase, a_new_token_parses_to_itself);
    tcase_add_test(tcase, only_the_one_form);
    tcase_add_test(tcase, the_hash_is_of_the_secrets_characters);
    tcase_add_test(tcase, sha256_vectors);
    tcase_add_test(tcase, scope_names);
    tcase_add_test(tcase, admin_includes_all_and_write_includes_read);
    suite_add_tcase(suite, tcase);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
