/*
 * This host's row: registers at start (a new epoch; what a former daemon left and the keeper does
 * not hold any more is ended in the same step), renews the heartbeat, listens for work, and stops
 * the daemon when another one took the node over.
 */
#ifndef PADDOCK_DAEMON_NODE_H
#define PADDOCK_DAEMON_NODE_H

#include "daemon/context.h"

struct node;

/* facts: JSON text for the row (runsc, platform, resource controls); copied. */
struct node *node_new(struct daemon *d, const char *facts_json, struct error *err);
void node_free(struct node *node);
/* Starts: connect, register, then scan. on_registered is called after the first registration. */
void node_start(struct node *node, void (*on_registered)(struct daemon *d));
/* No more admissions for this node. */
void node_close(struct node *node);

/* Node number and epoch as text parameters of statements; borrowed, valid after registration. */
const char *node_number_text(const struct node *node);
const char *node_epoch_text(const struct node *node);
bool node_is_registered(const struct node *node);

#endif
