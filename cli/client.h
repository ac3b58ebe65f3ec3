/* The REST client: one request, one answer, like any other client of the service (libcurl). */
#ifndef PADDOCK_CLI_CLIENT_H
#define PADDOCK_CLI_CLIENT_H

#include <jansson.h>

#include "cli/cli.h"
#include "common/buf.h"

/* Sends `method` to <url><path>, with the token and, for POST, a fresh Idempotency-Key. `path`
 * may begin with "~", which stands for the project's sandboxes collection. `body` may be NULL.
 * Returns the answer's JSON (new reference) when the status is 2xx; else NULL with cli->err made
 * from the problem details (or ERR_DAEMON_UNAVAILABLE when nothing answered). A lost connection
 * is retried twice with the same key. */
json_t *client_request(struct cli *cli, const char *method, const char *path, const json_t *body);

/* Appends text percent-encoded as one path segment or query value. */
void client_escape(struct buf *out, const char *text);

#endif
