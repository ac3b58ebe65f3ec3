/*
 * The state tables of the programs against those of the database: the schema's
 * text is read (from $srcdir, as automake sets it) and compared both ways, so
 * neither side can gain or lose a transition, a state or a reason alone.
 */
#include "common/states.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCHEMA "sql/0001_schema.sql"
#define WORD_MAX 64

static char *schema;

static void setup(void)
{
    const char *srcdir = getenv("srcdir");
    char path[4096];

    snprintf(path, sizeof(path), "%s/%s", srcdir ? srcdir : ".", SCHEMA);
    FILE *file = fopen(path, "re");
    ck_assert_msg(file != NULL, "%s cannot be opened (is srcdir set?)", path);
    size_t size = 1 << 20;
    schema = calloc(1, size);
    size_t len = fread(schema, 1, size - 1, file);
    fclose(file);
    ck_assert_uint_gt(len, 0);
    ck_assert_uint_lt(len, size - 1);
}

static void teardown(void)
{
    free(schema);
}

/* The text between begin and the first end behind it. */
static char *section(const char *begin, const char *end)
{
    const char *from = strstr(schema, begin);
    ck_assert_msg(from != NULL, "the schema lacks \"%s\"", begin);
    from += strlen(begin);
    const char *to = strstr(from, end);
    ck_assert_msg(to != NULL, "\"%s\" does not end", begin);
    return strndup(from, (size_t)(to - from));
}

/* The next 'quoted word' at *at, which moves behind it; false at the end. */
static bool next_word(const char **at, char word[WORD_MAX])
{
    const char *from = strchr(*at, '\'');
    if (!from)
        return false;
    const char *to = strchr(from + 1, '\'');
    ck_assert_ptr_nonnull(to);
    size_t len = (size_t)(to - from - 1);
    ck_assert_uint_lt(len, WORD_MAX);
    memcpy(word, from + 1, len);
    word[len] = '\0';
    *at = to + 1;
    return true;
}

START_TEST(transitions_equal_the_database)
{
    char *text = section("INSERT INTO state_transitions VALUES", ";");
    bool sandbox[SANDBOX_STATE_COUNT][SANDBOX_STATE_COUNT] = {0};
    bool execution[EXECUTION_STATE_COUNT][EXECUTION_STATE_COUNT] = {0};
    char kind[WORD_MAX];
    char from[WORD_MAX];
    char to[WORD_MAX];
    const char *at = text;
    unsigned rows = 0;

    while (next_word(&at, kind)) {
        ck_assert(next_word(&at, from));
        ck_assert(next_word(&at, to));
        rows++;
        if (strcmp(kind, "sandbox") == 0) {
            enum sandbox_state a;
            enum sandbox_state b;
            ck_assert_msg(sandbox_state_parse(from, &a) == 0, "unknown state %s", from);
            ck_assert_msg(sandbox_state_parse(to, &b) == 0, "unknown state %s", to);
            ck_assert_msg(!sandbox[a][b], "twice: %s to %s", from, to);
            sandbox[a][b] = true;
        } else {
            enum execution_state a;
            enum execution_state b;
            ck_assert_str_eq(kind, "execution");
            ck_assert_msg(execution_state_parse(from, &a) == 0, "unknown state %s", from);
            ck_assert_msg(execution_state_parse(to, &b) == 0, "unknown state %s", to);
            ck_assert_msg(!execution[a][b], "twice: %s to %s", from, to);
            execution[a][b] = true;
        }
    }
    ck_assert_uint_gt(rows, 0);
    for (unsigned a = 0; a < SANDBOX_STATE_COUNT; a++) {
        for (unsigned b = 0; b < SANDBOX_STATE_COUNT; b++)
            ck_assert_msg(sandbox_transition_allowed((enum sandbox_state)a,
                                                     (enum sandbox_state)b) == sandbox[a][b],
                          "sandbox %s to %s: the database says %d",
                          sandbox_state_name((enum sandbox_state)a),
                          sandbox_state_name((enum sandbox_state)b), sandbox[a][b]);
    }
    for (unsigned a = 0; a < EXECUTION_STATE_COUNT; a++) {
        for (unsigned b = 0; b < EXECUTION_STATE_COUNT; b++)
            ck_assert_msg(execution_transition_allowed((enum execution_state)a,
                                                       (enum execution_state)b) == execution[a][b],
                          "execution %s to %s: the database says %d",
                          execution_state_name((enum execution_state)a),
                          execution_state_name((enum execution_state)b), execution[a][b]);
    }
    free(text);
}
END_TEST

