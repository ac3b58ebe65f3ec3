/*
 * One request's parsing: raw paths and queries with every hostile form, bodies
 * against their announced length, the limit and the type, and the options beside
 * the body (wait, idempotency key).
 */
#include "fcgi/request.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "fcgi/options.h"

/* A request from a method, a URI and up to three more NAME=value strings. */
struct fixture {
    char method[64];
    char uri[REQUEST_URI_MAX + 64];
    char *variables[8];
    struct request req;
    struct error err;
};

static int parse(struct fixture *f, const char *uri, const char *extra1, const char *extra2)
{
    static char method[] = "REQUEST_METHOD=GET";
    unsigned n = 0;

    memset(f, 0, sizeof(*f));
    f->variables[n++] = method;
    snprintf(f->uri, sizeof(f->uri), "REQUEST_URI=%s", uri);
    f->variables[n++] = f->uri;
    if (extra1)
        f->variables[n++] = strdup(extra1);
    if (extra2)
        f->variables[n++] = strdup(extra2);
    return request_parse(&f->req, f->variables, &f->err);
}

static void done(struct fixture *f)
{
    request_free(&f->req);
    for (unsigned i = 2; f->variables[i]; i++)
        free(f->variables[i]);
}

START_TEST(a_credential_without_a_value_is_none)
{
    struct fixture f;

    ck_assert_int_eq(parse(&f, "/a", "HTTP_AUTHORIZATION=", "HTTP_X_API_KEY=k"), 0);
    ck_assert_ptr_null(f.req.authorization);
    ck_assert_str_eq(f.req.api_key, "k");
    done(&f);
    ck_assert_int_eq(parse(&f, "/a", "HTTP_AUTHORIZATION=Bearer k", "HTTP_X_API_KEY="), 0);
    ck_assert_str_eq(f.req.authorization, "Bearer k");
    ck_assert_ptr_null(f.req.api_key);
    done(&f);
}
END_TEST

START_TEST(what_is_decided_on_comes_once)
{
    static const char *const pairs[][2] = {
        {"HTTP_AUTHORIZATION=Bearer a", "HTTP_AUTHORIZATION=Bearer a"},
        {"HTTP_X_API_KEY=a", "HTTP_X_API_KEY="},
        {"HTTP_IDEMPOTENCY_KEY=a", "HTTP_IDEMPOTENCY_KEY=b"},
        {"HTTP_PREFER=wait=1", "HTTP_PREFER=wait=2"},
        {"CONTENT_LENGTH=1", "CONTENT_LENGTH=2"},
        {"CONTENT_TYPE=application/json", "CONTENT_TYPE=text/plain"},
        {"REQUEST_METHOD=POST", NULL},
        {"REQUEST_URI=/b", NULL},
    };
    struct fixture f;

    for (size_t i = 0; i < ARRAY_LEN(pairs); i++) {
        ck_assert_msg(parse(&f, "/a", pairs[i][0], pairs[i][1]) == -1, "took %s", pairs[i][0]);
        ck_assert_int_eq(f.err.code, ERR_MALFORMED);
        done(&f);
    }
    ck_assert_int_eq(parse(&f, "/a", "HTTP_ACCEPT=a", "HTTP_ACCEPT=b"), 0);
    done(&f);
    ck_assert_int_eq(parse(&f, "/a", "HTTP_PREFER=wait=1", "HTTP_PREFERENCE=x"), 0);
    ck_assert_str_eq(f.req.prefer, "wait=1");
    done(&f);
}
END_TEST

START_TEST(path_is_decoded_once)
{
    struct fixture f;

    ck_assert_int_eq(parse(&f, "/api/v1/a%20b/%25%32%46/%C3%A9?x=1", NULL, NULL), 0);
    ck_assert_uint_eq(f.req.segment_count, 5);
    ck_assert_str_eq(f.req.segments[0], "api");
    ck_assert_str_eq(f.req.segments[2], "a b");
    ck_assert_str_eq(f.req.segments[3], "%2F"); /* decoded once, not twice */
    ck_assert_str_eq(f.req.segments[4], "é");
    ck_assert_str_eq(request_query(&f.req, "x"), "1");
    done(&f);

    ck_assert_int_eq(parse(&f, "/", NULL, NULL), 0);
    ck_assert_uint_eq(f.req.segment_count, 0);
    done(&f);
}
END_TEST

