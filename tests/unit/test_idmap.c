/*
 * The id map: look-up, replacement, removal under a walk, and a size that stays
 * flat however many entries come and go.
 */
#include <check.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/idmap.h"

static void make_id(char out[ID_SIZE], unsigned n)
{
    snprintf(out, ID_SIZE, "0001%04x-0000-4000-8000-%012x", n & 0xffffu, n);
}

static void *value_of(uintptr_t n)
{
    static char base[1 << 17];

    return base + n;
}

START_TEST(put_get_remove)
{
    struct idmap *map = idmap_new();
    char a[ID_SIZE];
    char b[ID_SIZE];

    make_id(a, 1);
    make_id(b, 2);
    ck_assert_ptr_null(idmap_get(map, a));
    ck_assert_int_eq(idmap_put(map, a, value_of(1)), 0);
    ck_assert_int_eq(idmap_put(map, b, value_of(2)), 0);
    ck_assert_ptr_eq(idmap_get(map, a), value_of(1));
    ck_assert_uint_eq(idmap_count(map), 2);
    ck_assert_int_eq(idmap_put(map, a, value_of(3)), 0); /* replaces */
    ck_assert_uint_eq(idmap_count(map), 2);
    ck_assert_ptr_eq(idmap_remove(map, a), value_of(3));
    ck_assert_ptr_null(idmap_remove(map, a));
    ck_assert_ptr_null(idmap_get(map, a));
    ck_assert_ptr_eq(idmap_get(map, b), value_of(2));
    ck_assert_int_eq(idmap_put(map, a, value_of(4)), 0);
    ck_assert_ptr_eq(idmap_get(map, a), value_of(4));
    idmap_free(map);
    idmap_free(NULL);
}
END_TEST

START_TEST(refuses_what_is_no_uuid)
{
    struct idmap *map = idmap_new();
    char a[ID_SIZE];

    make_id(a, 1);
    ck_assert_int_eq(idmap_put(map, "", value_of(1)), -1);
    ck_assert_int_eq(idmap_put(map, "0001", value_of(1)), -1);
    ck_assert_int_eq(idmap_put(map, a, NULL), -1);
    ck_assert_uint_eq(idmap_count(map), 0);
    ck_assert_ptr_null(idmap_get(map, ""));
    idmap_free(map);
}
END_TEST

START_TEST(many_entries)
{
    enum { N = 20000 };
    struct idmap *map = idmap_new();
    char id[ID_SIZE];

    for (unsigned i = 0; i < N; i++) {
        make_id(id, i);
        ck_assert_int_eq(idmap_put(map, id, value_of(i + 1)), 0);
    }
    ck_assert_uint_eq(idmap_count(map), N);
    for (unsigned i = 0; i < N; i++) {
        make_id(id, i);
        ck_assert_ptr_eq(idmap_get(map, id), value_of(i + 1));
    }
    idmap_free(map);
}
END_TEST

START_TEST(a_walk_visits_each_once_while_entries_go)
{
    enum { N = 1000 };
    struct idmap *map = idmap_new();
    unsigned char seen[N + 1] = {0};
    char id[ID_SIZE];
    unsigned cursor = 0;
    unsigned visited = 0;
    char *value;

    for (unsigned i = 1; i <= N; i++) {
        make_id(id, i);
        ck_assert_int_eq(idmap_put(map, id, value_of(i)), 0);
    }
    while ((value = idmap_next(map, &cursor))) {
        unsigned n = (unsigned)(value - (char *)value_of(0));

        ck_assert_uint_eq(seen[n], 0);
        seen[n] = 1;
        visited++;
        make_id(id, n);
        ck_assert_ptr_eq(idmap_remove(map, id), value);
    }
    ck_assert_uint_eq(visited, N);
    ck_assert_uint_eq(idmap_count(map), 0);
    idmap_free(map);
}
END_TEST

/* Entries that come and go for ever neither fill the table with graves nor make it grow: a walk
 * over it still ends after few slots. */
START_TEST(churn_leaves_it_small)
{
    struct idmap *map = idmap_new();
    char id[ID_SIZE];
    unsigned cursor = 0;

    for (unsigned i = 0; i < 200000; i++) {
        make_id(id, i);
        ck_assert_int_eq(idmap_put(map, id, value_of(1)), 0);
        ck_assert_ptr_nonnull(idmap_remove(map, id));
    }
    ck_assert_ptr_null(idmap_next(map, &cursor));
    ck_assert_uint_le(cursor, 64);
    idmap_free(map);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("idmap");
    TCase *tc = tcase_create("idmap");
    SRunner *runner;
    int failed;

    tcase_add_test(tc, put_get_remove);
    tcase_add_test(tc, refuses_what_is_no_uuid);
    tcase_add_test(tc, many_entries);
    tcase_add_test(tc, a_walk_visits_each_once_while_entries_go);
    tcase_add_test(tc, churn_leaves_it_small);
    suite_add_tcase(suite, tc);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