START_TEST(states_equal_the_tables_checks)
{
    char word[WORD_MAX];
    unsigned count = 0;

    char *table = section("CREATE TABLE sandboxes (", ");\n");
    const char *at = strstr(table, "CHECK (state IN (");
    ck_assert_ptr_nonnull(at);
    *strchr(at, ')') = '\0'; /* at points into table */
    while (next_word(&at, word)) {
        enum sandbox_state state;
        ck_assert_msg(sandbox_state_parse(word, &state) == 0, "unknown state %s", word);
        count++;
    }
    ck_assert_uint_eq(count, SANDBOX_STATE_COUNT);
    free(table);

    count = 0;
    table = section("CREATE TABLE executions (", ");\n");
    at = strstr(table, "CHECK (state IN (");
    ck_assert_ptr_nonnull(at);
    *strchr(at, ')') = '\0';
    while (next_word(&at, word)) {
        enum execution_state state;
        ck_assert_msg(execution_state_parse(word, &state) == 0, "unknown state %s", word);
        count++;
    }
    ck_assert_uint_eq(count, EXECUTION_STATE_COUNT);
    free(table);
}
END_TEST

START_TEST(reasons_equal_the_domain)
{
    static const char *const reasons[] = {
#define REASON(name, meaning) name,
#include "common/states.def"
    };
    char *text = section("CREATE DOMAIN end_reason AS text CHECK (VALUE IN (", "))");
    char word[WORD_MAX];
    const char *at = text;
    unsigned count = 0;

    while (next_word(&at, word)) {
        ck_assert_msg(reason_is_known(word), "unknown reason %s", word);
        count++;
    }
    ck_assert_uint_eq(count, sizeof(reasons) / sizeof(reasons[0]));
    free(text);
    ck_assert(!reason_is_known("no_reason"));
    ck_assert(!reason_is_known(""));
    ck_assert(!reason_is_known(NULL));
}
END_TEST

START_TEST(terminal_states_go_nowhere_and_others_go_on)
{
    for (unsigned a = 0; a < SANDBOX_STATE_COUNT; a++) {
        bool leaves = false;
        for (unsigned b = 0; b < SANDBOX_STATE_COUNT; b++)
            leaves |= sandbox_transition_allowed((enum sandbox_state)a, (enum sandbox_state)b);
        ck_assert_int_eq(leaves, !sandbox_state_is_terminal((enum sandbox_state)a));
    }
    for (unsigned a = 0; a < EXECUTION_STATE_COUNT; a++) {
        bool leaves = false;
        for (unsigned b = 0; b < EXECUTION_STATE_COUNT; b++)
            leaves |=
                execution_transition_allowed((enum execution_state)a, (enum execution_state)b);
        ck_assert_int_eq(leaves, !execution_state_is_terminal((enum execution_state)a));
    }
}
END_TEST

START_TEST(names_read_back)
{
    for (unsigned i = 0; i < SANDBOX_STATE_COUNT; i++) {
        enum sandbox_state state;
        ck_assert_int_eq(sandbox_state_parse(sandbox_state_name((enum sandbox_state)i), &state), 0);
        ck_assert_int_eq(state, (enum sandbox_state)i);
    }
    for (unsigned i = 0; i < EXECUTION_STATE_COUNT; i++) {
        enum execution_state state;
        ck_assert_int_eq(
            execution_state_parse(execution_state_name((enum execution_state)i), &state), 0);
        ck_assert_int_eq(state, (enum execution_state)i);
    }
}
END_TEST

START_TEST(what_is_outside_the_tables_is_harmless)
{
    static const char *const bad[] = {"", "READY", "ready ", "unknown", "running1", NULL};
    enum sandbox_state state = SANDBOX_PAUSED;
    enum execution_state execution = EXECUTION_LOST;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        ck_assert_int_eq(sandbox_state_parse(bad[i], &state), -1);
        ck_assert_int_eq(execution_state_parse(bad[i], &execution), -1);
    }
    ck_assert_int_eq(sandbox_state_parse("running", &state), -1);
    ck_assert_int_eq(execution_state_parse("ready", &execution), -1);
    ck_assert_int_eq(state, SANDBOX_PAUSED);
    ck_assert_int_eq(execution, EXECUTION_LOST);

    enum sandbox_state odd = (enum sandbox_state)4000000000U;
    ck_assert_str_eq(sandbox_state_name(odd), "unknown");
    ck_assert(!sandbox_state_is_terminal(odd));
    ck_assert(!sandbox_transition_allowed(odd, SANDBOX_READY));
    ck_assert(!sandbox_transition_allowed(SANDBOX_QUEUED, SANDBOX_STATE_COUNT));
    ck_assert_str_eq(execution_state_name(EXECUTION_STATE_COUNT), "unknown");
    ck_assert(!execution_state_is_terminal(EXECUTION_STATE_COUNT));
    ck_assert(!execution_transition_allowed(EXECUTION_STATE_COUNT, EXECUTION_RUNNING));
    ck_assert(!execution_transition_allowed(EXECUTION_QUEUED, EXECUTION_STATE_COUNT));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("states");
    TCase *tcase = tcase_create("states");
    SRunner *runner = srunner_create(suite);

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, transitions_equal_the_database);
    tcase_add_test(tcase, states_equal_the_tables_checks);
    tcase_add_test(tcase, reasons_equal_the_domain);
    tcase_add_test(tcase, terminal_states_go_nowhere_and_others_go_on);
    tcase_add_test(tcase, names_read_back);
    tcase_add_test(tcase, what_is_outside_the_tables_is_harmless);
    suite_add_tcase(suite, tcase);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
