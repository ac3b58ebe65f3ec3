/* Rows of the views as resources: every member, nulls, outputs that are no text, missing columns.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/db.h"
#include "common/json.h"
#include "common/resource.h"

struct cell {
    const char *name;
    const char *value; /* NULL: SQL null */
};

static const struct cell sandbox_cells[] = {
    {"id", "00011111-2222-4333-8444-555555555555"},
    {"project_id", "99999999-2222-4333-8444-555555555555"},
    {"node", "1"},
    {"state", "ready"},
    {"reason", NULL},
    {"template", "base"},
    {"cpus", "2"},
    {"memory_mb", "1024"},
    {"workspace_mb", "256"},
    {"pids", "128"},
    {"ttl_seconds", "3600"},
    {"idle_seconds", NULL},
    {"labels", "{\"team\": \"\\u00e9\"}"},
    {"egress", "{\"mode\": \"allowlist\", \"allow\": [\"*.example.org\"]}"},
    {"exclusive", "t"},
    {"created_at", "2026-01-02T03:04:05.678Z"},
    {"ready_at", "2026-01-02T03:04:06.000Z"},
    {"expires_at", "2026-01-02T04:04:05.678Z"},
    {"idle_at", NULL},
    {"ended_at", NULL},
    {"queued_ms", "3"},
    {"provision_ms", "141"},
    {"total_ms", "144"},
    {"created_us", "1767323045678000"},
};

static const struct cell execution_cells[] = {
    {"id", "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"},
    {"sandbox_id", "00011111-2222-4333-8444-555555555555"},
    {"state", "timed_out"},
    {"reason", NULL},
    {"error", NULL},
    {"timeout_ms", "1500"},
    {"on_timeout", "kill"},
    {"background", "f"},
    {"tag", "t1"},
    {"exit_code", NULL},
    {"signal", "9"},
    {"stdout", "\\x68c3a90a00"}, /* "hé\n" and a NUL */
    {"stdout_bytes", "5"},
    {"stdout_omitted_at", NULL},
    {"stderr", "\\xff00fe"},
    {"stderr_bytes", "1003"},
    {"stderr_omitted_at", "2"},
    {"cpu_us", "12999"},
    {"created_at", "2026-01-02T03:04:05.678Z"},
    {"started_at", "2026-01-02T03:04:05.700Z"},
    {"ended_at", "2026-01-02T03:04:07.200Z"},
    {"duration_ms", "1500"},
    {"created_us", "1767323045678000"},
    {"oom_killed", "f"},
    {"output_expired", "f"},
    {"cancel_requested_at", NULL},
};

static char *mutable(const char *text)
{
    char *copy = strdup(text);

    ck_assert_ptr_nonnull(copy);
    return copy;
}

/* One row of the cells, with one value replaced, or one column left out. */
static PGresult *make_row(const struct cell *cells, size_t count, const char *replaced,
                          const char *value, const char *left_out)
{
    PGresAttDesc attributes[32];
    char *names[32];
    int columns = 0;
    PGresult *res = PQmakeEmptyPGresult(NULL, PGRES_TUPLES_OK);

    ck_assert_ptr_nonnull(res);
    memset(attributes, 0, sizeof(attributes));
    for (size_t i = 0; i < count; i++) {
        if (left_out && strcmp(cells[i].name, left_out) == 0)
            continue;
        names[columns] = mutable(cells[i].name);
        attributes[columns].name = names[columns];
        columns++;
    }
    ck_assert_int_eq(PQsetResultAttrs(res, columns, attributes), 1);
    for (int column = 0; column < columns; column++) {
        const struct cell *cell = cells;
        while (strcmp(cell->name, names[column]) != 0)
            cell++;
        const char *text = replaced && strcmp(replaced, cell->name) == 0 ? value : cell->value;
        _cleanup_free_ char *copy = text ? mutable(text) : NULL;
        ck_assert_int_eq(PQsetvalue(res, 0, column, copy, text ? (int)strlen(text) : -1), 1);
        free(names[column]);
    }
    return res;
}

static PGresult *sandbox_row(const char *replaced, const char *value, const char *left_out)
{
    return make_row(sandbox_cells, ARRAY_LEN(sandbox_cells), replaced, value, left_out);
}

