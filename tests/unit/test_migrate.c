/* Migrations: applied once and in order, all or nothing, two at once, and every refusal. */
#include <check.h>
#include <ftw.h>
#include <libpq-fe.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/migrate.h"
#include "common/db.h"
#include "tests/unit/throwaway_pg.h"

static struct throwaway_pg pg;
static char folder[64];

static PGconn *open_connection(void)
{
    PGconn *conn = PQconnectdb(pg.conninfo);

    ck_assert_msg(PQstatus(conn) == CONNECTION_OK, "%s", PQerrorMessage(conn));
    return conn;
}

static void write_migration(const char *name, const char *sql)
{
    char path[160];
    FILE *out;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    out = fopen(path, "w");
    ck_assert_ptr_nonnull(out);
    fputs(sql, out);
    fclose(out);
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static void setup(void)
{
    PGconn *conn = open_connection();

    PQclear(PQexec(conn, "DROP TABLE IF EXISTS schema_migrations, one, two"));
    PQfinish(conn);
    strcpy(folder, "/tmp/paddock-migrations-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    write_migration("0001_one.sql", "CREATE TABLE one (id integer);");
}

static void teardown(void)
{
    nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static int apply(struct error *err)
{
    PGconn *conn = open_connection();
    int applied = migrate_apply(conn, folder, NULL, NULL, err);

    /* Whatever happened, no transaction is left open. */
    ck_assert_int_eq(PQtransactionStatus(conn), PQTRANS_IDLE);
    PQfinish(conn);
    return applied;
}

static bool table_exists(const char *name)
{
    PGconn *conn = open_connection();
    const char *params[] = {name};
    _cleanup_pgresult_ PGresult *res =
        PQexecParams(conn, "SELECT to_regclass($1) IS NOT NULL", 1, NULL, params, NULL, NULL, 0);
    bool exists = strcmp(PQgetvalue(res, 0, 0), "t") == 0;

    PQfinish(conn);
    return exists;
}

START_TEST(applies_what_is_missing_once)
{
    struct error err = ERROR_INIT;

    ck_assert_int_eq(apply(&err), 1);
    ck_assert_int_eq(apply(&err), 0);
    write_migration("0002_two.sql", "CREATE TABLE two (id integer);");
    ck_assert_int_eq(apply(&err), 1);
    ck_assert(table_exists("one") && table_exists("two"));
}
END_TEST

static int look(struct error *err)
{
    PGconn *conn = open_connection();
    int version;

    *err = (struct error)ERROR_INIT;
    version = migrate_check(conn, folder, err);
    ck_assert_int_eq(PQtransactionStatus(conn), PQTRANS_IDLE);
    PQfinish(conn);
    return version;
}

START_TEST(a_look_tells_what_is_missing_and_applies_nothing)
{
    struct error err = ERROR_INIT;

    ck_assert_int_eq(look(&err), -1);
    ck_assert_int_eq(err.code, ERR_CONFLICT);
    ck_assert_ptr_nonnull(strstr(err.detail, "no schema"));
    ck_assert(!table_exists("one") && !table_exists("schema_migrations"));
    ck_assert_int_eq(apply(&err), 1);
    ck_assert_int_eq(look(&err), 1);
    write_migration("0002_two.sql", "CREATE TABLE two (id integer);");
    ck_assert_int_eq(look(&err), -1);
    ck_assert_ptr_nonnull(strstr(err.detail, "0002_two.sql is not applied"));
    ck_assert(!table_exists("two"));
    ck_assert_int_eq(apply(&err), 1);
    ck_assert_int_eq(look(&err), 2);
    write_migration("0001_one.sql", "CREATE TABLE one (id bigint);");
    ck_assert_int_eq(look(&err), -1);
    ck_assert_ptr_nonnull(strstr(err.detail, "other content"));
    write_migration("0001_one.sql", "CREATE TABLE one (id integer);");
    write_migration("0004_four.sql", "CREATE TABLE four (id integer);");
    ck_assert_int_eq(look(&err), -1);
    ck_assert_ptr_nonnull(strstr(err.detail, "0003 is missing"));
}
END_TEST

START_TEST(a_failing_migration_applies_nothing_at_all)
{
    struct error err = ERROR_INIT;

    write_migration("0002_two.sql", "CREATE TABLE two (id integer); SELECT 1/0;");
    ck_assert_int_eq(apply(&err), -1);
    ck_assert_ptr_nonnull(strstr(err.detail, "0002_two.sql"));
    ck_assert(!table_exists("one") && !table_exists("two"));
}
END_TEST

START_TEST(a_changed_migration_is_refused)
{
    struct error err = ERROR_INIT;

    ck_assert_int_eq(apply(&err), 1);
    write_migration("0001_one.sql", "CREATE TABLE one (id bigint);");
    ck_assert_int_eq(apply(&err), -1);
    ck_assert_ptr_nonnull(strstr(err.detail, "other content"));
}
END_TEST

START_TEST(a_gap_and_an_empty_folder_are_refused)
{
    struct error err = ERROR_INIT;

    write_migration("0003_three.sql", "SELECT 1;");
    ck_assert_int_eq(apply(&err), -1);
    ck_assert_ptr_nonnull(strstr(err.detail, "0002"));
    teardown();
    strcpy(folder, "/tmp/paddock-migrations-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    write_migration("README.sql", "SELECT 1;");
    ck_assert_int_eq(apply(&err), -1);
    ck_assert_ptr_nonnull(strstr(err.detail, "no migrations"));
}
END_TEST

START_TEST(a_newer_database_is_refused)
{
    struct error err = ERROR_INIT;
    char path[160];

    write_migration("0002_two.sql", "CREATE TABLE two (id integer);");
    ck_assert_int_eq(apply(&err), 2);
    snprintf(path, sizeof(path), "%s/0002_two.sql", folder);
    remove(path);
    ck_assert_int_eq(apply(&err), -1);
    ck_assert_ptr_nonnull(strstr(err.detail, "newer"));
}
END_TEST

static void *apply_in_thread(void *arg)
{
    struct error err = ERROR_INIT;

    *(int *)arg = apply(&err);
    return NULL;
}

START_TEST(two_at_once_apply_each_migration_once)
{
    pthread_t threads[4];
    int applied[4];
    int sum = 0;

    write_migration("0002_two.sql", "SELECT pg_sleep(0.2); CREATE TABLE two (id integer);");
    for (size_t i = 0; i < ARRAY_LEN(threads); i++)
        pthread_create(&threads[i], NULL, apply_in_thread, &applied[i]);
    for (size_t i = 0; i < ARRAY_LEN(threads); i++) {
        pthread_join(threads[i], NULL);
        ck_assert_int_ge(applied[i], 0);
        sum += applied[i];
    }
    ck_assert_int_eq(sum, 2);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("migrate");
    TCase *tests = tcase_create("migrate");
    SRunner *runner;
    int failed;

    if (throwaway_pg_start(&pg) != 0)
        return 1;
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, applies_what_is_missing_once);
    tcase_add_test(tests, a_look_tells_what_is_missing_and_applies_nothing);
    tcase_add_test(tests, a_failing_migration_applies_nothing_at_all);
    tcase_add_test(tests, a_changed_migration_is_refused);
    tcase_add_test(tests, a_gap_and_an_empty_folder_are_refused);
    tcase_add_test(tests, a_newer_database_is_refused);
    tcase_add_test(tests, two_at_once_apply_each_migration_once);
    suite_add_tcase(suite, tests);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    throwaway_pg_stop(&pg);
    return failed == 0 ? 0 : 1;
}
