/*
 * A sandbox's life on this node: claim, guest start through the keeper, ready, executions,
 * deadlines, stop, end. The database row leads: every step is committed there first or is a
 * consequence of what was committed.
 */
#ifndef PADDOCK_DAEMON_SANDBOX_H
#define PADDOCK_DAEMON_SANDBOX_H

#include "common/buf.h"
#include "daemon/context.h"
#include "daemon/keeper/protocol.h"

struct sandboxes;

struct sandboxes *sandboxes_new(struct daemon *d, struct error *err);
void sandboxes_free(struct sandboxes *all);

/* Work was announced (NOTIFY or scan): kind 's' (look at this sandbox: claim it when queued, end
 * it when stopping), 'e' (claim and run this execution) or 'c' (end it). Repeated announcements are
 * harmless. */
void sandboxes_work(struct sandboxes *all, char kind, const char *id);
/* A row that this node has claimed, found by a scan: 's' or 'e' as above, and the sandbox. Looked
 * into only if no such sandbox or execution is held here. */
void sandboxes_claimed(struct sandboxes *all, char kind, const char *id, const char *sandbox_id);
/* Holds what is here against what the keeper has; differences are ended on either side. */
void sandboxes_reconcile_guests(struct sandboxes *all);

/* The start: on_attached is called once, when the keeper has told all that it holds. */
void sandboxes_when_attached(struct sandboxes *all, void (*on_attached)(struct daemon *d));
/* Those, as an array literal of Postgres; -1 without memory. */
int sandboxes_list_held(const struct sandboxes *all, struct buf *out);
/* The node is registered: takes them over. */
void sandboxes_adopt_held(struct sandboxes *all);

/* A report from the keeper. Owns fd. */
void sandboxes_keeper_report(struct daemon *d, const struct keeper_report *report, int fd);
/* Another main is to come: announcements are ignored from here on. */
void sandboxes_take_no_work(struct sandboxes *all);
/* Nothing is between guest and row: no claim, no start, no result, no end. */
bool sandboxes_are_settled(const struct sandboxes *all);
/* Ends every guest (shutdown); on_empty is called when none is left. */
void sandboxes_shutdown(struct sandboxes *all, void (*on_empty)(struct daemon *d));
unsigned sandboxes_count(const struct sandboxes *all);

#endif
