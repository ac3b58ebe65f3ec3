/* paddockd's main process, from the configuration to the exit code. */
#ifndef PADDOCK_DAEMON_RUN_H
#define PADDOCK_DAEMON_RUN_H

#include "common/config.h"
#include "common/error.h"

/* Exit codes (64: EX_USAGE of sysexits.h). */
enum daemon_exit {
    DAEMON_EXIT_DRAINED = 0, /* asked to stop, and every guest was ended and recorded */
    DAEMON_EXIT_LOST = 1,    /* keeper gone, or stopped before it had drained */
    DAEMON_EXIT_LEFT = 2,    /* made way for a newer main; the guests live on */
    DAEMON_EXIT_CONFIG = 64, /* the configuration cannot work here, or the node was taken over */
};

/* Runs until a signal, an order or a loss ends it. Takes keeper_sock over. parent_sock: the socket
 * to the supervisor (daemon/main_protocol.h), -1 for none; stays open. facts_json: the node's facts
 * for its row. Returns one of enum daemon_exit; err is set when the process could not start. */
int daemon_run(const struct config *config, int keeper_sock, int parent_sock,
               const char *facts_json, struct error *err);

#endif
