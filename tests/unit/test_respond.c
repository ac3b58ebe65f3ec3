/* Answers as CGI text: exact heads, problem details, and that no value forges a header line. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/json.h"
#include "common/respond.h"

#define REQUEST_ID "0f9fe1f2-8a0d-4a38-9d6b-3a3a34b1c7aa"

static const struct answer_meta plain = {.request_id = REQUEST_ID};

/* The body behind the head, as JSON; checks that Content-Length is true. */
static json_t *body_of(struct buf *out)
{
    const char *text = buf_cstr(out);
    const char *length = strstr(text, "\r\nContent-Length: ");
    const char *body = strstr(text, "\r\n\r\n");

    ck_assert_ptr_nonnull(length);
    ck_assert_ptr_nonnull(body);
    body += 4;
    ck_assert_uint_eq(strtoul(length + 18, NULL, 10), strlen(body));
    json_t *json = json_loads(body, 0, NULL);
    ck_assert_ptr_nonnull(json);
    return json;
}

static bool has(struct buf *out, const char *text)
{
    return strstr(buf_cstr(out), text) != NULL;
}

START_TEST(an_answer_is_exact)
{
    _cleanup_buf_ struct buf out = BUF_INIT(0);
    _cleanup_json_ json_t *body = json_pack("{s:s, s:i}", "b", "\xc3\xa9", "a", 1);

    ck_assert_int_eq(respond_json(&out, 200, &plain, body), 0);
    ck_assert_str_eq(buf_cstr(&out), "Status: 200 OK\r\n"
                                     "Content-Type: application/json\r\n"
                                     "Content-Length: 17\r\n"
                                     "X-Request-Id: " REQUEST_ID "\r\n"
                                     "Cache-Control: no-store\r\n"
                                     "X-Content-Type-Options: nosniff\r\n"
                                     "\r\n"
                                     "{\"b\":\"\xc3\xa9\",\"a\":1}\n");
}
END_TEST

START_TEST(optional_headers_appear_when_asked)
{
    _cleanup_buf_ struct buf out = BUF_INIT(0);
    _cleanup_json_ json_t *body = json_object();
    struct answer_meta meta = {
        .request_id = REQUEST_ID, .location = "/api/v1/x", .allow = "GET, POST", .replayed = true};

    ck_assert_int_eq(respond_json(&out, 201, &meta, body), 0);
    ck_assert(has(&out, "Status: 201 Created\r\n"));
    ck_assert(has(&out, "\r\nLocation: /api/v1/x\r\n"));
    ck_assert(has(&out, "\r\nAllow: GET, POST\r\n"));
    ck_assert(has(&out, "\r\nIdempotency-Replayed: true\r\n"));
}
END_TEST

START_TEST(head_has_the_length_and_no_body)
{
    _cleanup_buf_ struct buf out = BUF_INIT(0);
    _cleanup_json_ json_t *body = json_pack("{s:i}", "a", 1);
    struct answer_meta meta = {.request_id = REQUEST_ID, .head_only = true};

    ck_assert_int_eq(respond_json(&out, 200, &meta, body), 0);
    ck_assert(has(&out, "Content-Length: 8\r\n"));
    ck_assert_str_eq(buf_cstr(&out) + out.len - 4, "\r\n\r\n");
    ck_assert(!has(&out, "{"));
}
END_TEST

START_TEST(no_value_breaks_out_of_its_line)
{
    _cleanup_buf_ struct buf out = BUF_INIT(0);
    _cleanup_json_ json_t *body = json_object();
    struct answer_meta meta = {.request_id = "x\r\nX-Forged: 1",
                               .location = "/a\nX-Forged: 2",
                               .allow = "GET\rX-Forged: 3"};

    ck_assert_int_eq(respond_json(&out, 200, &meta, body), 0);
    ck_assert(!has(&out, "Forged"));
    ck_assert(!has(&out, "Location"));
}
END_TEST

START_TEST(a_problem_carries_every_member)
{
    _cleanup_buf_ struct buf out = BUF_INIT(0);
    struct error err = ERROR_INIT;

    error_set_field(&err, ERR_LIMIT_EXCEEDED, "memoryMb", "memoryMb may be at most %d", 8192);
    ck_assert_int_eq(respond_problem(&out, &err, &plain), 0);
    ck_assert(has(&out, "Status: 400 Bad Request\r\n"));
    ck_assert(has(&out, "\r\nContent-Type: application/problem+json\r\n"));
    ck_assert(!has(&out, "Retry-After"));
    ck_assert(!has(&out, "WWW-Authenticate"));

    _cleanup_json_ json_t *json = body_of(&out);
    _cleanup_json_ json_t *wanted = json_pack(
        "{s:s, s:s, s:i, s:s, s:s, s:s, s:s}", "type", "urn:paddock:error:limit_exceeded", "title",
        "Value over a limit", "status", 400, "detail", "memoryMb may be at most 8192", "code",
        "limit_exceeded", "requestId", REQUEST_ID, "field", "memoryMb");
    ck_assert(json_equal(json, wanted));
}
END_TEST

