/* UUIDs: what is made is valid, version 4 and distinct; only the canonical spelling is valid. */
#include "common/id.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

START_TEST(made_ids_are_valid_and_random)
{
    static char ids[500][ID_SIZE];

    for (size_t i = 0; i < 500; i++) {
        memset(ids[i], 'X', ID_SIZE);
        id_new(ids[i]);
        ck_assert(id_is_valid(ids[i]));
        ck_assert_int_eq(ids[i][14], '4');
        ck_assert_ptr_nonnull(strchr("89ab", ids[i][19]));
        for (size_t j = 0; j < i; j++)
            ck_assert_str_ne(ids[i], ids[j]);
    }
}
END_TEST

START_TEST(only_the_canonical_spelling)
{
    static const char *const bad[] = {"",
                                      "0",
                                      "00112233-4455-6677-8899-aabbccddeef",
                                      "00112233-4455-6677-8899-aabbccddeeff0",
                                      "00112233-4455-6677-8899-AABBCCDDEEFF",
                                      "{0112233-4455-6677-8899-aabbccddeef}",
                                      "00112233445566778899aabbccddeeff",
                                      "00112233-4455-6677-8899_aabbccddeeff",
                                      "0011223-34455-6677-8899-aabbccddeeff",
                                      "00112233-4455-6677-8899-aabbccddeefg",
                                      " 0112233-4455-6677-8899-aabbccddeeff",
                                      "00112233-4455-6677-8899-aabbccddeeff\n",
                                      "../../../../../../../../../etc/passw"};

    ck_assert(id_is_valid("00112233-4455-6677-8899-aabbccddeeff"));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        ck_assert_msg(!id_is_valid(bad[i]), "took \"%s\"", bad[i]);
    ck_assert(!id_is_valid(NULL));
}
END_TEST

START_TEST(bytes_and_back)
{
    static const uint8_t wanted[ID_BYTES] = {0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77,
                                             0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff};
    uint8_t bytes[ID_BYTES];
    char text[ID_SIZE];

    id_to_bytes("00112233-4455-6677-8899-aabbccddeeff", bytes);
    ck_assert_mem_eq(bytes, wanted, sizeof(wanted));
    id_from_bytes(bytes, text);
    ck_assert_str_eq(text, "00112233-4455-6677-8899-aabbccddeeff");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("id");
    TCase *tcase = tcase_create("id");
    SRunner *runner = srunner_create(suite);

    tcase_add_test(tcase, made_ids_are_valid_and_random);
    tcase_add_test(tcase, only_the_canonical_spelling);
    tcase_add_test(tcase, bytes_and_back);
    suite_add_tcase(suite, tcase);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
