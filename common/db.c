/*
 * The blocking database connection of a handler or of the command line. What
 * must stay true: a statement that may have reached the server is never sent a
 * second time, unless the server itself said that it had no effect; what is told
 * upward never contains a parameter. Not for use inside a transaction that was
 * opened on the raw connection.
 */
#include "common/db.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "common/buf.h"
#include "common/clock.h"

#define BACKOFF_MIN_MS 50
#define BACKOFF_MAX_MS 2000
#define CONFLICT_TRIES 3
/* Beyond the server's own statement timeout: a server that vanished is given up (TCP only). */
#define TCP_TIMEOUT_EXTRA_MS 5000

struct db {
    char *conninfo;
    int64_t connect_timeout_ms;
    int64_t statement_timeout_ms;
    PGconn *conn; /* NULL: not connected */
    bool prepared[STMT_COUNT];
    bool server_left; /* the server announced the end of the session */
    int64_t backoff_ms;
    int64_t retry_at_ms; /* CLOCK_MONOTONIC */
};

struct db *db_new(const char *conninfo, int64_t connect_timeout_ms, int64_t statement_timeout_ms)
{
    struct db *db = calloc(1, sizeof(*db));

    if (!db)
        return NULL;
    db->conninfo = strdup(conninfo);
    if (!db->conninfo) {
        free(db);
        return NULL;
    }
    db->connect_timeout_ms = connect_timeout_ms;
    db->statement_timeout_ms = statement_timeout_ms;
    return db;
}

static void disconnect(struct db *db)
{
    PQfinish(db->conn);
    db->conn = NULL;
}

void db_free(struct db *db)
{
    if (!db)
        return;
    disconnect(db);
    free(db->conninfo);
    free(db);
}

/* --- connecting ------------------------------------------------------------------------- */

/* ERR_DATABASE_UNAVAILABLE with libpq's message on one line. libpq names hosts and users in it,
 * never a password. */
static int set_unavailable(struct error *err, const char *what, const PGconn *conn,
                           int64_t retry_after_ms)
{
    char reason[300] = "";

    if (conn)
        (void)snprintf(reason, sizeof(reason), ": %s", PQerrorMessage(conn));
    for (char *p = reason; *p; p++) {
        if (*p == '\n')
            *p = p[1] ? ' ' : '\0';
    }
    error_set(err, ERR_DATABASE_UNAVAILABLE, "%s%s", what, reason);
    err->retry_after_ms = retry_after_ms;
    return -1;
}

static void on_notice(void *arg, const PGresult *res)
{
    struct db *db = arg;
    const char *severity = PQresultErrorField(res, PG_DIAG_SEVERITY_NONLOCALIZED);

    if (severity && (strcmp(severity, "FATAL") == 0 || strcmp(severity, "PANIC") == 0))
        db->server_left = true;
}

/* The value of `options` in the connection string, and whether the string can be read at all. */
static int read_options(const struct db *db, struct buf *options, struct error *err)
{
    PQconninfoOption *parsed = PQconninfoParse(db->conninfo, NULL);
    int rc = 0;

    /* libpq's message would quote the string, which may hold a password */
    if (!parsed)
        return error_set(err, ERR_CONFIG, "the database connection string cannot be read");
    for (const PQconninfoOption *option = parsed; option->keyword; option++) {
        if (option->val && strcmp(option->keyword, "options") == 0)
            rc = buf_printf(options, "%s ", option->val);
    }
    PQconninfoFree(parsed);
    return rc < 0 ? error_set(err, ERR_INTERNAL, "out of memory") : 0;
}

