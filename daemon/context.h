/* The one context struct of paddockd's main process; every module gets it. */
#ifndef PADDOCK_DAEMON_CONTEXT_H
#define PADDOCK_DAEMON_CONTEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/config.h"
#include "common/log.h"
#include "daemon/dbq.h"
#include "daemon/loop.h"

struct answers;
struct door;
struct keeper_link;
struct node;
struct sandboxes;
struct upkeep;

struct daemon {
    const struct config *config;
    struct log log;
    struct loop *loop;
    struct dbq *db;
    struct keeper_link *keeper;  /* daemon/keeper_link.h: requests to the keeper */
    struct node *node;           /* daemon/node.h: registration, heartbeat, epoch */
    struct sandboxes *sandboxes; /* daemon/sandbox.h: every live sandbox of this node */
    struct answers *answers;
    struct door *door;
    struct upkeep *upkeep; /* daemon/upkeep.h: fencing and retention */
    int exit_code;         /* what main returns when the loop ends */
};

#endif
