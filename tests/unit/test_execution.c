/*
 * From a row's jsonb to the wire spec, and from the guest's last frame to the
 * columns of the row.
 */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/wire.h"
#include "daemon/execution_result.h"
#include "daemon/execution_spec.h"

/* The records as "tag:text|tag:text". */
static void describe(const struct execution_spec *spec, char *out, size_t size)
{
    struct error err = ERROR_INIT;
    struct wire_record record;
    size_t offset = 0;
    size_t at = 0;
    int rc;

    out[0] = '\0';
    while ((rc = wire_spec_next(spec->wire.data, spec->wire.len, &offset, &record, &err)) > 0)
        at += (size_t)snprintf(out + at, size - at, "%s%d:%.*s", at ? "|" : "", (int)record.tag,
                               (int)record.len, (const char *)record.data);
    ck_assert_msg(rc == 0, "%s", err.detail);
}

static void check_spec(const char *json, const char *expected, const char *input)
{
    struct execution_spec spec = EXECUTION_SPEC_INIT;
    struct error err = ERROR_INIT;
    char text[1024];

    ck_assert_msg(execution_spec_parse(json, strlen(json), &spec, &err) == 0, "%s", err.detail);
    describe(&spec, text, sizeof(text));
    ck_assert_str_eq(text, expected);
    ck_assert_int_eq(spec.has_input, input != NULL);
    if (input) {
        ck_assert_uint_eq(spec.input.len, strlen(input));
        ck_assert(strlen(input) == 0 || memcmp(spec.input.data, input, strlen(input)) == 0);
    }
    execution_spec_free(&spec);
}

START_TEST(specs)
{
    check_spec("{\"argv\": [\"true\"]}", "1:true", NULL);
    check_spec("{\"argv\": [\"sh\", \"-c\", \"\"], \"env\": {\"A\": \"1\", \"B\": \"x=y\"},"
               " \"cwd\": \"/tmp\"}",
               "1:sh|1:-c|1:|2:A=1|2:B=x=y|3:/tmp", NULL);
    check_spec("{\"argv\": [\"python3\"], \"code\": \"print(1)\", \"suffix\": \".py\"}",
               "1:python3|5:.py|4:print(1)", NULL);
    check_spec("{\"argv\": [\"cat\"], \"stdin\": \"h\xc3\xa9\"}", "1:cat|6:", "h\xc3\xa9");
    check_spec("{\"argv\": [\"cat\"], \"stdin\": \"\"}", "1:cat|6:", "");
    check_spec("{\"argv\": [\"a\"], \"env\": null, \"cwd\": null, \"code\": null,"
               " \"suffix\": null, \"stdin\": null}",
               "1:a", NULL);
}
END_TEST

static const char *const bad_specs[] = {
    "",
    "[]",
    "{}",
    "{\"argv\": []}",
    "{\"argv\": \"true\"}",
    "{\"argv\": [1]}",
    "{\"argv\": [null]}",
    "{\"argv\": [\"a\"], \"other\": 1}",
    "{\"argv\": [\"a\"], \"argv\": [\"b\"]}",
    "{\"argv\": [\"a\\u0000b\"]}",
    "{\"argv\": [\"a\"], \"env\": []}",
    "{\"argv\": [\"a\"], \"env\": {\"A\": 1}}",
    "{\"argv\": [\"a\"], \"env\": {\"\": \"1\"}}",
    "{\"argv\": [\"a\"], \"env\": {\"A=B\": \"1\"}}",
    "{\"argv\": [\"a\"], \"cwd\": \"relative\"}",
    "{\"argv\": [\"a\"], \"cwd\": \"\"}",
    "{\"argv\": [\"a\"], \"cwd\": 1}",
    "{\"argv\": [\"a\"], \"code\": {}}",
    "{\"argv\": [\"a\"], \"code\": \"\", \"suffix\": \"/../x\"}",
    "{\"argv\": [\"a\"], \"code\": \"\", \"suffix\": \".aaaaaaaaaaaaaaaaaaaaaaaa\"}",
    "{\"argv\": [\"a\"], \"code\": \"\", \"suffix\": \".aaaaaaaaaaaaaaa\"}",
    "{\"argv\": [\"a\"], \"stdin\": true}",
};