START_TEST(retry_after_is_in_whole_seconds_rounded_up)
{
    static const struct {
        int64_t ms;
        const char *header;
    } cases[] = {{1, "Retry-After: 1\r\n"},
                 {1000, "Retry-After: 1\r\n"},
                 {1001, "Retry-After: 2\r\n"},
                 {59999, "Retry-After: 60\r\n"}};

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        _cleanup_buf_ struct buf out = BUF_INIT(0);
        struct error err = ERROR_INIT;

        error_set(&err, ERR_NO_CAPACITY, "full");
        err.retry_after_ms = cases[i].ms;
        ck_assert_int_eq(respond_problem(&out, &err, &plain), 0);
        ck_assert(has(&out, "Status: 503 Service Unavailable\r\n"));
        ck_assert(has(&out, cases[i].header));
        _cleanup_json_ json_t *json = body_of(&out);
        ck_assert_int_eq(json_integer_value(json_object_get(json, "retryAfterMs")), cases[i].ms);
    }
}
END_TEST

START_TEST(a_401_names_the_scheme)
{
    _cleanup_buf_ struct buf out = BUF_INIT(0);
    struct error err = ERROR_INIT;

    error_set(&err, ERR_UNAUTHENTICATED, "no token");
    ck_assert_int_eq(respond_problem(&out, &err, &plain), 0);
    ck_assert(has(&out, "Status: 401 Unauthorized\r\n"));
    ck_assert(has(&out, "\r\nWWW-Authenticate: Bearer\r\n"));
}
END_TEST

START_TEST(plumbing_stays_inside)
{
    static const enum error_code codes[] = {ERR_CONFIG,   ERR_SYSTEM,   ERR_PROTOCOL,
                                            ERR_NONE,     ERR_CONFLICT, ERR_DATABASE_UNAVAILABLE,
                                            ERR_PREFLIGHT};

    for (size_t i = 0; i < ARRAY_LEN(codes); i++) {
        _cleanup_buf_ struct buf out = BUF_INIT(0);
        struct error err = ERROR_INIT;
        bool is_database = codes[i] == ERR_CONFLICT || codes[i] == ERR_DATABASE_UNAVAILABLE;

        error_set_field(&err, codes[i], "hidden", "/var/lib/hidden on host hidden");
        ck_assert_int_eq(respond_problem(&out, &err, &plain), 0);
        ck_assert(!has(&out, "hidden"));
        _cleanup_json_ json_t *json = body_of(&out);
        ck_assert_str_eq(json_string_value(json_object_get(json, "code")),
                         is_database ? "database_unavailable" : "internal_error");
        ck_assert_int_eq(json_integer_value(json_object_get(json, "status")),
                         is_database ? 503 : 500);
        ck_assert_int_eq(has(&out, "Retry-After: 1\r\n"), is_database);
    }
}
END_TEST

START_TEST(texts_that_are_no_utf8_still_answer)
{
    _cleanup_buf_ struct buf out = BUF_INIT(0);
    struct error err = ERROR_INIT;

    error_set_field(&err, ERR_INVALID_FIELD, "a", "x");
    memcpy(err.detail, "cut \xc3", 6);
    memcpy(err.field, "f\xff", 3);
    ck_assert_int_eq(respond_problem(&out, &err, &plain), 0);
    _cleanup_json_ json_t *json = body_of(&out);
    ck_assert_str_eq(json_string_value(json_object_get(json, "detail")), "cut ");
    ck_assert_str_eq(json_string_value(json_object_get(json, "field")), "f");
}
END_TEST

START_TEST(an_answer_is_whole_or_absent)
{
    _cleanup_json_ json_t *body = json_pack("{s:i}", "a", 1);
    _cleanup_buf_ struct buf whole = BUF_INIT(0);
    struct error err = ERROR_INIT;

    ck_assert_int_eq(respond_json(&whole, 200, &plain, body), 0);
    for (size_t max = 1; max < whole.len; max++) {
        _cleanup_buf_ struct buf out = BUF_INIT(max);
        ck_assert_int_eq(respond_json(&out, 200, &plain, body), -1);
        ck_assert_uint_eq(out.len, 0);
    }
    _cleanup_buf_ struct buf fits = BUF_INIT(whole.len);
    ck_assert_int_eq(respond_json(&fits, 200, &plain, body), 0);
    ck_assert_int_eq(respond_json(&fits, 200, &plain, NULL), -1);
    ck_assert_uint_eq(fits.len, whole.len);

    _cleanup_buf_ struct buf small = BUF_INIT(40);
    error_set(&err, ERR_NOT_FOUND, "x");
    ck_assert_int_eq(respond_problem(&small, &err, &plain), -1);
    ck_assert_uint_eq(small.len, 0);
}
END_TEST

START_TEST(every_status_of_the_code_table_has_a_reason)
{
    for (int code = ERR_NONE + 1; code < ERR_COUNT; code++)
        ck_assert_str_ne(respond_reason(error_code_status((enum error_code)code)), "Unknown");
    ck_assert_str_eq(respond_reason(200), "OK");
    ck_assert_str_eq(respond_reason(299), "Unknown");
    ck_assert_str_eq(respond_reason(-1), "Unknown");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("respond");
    TCase *tc = tcase_create("answers");

    tcase_add_test(tc, an_answer_is_exact);
    tcase_add_test(tc, optional_headers_appear_when_asked);
    tcase_add_test(tc, head_has_the_length_and_no_body);
    tcase_add_test(tc, no_value_breaks_out_of_its_line);
    tcase_add_test(tc, a_problem_carries_every_member);
    tcase_add_test(tc, retry_after_is_in_whole_seconds_rounded_up);
    tcase_add_test(tc, a_401_names_the_scheme);
    tcase_add_test(tc, plumbing_stays_inside);
    tcase_add_test(tc, texts_that_are_no_utf8_still_answer);
    tcase_add_test(tc, an_answer_is_whole_or_absent);
    tcase_add_test(tc, every_status_of_the_code_table_has_a_reason);
    suite_add_tcase(suite, tc);

    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
