/*
 * The table of artifacts and its rules, as the database itself keeps them: the
 * states, what is known in which of them, versions that are never overwritten,
 * usage that is counted once, keys of exports. (That the transitions are those
 * of the programs: test_states.c and test_schema.c.)
 */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/states.h"
#include "db_fixture.h"

#define HASH_A "sha256('a')"
#define HASH_B "sha256('b')"

/* A pending artifact of a path (a bytea's text); the id into out. */
static void make_pending(const struct scene *s, const char *sandbox, const char *path, char *out)
{
    char *id = raw(s->db,
                   "INSERT INTO artifacts (project_id, sandbox_id, path, name) VALUES ('%s', '%s',"
                   " '%s', 'report.txt') RETURNING id",
                   s->project, sandbox, path);

    ck_assert_ptr_nonnull(id);
    ck_assert_uint_eq(strlen(id), ID_TEXT_SIZE - 1);
    memcpy(out, id, ID_TEXT_SIZE);
    free(id);
}

/* What makes it ready: size and hash (an expression). */
#define READY                                                                                      \
    "UPDATE artifacts SET state = 'ready', mime_type = 'text/plain', size_bytes = %ld,"            \
    " sha256 = %s, ready_at = now(), expires_at = now() + interval '7 days' WHERE id = '%s'"

static void make_artifact(const struct scene *s, const char *sandbox, const char *path, long size,
                          const char *hash, char *out)
{
    make_pending(s, sandbox, path, out);
    free(raw(s->db, READY, size, hash, out));
}

static void delete_artifact(const struct scene *s, const char *id)
{
    free(raw(s->db, "UPDATE artifacts SET state = 'deleted', deleted_at = now() WHERE id = '%s'",
             id));
}

static long version_of(const struct scene *s, const char *id)
{
    return raw_long(s->db, "SELECT version FROM artifacts WHERE id = '%s'", id);
}

static long exported_bytes(const struct scene *s, const char *sandbox)
{
    return raw_long(s->db, "SELECT exported_bytes FROM sandboxes WHERE id = '%s'", sandbox);
}

/* --- states ------------------------------------------------------------------------------ */

START_TEST(every_step_outside_the_table_is_refused)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char sandbox[ID_TEXT_SIZE];
    char id[ID_TEXT_SIZE];

    make_ready(&s, sandbox);
    for (unsigned from = 0; from < ARTIFACT_STATE_COUNT; from++) {
        for (unsigned to = 0; to < ARTIFACT_STATE_COUNT; to++) {
            const char *name = artifact_state_name((enum artifact_state)to);
            if (from == to)
                continue;
            make_pending(&s, sandbox, "f", id);
            if (from == ARTIFACT_READY)
                free(raw(s.db, READY, 1L, HASH_A, id));
            if (from == ARTIFACT_DELETED)
                delete_artifact(&s, id);
            /* The trigger speaks first, so the message tells it from the table's other checks. */
            free(raw(s.db,
                     "DO $$ DECLARE message text := ''; BEGIN"
                     " BEGIN UPDATE artifacts SET state = '%s' WHERE id = '%s';"
                     " EXCEPTION WHEN check_violation THEN message := SQLERRM; END;"
                     " IF (message LIKE '%%may not go from%%') = %s THEN"
                     " RAISE 'to %s: %%', message; END IF; END $$",
                     name, id,
                     artifact_transition_allowed((enum artifact_state)from, (enum artifact_state)to)
                         ? "true"
                         : "false",
                     name));
            free(raw(s.db, "DELETE FROM artifacts"));
        }
    }
}
END_TEST

START_TEST(it_begins_as_pending_and_knows_nothing_yet)
{
    static const char *const known[] = {"version = 1", "size_bytes = 1", ("sha256 = " HASH_A),
                                        "ready_at = now()",
                                        "ready_at = now(), expires_at = now() + interval '1 day'"};
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char sandbox[ID_TEXT_SIZE];
    char id[ID_TEXT_SIZE];

    make_ready(&s, sandbox);
    raw_refused(s.db, "23514",
                "INSERT INTO artifacts (project_id, sandbox_id, path, name, state, mime_type,"
                " version, size_bytes, sha256, ready_at, expires_at) VALUES ('%s', '%s', 'f', 'f',"
                " 'ready', 'a/b', 1, 1, " HASH_A ", now(), now() + interval '1 day')",
                s.project, sandbox);
    raw_refused(s.db, "23514",
                "INSERT INTO artifacts (project_id, sandbox_id, path, name, state, deleted_at)"
                " VALUES ('%s', '%s', 'f', 'f', 'deleted', now())",
                s.project, sandbox);
    make_pending(&s, sandbox, "f", id);
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        raw_refused(s.db, "23514", "UPDATE artifacts SET %s", known[i]);
    raw_refused(s.db, "23514", "UPDATE artifacts SET deleted_at = now()");
    raw_refused(s.db, "23514", "UPDATE artifacts SET state = 'deleted'");
}
END_TEST

