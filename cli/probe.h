/* Asks the handlers on their own socket, as a web server would, but without one. */
#ifndef PADDOCK_CLI_PROBE_H
#define PADDOCK_CLI_PROBE_H

#include "common/error.h"

/* GET /healthz over FastCGI on a Unix socket. Returns the HTTP status, or -1 with
 * ERR_DAEMON_UNAVAILABLE when nothing, or nothing of that kind, answers in time. */
int probe_handlers(const char *socket_path, struct error *err) __attribute__((warn_unused_result));

#endif
