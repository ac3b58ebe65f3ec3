/*
 * Exec requests: the normalised form of each way to name a program, the bounds
 * of execve and of the configuration, folders resolved by text, the default
 * wait, every refusal with its field.
 */
#include "fcgi/exec_request.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "common/wire.h"

static struct config *cfg;

static void load_config(void)
{
    static const char text[] = "[limits]\nexec_timeout_max = 1h\ncode_bytes = 1024\n"
                               "stdin_bytes = 16\nargv_bytes = 300K\n";
    struct error err = ERROR_INIT;

    cfg = config_parse(text, sizeof(text) - 1, "test", &err);
    ck_assert_msg(cfg != NULL, "%s", err.detail);
}

static void free_config(void)
{
    config_free(cfg);
}

static json_t *normalise(const char *text, struct error *err)
{
    const struct json_limits limits = {.bytes = 1 << 22, .depth = 16, .elements = 20000};

    *err = (struct error)ERROR_INIT;
    _cleanup_json_ json_t *body = json_parse_object(text, strlen(text), &limits, err);
    ck_assert_msg(body != NULL, "%.200s: %s", text, err->detail);
    return exec_request_from_body(body, cfg, err);
}

static void expect(const char *text, const char *canonical)
{
    struct error err;
    json_t *request = normalise(text, &err);

    ck_assert_msg(request != NULL, "%s: %s", text, err.detail);
    char *got = json_canonical(request);
    ck_assert_str_eq(got, canonical);
    free(got);
    json_decref(request);
}

START_TEST(a_string_is_run_by_bash)
{
    expect("{\"cmd\":\"echo $HOME\"}",
           "{\"background\":false,\"onTimeout\":\"kill\",\"spec\":{\"argv\":[\"/bin/bash\",\"-c\","
           "\"echo $HOME\"],\"code\":null,\"cwd\":\"/workspace\",\"env\":{},\"stdin\":null,"
           "\"suffix\":null},\"tag\":null,\"timeoutMs\":null}");
}
END_TEST

START_TEST(an_array_is_run_as_it_is)
{
    expect("{\"cmd\":[\"ls\",\"\",\"$HOME\"],\"cwd\":\"a/../b\",\"env\":{\"A B\":\"c=d\"},"
           "\"stdin\":\"\",\"timeoutMs\":3600000,\"onTimeout\":\"terminate\",\"background\":true,"
           "\"tag\":\"t\",\"stream\":false}",
           "{\"background\":true,\"onTimeout\":\"terminate\",\"spec\":{\"argv\":[\"ls\",\"\","
           "\"$HOME\"],\"code\":null,\"cwd\":\"/workspace/b\",\"env\":{\"A B\":\"c=d\"},"
           "\"stdin\":\"\",\"suffix\":null},\"tag\":\"t\",\"timeoutMs\":3600000}");
}
END_TEST

START_TEST(code_has_a_language)
{
    static const struct {
        const char *language;
        const char *program;
        const char *suffix;
    } cases[] = {
        {"javascript", "node", ".mjs"}, {"python", "python3", ".py"}, {"bash", "/bin/bash", ".sh"}};

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char body[256];
        char expected[512];
        snprintf(body, sizeof(body), "{\"code\":\"x\",\"language\":\"%s\",\"stdin\":null}",
                 cases[i].language);
        snprintf(
            expected, sizeof(expected),
            "{\"background\":false,\"onTimeout\":\"kill\",\"spec\":{\"argv\":[\"%s\"],"
            "\"code\":\"x\",\"cwd\":\"/workspace\",\"env\":{},\"stdin\":null,\"suffix\":\"%s\"}"
            ",\"tag\":null,\"timeoutMs\":null}",
            cases[i].program, cases[i].suffix);
        expect(body, expected);
    }
}
END_TEST

