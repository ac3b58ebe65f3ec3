/*
 * The route table: every route is found by its own path, the short name is the
 * same tree, 404 and 405 with Allow, HEAD; and, through whole exchanges that
 * need no database, that errors are answered as problems and tokens are asked
 * for before anything else.
 */
#include "fcgi/route.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "fcgi/exchange.h"
#include "fcgi/handlers.h"

#define ID "0001aaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"
#define EID "12345678-bbbb-4ccc-8ddd-eeeeeeeeeeee"

static struct error err;

static int find(struct request *req, struct route_match *match, const char *method,
                const char *path)
{
    char method_variable[64];
    char uri[512];
    char *variables[] = {method_variable, uri, NULL};

    snprintf(method_variable, sizeof(method_variable), "REQUEST_METHOD=%s", method);
    snprintf(uri, sizeof(uri), "REQUEST_URI=%s", path);
    err = (struct error)ERROR_INIT;
    ck_assert_int_eq(request_parse(req, variables, &err), 0);
    req->method = method; /* the copy above does not live on */
    return route_find(req, match, &err);
}

/* The template with every variable replaced by an ordinary value. */
static void fill_template(const char *template, char *out, size_t size)
{
    size_t len = 0;

    while (*template && len + 1 < size) {
        if (*template == '{') {
            out[len++] = 'x';
            template += strcspn(template, "}") + 1;
        } else {
            out[len++] = *template ++;
        }
    }
    out[len] = '\0';
}

START_TEST(every_route_finds_itself)
{
    const struct route *route;

    for (size_t i = 0; (route = route_at(i)); i++) {
        char path[256];
        struct request req;
        struct route_match match;
        fill_template(route->template, path, sizeof(path));
        ck_assert_msg(find(&req, &match, route->method, path) == 0, "%s %s", route->method, path);
        ck_assert_ptr_eq(match.route, route);
        ck_assert(match.route->handler != NULL);
        ck_assert_str_ne(match.route->help, "");
        request_free(&req);
        if (strcmp(route->method, "GET") == 0) {
            ck_assert_int_eq(find(&req, &match, "HEAD", path), 0);
            ck_assert_ptr_eq(match.route, route);
            ck_assert(req.is_head);
            request_free(&req);
        }
    }
}
END_TEST

START_TEST(variables_are_those_of_the_path)
{
    static const char *const paths[] = {
        "/api/v1/projects/p1/sandboxes/" ID "/executions/" EID,
        "/sandbox/p1/" ID "/executions/" EID,
        "/sandbox/%701/" ID "/executions/" EID,
    };

    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        struct request req;
        struct route_match match;
        ck_assert_int_eq(find(&req, &match, "GET", paths[i]), 0);
        ck_assert(match.route->handler == executions_get);
        ck_assert_str_eq(match.project, "p1");
        ck_assert_str_eq(match.sandbox, ID);
        ck_assert_str_eq(match.execution, EID);
        request_free(&req);
    }
    struct request req;
    struct route_match match;
    ck_assert_int_eq(find(&req, &match, "POST", "/sandbox/p1"), 0);
    ck_assert(match.route->handler == sandboxes_create);
    ck_assert_str_eq(match.project, "p1");
    ck_assert_ptr_null(match.sandbox);
    request_free(&req);
}
END_TEST

START_TEST(unknown_paths)
{
    static const char *const paths[] = {
        "/",
        "/sandbox",
        "/api",
        "/api/v1",
        "/api/v2/health",
        "/API/v1/health",
        "/healthz/x",
        "/healthzz",
        "/health",
        "/api/v1/projects/p/sandboxes/" ID "/executions/" EID "/x",
        "/sandbox/p/" ID "/nothing", /* NOLINT(bugprone-suspicious-missing-comma) */
        /* as many segments as a request may have, after the short name is spelt out */
        "/sandbox/p/a/b/c/d/e/f/g/h/i/j/k/l/m/n",
    };

    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        struct request req;
        struct route_match match;
        ck_assert_msg(find(&req, &match, "GET", paths[i]) == -1, "found %s", paths[i]);
        ck_assert_int_eq(err.code, ERR_NOT_FOUND);
        ck_assert_ptr_null(match.route);
        ck_assert_str_eq(match.allow, "");
        request_free(&req);
    }
}
END_TEST