START_TEST(bad_specs_are_refused)
{
    struct execution_spec spec = EXECUTION_SPEC_INIT;
    struct error err = ERROR_INIT;

    ck_assert_msg(execution_spec_parse(bad_specs[_i], strlen(bad_specs[_i]), &spec, &err) == -1,
                  "%s", bad_specs[_i]);
    ck_assert(error_is_set(&err));
    ck_assert_uint_eq(spec.wire.len, 0);
    execution_spec_free(&spec);
}
END_TEST

/* {"argv": ["xxx…"]} with len bytes of x, and "code" likewise. */
static int parse_sized(size_t arg_len, size_t code_len)
{
    struct execution_spec spec = EXECUTION_SPEC_INIT;
    struct error err = ERROR_INIT;
    struct buf json = BUF_INIT(0);
    int rc;

    buf_append_str(&json, "{\"argv\": [\"");
    ck_assert_ptr_nonnull(buf_reserve(&json, arg_len + code_len + 64));
    memset(json.data + json.len, 'x', arg_len);
    json.len += arg_len;
    buf_append_str(&json, "\"], \"code\": \"");
    memset(json.data + json.len, 'y', code_len);
    json.len += code_len;
    buf_append_str(&json, "\"}");
    ck_assert_int_eq(json.overflowed, 0);
    rc = execution_spec_parse(json.data, json.len, &spec, &err);
    execution_spec_free(&spec);
    buf_free(&json);
    return rc;
}

START_TEST(sizes_at_their_bounds)
{
    ck_assert_int_eq(parse_sized(WIRE_ARG_MAX - 1, 1), 0);
    ck_assert_int_eq(parse_sized(WIRE_ARG_MAX, 1), -1);
    /* Two records with 5 bytes of head each, the argument one byte. */
    ck_assert_int_eq(parse_sized(1, WIRE_SPEC_MAX - 11), 0);
    ck_assert_int_eq(parse_sized(1, WIRE_SPEC_MAX - 10), -1);
}
END_TEST

START_TEST(environment_of_a_sandbox)
{
    static const char json[] = "{\"A\": \"1\", \"LONG\": \"x y=z\", \"E\": \"\"}";
    struct buf env = BUF_INIT(1000);
    struct buf small = BUF_INIT(10);
    struct error err = ERROR_INIT;

    ck_assert_int_eq(execution_env_parse(json, strlen(json), &env, &err), 0);
    ck_assert_uint_eq(env.len, sizeof("A=1\0LONG=x y=z\0E="));
    ck_assert_int_eq(memcmp(env.data, "A=1\0LONG=x y=z\0E=", env.len), 0);
    ck_assert_int_eq(execution_env_parse(json, strlen(json), &small, &err), -1);
    buf_clear(&env);
    ck_assert_int_eq(execution_env_parse("{\"A=\": \"\"}", 10, &env, &err), -1);
    ck_assert_int_eq(execution_env_parse("{\"A\": 1}", 8, &env, &err), -1);
    ck_assert_int_eq(execution_env_parse("{}", 2, &env, &err), 0);
    ck_assert_uint_eq(env.len, 0);
    buf_free(&env);
    buf_free(&small);
}
END_TEST

static void check_exit(uint8_t code, uint8_t sig, bool killed, enum execution_stop stop,
                       enum execution_state state, int exit_code)
{
    const struct channel_exit from = {.code = code, .signal = sig, .killed = killed, .cpu_us = 77};
    struct execution_result result;

    execution_result_exit(&from, stop, &result);
    ck_assert_int_eq(result.state, state);
    ck_assert_pstr_eq(result.reason, state == EXECUTION_TIMED_OUT   ? "execution_timeout"
                                     : state == EXECUTION_CANCELLED ? "execution_cancel"
                                                                    : NULL);
    ck_assert_int_eq(result.exit_code, exit_code);
    ck_assert_int_eq(result.signal, sig);
    ck_assert_int_eq(result.cpu_us, 77);
    ck_assert_str_eq(result.error, "");
}

