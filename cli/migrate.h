/* Numbered migrations: NNNN_name.sql files of a folder, each applied once, in order. */
#ifndef PADDOCK_CLI_MIGRATE_H
#define PADDOCK_CLI_MIGRATE_H

#include <libpq-fe.h>

#include "common/error.h"

/* The installed migrations, or those of PADDOCK_SQL_DIR. Borrowed. */
const char *migrate_folder(void);

/* Called for each migration applied. */
typedef void (*migrate_applied_cb)(int version, const char *name, void *arg);

/* Applies what is missing, all in one transaction under an advisory lock, so that two at once are
 * harmless. An applied file whose content changed since (by SHA-256), a gap in the numbers, and a
 * database that is newer than the folder are refused with nothing applied. Returns how many were
 * applied, or -1. */
int migrate_apply(PGconn *conn, const char *folder, migrate_applied_cb on_applied, void *arg,
                  struct error *err) __attribute__((warn_unused_result));

/* Would migrate_apply have anything to do, or to refuse? Changes nothing. Returns the version, or
 * -1; ERR_CONFLICT names the first migration that is missing. */
int migrate_check(PGconn *conn, const char *folder, struct error *err)
    __attribute__((warn_unused_result));

#endif
