/*
 * A blocking database connection for the handlers and the command line: opened
 * lazily, statements prepared once a connection on first use, reconnect with
 * backoff. (The daemon's event loop has its own, daemon/dbq.h, over the same
 * statement table.)
 */
#ifndef PADDOCK_COMMON_DB_H
#define PADDOCK_COMMON_DB_H

#include <libpq-fe.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/cleanup.h"
#include "common/error.h"
#include "common/statement.h"

static inline void cleanup_pgresult_p(PGresult **res)
{
    PQclear(*res);
}
#define _cleanup_pgresult_ _cleanup_(cleanup_pgresult_p)

struct db; /* opaque */

/* conninfo is copied; nothing is connected yet. connect_timeout and statement_timeout in ms apply
 * to each connection. NULL without memory. */
struct db *db_new(const char *conninfo, int64_t connect_timeout_ms, int64_t statement_timeout_ms);
void db_free(struct db *db);
static inline void cleanup_db_p(struct db **db)
{
    if (*db)
        db_free(*db);
}
#define _cleanup_db_ _cleanup_(cleanup_db_p)

/* Connected, or connects now. After a failure further tries are refused at once for a backoff of
 * 50 ms, doubling to 2 s: ERR_DATABASE_UNAVAILABLE (with retry_after_ms). ERR_CONFIG when the
 * connection string cannot be read. */
int db_ensure(struct db *db, struct error *err) __attribute__((warn_unused_result));

/* Runs a statement with text parameters (NULL = SQL null; as many as statement_params). Returns
 * a result of PGRES_TUPLES_OK or PGRES_COMMAND_OK that the caller owns, or NULL:
 * ERR_DATABASE_UNAVAILABLE (connection lost: tried once more only when it was lost before the
 * statement was sent; or the server is shutting down, short of something, or ran into the
 * statement timeout: db_sqlstate_code), ERR_CONFLICT (class 40, after three tries),
 * ERR_INTERNAL (anything else, with the SQLSTATE in the detail, never the text of parameters).
 * Each statement is its own transaction: not for use between BEGIN and COMMIT on db_connection. */
PGresult *db_exec(struct db *db, enum statement stmt, const char *const params[], struct error *err)
    __attribute__((warn_unused_result));

/* What an SQLSTATE that the server sent says about a statement: ERR_CONFLICT, it lost a race and
 * may be sent again (class 40, but for 40003, which says that nobody knows whether it took effect);
 * ERR_DATABASE_UNAVAILABLE, the server cannot for now, and nothing is wrong with the statement (08
 * connection, 53 resources: a full disk above all, 57 shutdown and statement timeout, 58 its own
 * host's errors); ERR_INTERNAL, any other. */
enum error_code db_sqlstate_code(const char *sqlstate);

/* The raw connection for migrations; connects if need be. Borrowed. */
PGconn *db_connection(struct db *db, struct error *err);

/* A column of a row by name; NULL when it is SQL null or does not exist. Borrowed from res. */
const char *db_column(const PGresult *res, int row, const char *name);

#endif