START_TEST(hostile_paths_are_refused)
{
    static const char *const uris[] = {
        "",
        "x",
        "http://host/healthz",
        "*",
        "//healthz",
        "/a//b",
        "/a/",
        "/a/./b",
        "/a/../b",
        "/a/%2e%2e/b",
        "/a/.%2E",
        "/%2e",
        "/a%2Fb",
        "/a%2fb",
        "/a%00b",
        "/a%0Ab",
        "/a%7Fb",
        "/a%1fb",
        "/a%zz",
        "/a%4",
        "/a%",
        "/%ff",
        "/%C3",
        "/%C0%AF",
        "/%ED%A0%80",
        "/\xc3\xa9",
        "/a b",
        "/a\tb",
        "/a\\b",
        "/a#b",
        "/a?x=%00",
        "/a?x=%C0%AF",
        "/a?x=\xff",
        "/a?x=%0d%0aY",
        "/a?x",
        "/a?=1",
        "/a?&",
        "/a?x=1&",
        "/a?x=1&&y=2",
        "/a?x=1&x=2",
        "/a?x=1&%78=2",
    };

    for (size_t i = 0; i < ARRAY_LEN(uris); i++) {
        struct fixture f;
        ck_assert_msg(parse(&f, uris[i], NULL, NULL) == -1, "took %s", uris[i]);
        ck_assert_msg(f.err.code == ERR_MALFORMED, "%s: %s", uris[i], f.err.detail);
        ck_assert_str_eq(f.req.method, "GET"); /* known for the log and for HEAD */
        done(&f);
    }
}
END_TEST

START_TEST(sizes_are_bounded)
{
    struct fixture f;
    char uri[REQUEST_URI_MAX + 32];

    memset(uri, 'a', sizeof(uri));
    uri[0] = '/';
    uri[REQUEST_URI_MAX] = '\0';
    ck_assert_int_eq(parse(&f, uri, NULL, NULL), 0);
    done(&f);
    uri[REQUEST_URI_MAX] = 'a';
    uri[REQUEST_URI_MAX + 1] = '\0';
    ck_assert_int_eq(parse(&f, uri, NULL, NULL), -1);
    done(&f);

    uri[0] = '\0';
    for (unsigned i = 0; i < REQUEST_SEGMENTS_MAX; i++)
        strcat(uri, "/s");
    ck_assert_int_eq(parse(&f, uri, NULL, NULL), 0);
    ck_assert_uint_eq(f.req.segment_count, REQUEST_SEGMENTS_MAX);
    done(&f);
    strcat(uri, "/s");
    ck_assert_int_eq(parse(&f, uri, NULL, NULL), -1);
    ck_assert_int_eq(f.err.code, ERR_NOT_FOUND);
    done(&f);

    size_t len = (size_t)snprintf(uri, sizeof(uri), "/a?");
    for (unsigned i = 0; i <= REQUEST_PARAMS_MAX; i++)
        len += (size_t)snprintf(uri + len, sizeof(uri) - len, "%sp%u=", i ? "&" : "", i);
    ck_assert_int_eq(parse(&f, uri, NULL, NULL), -1);
    ck_assert_int_eq(f.err.code, ERR_LIMIT_EXCEEDED);
    done(&f);
}
END_TEST

START_TEST(missing_variables_are_an_error)
{
    char *none[] = {NULL};
    struct request req;
    struct error err = ERROR_INIT;

    ck_assert_int_eq(request_parse(&req, none, &err), -1);
    ck_assert_int_eq(err.code, ERR_MALFORMED);
    ck_assert_str_eq(req.method, "");
    request_free(&req);
}
END_TEST

START_TEST(only_the_headers_we_decide_on)
{
    struct fixture f;

    /* A name that merely begins with ours is another variable. */
    ck_assert_int_eq(parse(&f, "/a", "HTTP_AUTHORIZATION_=x", "HTTP_X_API_KEY=k"), 0);
    ck_assert_ptr_null(f.req.authorization);
    ck_assert_str_eq(f.req.api_key, "k");
    done(&f);
}
END_TEST

