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

#define STATES_MAX 8
#define WORD_MAX 64
#define TEXT_MAX ((size_t)1 << 20)

/* The migrations that hold states. */
static const char *const files[] = {"sql/0001_schema.sql", "sql/0005_artifacts.sql"};

static char *schema; /* all of them */

/* A machine as numbers, so that one test does for all. */
#define MACHINE(kind)                                                                              \
    static const char *kind##_name(unsigned state)                                                 \
    {                                                                                              \
        return kind##_state_name((enum kind##_state)state);                                        \
    }                                                                                              \
    static int kind##_parse(const char *name, unsigned *state)                                     \
    {                                                                                              \
        enum kind##_state found;                                                                   \
        int rc = kind##_state_parse(name, &found);                                                 \
        if (rc == 0)                                                                               \
            *state = (unsigned)found;                                                              \
        return rc;                                                                                 \
    }                                                                                              \
    static bool kind##_terminal(unsigned state)                                                    \
    {                                                                                              \
        return kind##_state_is_terminal((enum kind##_state)state);                                 \
    }                                                                                              \
    static bool kind##_allowed(unsigned from, unsigned to)                                         \
    {                                                                                              \
        return kind##_transition_allowed((enum kind##_state)from, (enum kind##_state)to);          \
    }
MACHINE(sandbox)
MACHINE(execution)
MACHINE(artifact)

static const struct machine {
    const char *kind;
    const char *table;
    unsigned count;
    const char *(*name)(unsigned state);
    int (*parse)(const char *name, unsigned *state);
    bool (*terminal)(unsigned state);
    bool (*allowed)(unsigned from, unsigned to);
} machines[] = {
    {"sandbox", "CREATE TABLE sandboxes (", SANDBOX_STATE_COUNT, sandbox_name, sandbox_parse,
     sandbox_terminal, sandbox_allowed},
    {"execution", "CREATE TABLE executions (", EXECUTION_STATE_COUNT, execution_name,
     execution_parse, execution_terminal, execution_allowed},
    {"artifact", "CREATE TABLE artifacts (", ARTIFACT_STATE_COUNT, artifact_name, artifact_parse,
     artifact_terminal, artifact_allowed},
};
#define MACHINES (sizeof(machines) / sizeof(machines[0]))

static void setup(void)
{
    const char *srcdir = getenv("srcdir");
    size_t len = 0;

    schema = calloc(1, TEXT_MAX);
    ck_assert_ptr_nonnull(schema);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        char path[4096];
        snprintf(path, sizeof(path), "%s/%s", srcdir ? srcdir : ".", files[i]);
        FILE *file = fopen(path, "re");
        ck_assert_msg(file != NULL, "%s cannot be opened (is srcdir set?)", path);
        size_t got = fread(schema + len, 1, TEXT_MAX - 1 - len, file);
        fclose(file);
        ck_assert_uint_gt(got, 0);
        len += got;
        ck_assert_uint_lt(len, TEXT_MAX - 1);
    }
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

static const struct machine *machine_of(const char *kind)
{
    for (size_t i = 0; i < MACHINES; i++) {
        if (strcmp(machines[i].kind, kind) == 0)
            return &machines[i];
    }
    ck_abort_msg("unknown kind %s", kind);
}

START_TEST(transitions_equal_the_database)
{
    static const char begin[] = "INSERT INTO state_transitions VALUES";
    bool there[MACHINES][STATES_MAX][STATES_MAX] = {0};
    unsigned statements = 0;

    for (const char *at = schema; (at = strstr(at, begin)); statements++) {
        at += strlen(begin);
        char *text = strndup(at, strcspn(at, ";"));
        const char *next = text;
        char kind[WORD_MAX];
        char from[WORD_MAX];
        char to[WORD_MAX];
        while (next_word(&next, kind)) {
            const struct machine *m = machine_of(kind);
            unsigned a;
            unsigned b;
            ck_assert(next_word(&next, from));
            ck_assert(next_word(&next, to));
            ck_assert_msg(m->parse(from, &a) == 0, "%s: unknown state %s", kind, from);
            ck_assert_msg(m->parse(to, &b) == 0, "%s: unknown state %s", kind, to);
            ck_assert_msg(!there[m - machines][a][b], "%s twice: %s to %s", kind, from, to);
            there[m - machines][a][b] = true;
        }
        free(text);
    }
    ck_assert_uint_eq(statements, sizeof(files) / sizeof(files[0]));
    for (size_t i = 0; i < MACHINES; i++) {
        const struct machine *m = &machines[i];
        ck_assert_uint_le(m->count, STATES_MAX);
        for (unsigned a = 0; a < m->count; a++) {
            for (unsigned b = 0; b < m->count; b++)
                ck_assert_msg(m->allowed(a, b) == there[i][a][b],
                              "%s %s to %s: the database says %d", m->kind, m->name(a), m->name(b),
                              there[i][a][b]);
        }
    }
}
END_TEST

