/*
 * Create requests: the normalised form with its defaults, every bound with the
 * limit named, every refusal with its field.
 */
#include "fcgi/sandbox_request.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"

static struct config *cfg;

static void load_config(void)
{
    static const char text[] = "[guest]\ntemplates = base node\ncpus = 1\ncpus_max = 4\n"
                               "memory_mb = 1024\nmemory_mb_max = 2048\nworkspace_mb = 256\n"
                               "tmp_mb = 128\nshm_mb = 64\npids = 256\npids_max = 1024\n"
                               "[limits]\nttl_max = 1h\nenv_bytes = 64\nlabels = 2\n";
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
    const struct json_limits limits = {.bytes = 1 << 20, .depth = 16, .elements = 20000};

    *err = (struct error)ERROR_INIT;
    _cleanup_json_ json_t *body = json_parse_object(text, strlen(text), &limits, err);
    ck_assert_msg(body != NULL, "%s: %s", text, err->detail);
    return sandbox_request_from_body(body, cfg, err);
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

START_TEST(defaults)
{
    static const char all[] =
        "{\"cpus\":1,\"egress\":{\"allow\":[],\"mode\":\"none\"},\"env\":{},\"exclusive\":false,"
        "\"idleSeconds\":null,\"labels\":{},\"memoryMb\":1024,\"pids\":256,\"template\":\"base\","
        "\"ttlSeconds\":null,\"workspaceMb\":256}";
    /* Lifetimes that are not said are the policy's affair. */
    static const char open_lifetimes[] =
        "{\"cpus\":1,\"egress\":{\"allow\":[],\"mode\":\"none\"},\"env\":{},\"exclusive\":false,"
        "\"labels\":{},\"memoryMb\":1024,\"pids\":256,\"template\":\"base\",\"workspaceMb\":256}";

    expect("{}", open_lifetimes);
    expect("{\"template\":\"base\",\"cpus\":1,\"memoryMb\":1024,\"workspaceMb\":256,\"pids\":256,"
           "\"ttlSeconds\":null,\"idleSeconds\":null,\"env\":{},\"labels\":{},"
           "\"egress\":{\"mode\":\"none\"},\"exclusive\":false}",
           all);
    expect("{\"egress\":{}}", open_lifetimes);
    expect("{\"egress\":{\"allow\":[]}}", open_lifetimes);
}
END_TEST

START_TEST(everything_given)
{
    expect("{\"template\":\"node\",\"cpus\":4,\"memoryMb\":2048,\"workspaceMb\":1792,\"pids\":1024,"
           "\"ttlSeconds\":3600,\"idleSeconds\":1,\"env\":{\"_A1\":\"x=y\"},"
           "\"labels\":{\"a.b/c_d-E\":\"\"},\"exclusive\":true}",
           "{\"cpus\":4,\"egress\":{\"allow\":[],\"mode\":\"none\"},\"env\":{\"_A1\":\"x=y\"},"
           "\"exclusive\":true,\"idleSeconds\":1,\"labels\":{\"a.b/c_d-E\":\"\"},"
           "\"memoryMb\":2048,\"pids\":1024,\"template\":\"node\",\"ttlSeconds\":3600,"
           "\"workspaceMb\":1792}");
}
END_TEST

struct refusal {
    const char *body;
    enum error_code code;
    const char *field;
    const char *text; /* in the detail */
};

static const struct refusal refusals[] = {
    {"{\"cpu\":1}", ERR_UNKNOWN_FIELD, "cpu", "cpu"},
    {"{\"Template\":\"base\"}", ERR_UNKNOWN_FIELD, "Template", ""},
    {"{\"template\":null}", ERR_INVALID_FIELD, "template", ""},
    {"{\"template\":\"\"}", ERR_INVALID_FIELD, "template", ""},
    {"{\"template\":\"../base\"}", ERR_INVALID_FIELD, "template", ""},
    {"{\"template\":\"Base\"}", ERR_INVALID_FIELD, "template", ""},
    {"{\"cpus\":0}", ERR_INVALID_FIELD, "cpus", "1"},
    {"{\"cpus\":5}", ERR_LIMIT_EXCEEDED, "cpus", "4"},
    {"{\"cpus\":\"1\"}", ERR_INVALID_FIELD, "cpus", "integer"},
    {"{\"cpus\":null}", ERR_INVALID_FIELD, "cpus", ""},
    {"{\"memoryMb\":2049}", ERR_LIMIT_EXCEEDED, "memoryMb", "2048"},
    {"{\"memoryMb\":0}", ERR_INVALID_FIELD, "memoryMb", ""},
    {"{\"memoryMb\":511}", ERR_INVALID_FIELD, "memoryMb", "512"},
    {"{\"workspaceMb\":769}", ERR_INVALID_FIELD, "workspaceMb", "1025"},
    {"{\"workspaceMb\":0}", ERR_INVALID_FIELD, "workspaceMb", ""},
    {"{\"workspaceMb\":9223372036854775807}", ERR_LIMIT_EXCEEDED, "workspaceMb", "2048"},
    {"{\"workspaceMb\":1793,\"memoryMb\":2048}", ERR_INVALID_FIELD, "workspaceMb", "2049"},
    {"{\"pids\":15}", ERR_INVALID_FIELD, "pids", "16"},
    {"{\"pids\":1025}", ERR_LIMIT_EXCEEDED, "pids", "1024"},
    {"{\"ttlSeconds\":3601}", ERR_LIMIT_EXCEEDED, "ttlSeconds", "3600"},
    {"{\"ttlSeconds\":0}", ERR_INVALID_FIELD, "ttlSeconds", ""},
    {"{\"idleSeconds\":3601}", ERR_LIMIT_EXCEEDED, "idleSeconds", "3600"},
    {"{\"idleSeconds\":-1}", ERR_INVALID_FIELD, "idleSeconds", ""},
    {"{\"env\":[]}", ERR_INVALID_FIELD, "env", ""},
    {"{\"env\":null}", ERR_INVALID_FIELD, "env", ""},
    {"{\"env\":{\"A\":1}}", ERR_INVALID_FIELD, "env.A", ""},
    {"{\"env\":{\"\":\"x\"}}", ERR_INVALID_FIELD, "env", ""},
    {"{\"env\":{\"1A\":\"x\"}}", ERR_INVALID_FIELD, "env", "digit"},
    {"{\"env\":{\"A=B\":\"x\"}}", ERR_INVALID_FIELD, "env", ""},
    {"{\"env\":{\"A-B\":\"x\"}}", ERR_INVALID_FIELD, "env", ""},
    {"{\"env\":{\"\xc3\x84\":\"x\"}}", ERR_INVALID_FIELD, "env", ""},
    /* 2 variables of N=30*x and a NUL: 65 bytes in all */
    {"{\"env\":{\"A\":\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\",\"B\":\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"}}",
     ERR_LIMIT_EXCEEDED, "env", "limits.env_bytes"},
    {"{\"labels\":{\"a\":\"1\",\"b\":\"2\",\"c\":\"3\"}}", ERR_LIMIT_EXCEEDED, "labels", "2"},
    {"{\"labels\":{\"a b\":\"1\"}}", ERR_INVALID_FIELD, "labels", ""},
    {"{\"labels\":{\"a\":true}}", ERR_INVALID_FIELD, "labels.a", ""},
    {"{\"labels\":{\"aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffff1234\":\"\"}}",
     ERR_LIMIT_EXCEEDED, NULL, "63"},
    {"{\"egress\":\"none\"}", ERR_INVALID_FIELD, "egress", ""},
    {"{\"egress\":null}", ERR_INVALID_FIELD, "egress", ""},
    {"{\"egress\":{\"mode\":\"public\"}}", ERR_UNSATISFIABLE, "egress", "not available"},
    {"{\"egress\":{\"mode\":\"allowlist\",\"allow\":[\"a.example\"]}}", ERR_UNSATISFIABLE, "egress",
     "not available"},
    {"{\"egress\":{\"mode\":\"all\"}}", ERR_INVALID_FIELD, "egress.mode", ""},
    {"{\"egress\":{\"mode\":\"none\",\"allow\":[\"a\"]}}", ERR_INVALID_FIELD, "egress.allow", ""},
    {"{\"egress\":{\"allow\":\"a\"}}", ERR_INVALID_FIELD, "egress.allow", ""},
    {"{\"egress\":{\"deny\":[]}}", ERR_UNKNOWN_FIELD, "egress.deny", ""},
    {"{\"egress\":{\"mode\":1}}", ERR_INVALID_FIELD, "egress.mode", ""},
    {"{\"exclusive\":1}", ERR_INVALID_FIELD, "exclusive", ""},
};

START_TEST(each_refusal_names_its_field)
{
    const struct refusal *r = &refusals[_i];
    struct error err;
    json_t *request = normalise(r->body, &err);

    ck_assert_msg(request == NULL, "took %s", r->body);
    ck_assert_msg(err.code == r->code, "%s: %s (%s)", r->body, error_code_name(err.code),
                  err.detail);
    if (r->field)
        ck_assert_str_eq(err.field, r->field);
    ck_assert_msg(strstr(err.detail, r->text) != NULL, "%s: %s", r->body, err.detail);
}
END_TEST

START_TEST(env_up_to_its_limit)
{
    struct error err;
    json_t *request = normalise("{\"env\":{\"A\":\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxx\","
                                "\"B\":\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"}}",
                                &err);

    ck_assert_msg(request != NULL, "%s", err.detail);
    json_decref(request);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sandbox_request");
    TCase *tcase = tcase_create("sandbox_request");

    tcase_add_checked_fixture(tcase, load_config, free_config);
    tcase_add_test(tcase, defaults);
    tcase_add_test(tcase, everything_given);
    tcase_add_loop_test(tcase, each_refusal_names_its_field, 0, ARRAY_LEN(refusals));
    tcase_add_test(tcase, env_up_to_its_limit);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