START_TEST(content_length_is_a_number)
{
    static const char *const bad[] = {"-1", "+1", "1x", "0x10", " 1", "99999999999999999999"};
    struct fixture f;

    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        char variable[64];
        snprintf(variable, sizeof(variable), "CONTENT_LENGTH=%s", bad[i]);
        ck_assert_msg(parse(&f, "/a", variable, NULL) == -1, "took %s", bad[i]);
        ck_assert_int_eq(f.err.code, ERR_MALFORMED);
        done(&f);
    }
    ck_assert_int_eq(parse(&f, "/a", "CONTENT_LENGTH=", NULL), 0);
    ck_assert_int_eq((int)f.req.content_length, -1);
    done(&f);
}
END_TEST

START_TEST(unknown_parameters_are_named)
{
    static const char allowed[] = "limit label.* cursor";
    struct fixture f;

    ck_assert_int_eq(parse(&f, "/a?limit=1&label.x=2&label.y%2Fz=3&cursor=4", NULL, NULL), 0);
    ck_assert_int_eq(request_query_only(&f.req, allowed, &f.err), 0);
    ck_assert_int_eq(request_query_only(&f.req, "", &f.err), -1);
    done(&f);
    static const char *const bad[] = {"/a?limi=1", "/a?limits=1", "/a?label=1", "/a?labelx=1",
                                      "/a?label.*=1&*=2"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        ck_assert_int_eq(parse(&f, bad[i], NULL, NULL), 0);
        ck_assert_msg(request_query_only(&f.req, allowed, &f.err) == -1, "took %s", bad[i]);
        ck_assert_int_eq(f.err.code, ERR_UNKNOWN_FIELD);
        ck_assert_str_ne(f.err.field, "");
        done(&f);
    }
    /* What cannot be quoted is not. */
    ck_assert_int_eq(parse(&f, "/a?%C3%A9=1", NULL, NULL), 0);
    ck_assert_int_eq(request_query_only(&f.req, allowed, &f.err), -1);
    ck_assert_str_eq(f.err.field, "");
    done(&f);
}
END_TEST

/* A body that comes in pieces, and may break off. */
struct source {
    const char *data;
    size_t len;
    size_t at;
    size_t piece;
    bool broken;
    size_t taken; /* bytes asked for and given */
};

static ssize_t source_read(void *arg, void *data, size_t size)
{
    struct source *source = arg;
    size_t n = source->len - source->at;

    if (n > source->piece)
        n = source->piece;
    if (n > size)
        n = size;
    if (n == 0)
        return source->broken ? -1 : 0;
    memcpy(data, source->data + source->at, n);
    source->at += n;
    source->taken += n;
    return (ssize_t)n;
}

static int read_body(struct fixture *f, struct source *source, const char *length, size_t limit)
{
    ck_assert_int_eq(parse(f, "/a", "CONTENT_TYPE=application/json", length), 0);
    return request_read_body(&f->req, source_read, source, limit, &f->err);
}

START_TEST(body_within_its_limit)
{
    struct fixture f;
    struct source source = {.data = "{\"a\":1}", .len = 7, .piece = 3};

    ck_assert_int_eq(read_body(&f, &source, "CONTENT_LENGTH=7", 7), 0);
    ck_assert_uint_eq(f.req.body.len, 7);
    json_t *json = request_json(&f.req, &f.err);
    ck_assert_ptr_nonnull(json);
    json_decref(json);
    done(&f);
    /* Without Content-Length (chunked) the same. */
    source.at = 0;
    ck_assert_int_eq(read_body(&f, &source, NULL, 7), 0);
    ck_assert_uint_eq(f.req.body.len, 7);
    done(&f);
}
END_TEST

