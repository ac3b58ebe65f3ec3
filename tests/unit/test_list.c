/*
 * Cursors and the filters of lists: what a list gave is taken
 * back, and nothing else gets near SQL.
 */
#include "fcgi/list.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"

#define ID "0001aaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"

START_TEST(cursor_round_trip)
{
    static const int64_t times[] = {0, 1, 1767225600123456, INT64_C(253402300799999999)};
    static const char *const ids[] = {ID, "00000000-0000-0000-0000-000000000000",
                                      "ffffffff-ffff-ffff-ffff-ffffffffffff"};

    for (size_t t = 0; t < ARRAY_LEN(times); t++) {
        for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
            char text[LIST_CURSOR_LEN + 1];
            char id[ID_SIZE];
            int64_t us = -1;
            list_cursor_encode(times[t], ids[i], text);
            ck_assert_uint_eq(strlen(text), LIST_CURSOR_LEN);
            ck_assert_int_eq(list_cursor_decode(text, &us, id), 0);
            ck_assert(us == times[t]);
            ck_assert_str_eq(id, ids[i]);
        }
    }
}
END_TEST

START_TEST(hostile_cursors)
{
    char good[LIST_CURSOR_LEN + 1];
    char id[ID_SIZE];
    int64_t us;

    list_cursor_encode(1767225600123456, ID, good);
    for (size_t i = 0; i < LIST_CURSOR_LEN; i++) {
        static const char strange[] = "+/=. %'\x01\x7f\xc3";
        for (size_t k = 0; k < sizeof(strange) - 1; k++) {
            char text[LIST_CURSOR_LEN + 1];
            memcpy(text, good, sizeof(text));
            text[i] = strange[k];
            ck_assert_msg(list_cursor_decode(text, &us, id) == -1, "took %s", text);
        }
    }
    char longer[LIST_CURSOR_LEN + 2];
    snprintf(longer, sizeof(longer), "%sA", good);
    ck_assert_int_eq(list_cursor_decode(longer, &us, id), -1);
    good[LIST_CURSOR_LEN - 1] = '\0';
    ck_assert_int_eq(list_cursor_decode(good, &us, id), -1);
    ck_assert_int_eq(list_cursor_decode("", &us, id), -1);
    /* times that the database could not add: year 10000, and the sign bit */
    ck_assert_int_eq(list_cursor_decode("A4REDMxzYAAAAAAAAAAAAAAAAAAAAAAA", &us, id), -1);
    ck_assert_int_eq(list_cursor_decode("________________________________", &us, id), -1);
    ck_assert_int_eq(list_cursor_decode("gAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", &us, id), -1);
}
END_TEST

static int parse(struct request *req, struct list_query *query, enum list_kind kind,
                 const char *text, struct error *err)
{
    char uri[1024];
    char *variables[] = {uri, NULL};

    snprintf(uri, sizeof(uri), "REQUEST_URI=/a?%s", text);
    *err = (struct error)ERROR_INIT;
    ck_assert_msg(request_parse(req, variables, err) == 0, "%s: %s", text, err->detail);
    return list_query_parse(req, kind, query, err);
}

START_TEST(filters)
{
    struct request req;
    struct list_query query;
    struct error err;
    struct list_page_params page;

    ck_assert_int_eq(parse(&req, &query, LIST_SANDBOXES, "", &err), 0);
    ck_assert_int_eq((int)query.limit, LIST_LIMIT_DEFAULT);
    ck_assert_ptr_null(query.labels);
    list_page_params(&query, query.limit, &page);
    ck_assert_ptr_null(page.cursor_us);
    ck_assert_ptr_null(page.cursor_id);
    ck_assert_str_eq(page.rows, "51");
    list_query_free(&query);
    request_free(&req);

    char cursor[LIST_CURSOR_LEN + 1];
    char text[512];
    list_cursor_encode(123, ID, cursor);
    snprintf(text, sizeof(text),
             "limit=200&state=ready&template=node&label.a%%2Fb=x%%22y&label.c=&"
             "createdAfter=2026-01-02T03:04:05+02:00&createdBefore=2026-01-02T03:04:05Z&cursor=%s",
             cursor);
    ck_assert_int_eq(parse(&req, &query, LIST_SANDBOXES, text, &err), 0);
    ck_assert_int_eq((int)query.limit, 200);
    ck_assert_str_eq(query.labels, "{\"a/b\":\"x\\\"y\",\"c\":\"\"}");
    ck_assert_str_eq(query.created_after, "2026-01-02T03:04:05+02:00");
    list_page_params(&query, query.limit, &page);
    ck_assert_str_eq(page.cursor_us, "123");
    ck_assert_str_eq(page.cursor_id, ID);
    ck_assert_str_eq(page.rows, "201");
    list_query_free(&query);
    request_free(&req);
}
END_TEST

