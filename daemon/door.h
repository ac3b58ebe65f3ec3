/* The Unix socket on which handlers hand connections over: accepts handlers, decodes their
 * messages (hostile: strictly parsed), gives them to answers. A handler that sends nonsense is
 * disconnected. */
#ifndef PADDOCK_DAEMON_DOOR_H
#define PADDOCK_DAEMON_DOOR_H

#include "daemon/context.h"

struct door;

struct door *door_new(struct daemon *d, struct error *err);
/* Stops listening and closes every handler's connection. */
void door_free(struct door *door);

#endif
