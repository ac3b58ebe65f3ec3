/*
 * A map from UUID text to a pointer: O(1) look-up, insert and removal. The
 * daemon's tables of sandboxes and executions. Keys are copied, values
 * are borrowed. Keys come from the database or libuuid, never chosen by a peer,
 * so the hash needs no secret.
 */
#ifndef PADDOCK_DAEMON_IDMAP_H
#define PADDOCK_DAEMON_IDMAP_H

#include "common/id.h"

struct idmap;

/* NULL without memory. */
struct idmap *idmap_new(void);
void idmap_free(struct idmap *map); /* NULL is fine; the values are the caller's */

/* The value under id, or NULL. */
void *idmap_get(const struct idmap *map, const char *id);
/* Sets the value (not NULL) under id, replacing a former one. Returns 0; -1 without memory or
 * when id is not a valid UUID. */
int idmap_put(struct idmap *map, const char *id, void *value);
/* Takes the entry out and returns its value, or NULL. Never allocates, never moves others. */
void *idmap_remove(struct idmap *map, const char *id);
unsigned idmap_count(const struct idmap *map);

/* Visits every value once, in no order: start with *cursor = 0, ends with NULL. Any entry may be
 * removed between two calls; nothing may be put until the walk is over (it could move entries). */
void *idmap_next(const struct idmap *map, unsigned *cursor);

#endif