START_TEST(other_methods_are_told_what_is_allowed)
{
    static const struct {
        const char *method;
        const char *path;
        const char *allow;
    } cases[] = {
        {"POST", "/healthz", "GET, HEAD"},
        {"get", "/healthz", "GET, HEAD"},
        {"", "/healthz", "GET, HEAD"},
        {"OPTIONS", "/sandbox/p", "POST, GET, HEAD"},
        {"PUT", "/sandbox/p/" ID, "GET, HEAD, PATCH, DELETE"},
        {"GET", "/sandbox/p/" ID "/exec", "POST"},
        {"HEAD", "/sandbox/p/" ID "/exec", "POST"},
        {"DELETE", "/sandbox/p/usage", "GET, HEAD"}, /* no sandbox of that name */
        {"POST", "/api/v1/projects/p", "GET, HEAD, PUT"},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct request req;
        struct route_match match;
        ck_assert_int_eq(find(&req, &match, cases[i].method, cases[i].path), -1);
        ck_assert_int_eq(err.code, ERR_METHOD_NOT_ALLOWED);
        ck_assert_str_eq(match.allow, cases[i].allow);
        request_free(&req);
    }
}
END_TEST

START_TEST(body_limits_come_from_the_configuration)
{
    const struct config cfg = {.web_body_max = 12345};
    const struct route *route;

    for (size_t i = 0; (route = route_at(i)); i++) {
        bool takes_body = route->method[0] == 'P' && !strstr(route->template, "/cancel");
        size_t expected = takes_body ? 12345 : 0;
        ck_assert_uint_eq(route_body_limit(route, &cfg), expected);
    }
}
END_TEST

/* --- whole exchanges -------------------------------------------------------------------- */

struct run {
    struct app app;
    struct exchange x;
    struct config cfg;
    char text[4096];
};

static ssize_t no_body(void *arg, void *data, size_t size)
{
    (void)arg;
    (void)data;
    (void)size;
    return 0;
}

/* Runs a request against a database that is not there. */
static void run_exchange(struct run *run, const char *method, const char *uri, const char *header)
{
    static char type[] = "CONTENT_TYPE=application/json";
    char method_variable[64];
    char uri_variable[512];
    char header_variable[512];
    char *variables[] = {type, method_variable, uri_variable, header ? header_variable : NULL,
                         NULL};

    memset(run, 0, sizeof(*run));
    snprintf(method_variable, sizeof(method_variable), "REQUEST_METHOD=%s", method);
    snprintf(uri_variable, sizeof(uri_variable), "REQUEST_URI=%s", uri);
    snprintf(header_variable, sizeof(header_variable), "%s", header ? header : "");
    run->cfg.web_body_max = 100;
    run->app.cfg = &run->cfg;
    run->app.db = db_new("host=/nonexistent dbname=none user=none", 1000, 1000);
    log_init(&run->app.log, "test");
    run->app.log.fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    exchange_run(&run->x, &run->app, variables, no_body, NULL);
    ck_assert(!run->x.wants_handoff);
    snprintf(run->text, sizeof(run->text), "%.*s", (int)run->x.out.len, run->x.out.data);
    exchange_log(&run->x);
    close(run->app.log.fd);
    exchange_free(&run->x);
    db_free(run->app.db);
}

