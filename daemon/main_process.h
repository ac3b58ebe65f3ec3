/* `paddockd --main`: what the supervisor executes as the main process, up to daemon_run. */
#ifndef PADDOCK_DAEMON_MAIN_PROCESS_H
#define PADDOCK_DAEMON_MAIN_PROCESS_H

#include "common/config.h"
#include "common/error.h"
#include "common/log.h"
#include "daemon/keeper/preflight.h"

/* Gives up every privilege for good: no way back to root, nothing to gain by exec, no core or
 * ptrace by others; dies with its parent. */
int main_process_drop(const struct config *config, const struct preflight *found, struct error *err)
    __attribute__((warn_unused_result));

/* Descriptor 3 is the socket to the supervisor. Returns the exit code. */
int main_process_run(const struct config *config, const struct log *log);

#endif
