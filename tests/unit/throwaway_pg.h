/*
 * A Postgres server of a test's own: in a temporary folder, on a Unix socket,
 * gone when the test program ends, however it ends. The tests connect as a role
 * without privileges that owns its database, as in production.
 */
#ifndef PADDOCK_TESTS_THROWAWAY_PG_H
#define PADDOCK_TESTS_THROWAWAY_PG_H

#include <stdbool.h>
#include <sys/types.h>

struct throwaway_pg {
    char dir[64];       /* everything of it is in here */
    char bin[128];      /* folder of initdb, pg_ctl */
    char conninfo[256]; /* database paddock, as role paddock */
    pid_t guard;        /* removes it all when this program is gone */
    int guard_fd;       /* open as long as the server is wanted */
};

/* Starts it. Returns 0, or -1 (no Postgres server is installed, it does not start) after
 * a message on stderr. */
int throwaway_pg_start(struct throwaway_pg *pg);
/* Applies every migration of the source tree (environment: srcdir, default ".") and makes an empty
 * schema_migrations table. False after a message on stderr. */
bool throwaway_pg_apply_schema(const struct throwaway_pg *pg);
/* Stops the server (fast: sessions are ended) and starts it again. May be called from a forked
 * child. */
bool throwaway_pg_restart(const struct throwaway_pg *pg);
bool throwaway_pg_halt(const struct throwaway_pg *pg);
bool throwaway_pg_resume(const struct throwaway_pg *pg);
/* The server's log on stderr: for a test that failed. */
void throwaway_pg_dump_log(const struct throwaway_pg *pg);
/* Stops it and removes the folder. */
void throwaway_pg_stop(struct throwaway_pg *pg);

#endif