START_TEST(folders)
{
    static const struct {
        const char *path;
        const char *resolved;
    } cases[] = {{"", "/workspace"},
                 {".", "/workspace"},
                 {"./", "/workspace"},
                 {"a", "/workspace/a"},
                 {"a//b/", "/workspace/a/b"},
                 {"a/./b/..", "/workspace/a"},
                 {"..", "/"},
                 {"../..", "/"},
                 {"../../tmp", "/tmp"},
                 {"/", "/"},
                 {"//", "/"},
                 {"/..", "/"},
                 {"/../tmp", "/tmp"},
                 {"/a/b/../../c", "/c"},
                 {"/...", "/..."},
                 {"..a/b", "/workspace/..a/b"},
                 {"/tmp/.", "/tmp"},
                 {"/a/..b", "/a/..b"}};
    char out[4096];

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        ck_assert_int_eq(exec_request_resolve_cwd(cases[i].path, out, sizeof(out)), 0);
        ck_assert_msg(strcmp(out, cases[i].resolved) == 0, "%s: %s", cases[i].path, out);
    }
    /* never past the end, at every size */
    for (size_t size = 1; size < 24; size++) {
        char small[32];
        memset(small, '#', sizeof(small));
        int rc = exec_request_resolve_cwd("abc/def", small, size);
        ck_assert_int_eq(rc, size > strlen("/workspace/abc/def") ? 0 : -1);
        ck_assert_int_eq(small[size], '#');
    }
    ck_assert_int_eq(exec_request_resolve_cwd("/..", out, 2), 0);
    ck_assert_str_eq(out, "/");
}
END_TEST

START_TEST(default_waits)
{
    static const struct {
        const char *body;
        int64_t wait_ms;
    } cases[] = {{"{\"cmd\":\"x\"}", 300000},
                 {"{\"cmd\":\"x\",\"timeoutMs\":null}", 300000},
                 {"{\"cmd\":\"x\",\"timeoutMs\":1}", 6000},
                 {"{\"cmd\":\"x\",\"timeoutMs\":1000}", 6000},
                 {"{\"cmd\":\"x\",\"timeoutMs\":1001}", 7000},
                 {"{\"cmd\":\"x\",\"timeoutMs\":295000}", 300000},
                 {"{\"cmd\":\"x\",\"timeoutMs\":294001}", 300000},
                 {"{\"cmd\":\"x\",\"timeoutMs\":3600000}", 300000},
                 {"{\"cmd\":\"x\",\"background\":true}", 0},
                 {"{\"cmd\":\"x\",\"background\":true,\"timeoutMs\":5000}", 0}};

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct error err;
        json_t *request = normalise(cases[i].body, &err);
        ck_assert_ptr_nonnull(request);
        ck_assert_msg(exec_request_default_wait_ms(request) == cases[i].wait_ms, "%s: %d",
                      cases[i].body, (int)exec_request_default_wait_ms(request));
        json_decref(request);
    }
}
END_TEST

