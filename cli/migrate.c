/*
 * Database migrations. Called by `paddock db migrate`, and by `paddock doctor`,
 * which only looks. One transaction holds the lock and everything that is
 * applied: either all of it is there afterwards, or nothing.
 */
#include "cli/migrate.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/buf.h"
#include "common/db.h"
#include "common/text.h"
#include "common/token.h"

/* Any constant will do, as long as every version of Paddock uses the same: "paddock" in ASCII. */
#define LOCK_KEY "31629360713392491"
#define MIGRATION_MAX (4u << 20)
#define MIGRATIONS_MAX 9999

const char *migrate_folder(void)
{
    const char *folder = getenv("PADDOCK_SQL_DIR");

    return folder != NULL ? folder : PADDOCK_DATADIR "/sql";
}

static PGresult *query(PGconn *conn, const char *sql, int count, const char *const params[],
                       struct error *err)
{
    PGresult *res = PQexecParams(conn, sql, count, NULL, params, NULL, NULL, 0);

    if (PQresultStatus(res) == PGRES_TUPLES_OK || PQresultStatus(res) == PGRES_COMMAND_OK)
        return res;
    error_set(err, ERR_INTERNAL, "%s", PQresultErrorMessage(res));
    PQclear(res);
    return NULL;
}

static int command(PGconn *conn, const char *sql, struct error *err)
{
    _cleanup_pgresult_ PGresult *res = query(conn, sql, 0, NULL, err);

    return res != NULL ? 0 : -1;
}

static int is_migration(const struct dirent *entry)
{
    const char *name = entry->d_name;
    size_t len = strlen(name);

    return len > 9 && strspn(name, "0123456789") == 4 && name[4] == '_' &&
           strcmp(name + len - 4, ".sql") == 0;
}

static int read_file(const char *folder, const char *name, struct buf *out, struct error *err)
{
    _cleanup_free_ char *path = NULL;
    _cleanup_close_ int fd = -1;
    char piece[65536];
    ssize_t got;

    if (asprintf(&path, "%s/%s", folder, name) < 0)
        return error_set(err, ERR_INTERNAL, "no memory");
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return error_set_errno(err, "open %s", path);
    while ((got = read(fd, piece, sizeof(piece))) > 0) {
        if (buf_append(out, piece, (size_t)got) != 0)
            return error_set(err, ERR_TOO_LARGE, "%s is over %u bytes", path, MIGRATION_MAX);
    }
    return got == 0 ? 0 : error_set_errno(err, "read %s", path);
}

/* Is this version applied, and from the very same text? 1 yes, 0 not applied, -1 error. */
static int check_applied(PGconn *conn, const char *version, const char *name, const char *sha256,
                         struct error *err)
{
    const char *params[] = {version};
    _cleanup_pgresult_ PGresult *res = query(
        conn, "SELECT sha256 FROM schema_migrations WHERE version = $1::integer", 1, params, err);

    if (res == NULL)
        return -1;
    if (PQntuples(res) == 0)
        return 0;
    if (strcmp(PQgetvalue(res, 0, 0), sha256) != 0)
        return error_set(err, ERR_CONFLICT,
                         "migration %s was applied with other content; restore the original file",
                         name);
    return 1;
}

/* A file of the folder: is it applied? As check_applied; its text is left in *text. */
static int look_at_one(PGconn *conn, const char *folder, const char *name, struct buf *text,
                       char sha256[2 * TOKEN_HASH_LEN + 1], struct error *err)
{
    uint8_t hash[TOKEN_HASH_LEN];
    char version[5] = {name[0], name[1], name[2], name[3], '\0'};

    if (read_file(folder, name, text, err) != 0 ||
        token_sha256(text->data != NULL ? text->data : "", text->len, hash, err) != 0)
        return -1;
    text_hex(hash, sizeof(hash), sha256);
    return check_applied(conn, version, name, sha256, err);
}

static int apply_one(PGconn *conn, const char *folder, const char *name, struct error *err)
{
    _cleanup_buf_ struct buf text = BUF_INIT(MIGRATION_MAX);
    _cleanup_pgresult_ PGresult *res = NULL;
    char sha256[2 * TOKEN_HASH_LEN + 1];
    char version[5] = {name[0], name[1], name[2], name[3], '\0'};
    const char *record[] = {version, name, sha256};
    int applied = look_at_one(conn, folder, name, &text, sha256, err);

    if (applied != 0)
        return applied < 0 ? -1 : 0;
    res = PQexec(conn, buf_cstr(&text));
    if (PQresultStatus(res) != PGRES_COMMAND_OK && PQresultStatus(res) != PGRES_TUPLES_OK)
        return error_set(err, ERR_INTERNAL, "%s: %s", name, PQresultErrorMessage(res));
    PQclear(res);
    res = query(conn,
                "INSERT INTO schema_migrations (version, name, sha256) "
                "VALUES ($1::integer, $2, $3)",
                3, record, err);
    return res != NULL ? 1 : -1;
}