START_TEST(ready_is_never_said_of_what_is_not_whole)
{
    static const char *const missing[] = {"size_bytes", "sha256", "ready_at", "expires_at",
                                          "mime_type"};
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char sandbox[ID_TEXT_SIZE];
    char id[ID_TEXT_SIZE];

    make_ready(&s, sandbox);
    make_pending(&s, sandbox, "f", id);
    for (size_t i = 0; i < ARRAY_LEN(missing); i++) {
        free(raw(s.db, "CREATE TEMPORARY TABLE full_row AS SELECT 'ready' AS state,"
                       " 'text/plain' AS mime_type, 5::bigint AS size_bytes, " HASH_A " AS sha256,"
                       " now() AS ready_at, now() + interval '1 day' AS expires_at"));
        free(raw(s.db, "UPDATE full_row SET %s = NULL", missing[i]));
        raw_refused(s.db, "23514",
                    "UPDATE artifacts a SET state = f.state, mime_type = f.mime_type, size_bytes ="
                    " f.size_bytes, sha256 = f.sha256, ready_at = f.ready_at, expires_at ="
                    " f.expires_at FROM full_row f");
        free(raw(s.db, "DROP TABLE full_row"));
    }
    raw_refused(s.db, "23514",
                "UPDATE artifacts SET state = 'ready', mime_type = 'a/b', size_bytes = -1, sha256 ="
                " " HASH_A ", ready_at = now(), expires_at = now() + interval '1 day'");
    raw_refused(s.db, "23514",
                "UPDATE artifacts SET state = 'ready', mime_type = 'a/b', size_bytes = 1, sha256 ="
                " 'short', ready_at = now(), expires_at = now() + interval '1 day'");
    raw_refused(s.db, "23514",
                "UPDATE artifacts SET state = 'ready', mime_type = 'a/b', size_bytes = 1, sha256 ="
                " " HASH_A ", ready_at = now(), expires_at = now()");
    ck_assert_int_eq(exported_bytes(&s, sandbox), 0);
}
END_TEST

START_TEST(names_and_types_have_a_form_and_paths_are_bytes)
{
    static const char *const types[] = {
        "text",     "text/",       "/plain",      "Text/plain", "text/plain; charset=utf-8",
        "text/a/b", "text/pl ain", "text/plain\n"};
    static const char *const names[] = {"", "a/b", "a\nb", "a\x7f"};
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char sandbox[ID_TEXT_SIZE];
    char id[ID_TEXT_SIZE];

    make_ready(&s, sandbox);
    make_pending(&s, sandbox, "\\xff2ffe", id);
    assert_text(raw(s.db, "SELECT encode(path, 'hex') FROM artifacts WHERE id = '%s'", id),
                "ff2ffe");
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        raw_refused(s.db, "23514", "UPDATE artifacts SET mime_type = '%s'", types[i]);
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        raw_refused(s.db, "23514", "UPDATE artifacts SET name = '%s'", names[i]);
    free(raw(s.db, "UPDATE artifacts SET mime_type = 'application/vnd.api+json', name = repeat('n',"
                   " 255)"));
    raw_refused(s.db, "23514", "UPDATE artifacts SET name = repeat('n', 256)");
    raw_refused(s.db, "23514",
                "INSERT INTO artifacts (project_id, sandbox_id, path, name)"
                " SELECT project_id, sandbox_id, '\\x610062', 'n' FROM artifacts");
    raw_refused(s.db, "23514",
                "INSERT INTO artifacts (project_id, sandbox_id, path, name)"
                " SELECT project_id, sandbox_id, '', 'n' FROM artifacts");
    raw_refused(s.db, "23514",
                "INSERT INTO artifacts (project_id, sandbox_id, path, name)"
                " SELECT project_id, sandbox_id, convert_to(repeat('p', 4096), 'UTF8'), 'n'"
                " FROM artifacts");
}
END_TEST

/* --- versions ------------------------------------------------------------------------------ */

