/* A claimed sandbox's row, taken apart: what the keeper needs, the environment, the deadlines. */
#ifndef PADDOCK_DAEMON_SANDBOX_ROW_H
#define PADDOCK_DAEMON_SANDBOX_ROW_H

#include <libpq-fe.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/config.h"
#include "common/error.h"
#include "daemon/keeper/protocol.h"

struct sandbox_row {
    struct keeper_request start; /* KEEPER_START */
    struct buf env;              /* "NAME=value\0" … */
    int64_t expires_in_ms;       /* may be past; INT64_MAX: never */
    int64_t idle_ms;             /* INT64_MAX: never */
};

/* Of STMT_SANDBOX_CLAIM's result. ERR_INTERNAL for a row that no admission would have made; then
 * row holds nothing. */
int sandbox_row_read(const PGresult *res, int index, const struct config *config,
                     struct sandbox_row *row, struct error *err)
    __attribute__((warn_unused_result));
void sandbox_row_free(struct sandbox_row *row);
#define _cleanup_sandbox_row_ _cleanup_(sandbox_row_free)

#endif