static const struct refusal {
    const char *body;
    enum error_code code;
    const char *field;
} refusals[] = {
    {"{}", ERR_INVALID_FIELD, "cmd"},
    {"{\"cmd\":\"x\",\"code\":\"y\",\"language\":\"bash\"}", ERR_INVALID_FIELD, "cmd"},
    {"{\"cmd\":null}", ERR_INVALID_FIELD, "cmd"},
    {"{\"cmd\":1}", ERR_INVALID_FIELD, "cmd"},
    {"{\"cmd\":{}}", ERR_INVALID_FIELD, "cmd"},
    {"{\"cmd\":[]}", ERR_INVALID_FIELD, "cmd"},
    {"{\"cmd\":[\"\"]}", ERR_INVALID_FIELD, "cmd"},
    {"{\"cmd\":[\"a\",1]}", ERR_INVALID_FIELD, "cmd"},
    {"{\"cmd\":[\"a\",[\"b\"]]}", ERR_INVALID_FIELD, "cmd"},
    {"{\"cmd\":[\"a\",null]}", ERR_INVALID_FIELD, "cmd"},
    {"{\"cmd\":\"x\",\"language\":\"bash\"}", ERR_INVALID_FIELD, "language"},
    {"{\"code\":\"x\"}", ERR_INVALID_FIELD, "language"},
    {"{\"code\":\"x\",\"language\":\"ruby\"}", ERR_INVALID_FIELD, "language"},
    {"{\"code\":\"x\",\"language\":\"Python\"}", ERR_INVALID_FIELD, "language"},
    {"{\"code\":1,\"language\":\"bash\"}", ERR_INVALID_FIELD, "code"},
    {"{\"code\":null,\"language\":\"bash\"}", ERR_INVALID_FIELD, "code"},
    {"{\"language\":\"bash\"}", ERR_INVALID_FIELD, "cmd"},
    {"{\"cmd\":\"x\",\"cwd\":1}", ERR_INVALID_FIELD, "cwd"},
    {"{\"cmd\":\"x\",\"env\":[]}", ERR_INVALID_FIELD, "env"},
    {"{\"cmd\":\"x\",\"env\":{\"\":\"x\"}}", ERR_INVALID_FIELD, "env"},
    {"{\"cmd\":\"x\",\"env\":{\"A=\":\"x\"}}", ERR_INVALID_FIELD, "env"},
    {"{\"cmd\":\"x\",\"env\":{\"A\":null}}", ERR_INVALID_FIELD, "env.A"},
    {"{\"cmd\":\"x\",\"stdin\":\"12345678901234567\"}", ERR_LIMIT_EXCEEDED, "stdin"},
    {"{\"cmd\":\"x\",\"stdin\":[]}", ERR_INVALID_FIELD, "stdin"},
    {"{\"cmd\":\"x\",\"timeoutMs\":0}", ERR_INVALID_FIELD, "timeoutMs"},
    {"{\"cmd\":\"x\",\"timeoutMs\":-5}", ERR_INVALID_FIELD, "timeoutMs"},
    {"{\"cmd\":\"x\",\"timeoutMs\":3600001}", ERR_LIMIT_EXCEEDED, "timeoutMs"},
    {"{\"cmd\":\"x\",\"timeoutMs\":\"1\"}", ERR_INVALID_FIELD, "timeoutMs"},
    {"{\"cmd\":\"x\",\"onTimeout\":\"stop\"}", ERR_INVALID_FIELD, "onTimeout"},
    {"{\"cmd\":\"x\",\"onTimeout\":null}", ERR_INVALID_FIELD, "onTimeout"},
    {"{\"cmd\":\"x\",\"background\":\"yes\"}", ERR_INVALID_FIELD, "background"},
    {"{\"cmd\":\"x\",\"stream\":true}", ERR_UNSATISFIABLE, "stream"},
    {"{\"cmd\":\"x\",\"stream\":0}", ERR_INVALID_FIELD, "stream"},
    {"{\"cmd\":\"x\",\"tag\":7}", ERR_INVALID_FIELD, "tag"},
    {"{\"cmd\":\"x\",\"timeout\":5}", ERR_UNKNOWN_FIELD, "timeout"},
    {"{\"command\":\"x\"}", ERR_UNKNOWN_FIELD, "command"},
};

START_TEST(each_refusal_names_its_field)
{
    const struct refusal *r = &refusals[_i];
    struct error err;
    json_t *request = normalise(r->body, &err);

    ck_assert_msg(request == NULL, "took %s", r->body);
    ck_assert_msg(err.code == r->code, "%s: %s (%s)", r->body, error_code_name(err.code),
                  err.detail);
    ck_assert_msg(strcmp(err.field, r->field) == 0, "%s: %s", r->body, err.field);
}
END_TEST

/* `before`, then `count` times `unit`, then `after`. */
static char *repeat(const char *before, const char *unit, size_t count, const char *after)
{
    size_t unit_len = strlen(unit);
    size_t before_len = strlen(before);
    char *text = malloc(before_len + unit_len * count + strlen(after) + 1);

    ck_assert_ptr_nonnull(text);
    memcpy(text, before, before_len + 1);
    for (size_t i = 0; i < count; i++)
        memcpy(text + before_len + i * unit_len, unit, unit_len + 1);
    memcpy(text + before_len + unit_len * count, after, strlen(after) + 1);
    return text;
}