START_TEST(body_over_its_limit)
{
    struct fixture f;
    struct source source = {.data = "{\"a\":1}", .len = 7, .piece = 3};

    /* Announced: not a byte of it is read into memory. */
    ck_assert_int_eq(read_body(&f, &source, "CONTENT_LENGTH=7", 6), -1);
    ck_assert_int_eq(f.err.code, ERR_TOO_LARGE);
    ck_assert_uint_eq(source.taken, 0);
    ck_assert(request_drain(source_read, &source));
    ck_assert_uint_eq(source.at, 7);
    done(&f);
    /* Not announced: nothing is kept. */
    source = (struct source){.data = "{\"a\":1}", .len = 7, .piece = 3};
    ck_assert_int_eq(read_body(&f, &source, NULL, 6), -1);
    ck_assert_int_eq(f.err.code, ERR_TOO_LARGE);
    ck_assert_uint_eq(f.req.body.len, 0);
    ck_assert(request_drain(source_read, &source));
    done(&f);
    /* A route without body. */
    source = (struct source){.data = "x", .len = 1, .piece = 3};
    ck_assert_int_eq(read_body(&f, &source, NULL, 0), -1);
    ck_assert_int_eq(f.err.code, ERR_TOO_LARGE);
    done(&f);
}
END_TEST

START_TEST(body_not_as_announced)
{
    static const char *const lengths[] = {"CONTENT_LENGTH=8", "CONTENT_LENGTH=6",
                                          "CONTENT_LENGTH=0"};
    struct fixture f;

    for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
        struct source source = {.data = "{\"a\":1}", .len = 7, .piece = 100};
        ck_assert_msg(read_body(&f, &source, lengths[i], 100) == -1, "%s", lengths[i]);
        ck_assert_int_eq(f.err.code, ERR_MALFORMED);
        done(&f);
    }
    struct source broken = {.data = "{\"a\":1}", .len = 7, .piece = 3, .broken = true};
    ck_assert_int_eq(read_body(&f, &broken, "CONTENT_LENGTH=7", 100), -1);
    ck_assert_int_eq(f.err.code, ERR_MALFORMED);
    done(&f);
}
END_TEST

START_TEST(body_must_be_json_by_its_type)
{
    static const struct {
        const char *type;
        bool good;
    } cases[] = {{"CONTENT_TYPE=application/json", true},
                 {"CONTENT_TYPE=Application/JSON; charset=utf-8", true},
                 {"CONTENT_TYPE=application/json ;x=y", true},
                 {"CONTENT_TYPE=application/jsonx", false},
                 {"CONTENT_TYPE=application/json-patch+json", false},
                 {"CONTENT_TYPE=text/plain", false},
                 {"CONTENT_TYPE=", false},
                 {NULL, false}};

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct fixture f;
        struct source source = {.data = "{}", .len = 2, .piece = 100};
        ck_assert_int_eq(parse(&f, "/a", cases[i].type, NULL), 0);
        int rc = request_read_body(&f.req, source_read, &source, 100, &f.err);
        ck_assert_msg((rc == 0) == cases[i].good, "%s", cases[i].type);
        if (!cases[i].good)
            ck_assert_int_eq(f.err.code, ERR_UNSUPPORTED_MEDIA_TYPE);
        done(&f);
    }
    struct fixture f;
    struct source empty = {.data = "", .piece = 100};
    ck_assert_int_eq(parse(&f, "/a", NULL, NULL), 0);
    ck_assert_int_eq(request_read_body(&f.req, source_read, &empty, 100, &f.err), 0);
    json_t *json = request_json(&f.req, &f.err);
    ck_assert_uint_eq(json_object_size(json), 0);
    json_decref(json);
    done(&f);
}
END_TEST

