/* What the daemon does for the whole installation beside its own node: gives up silent nodes, each
 * daemon.lease, and deletes what is older than its age, each retention.every. */
#ifndef PADDOCK_DAEMON_UPKEEP_H
#define PADDOCK_DAEMON_UPKEEP_H

#include "daemon/context.h"

struct upkeep;

struct upkeep *upkeep_new(struct daemon *d, struct error *err);
void upkeep_free(struct upkeep *upkeep);
/* From now on; to be called once the node is registered. */
void upkeep_start(struct upkeep *upkeep);

#endif