static const struct size_case {
    const char *before;
    const char *unit;
    size_t count; /* the most that is taken */
    const char *after;
    const char *field;
    const char *text;
} size_cases[] = {
    {"{\"cmd\":[\"a\",\"", "x", WIRE_ARG_MAX - 1, "\"]}", "cmd", "MAX_ARG_STRLEN"},
    {"{\"cmd\":\"", "x", WIRE_ARG_MAX - 1, "\"}", "cmd", "MAX_ARG_STRLEN"},
    {"{\"cmd\":\"x\",\"env\":{\"A\":\"", "x", WIRE_ARG_MAX - 3, "\"}}", "env", "MAX_ARG_STRLEN"},
    {"{\"cmd\":[\"a\"", ",\"\"", 4095, "]}", "cmd", "4096"},
    {"{\"code\":\"", "x", 1024, "\",\"language\":\"bash\"}", "code", "1024"},
    {"{\"cmd\":\"x\",\"tag\":\"", "x", 200, "\"}", "tag", "200"},
    {"{\"cmd\":\"x\",\"cwd\":\"/", "x", 4094, "\"}", "cwd", "4095"},
    /* below /workspace the absolute path is what counts */
    {"{\"cmd\":\"x\",\"cwd\":\"", "x", 4084, "\"}", "cwd", "4095"},
};

START_TEST(sizes_to_the_byte)
{
    const struct size_case *c = &size_cases[_i];
    struct error err;
    char *body = repeat(c->before, c->unit, c->count, c->after);
    json_t *request = normalise(body, &err);

    ck_assert_msg(request != NULL, "%s", err.detail);
    json_decref(request);
    free(body);
    body = repeat(c->before, c->unit, c->count + 1, c->after);
    ck_assert_ptr_null(normalise(body, &err));
    ck_assert_int_eq(err.code, ERR_LIMIT_EXCEEDED);
    ck_assert_str_eq(err.field, c->field);
    ck_assert_msg(strstr(err.detail, c->text) != NULL, "%s", err.detail);
    free(body);
}
END_TEST

START_TEST(argv_and_env_together)
{
    /* limits.argv_bytes is 307,200: three strings of 100,000 and what surrounds them fit */
    char *a = repeat("{\"cmd\":[\"a\",\"", "x", 100000, "\",\"");
    char *b = repeat(a, "y", 100000, "\"],\"env\":{\"A\":\"");
    char *fits = repeat(b, "z", 307200 - 2 * 100001 - 2 - 3, "\"}}");
    char *over = repeat(b, "z", 307200 - 2 * 100001 - 2 - 3 + 1, "\"}}");
    struct error err;
    json_t *request = normalise(fits, &err);

    ck_assert_msg(request != NULL, "%s", err.detail);
    json_decref(request);
    ck_assert_ptr_null(normalise(over, &err));
    ck_assert_int_eq(err.code, ERR_LIMIT_EXCEEDED);
    ck_assert_ptr_nonnull(strstr(err.detail, "limits.argv_bytes"));
    free(a);
    free(b);
    free(fits);
    free(over);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exec_request");
    TCase *tcase = tcase_create("exec_request");

    tcase_add_checked_fixture(tcase, load_config, free_config);
    tcase_add_test(tcase, a_string_is_run_by_bash);
    tcase_add_test(tcase, an_array_is_run_as_it_is);
    tcase_add_test(tcase, code_has_a_language);
    tcase_add_test(tcase, folders);
    tcase_add_test(tcase, default_waits);
    tcase_add_loop_test(tcase, each_refusal_names_its_field, 0, ARRAY_LEN(refusals));
    tcase_add_loop_test(tcase, sizes_to_the_byte, 0, ARRAY_LEN(size_cases));
    tcase_add_test(tcase, argv_and_env_together);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
