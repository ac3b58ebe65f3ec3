/* A claimed sandbox's row, taken apart: what the keeper needs, the environment, the deadlines. */
#ifndef PADDOCK_DAEMON_SANDBOX_ROW_H
#define PADDOCK_DAEMON_SANDBOX_ROW_H

#include <libpq-fe.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/config.h"
#include "common/error.h"
#include "daemon/keeper/protocol.h"

/* INT64_MAX: never. */
struct sandbox_deadlines {
    int64_t expires_in_ms; /* may be past */
    int64_t idle_ms;       /* of want of work that end it */
    int64_t idle_in_ms;    /* as things stand: never while something runs */
};

struct sandbox_row {
    struct keeper_request start; /* KEEPER_START */
    struct buf env;              /* "NAME=value\0" … */
    struct sandbox_deadlines deadlines;
};

/* Of a row with the columns of sandbox_view. ERR_INTERNAL for one that no admission would have
 * made. */
int sandbox_deadlines_read(const PGresult *res, int index, struct sandbox_deadlines *deadlines,
                           struct error *err) __attribute__((warn_unused_result));

/* Of STMT_SANDBOX_CLAIM's result. ERR_INTERNAL for a row that no admission would have made; then
 * row holds nothing. */
int sandbox_row_read(const PGresult *res, int index, const struct config *config,
                     struct sandbox_row *row, struct error *err)
    __attribute__((warn_unused_result));
void sandbox_row_free(struct sandbox_row *row);
#define _cleanup_sandbox_row_ _cleanup_(sandbox_row_free)

#endif