START_TEST(wait_from_prefer_and_query)
{
    static const struct {
        const char *uri;
        const char *prefer;
        int64_t wait_ms; /* -1: refused */
    } cases[] = {
        {"/a", NULL, 77},
        {"/a?wait=0", NULL, 0},
        {"/a?wait=300", NULL, 300000},
        {"/a?wait=301", NULL, -1},
        {"/a?wait=-1", NULL, -1},
        {"/a?wait=1.5", NULL, -1},
        {"/a?wait=", NULL, -1},
        {"/a", "HTTP_PREFER=wait=10", 10000},
        {"/a", "HTTP_PREFER=respond-async, WAIT=10;x=y", 10000},
        {"/a", "HTTP_PREFER=wait = \"10\"", 10000},
        {"/a", "HTTP_PREFER=foo=\"wait=3, \\\" wait=4\", wait=5", 5000},
        {"/a", "HTTP_PREFER=wait=1, wait=2", 1000},
        {"/a", "HTTP_PREFER=waiting=10", 77},
        {"/a", "HTTP_PREFER=respond-async", 77},
        {"/a", "HTTP_PREFER=", 77},
        {"/a", "HTTP_PREFER=wait", -1},
        {"/a", "HTTP_PREFER=wait=", -1},
        {"/a", "HTTP_PREFER=wait=x", -1},
        {"/a", "HTTP_PREFER=wait=\"", -1},
        {"/a", "HTTP_PREFER=wait=301", -1},
        {"/a", "HTTP_PREFER=wait=99999999999999999999999999999999999999999999", -1},
        {"/a?wait=10", "HTTP_PREFER=wait=10", 10000},
        {"/a?wait=10", "HTTP_PREFER=wait=11", -1},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct fixture f;
        int64_t wait_ms = 77;
        ck_assert_int_eq(parse(&f, cases[i].uri, cases[i].prefer, NULL), 0);
        int rc = options_wait(&f.req, &wait_ms, &f.err);
        ck_assert_msg(rc == (cases[i].wait_ms < 0 ? -1 : 0), "%s %s", cases[i].uri,
                      cases[i].prefer);
        if (rc == 0)
            ck_assert_msg(wait_ms == cases[i].wait_ms, "%s %s: %d", cases[i].uri, cases[i].prefer,
                          (int)wait_ms);
        done(&f);
    }
}
END_TEST

START_TEST(idempotency_keys)
{
    char longest[512] = "HTTP_IDEMPOTENCY_KEY=";
    const char *key = "x";
    struct fixture f;

    ck_assert_int_eq(parse(&f, "/a", NULL, NULL), 0);
    ck_assert_int_eq(options_idempotency_key(&f.req, &key, &f.err), 0);
    ck_assert_ptr_null(key);
    done(&f);

    memset(longest + strlen(longest), '~', OPTIONS_KEY_MAX);
    ck_assert_int_eq(parse(&f, "/a", longest, NULL), 0);
    ck_assert_int_eq(options_idempotency_key(&f.req, &key, &f.err), 0);
    ck_assert_uint_eq(strlen(key), OPTIONS_KEY_MAX);
    done(&f);
    strcat(longest, "~");
    static const char *const bad[] = {"HTTP_IDEMPOTENCY_KEY=", "HTTP_IDEMPOTENCY_KEY=a b",
                                      "HTTP_IDEMPOTENCY_KEY=\xc3\xa9", "HTTP_IDEMPOTENCY_KEY=a\x01",
                                      "HTTP_IDEMPOTENCY_KEY=\x7f"};
    for (size_t i = 0; i <= ARRAY_LEN(bad); i++) {
        ck_assert_int_eq(parse(&f, "/a", i < ARRAY_LEN(bad) ? bad[i] : longest, NULL), 0);
        ck_assert_int_eq(options_idempotency_key(&f.req, &key, &f.err), -1);
        ck_assert_int_eq(f.err.code, ERR_INVALID_FIELD);
        ck_assert_str_eq(f.err.field, "Idempotency-Key");
        done(&f);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("request");
    TCase *tcase = tcase_create("request");

    tcase_add_test(tcase, a_credential_without_a_value_is_none);
    tcase_add_test(tcase, what_is_decided_on_comes_once);
    tcase_add_test(tcase, path_is_decoded_once);
    tcase_add_test(tcase, hostile_paths_are_refused);
    tcase_add_test(tcase, sizes_are_bounded);
    tcase_add_test(tcase, missing_variables_are_an_error);
    tcase_add_test(tcase, only_the_headers_we_decide_on);
    tcase_add_test(tcase, content_length_is_a_number);
    tcase_add_test(tcase, unknown_parameters_are_named);
    tcase_add_test(tcase, body_within_its_limit);
    tcase_add_test(tcase, body_over_its_limit);
    tcase_add_test(tcase, body_not_as_announced);
    tcase_add_test(tcase, body_must_be_json_by_its_type);
    tcase_add_test(tcase, wait_from_prefer_and_query);
    tcase_add_test(tcase, idempotency_keys);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