static PGconn *open_connection(const struct db *db, struct error *err)
{
    _cleanup_buf_ struct buf options = BUF_INIT(0);
    char connect_timeout[32];
    char tcp_timeout[32];

    if (read_options(db, &options, err) < 0)
        return NULL;
    buf_printf(&options, "-c statement_timeout=%jd -c bytea_output=hex",
               (intmax_t)db->statement_timeout_ms);
    /* libpq counts in seconds and takes 0 for "no limit" */
    (void)snprintf(
        connect_timeout, sizeof(connect_timeout), "%jd",
        (intmax_t)(db->connect_timeout_ms / 1000 + (db->connect_timeout_ms % 1000 != 0)));
    (void)snprintf(tcp_timeout, sizeof(tcp_timeout), "%jd",
                   (intmax_t)(db->statement_timeout_ms + TCP_TIMEOUT_EXTRA_MS));

    /* What stands before dbname is a default, what stands behind it is in force. */
    const char *const keywords[] = {
        "fallback_application_name", "tcp_user_timeout", "dbname", "connect_timeout",
        "client_encoding",           "options",          NULL};
    const char *const values[] = {program_invocation_short_name,
                                  tcp_timeout,
                                  db->conninfo,
                                  connect_timeout,
                                  "UTF8",
                                  buf_cstr(&options),
                                  NULL};
    PGconn *conn = options.overflowed ? NULL : PQconnectdbParams(keywords, values, 1);
    if (!conn)
        error_set(err, ERR_INTERNAL, "out of memory");
    return conn;
}

static int back_off(struct db *db, struct error *err)
{
    db->backoff_ms = db->backoff_ms == 0 ? BACKOFF_MIN_MS : db->backoff_ms * 2;
    if (db->backoff_ms > BACKOFF_MAX_MS)
        db->backoff_ms = BACKOFF_MAX_MS;
    db->retry_at_ms = clock_mono_ms() + db->backoff_ms;
    set_unavailable(err, "cannot connect to the database", db->conn, db->backoff_ms);
    disconnect(db);
    return -1;
}

static int reconnect(struct db *db, struct error *err)
{
    int64_t wait_ms = db->backoff_ms > 0 ? db->retry_at_ms - clock_mono_ms() : 0;

    disconnect(db);
    if (wait_ms > 0)
        return set_unavailable(err, "the database could not be reached a moment ago", NULL,
                               wait_ms);
    db->conn = open_connection(db, err);
    if (!db->conn)
        return -1;
    if (PQstatus(db->conn) != CONNECTION_OK)
        return back_off(db, err);
    memset(db->prepared, 0, sizeof(db->prepared));
    db->server_left = false;
    db->backoff_ms = 0;
    PQsetNoticeReceiver(db->conn, on_notice, db);
    return 0;
}

/* Is the idle connection still good? Reads what the server sent meanwhile: the end of file or the
 * farewell of a server that shuts down are waiting there. */
static bool is_alive(struct db *db)
{
    struct pollfd poller = {.events = POLLIN};

    if (!db->conn || PQstatus(db->conn) != CONNECTION_OK)
        return false;
    poller.fd = PQsocket(db->conn);
    while (poll(&poller, 1, 0) > 0) {
        PGnotify *note;

        if (!PQconsumeInput(db->conn) || PQstatus(db->conn) != CONNECTION_OK)
            return false;
        (void)PQisBusy(db->conn); /* parses, so that on_notice sees it */
        while ((note = PQnotifies(db->conn)))
            PQfreemem(note);
        if (db->server_left)
            return false;
    }
    return true;
}

int db_ensure(struct db *db, struct error *err)
{
    return is_alive(db) ? 0 : reconnect(db, err);
}

PGconn *db_connection(struct db *db, struct error *err)
{
    return db_ensure(db, err) < 0 ? NULL : db->conn;
}

/* --- statements ------------------------------------------------------------------------- */

enum verdict {
    VERDICT_DONE,
    VERDICT_FAILED,   /* err is set */
    VERDICT_UNSENT,   /* the connection was lost before the statement went out; err is set */
    VERDICT_STALE,    /* the server no longer knows or accepts what was prepared; err is set */
    VERDICT_CONFLICT, /* rolled back for a concurrent transaction; err is set */
};

enum error_code db_sqlstate_code(const char *sqlstate)
{
    static const char *const unavailable[] = {"08", "53", "57", "58"};

    if (strncmp(sqlstate, "40", 2) == 0 && strcmp(sqlstate, "40003") != 0)
        return ERR_CONFLICT;
    for (unsigned i = 0; i < ARRAY_LEN(unavailable); i++)
        if (strncmp(sqlstate, unavailable[i], 2) == 0)
            return ERR_DATABASE_UNAVAILABLE;
    return ERR_INTERNAL;
}

