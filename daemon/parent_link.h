/* Main's end of the socket to the supervisor: beats, and the order to leave. */
#ifndef PADDOCK_DAEMON_PARENT_LINK_H
#define PADDOCK_DAEMON_PARENT_LINK_H

#include "daemon/context.h"
#include "daemon/main_protocol.h"

struct parent_link;

/* Takes sock over. on_leave: LEAVE came, once. on_lost: the supervisor is gone. */
struct parent_link *parent_link_new(struct daemon *d, int sock, void (*on_leave)(struct daemon *d),
                                    void (*on_lost)(struct daemon *d), struct error *err);
/* NULL is fine. Does not close the socket. */
void parent_link_free(struct parent_link *link);
void parent_link_say(const struct parent_link *link, enum main_word word);

#endif