START_TEST(errors_are_answered_as_problems)
{
    static const char token[] = "HTTP_AUTHORIZATION=Bearer pdk_0123456789abcdef_"
                                "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    static const struct {
        const char *method;
        const char *uri;
        const char *header;
        int status;
        const char *code;
        const char *also;
    } cases[] = {
        {"GET", "/nothing", NULL, 404, "\"not_found\"", "X-Request-Id: "},
        {"PUT", "/healthz", NULL, 405, "\"method_not_allowed\"", "\r\nAllow: GET, HEAD\r\n"},
        {"GET", "/a/../b", NULL, 400, "\"malformed_request\"", "application/problem+json"},
        {"GET", "/healthz?x=1", NULL, 400, "\"unknown_field\"", "\"field\":\"x\""},
        {"GET", "/healthz", NULL, 503, "\"database_unavailable\"", "\r\nRetry-After: "},
        {"GET", "/api/v1/health", NULL, 401, "\"unauthenticated\"", "WWW-Authenticate: Bearer"},
        {"GET", "/api/v1/health", token, 503, "\"database_unavailable\"", "\r\nRetry-After: "},
        /* the token comes before query and body */
        {"POST", "/sandbox/p?nonsense=1", NULL, 401, "\"unauthenticated\"", "X-Request-Id: "},
        {"DELETE", "/sandbox/p/x", "HTTP_X_API_KEY=nonsense", 401, "\"unauthenticated\"",
         "X-Request-Id: "},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct run run;
        char status[32];
        run_exchange(&run, cases[i].method, cases[i].uri, cases[i].header);
        snprintf(status, sizeof(status), "Status: %d ", cases[i].status);
        ck_assert_msg(strncmp(run.text, status, strlen(status)) == 0, "%s %s: %s", cases[i].method,
                      cases[i].uri, run.text);
        ck_assert_msg(strstr(run.text, cases[i].code) != NULL, "%s", run.text);
        ck_assert_msg(strstr(run.text, cases[i].also) != NULL, "%s", run.text);
    }
}
END_TEST

START_TEST(head_has_no_body)
{
    struct run run;

    run_exchange(&run, "HEAD", "/nothing", NULL);
    ck_assert_ptr_nonnull(strstr(run.text, "Status: 404 "));
    ck_assert_str_eq(strstr(run.text, "\r\n\r\n"), "\r\n\r\n");
}
END_TEST

START_TEST(tokens_from_headers)
{
#define SECRET "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define TOKEN "pdk_0123456789abcdef_" SECRET
#define OTHER "pdk_0123456789abcdee_" SECRET
    static const struct {
        const char *authorization;
        const char *api_key;
        bool good;
    } cases[] = {
        {"Bearer " TOKEN, NULL, true},
        {"bearer  " TOKEN, NULL, true},
        {NULL, TOKEN, true},
        {"Bearer " TOKEN, TOKEN, true},
        {NULL, NULL, false},
        {"Bearer " TOKEN, OTHER, false},
        {"Bearer " OTHER, TOKEN, false},
        {"Bearer " TOKEN, "", false},
        {"Basic " TOKEN, TOKEN, false},
        {"Basic " TOKEN, NULL, false},
        {TOKEN, NULL, false},
        {"Bearer", NULL, false},
        {"Bearer ", NULL, false},
        {"Bearer " TOKEN " ", NULL, false},
        {"Bearer " TOKEN ", Bearer " TOKEN, NULL, false},
        {"Bearer\t" TOKEN, NULL, false},
        {"", NULL, false},
        {NULL, "", false},
        {NULL, "Bearer " TOKEN, false},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct token token;
        struct error e = ERROR_INIT;
        int rc = auth_token_from_headers(cases[i].authorization, cases[i].api_key, &token, &e);
        ck_assert_msg((rc == 0) == cases[i].good, "case %zu", i);
        if (rc == 0)
            ck_assert_str_eq(token.id, "0123456789abcdef");
        else
            ck_assert_int_eq(e.code, ERR_UNAUTHENTICATED);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("route");
    TCase *tcase = tcase_create("route");

    tcase_add_test(tcase, every_route_finds_itself);
    tcase_add_test(tcase, variables_are_those_of_the_path);
    tcase_add_test(tcase, unknown_paths);
    tcase_add_test(tcase, other_methods_are_told_what_is_allowed);
    tcase_add_test(tcase, body_limits_come_from_the_configuration);
    tcase_add_test(tcase, errors_are_answered_as_problems);
    tcase_add_test(tcase, head_has_no_body);
    tcase_add_test(tcase, tokens_from_headers);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