/* Judges a result that is not a success. */
static enum verdict judge(struct db *db, enum statement stmt, const PGresult *res,
                          struct error *err)
{
    const char *name = statement_name(stmt);
    const char *sqlstate = res ? PQresultErrorField(res, PG_DIAG_SQLSTATE) : NULL;

    if (PQstatus(db->conn) != CONNECTION_OK) {
        /* Whether it took effect is not known. */
        set_unavailable(err, "the database connection was lost", db->conn, BACKOFF_MIN_MS);
        disconnect(db);
        return VERDICT_FAILED;
    }
    if (!sqlstate) {
        error_set(err, ERR_INTERNAL, "statement %s: no answer of the expected kind", name);
        disconnect(db); /* whatever state it is in (COPY, memory) is not ours to mend */
        return VERDICT_FAILED;
    }
    error_set(err, db_sqlstate_code(sqlstate), "statement %s: SQLSTATE %s", name, sqlstate);
    if (err->code == ERR_CONFLICT) {
        err->retry_after_ms = BACKOFF_MIN_MS;
        return VERDICT_CONFLICT;
    }
    if (err->code == ERR_DATABASE_UNAVAILABLE)
        err->retry_after_ms = BACKOFF_MAX_MS;
    /* 26000 no such prepared statement (DISCARD, a pooler); 0A000 its result type changed under
     * it (a migration). Both are found before it runs. */
    if (strcmp(sqlstate, "26000") == 0 || strcmp(sqlstate, "0A000") == 0)
        return VERDICT_STALE;
    return VERDICT_FAILED;
}

static enum verdict prepare(struct db *db, enum statement stmt, struct error *err)
{
    _cleanup_pgresult_ PGresult *res = NULL;
    enum verdict verdict;

    if (db->prepared[stmt])
        return VERDICT_DONE;
    res = PQprepare(db->conn, statement_name(stmt), statement_text(stmt), 0, NULL);
    if (PQresultStatus(res) == PGRES_COMMAND_OK) {
        db->prepared[stmt] = true;
        return VERDICT_DONE;
    }
    verdict = judge(db, stmt, res, err);
    /* Preparing has no effect: when the connection broke here, nothing was lost. */
    if (verdict == VERDICT_FAILED && !db->conn && err->code == ERR_DATABASE_UNAVAILABLE)
        return VERDICT_UNSENT;
    return verdict;
}

static enum verdict run_once(struct db *db, enum statement stmt, const char *const params[],
                             PGresult **result, struct error *err)
{
    _cleanup_pgresult_ PGresult *res = NULL;
    enum verdict verdict = prepare(db, stmt, err);
    ExecStatusType status;

    if (verdict != VERDICT_DONE)
        return verdict;
    res = PQexecPrepared(db->conn, statement_name(stmt), statement_params(stmt), params, NULL, NULL,
                         0);
    status = PQresultStatus(res);
    if (status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK) {
        *result = steal_ptr(res);
        return VERDICT_DONE;
    }
    return judge(db, stmt, res, err);
}

PGresult *db_exec(struct db *db, enum statement stmt, const char *const params[], struct error *err)
{
    PGresult *result = NULL;
    int conflicts = 0;
    bool reconnected = false;

    for (;;) {
        enum verdict verdict;

        if (db_ensure(db, err) < 0)
            return NULL;
        verdict = run_once(db, stmt, params, &result, err);
        if (verdict == VERDICT_DONE)
            return result;
        if (verdict == VERDICT_CONFLICT && ++conflicts < CONFLICT_TRIES)
            continue;
        if ((verdict == VERDICT_UNSENT || verdict == VERDICT_STALE) && !reconnected) {
            reconnected = true;
            disconnect(db);
            continue;
        }
        return NULL;
    }
}

const char *db_column(const PGresult *res, int row, const char *name)
{
    int index = PQfnumber(res, name);

    if (index < 0 || row < 0 || row >= PQntuples(res) || PQgetisnull(res, row, index))
        return NULL;
    return PQgetvalue(res, row, index);
}
