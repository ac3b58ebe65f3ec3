/*
 * A sandbox's life on this node: claim, guest start through the keeper, ready, executions,
 * deadlines, stop, end. The database row leads: every step is committed there first or is a
 * consequence of what was committed.
 */
#ifndef PADDOCK_DAEMON_SANDBOX_H
#define PADDOCK_DAEMON_SANDBOX_H

#include "daemon/context.h"
#include "daemon/keeper/protocol.h"

struct sandboxes;

struct sandboxes *sandboxes_new(struct daemon *d, struct error *err);
void sandboxes_free(struct sandboxes *all);

/* Work was announced (NOTIFY or scan): kind 's' (look at this sandbox: claim it when queued, end
 * it when stopping) or 'e' (claim and run this execution). Repeated announcements are harmless. */
void sandboxes_work(struct sandboxes *all, char kind, const char *id);
/* A report from the keeper. Owns fd. */
void sandboxes_keeper_report(struct daemon *d, const struct keeper_report *report, int fd);
/* Ends every guest (shutdown); on_empty is called when none is left. */
void sandboxes_shutdown(struct sandboxes *all, void (*on_empty)(struct daemon *d));
unsigned sandboxes_count(const struct sandboxes *all);

#endif