START_TEST(each_change_of_a_path_is_a_version_of_its_own)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char sandbox[ID_TEXT_SIZE];
    char other[ID_TEXT_SIZE];
    char id[6][ID_TEXT_SIZE];

    make_ready(&s, sandbox);
    make_ready(&s, other);
    make_artifact(&s, sandbox, "f", 1, HASH_A, id[0]);
    make_artifact(&s, sandbox, "f", 1, HASH_B, id[1]);
    make_artifact(&s, sandbox, "g", 1, HASH_A, id[2]);
    make_artifact(&s, other, "f", 1, HASH_A, id[3]);
    ck_assert_int_eq(version_of(&s, id[0]), 1);
    ck_assert_int_eq(version_of(&s, id[1]), 2);
    ck_assert_int_eq(version_of(&s, id[2]), 1);
    ck_assert_int_eq(version_of(&s, id[3]), 1);
    /* the same bytes are not two artifacts, until the first is deleted */
    make_pending(&s, sandbox, "f", id[4]);
    raw_refused(s.db, "23505", READY, 1L, HASH_B, id[4]);
    delete_artifact(&s, id[1]);
    free(raw(s.db, READY, 1L, HASH_B, id[4]));
    ck_assert_int_eq(version_of(&s, id[4]), 3);
    /* one that came to nothing takes no number */
    make_pending(&s, sandbox, "f", id[5]);
    delete_artifact(&s, id[5]);
    make_artifact(&s, sandbox, "f", 1, "sha256('c')", id[5]);
    ck_assert_int_eq(version_of(&s, id[5]), 4);
}
END_TEST

START_TEST(a_path_of_any_length_has_versions)
{
    static const char *const hashes[] = {HASH_A, HASH_B};
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char sandbox[ID_TEXT_SIZE];

    make_ready(&s, sandbox);
    for (size_t i = 0; i < ARRAY_LEN(hashes); i++) {
        /* nothing that an index could compress */
        char *id =
            raw(s.db,
                "INSERT INTO artifacts (project_id, sandbox_id, path, name) SELECT '%s', '%s',"
                " left(string_agg(encode(sha512(n::text::bytea), 'base64'), ''), 4095)::bytea, 'n'"
                " FROM generate_series(1, 64) n RETURNING id",
                s.project, sandbox);
        free(raw(s.db, READY, 1L, hashes[i], id));
        ck_assert_int_eq(version_of(&s, id), (long)i + 1);
        free(id);
    }
    ck_assert_int_eq(raw_long(s.db, "SELECT min(octet_length(path)) FROM artifacts"), 4095);
}
END_TEST

struct finish {
    const char *id;
    int number;
};

static void *finish_one(void *arg)
{
    const struct finish *finish = arg;
    _cleanup_db_ struct db *db = db_fixture_open();
    char hash[64];

    (void)snprintf(hash, sizeof(hash), "sha256('%d')", finish->number);
    free(raw(db, READY, 1L, hash, finish->id));
    return NULL;
}

START_TEST(versions_that_become_ready_at_once_are_all_counted)
{
    enum { COUNT = 8 };
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char sandbox[ID_TEXT_SIZE];
    char ids[COUNT][ID_TEXT_SIZE];
    struct finish finishes[COUNT];
    pthread_t threads[COUNT];

    make_ready(&s, sandbox);
    for (int i = 0; i < COUNT; i++) {
        make_pending(&s, sandbox, "f", ids[i]);
        finishes[i] = (struct finish){.id = ids[i], .number = i};
    }
    for (int i = 0; i < COUNT; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, finish_one, &finishes[i]), 0);
    for (int i = 0; i < COUNT; i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    ck_assert_int_eq(raw_long(s.db, "SELECT count(DISTINCT version) FROM artifacts"), COUNT);
    ck_assert_int_eq(raw_long(s.db, "SELECT max(version) FROM artifacts"), COUNT);
    ck_assert_int_eq(exported_bytes(&s, sandbox), COUNT);
}
END_TEST

START_TEST(what_is_ready_is_never_overwritten)
{
    static const char *const fixed[] = {"size_bytes = 9",
                                        ("sha256 = " HASH_B),
                                        "version = 7",
                                        "name = 'other'",
                                        "mime_type = 'a/b'",
                                        "ready_at = now() - interval '1 day'",
                                        "path = 'other'",
                                        "sandbox_id = gen_random_uuid()",
                                        "id = gen_random_uuid()",
                                        "created_at = now() - interval '1 day'"};
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char sandbox[ID_TEXT_SIZE];
    char id[ID_TEXT_SIZE];

    make_ready(&s, sandbox);
    make_artifact(&s, sandbox, "f", 5, HASH_A, id);
    for (int deleted = 0; deleted < 2; deleted++) {
        for (size_t i = 0; i < ARRAY_LEN(fixed); i++)
            raw_refused(s.db, "23514", "UPDATE artifacts SET %s", fixed[i]);
        if (!deleted) {
            /* its time may change */
            free(raw(s.db, "UPDATE artifacts SET expires_at = now() + interval '9 days'"));
            delete_artifact(&s, id);
        }
    }
    ck_assert_int_eq(version_of(&s, id), 1);
}
END_TEST

/* --- usage and keys -------------------------------------------------------------------------- */

