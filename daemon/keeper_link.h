/* Main's end of the socket to the keeper: queues requests, hands reports to their sandboxes. */
#ifndef PADDOCK_DAEMON_KEEPER_LINK_H
#define PADDOCK_DAEMON_KEEPER_LINK_H

#include "daemon/context.h"
#include "daemon/keeper/protocol.h"

struct keeper_link;

/* fd: the descriptor beside KEEPER_STARTED and KEEPER_HELD, else -1; the callee owns it. */
typedef void (*keeper_report_cb)(struct daemon *d, const struct keeper_report *report, int fd);

/* Takes sock over. When it ends on_lost is called once: the keeper is dead, and every guest with it
 * (they live in its PID namespace), or has another main. */
struct keeper_link *keeper_link_new(struct daemon *d, int sock, keeper_report_cb on_report,
                                    void (*on_lost)(struct daemon *d), struct error *err);
void keeper_link_free(struct keeper_link *link);

/* Queues a request (copied). Returns 0, or -1 when the keeper is gone. */
int keeper_link_send(struct keeper_link *link, const struct keeper_request *request,
                     struct error *err) __attribute__((warn_unused_result));

#endif