START_TEST(bad_filters_are_named)
{
    static const struct {
        const char *query;
        const char *field;
        enum list_kind kind;
    } cases[] = {
        {"limit=0", "limit", LIST_SANDBOXES},
        {"limit=201", "limit", LIST_SANDBOXES},
        {"limit=-1", "limit", LIST_SANDBOXES},
        {"limit=1e2", "limit", LIST_SANDBOXES},
        {"limit=", "limit", LIST_SANDBOXES},
        {"cursor=", "cursor", LIST_SANDBOXES},
        {"cursor=abc", "cursor", LIST_SANDBOXES},
        {"state=", "state", LIST_SANDBOXES},
        {"state=Ready", "state", LIST_SANDBOXES},
        {"state=running", "state", LIST_SANDBOXES},
        {"state=ready", "state", LIST_EXECUTIONS},
        {"template=A", "template", LIST_SANDBOXES},
        {"template=", "template", LIST_SANDBOXES},
        {"label.=x", "label", LIST_SANDBOXES},
        {"label.a%20b=x", "label", LIST_SANDBOXES},
        {"label.aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffff1234=x", "label",
         LIST_SANDBOXES},
        {"createdAfter=yesterday", "createdAfter", LIST_SANDBOXES},
        {"createdBefore=2026-02-30T00:00:00Z", "createdBefore", LIST_EXECUTIONS},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct request req;
        struct list_query query;
        struct error err;
        ck_assert_msg(parse(&req, &query, cases[i].kind, cases[i].query, &err) == -1, "took %s",
                      cases[i].query);
        ck_assert_int_eq(err.code, ERR_INVALID_FIELD);
        ck_assert_str_eq(err.field, cases[i].field);
        list_query_free(&query);
        request_free(&req);
    }
}
END_TEST

/* A result as the database would give it. */
static PGresult *make_rows(int count)
{
    static char id_name[] = "id";
    static char us_name[] = "created_us";
    PGresAttDesc columns[] = {{.name = id_name, .format = 0}, {.name = us_name, .format = 0}};
    PGresult *res = PQmakeEmptyPGresult(NULL, PGRES_TUPLES_OK);

    ck_assert_int_eq(PQsetResultAttrs(res, 2, columns), 1);
    for (int i = 0; i < count; i++) {
        char id[ID_SIZE + 8];
        char us[24];
        snprintf(id, sizeof(id), "0001aaaa-bbbb-4ccc-8ddd-%012d", i);
        snprintf(us, sizeof(us), "%d", 1000 - i);
        ck_assert_int_eq(PQsetvalue(res, i, 0, id, (int)strlen(id)), 1);
        ck_assert_int_eq(PQsetvalue(res, i, 1, us, (int)strlen(us)), 1);
    }
    return res;
}

static json_t *row_resource(const PGresult *res, int row)
{
    return json_string(PQgetvalue(res, row, 0));
}

START_TEST(pages)
{
    PGresult *res = make_rows(4);
    json_t *page = list_page(res, 3, row_resource);
    const char *next = json_string_value(json_object_get(page, "nextCursor"));
    char id[ID_SIZE];
    int64_t us;

    ck_assert_uint_eq(json_array_size(json_object_get(page, "items")), 3);
    ck_assert_ptr_nonnull(next);
    /* behind the last item shown, not behind the one that only told of more */
    ck_assert_int_eq(list_cursor_decode(next, &us, id), 0);
    ck_assert_str_eq(id, "0001aaaa-bbbb-4ccc-8ddd-000000000002");
    ck_assert_int_eq((int)us, 998);
    json_decref(page);

    page = list_page(res, 4, row_resource);
    ck_assert_uint_eq(json_array_size(json_object_get(page, "items")), 4);
    ck_assert(json_is_null(json_object_get(page, "nextCursor")));
    json_decref(page);
    PQclear(res);

    res = make_rows(0);
    page = list_page(res, 3, row_resource);
    ck_assert_uint_eq(json_array_size(json_object_get(page, "items")), 0);
    ck_assert(json_is_null(json_object_get(page, "nextCursor")));
    json_decref(page);
    PQclear(res);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("list");
    TCase *tcase = tcase_create("list");

    tcase_add_test(tcase, cursor_round_trip);
    tcase_add_test(tcase, hostile_cursors);
    tcase_add_test(tcase, filters);
    tcase_add_test(tcase, bad_filters_are_named);
    tcase_add_test(tcase, pages);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