static int check_number(const char *folder, const char *name, int number, struct error *err)
{
    if (strtol(name, NULL, 10) != number)
        return error_set(err, ERR_CONFIG, "%s: migration %04d is missing or doubled", folder,
                         number);
    return 0;
}

static int check_not_newer(PGconn *conn, int count, struct error *err)
{
    _cleanup_pgresult_ PGresult *newest =
        query(conn, "SELECT coalesce(max(version), 0) FROM schema_migrations", 0, NULL, err);
    int64_t version;

    if (newest == NULL)
        return -1;
    if (text_parse_i64(PQgetvalue(newest, 0, 0), 0, count, &version) != 0)
        return error_set(err, ERR_CONFLICT,
                         "the database is at version %s, newer than this program's %d; install "
                         "the newer Paddock",
                         PQgetvalue(newest, 0, 0), count);
    return 0;
}

static int apply_all(PGconn *conn, const char *folder, struct dirent **files, int count,
                     migrate_applied_cb on_applied, void *arg, struct error *err)
{
    int applied = 0;

    for (int i = 0; i < count; i++) {
        int did;

        if (check_number(folder, files[i]->d_name, i + 1, err) < 0)
            return -1;
        did = apply_one(conn, folder, files[i]->d_name, err);
        if (did < 0)
            return -1;
        if (did > 0 && on_applied != NULL)
            on_applied(i + 1, files[i]->d_name, arg);
        applied += did;
    }
    return check_not_newer(conn, count, err) < 0 ? -1 : applied;
}

static int check_all(PGconn *conn, const char *folder, struct dirent **files, int count,
                     struct error *err)
{
    _cleanup_pgresult_ PGresult *begun =
        query(conn, "SELECT to_regclass('schema_migrations') IS NOT NULL", 0, NULL, err);

    if (begun == NULL)
        return -1;
    if (PQgetvalue(begun, 0, 0)[0] != 't')
        return error_set(err, ERR_CONFLICT, "the database has no schema");
    for (int i = 0; i < count; i++) {
        _cleanup_buf_ struct buf text = BUF_INIT(MIGRATION_MAX);
        char sha256[2 * TOKEN_HASH_LEN + 1];
        int applied;

        if (check_number(folder, files[i]->d_name, i + 1, err) < 0)
            return -1;
        applied = look_at_one(conn, folder, files[i]->d_name, &text, sha256, err);
        if (applied == 0)
            error_set(err, ERR_CONFLICT, "migration %s is not applied", files[i]->d_name);
        if (applied <= 0)
            return -1;
    }
    return check_not_newer(conn, count, err) < 0 ? -1 : count;
}

static void free_list(struct dirent **files, int count)
{
    for (int i = 0; i < count; i++)
        free(files[i]);
    free(files);
}

/* The migrations of a folder in order. Returns how many, or -1. */
static int list_folder(const char *folder, struct dirent ***files, struct error *err)
{
    int count = scandir(folder, files, is_migration, alphasort);

    if (count < 0)
        return error_set_errno(err, "read %s", folder);
    if (count > 0 && count <= MIGRATIONS_MAX)
        return count;
    free_list(*files, count);
    return error_set(err, ERR_CONFIG, "%s holds no migrations (NNNN_name.sql)", folder);
}

int migrate_apply(PGconn *conn, const char *folder, migrate_applied_cb on_applied, void *arg,
                  struct error *err)
{
    struct dirent **files = NULL;
    int count = list_folder(folder, &files, err);
    int applied = -1;

    if (count < 0)
        return -1;
    if (command(conn, "BEGIN", err) == 0) {
        if (command(conn, "SELECT pg_advisory_xact_lock(" LOCK_KEY ")", err) == 0 &&
            command(conn, "SET LOCAL client_min_messages = warning", err) == 0 &&
            command(conn,
                    "CREATE TABLE IF NOT EXISTS schema_migrations (version integer PRIMARY KEY,"
                    " name text NOT NULL, sha256 text NOT NULL,"
                    " applied_at timestamptz NOT NULL DEFAULT now())",
                    err) == 0)
            applied = apply_all(conn, folder, files, count, on_applied, arg, err);
        if (applied >= 0 && command(conn, "COMMIT", err) != 0)
            applied = -1;
        if (applied < 0)
            PQclear(PQexec(conn, "ROLLBACK"));
    }
    free_list(files, count);
    return applied;
}

int migrate_check(PGconn *conn, const char *folder, struct error *err)
{
    struct dirent **files = NULL;
    int count = list_folder(folder, &files, err);
    int version;

    if (count < 0)
        return -1;
    version = check_all(conn, folder, files, count, err);
    free_list(files, count);
    return version;
}