START_TEST(exits)
{
    check_exit(0, 0, false, EXECUTION_STOP_NONE, EXECUTION_SUCCEEDED, 0);
    check_exit(1, 0, false, EXECUTION_STOP_NONE, EXECUTION_FAILED, 1);
    check_exit(255, 0, false, EXECUTION_STOP_NONE, EXECUTION_FAILED, 255);
    check_exit(0, 11, false, EXECUTION_STOP_NONE, EXECUTION_FAILED, 139);
    check_exit(0, 64, false, EXECUTION_STOP_NONE, EXECUTION_FAILED, 192);
    /* The time was over and the tree was killed for it, whatever it exited with. */
    check_exit(0, 15, true, EXECUTION_STOP_TIMEOUT, EXECUTION_TIMED_OUT, 143);
    check_exit(0, 0, true, EXECUTION_STOP_TIMEOUT, EXECUTION_TIMED_OUT, 0);
    check_exit(3, 0, true, EXECUTION_STOP_TIMEOUT, EXECUTION_TIMED_OUT, 3);
    /* It ended by itself while KILL was under way. */
    check_exit(0, 0, false, EXECUTION_STOP_TIMEOUT, EXECUTION_SUCCEEDED, 0);
    check_exit(3, 0, false, EXECUTION_STOP_TIMEOUT, EXECUTION_FAILED, 3);
    check_exit(0, 0, false, EXECUTION_STOP_CANCEL, EXECUTION_SUCCEEDED, 0);
    check_exit(0, 9, false, EXECUTION_STOP_CANCEL, EXECUTION_FAILED, 137);
    /* A client asked for its end. */
    check_exit(0, 9, true, EXECUTION_STOP_CANCEL, EXECUTION_CANCELLED, 137);
    check_exit(0, 0, true, EXECUTION_STOP_CANCEL, EXECUTION_CANCELLED, 0);
    /* Killed is never success. */
    check_exit(0, 0, true, EXECUTION_STOP_NONE, EXECUTION_FAILED, 0);
}
END_TEST

static void check_failed(enum wire_step step, int errno_value, int exit_code, const char *text)
{
    struct execution_result result;

    execution_result_failed(step, errno_value, &result);
    ck_assert_int_eq(result.state, EXECUTION_FAILED);
    ck_assert_int_eq(result.exit_code, exit_code);
    ck_assert_int_eq(result.signal, 0);
    ck_assert_int_eq(result.cpu_us, -1);
    ck_assert_str_eq(result.error, text);
}

START_TEST(failures)
{
    check_failed(WIRE_STEP_EXEC, ENOENT, 127,
                 "the command cannot be executed: No such file or directory");
    check_failed(WIRE_STEP_EXEC, EACCES, 126, "the command cannot be executed: Permission denied");
    check_failed(WIRE_STEP_EXEC, ENOEXEC, 126, "the command cannot be executed: Exec format error");
    check_failed(WIRE_STEP_EXEC, E2BIG, 126,
                 "the command cannot be executed: Argument list too long");
    check_failed(WIRE_STEP_CWD, ENOENT, -1,
                 "the working directory cannot be entered: No such file or directory");
    check_failed(WIRE_STEP_SCRIPT, ENOSPC, -1,
                 "the code cannot be written to a file: No space left on device");
    check_failed(WIRE_STEP_FORK, EAGAIN, -1,
                 "no process could be made: Resource temporarily unavailable");
    check_failed(WIRE_STEP_SPEC, 4000, -1, "the guest refused the execution: error 4000");
}
END_TEST

START_TEST(refused_and_lost)
{
    struct execution_result result;
    char text[2000];

    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    execution_result_refused(text, &result);
    ck_assert_int_eq(result.state, EXECUTION_FAILED);
    ck_assert_int_eq(result.exit_code, -1);
    ck_assert_uint_eq(strlen(result.error), sizeof(result.error) - 1);
    execution_result_lost("nobody knows", &result);
    ck_assert_int_eq(result.state, EXECUTION_LOST);
    ck_assert_int_eq(result.exit_code, -1);
    ck_assert_str_eq(result.error, "nobody knows");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("execution");
    TCase *tc = tcase_create("execution");
    SRunner *runner;
    int failed;

    tcase_add_test(tc, specs);
    tcase_add_loop_test(tc, bad_specs_are_refused, 0,
                        (int)(sizeof(bad_specs) / sizeof(bad_specs[0])));
    tcase_set_timeout(tc, 60); /* megabytes of JSON on a busy machine */
    tcase_add_test(tc, sizes_at_their_bounds);
    tcase_add_test(tc, environment_of_a_sandbox);
    tcase_add_test(tc, exits);
    tcase_add_test(tc, failures);
    tcase_add_test(tc, refused_and_lost);
    suite_add_tcase(suite, tc);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