START_TEST(what_is_exported_counts_once_and_what_is_not_never)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char sandbox[ID_TEXT_SIZE];
    char id[ID_TEXT_SIZE];
    char kept[ID_TEXT_SIZE];

    make_ready(&s, sandbox);
    make_pending(&s, sandbox, "f", id);
    delete_artifact(&s, id);
    ck_assert_int_eq(exported_bytes(&s, sandbox), 0);
    make_artifact(&s, sandbox, "f", 100, HASH_A, kept);
    make_artifact(&s, sandbox, "f", 20, HASH_B, id);
    ck_assert_int_eq(exported_bytes(&s, sandbox), 120);
    make_pending(&s, sandbox, "f", id);
    raw_refused(s.db, "23505", READY, 20L, HASH_B, id);
    delete_artifact(&s, kept);
    ck_assert_int_eq(exported_bytes(&s, sandbox), 120);
    _cleanup_pgresult_ PGresult *days =
        run(s.db, STMT_USAGE_BY_DAY, s.project, "2000-01-01", "2999-01-01");
    assert_column(days, "exported_bytes", "120");
}
END_TEST

START_TEST(an_artifact_outlives_the_row_of_its_sandbox)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char sandbox[ID_TEXT_SIZE];
    char id[ID_TEXT_SIZE];
    char late[ID_TEXT_SIZE];

    make_ready(&s, sandbox);
    make_artifact(&s, sandbox, "f", 100, HASH_A, id);
    make_pending(&s, sandbox, "g", late);
    end_sandbox(&s, sandbox);
    free(raw(s.db, "SELECT retention_clean(10, 100000, -1, 100000, 100000)"));
    ck_assert_int_eq(raw_long(s.db, "SELECT count(*) FROM sandboxes"), 0);
    ck_assert_int_eq(version_of(&s, id), 1);
    free(raw(s.db, READY, 11L, HASH_A, late));
    _cleanup_pgresult_ PGresult *days =
        run(s.db, STMT_USAGE_BY_DAY, s.project, "2000-01-01", "2999-01-01");
    ck_assert_int_eq(PQntuples(days), 1);
    assert_column(days, "exported_bytes", "111");
    raw_refused(s.db, "23503", "DELETE FROM projects");
}
END_TEST

START_TEST(a_key_of_an_export_belongs_to_its_sandbox)
{
    _cleanup_scene_ struct scene s = open_scene(NULL, "9");
    char sandbox[ID_TEXT_SIZE];
    char other[ID_TEXT_SIZE];
    static const char take[] = "SELECT outcome FROM idempotency_take('%s', 'export:%s', 'k', '%s')";

    make_ready(&s, sandbox);
    make_ready(&s, other);
    assert_text(raw(s.db, take, s.project, sandbox, REQUEST_HASH), "taken");
    assert_text(raw(s.db, take, s.project, other, OTHER_HASH), "taken");
    assert_text(raw(s.db, take, s.project, sandbox, REQUEST_HASH), "replayed");
    assert_text(raw(s.db, take, s.project, sandbox, OTHER_HASH), "idempotency_conflict");
    assert_text(raw(s.db, "SELECT outcome FROM idempotency_take('%s', 'exec:%s', 'k', '%s')",
                    s.project, sandbox, REQUEST_HASH),
                "taken");
    raw_refused(s.db, "23514", "SELECT idempotency_take('%s', 'import:%s', 'k', '%s')", s.project,
                sandbox, REQUEST_HASH);
    raw_refused(s.db, "23514", "SELECT idempotency_take('%s', 'export', 'k', '%s')", s.project,
                REQUEST_HASH);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("artifacts");
    TCase *tc = tcase_create("artifacts");

    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, db_fixture_reset, NULL);
    tcase_add_test(tc, every_step_outside_the_table_is_refused);
    tcase_add_test(tc, it_begins_as_pending_and_knows_nothing_yet);
    tcase_add_test(tc, ready_is_never_said_of_what_is_not_whole);
    tcase_add_test(tc, names_and_types_have_a_form_and_paths_are_bytes);
    tcase_add_test(tc, each_change_of_a_path_is_a_version_of_its_own);
    tcase_add_test(tc, a_path_of_any_length_has_versions);
    tcase_add_test(tc, versions_that_become_ready_at_once_are_all_counted);
    tcase_add_test(tc, what_is_ready_is_never_overwritten);
    tcase_add_test(tc, what_is_exported_counts_once_and_what_is_not_never);
    tcase_add_test(tc, an_artifact_outlives_the_row_of_its_sandbox);
    tcase_add_test(tc, a_key_of_an_export_belongs_to_its_sandbox);
    suite_add_tcase(suite, tc);
    return db_fixture_run(suite);
}