START_TEST(states_equal_the_tables_checks)
{
    const struct machine *m = &machines[_i];
    char word[WORD_MAX];
    unsigned count = 0;

    char *table = section(m->table, ");\n");
    const char *at = strstr(table, "CHECK (state IN (");
    ck_assert_ptr_nonnull(at);
    *strchr(at, ')') = '\0'; /* at points into table */
    while (next_word(&at, word)) {
        unsigned state;
        ck_assert_msg(m->parse(word, &state) == 0, "unknown state %s", word);
        count++;
    }
    ck_assert_uint_eq(count, m->count);
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
    const struct machine *m = &machines[_i];

    for (unsigned a = 0; a < m->count; a++) {
        bool leaves = false;
        for (unsigned b = 0; b < m->count; b++)
            leaves |= m->allowed(a, b);
        ck_assert_int_eq(leaves, !m->terminal(a));
    }
}
END_TEST

START_TEST(names_read_back)
{
    const struct machine *m = &machines[_i];

    for (unsigned i = 0; i < m->count; i++) {
        unsigned state;
        ck_assert_int_eq(m->parse(m->name(i), &state), 0);
        ck_assert_uint_eq(state, i);
    }
}
END_TEST

START_TEST(what_is_outside_the_tables_is_harmless)
{
    static const char *const bad[] = {"", "READY", "ready ", "unknown", "running1", NULL};
    enum sandbox_state state = SANDBOX_PAUSED;
    enum execution_state execution = EXECUTION_LOST;
    enum artifact_state artifact = ARTIFACT_DELETED;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        ck_assert_int_eq(sandbox_state_parse(bad[i], &state), -1);
        ck_assert_int_eq(execution_state_parse(bad[i], &execution), -1);
        ck_assert_int_eq(artifact_state_parse(bad[i], &artifact), -1);
    }
    ck_assert_int_eq(sandbox_state_parse("running", &state), -1);
    ck_assert_int_eq(execution_state_parse("ready", &execution), -1);
    ck_assert_int_eq(state, SANDBOX_PAUSED);
    ck_assert_int_eq(execution, EXECUTION_LOST);
    ck_assert_int_eq(artifact_state_parse("queued", &artifact), -1);
    ck_assert_int_eq(artifact, ARTIFACT_DELETED);

    for (size_t i = 0; i < MACHINES; i++) {
        const struct machine *m = &machines[i];
        const unsigned beyond[] = {m->count, 4000000000U};
        for (size_t k = 0; k < sizeof(beyond) / sizeof(beyond[0]); k++) {
            ck_assert_str_eq(m->name(beyond[k]), "unknown");
            ck_assert(!m->terminal(beyond[k]));
            for (unsigned a = 0; a < m->count; a++)
                ck_assert(!m->allowed(beyond[k], a) && !m->allowed(a, beyond[k]));
        }
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("states");
    TCase *tcase = tcase_create("states");
    SRunner *runner = srunner_create(suite);

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, transitions_equal_the_database);
    tcase_add_loop_test(tcase, states_equal_the_tables_checks, 0, MACHINES);
    tcase_add_test(tcase, reasons_equal_the_domain);
    tcase_add_loop_test(tcase, terminal_states_go_nowhere_and_others_go_on, 0, MACHINES);
    tcase_add_loop_test(tcase, names_read_back, 0, MACHINES);
    tcase_add_test(tcase, what_is_outside_the_tables_is_harmless);
    suite_add_tcase(suite, tcase);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