static PGresult *execution_row(const char *replaced, const char *value, const char *left_out)
{
    return make_row(execution_cells, ARRAY_LEN(execution_cells), replaced, value, left_out);
}

static void assert_json(const json_t *json, const char *wanted_text)
{
    _cleanup_json_ json_t *wanted = json_loads(wanted_text, JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
    _cleanup_free_ char *text = json ? json_dumps(json, JSON_SORT_KEYS | JSON_ENCODE_ANY) : NULL;

    ck_assert_ptr_nonnull(wanted);
    ck_assert_msg(json_equal(json, wanted), "is: %s", text ? text : "(null)");
}

START_TEST(a_sandbox_shows_all_its_members)
{
    _cleanup_pgresult_ PGresult *res = sandbox_row(NULL, NULL, NULL);
    _cleanup_json_ json_t *json = resource_sandbox(res, 0);

    assert_json(json, "{\"id\":\"00011111-2222-4333-8444-555555555555\",\"state\":\"ready\","
                      "\"reason\":null,\"template\":\"base\",\"cpus\":2,\"memoryMb\":1024,"
                      "\"workspaceMb\":256,\"pids\":128,\"ttlSeconds\":3600,\"idleSeconds\":null,"
                      "\"labels\":{\"team\":\"\\u00e9\"},\"egress\":{\"mode\":\"allowlist\","
                      "\"allow\":[\"*.example.org\"]},\"exclusive\":true,\"node\":1,"
                      "\"createdAt\":\"2026-01-02T03:04:05.678Z\","
                      "\"readyAt\":\"2026-01-02T03:04:06.000Z\","
                      "\"expiresAt\":\"2026-01-02T04:04:05.678Z\",\"idleAt\":null,\"endedAt\":null,"
                      "\"timings\":{\"queuedMs\":3,\"provisionMs\":141,\"totalMs\":144,"
                      "\"fromPool\":false}}");
}
END_TEST

START_TEST(an_execution_shows_all_its_members)
{
    _cleanup_pgresult_ PGresult *res = execution_row(NULL, NULL, NULL);
    _cleanup_json_ json_t *json = resource_execution(res, 0);

    assert_json(json,
                "{\"id\":\"aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee\","
                "\"sandboxId\":\"00011111-2222-4333-8444-555555555555\","
                "\"state\":\"timed_out\",\"reason\":null,\"error\":null,\"exitCode\":null,"
                "\"signal\":\"SIGKILL\",\"timedOut\":true,\"oomKilled\":false,\"stdout\":"
                "\"h\\u00e9\\n\\u0000\","
                "\"stderr\":\"/wD+\",\"encoding\":{\"stdout\":\"utf-8\",\"stderr\":\"base64\"},"
                "\"truncated\":{\"stdout\":false,\"stderr\":true},"
                "\"bytes\":{\"stdout\":5,\"stderr\":1003},"
                "\"omitted\":{\"stdout\":null,\"stderr\":{\"at\":2,\"bytes\":1000}},"
                "\"timeoutMs\":1500,\"onTimeout\":\"kill\",\"background\":false,"
                "\"tag\":\"t1\",\"outputExpired\":false,\"cancelRequestedAt\":null,\"cpuMs\":12,"
                "\"createdAt\":\"2026-01-02T03:04:05.678Z\","
                "\"startedAt\":\"2026-01-02T03:04:05.700Z\","
                "\"endedAt\":\"2026-01-02T03:04:07.200Z\",\"durationMs\":1500}");
}
END_TEST

START_TEST(an_environment_is_never_shown)
{
    static const struct cell leaky[] = {{"env", "{\"TOKEN\": \"s3cret\"}"}};
    struct cell cells[ARRAY_LEN(sandbox_cells) + 1];

    memcpy(cells, sandbox_cells, sizeof(sandbox_cells));
    cells[ARRAY_LEN(sandbox_cells)] = leaky[0];
    _cleanup_pgresult_ PGresult *res = make_row(cells, ARRAY_LEN(cells), NULL, NULL, NULL);
    _cleanup_json_ json_t *json = resource_sandbox(res, 0);
    _cleanup_free_ char *text = json_dumps(json, 0);

    ck_assert_ptr_nonnull(text);
    ck_assert_ptr_null(strstr(text, "s3cret"));
    ck_assert_ptr_null(strstr(text, "env"));
}
END_TEST

/* Columns of the views that are not shown. */
static bool is_hidden(const char *name)
{
    return strcmp(name, "project_id") == 0 || strcmp(name, "created_us") == 0;
}

START_TEST(a_missing_column_gives_no_resource)
{
    for (size_t i = 0; i < ARRAY_LEN(sandbox_cells); i++) {
        const char *name = sandbox_cells[i].name;
        _cleanup_pgresult_ PGresult *res = sandbox_row(NULL, NULL, name);
        _cleanup_json_ json_t *json = resource_sandbox(res, 0);
        ck_assert_msg((json != NULL) == is_hidden(name), "without %s", name);
    }
    for (size_t i = 0; i < ARRAY_LEN(execution_cells); i++) {
        const char *name = execution_cells[i].name;
        _cleanup_pgresult_ PGresult *res = execution_row(NULL, NULL, name);
        _cleanup_json_ json_t *json = resource_execution(res, 0);
        ck_assert_msg((json != NULL) == is_hidden(name), "without %s", name);
    }
}
END_TEST

START_TEST(wrong_values_give_no_resource)
{
    static const struct cell sandbox_bad[] = {
        {"cpus", "2.5"},     {"cpus", ""},
        {"node", "one"},     {"ttl_seconds", "99999999999999999999"},
        {"labels", "{"},     {"exclusive", "x"},
        {"exclusive", NULL},
    };
    static const struct cell execution_bad[] = {
        {"stdout", NULL},        {"stdout_bytes", NULL}, {"stdout_bytes", "4"},
        {"background", "maybe"}, {"signal", "KILL"},     {"stderr_bytes", "x"},
    };

    for (size_t i = 0; i < ARRAY_LEN(sandbox_bad); i++) {
        _cleanup_pgresult_ PGresult *res =
            sandbox_row(sandbox_bad[i].name, sandbox_bad[i].value, NULL);
        ck_assert_ptr_null(resource_sandbox(res, 0));
    }
    for (size_t i = 0; i < ARRAY_LEN(execution_bad); i++) {
        _cleanup_pgresult_ PGresult *res =
            execution_row(execution_bad[i].name, execution_bad[i].value, NULL);
        ck_assert_ptr_null(resource_execution(res, 0));
    }
    _cleanup_pgresult_ PGresult *res = sandbox_row(NULL, NULL, NULL);
    ck_assert_ptr_null(resource_sandbox(res, 1));
    ck_assert_ptr_null(resource_sandbox(res, -1));
    ck_assert_ptr_null(resource_execution(res, 0));
}
END_TEST

START_TEST(signals_have_names)
{
    static const struct cell names[] = {{"1", "\"SIGHUP\""},
                                        {"11", "\"SIGSEGV\""},
                                        {"15", "\"SIGTERM\""},
                                        {"34", "\"SIGRTMIN+0\""},
                                        {"64", "\"SIGRTMIN+30\""},
                                        {"33", "\"SIG33\""},
                                        {NULL, "null"}};

    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        _cleanup_pgresult_ PGresult *res = execution_row("signal", names[i].name, NULL);
        _cleanup_json_ json_t *json = resource_execution(res, 0);
        assert_json(json_object_get(json, "signal"), names[i].value);
    }
}
END_TEST

START_TEST(success_is_not_a_timeout)
{
    _cleanup_pgresult_ PGresult *res = execution_row("state", "succeeded", NULL);
    _cleanup_json_ json_t *json = resource_execution(res, 0);
    _cleanup_pgresult_ PGresult *none = execution_row("cpu_us", NULL, NULL);
    _cleanup_json_ json_t *without_cpu = resource_execution(none, 0);

    assert_json(json_object_get(json, "timedOut"), "false");
    assert_json(json_object_get(without_cpu, "cpuMs"), "null");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("resource");
    TCase *tc = tcase_create("rows");

    tcase_add_test(tc, a_sandbox_shows_all_its_members);
    tcase_add_test(tc, an_execution_shows_all_its_members);
    tcase_add_test(tc, an_environment_is_never_shown);
    tcase_add_test(tc, a_missing_column_gives_no_resource);
    tcase_add_test(tc, wrong_values_give_no_resource);
    tcase_add_test(tc, signals_have_names);
    tcase_add_test(tc, success_is_not_a_timeout);
    suite_add_tcase(suite, tc);

    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
