/*
 * What the database tests share: the throwaway server of the program, handles,
 * raw SQL, and short ways to make projects, nodes, sandboxes and executions
 * through the programs' own statements.
 */
#ifndef PADDOCK_TESTS_DB_FIXTURE_H
#define PADDOCK_TESTS_DB_FIXTURE_H

#include <check.h>
#include <stddef.h>

#include "common/db.h"
#include "throwaway_pg.h"

#define ID_TEXT_SIZE 37

/* Starts the server, applies the schema, runs the suite, stops the server. Returns what main
 * returns. */
int db_fixture_run(Suite *suite);
const struct throwaway_pg *db_fixture_server(void);

/* A handle with 10 s timeouts; the test aborts without one. */
struct db *db_fixture_open(void);
/* Empties every table but the transitions. A checked setup. */
void db_fixture_reset(void);

/* SQL on the raw connection; the first column of the first row, malloc'd, or NULL. The test aborts
 * on an error. */
char *raw(struct db *db, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same, as a number. */
long raw_long(struct db *db, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* SQL that must fail with this SQLSTATE. */
void raw_refused(struct db *db, const char *sqlstate, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* A statement that must succeed. Parameters: as many const char * as it takes. */
PGresult *run(struct db *db, enum statement stmt, ...);
/* The statement's only row's column equals text (NULL: is null). */
void assert_column(const PGresult *res, const char *name, const char *text);

/* Ids into out. */
void make_project(struct db *db, const char *name, const char *max_sandboxes, char *out);
/* Registers the node with the templates base and node; the epoch into out. */
void make_node(struct db *db, const char *number, const char *max_sandboxes, char *epoch_out);

/* Who asks, as handlers tell it. */
#define WHO "{\"token\":\"0123456789abcdef\",\"address\":\"192.0.2.7\",\"request\":\"r\"}"

#define REQUEST_HASH "\\x000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
#define OTHER_HASH "\\xff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
#define SANDBOX_REQUEST                                                                            \
    "{\"template\":\"base\",\"cpus\":1,\"memoryMb\":256,\"workspaceMb\":32,\"pids\":64,"           \
    "\"ttlSeconds\":3600,\"idleSeconds\":null,\"env\":{\"TOKEN\":\"s3cret\"},"                     \
    "\"labels\":{\"team\":\"a\"},\"egress\":{\"mode\":\"none\"},\"exclusive\":false}"
#define EXECUTION_REQUEST                                                                          \
    "{\"spec\":{\"cmd\":[\"true\"]},\"timeoutMs\":1000,\"onTimeout\":\"kill\","                    \
    "\"background\":false,\"tag\":null}"

/* Admission; returns the outcome (malloc'd) and the id into out (may be NULL). */
char *admit_sandbox(struct db *db, const char *project, const char *key, const char *hash,
                    const char *request, char *out);
char *admit_execution(struct db *db, const char *project, const char *sandbox, const char *key,
                      const char *hash, const char *live_max, char *out);
/* Admission that must succeed. */
void make_sandbox(struct db *db, const char *project, char *out);
void make_execution(struct db *db, const char *project, const char *sandbox, char *out);
/* Claims and makes it ready. */
void start_sandbox(struct db *db, const char *sandbox, const char *node, const char *epoch);

/* A scene: one project, one node (number 1), one handle. */
struct scene {
    struct db *db;
    char project[ID_TEXT_SIZE];
    char epoch[ID_TEXT_SIZE];
};
/* Limits of the project (NULL: none) and of the node. */
struct scene open_scene(const char *max_sandboxes, const char *node_max);
void close_scene(struct scene *scene);
#define _cleanup_scene_ _cleanup_(close_scene)
/* A sandbox of the scene that is ready. */
void make_ready(const struct scene *s, char *sandbox);
/* Stops and ends it as the daemon does after a client's request. */
void end_sandbox(const struct scene *s, const char *sandbox);

#define assert_text(actual, wanted)                                                                \
    do {                                                                                           \
        char *text_ = (actual);                                                                    \
        ck_assert_pstr_eq(text_, (wanted));                                                        \
        free(text_);                                                                               \
    } while (0)

#endif
