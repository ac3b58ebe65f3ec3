/* NAME=VALUE options and query parameters. */
#ifndef PADDOCK_CLI_PAIRS_H
#define PADDOCK_CLI_PAIRS_H

#include <jansson.h>

#include "cli/options.h"
#include "common/buf.h"

/* Sets body[field] to an object of the pairs; nothing when there are none. 0 or CLI_USAGE. */
int pairs_set(struct cli *cli, const struct option_values *pairs, const char *field, json_t *body)
    __attribute__((warn_unused_result));
/* Appends "&name=value", escaped; nothing for a NULL value. */
void pairs_query(struct buf *path, const char *name, const char *value);

#endif
