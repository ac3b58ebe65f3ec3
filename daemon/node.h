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

/* A guest could not be started. While its state folder's disk is full a node takes no more work;
 * that is looked at with each heartbeat, and now. */
void node_check_room(struct node *node);

/* The database refused work that was announced, and it stays as it is: looks for it again in a few
 * seconds, until it answers, and not only at the next scan. */
void node_scan_soon(struct node *node);

#endif
