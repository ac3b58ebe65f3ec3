/*
 * The id map: open addressing with linear probing over a power-of-two table.
 * A removed entry leaves a grave, so that nothing moves under a walk; graves are
 * swept when the table is rebuilt, which only a put does. Used by sandboxes.c.
 */
#include "daemon/idmap.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define IDMAP_SLOTS_MIN 16u
#define IDMAP_SLOTS_MAX (1u << 30)

struct idmap_slot {
    char id[ID_SIZE]; /* "" never used */
    void *value;      /* NULL with an id: a grave */
};

struct idmap {
    struct idmap_slot *slots;
    unsigned size;  /* power of two */
    unsigned count; /* entries */
    unsigned used;  /* entries and graves */
};

/* FNV-1a. */
static unsigned idmap_hash(const char *id)
{
    uint64_t hash = 14695981039346656037u;

    for (; *id; id++)
        hash = (hash ^ (unsigned char)*id) * 1099511628211u;
    return (unsigned)(hash ^ (hash >> 32));
}

struct idmap *idmap_new(void)
{
    struct idmap *map = calloc(1, sizeof(*map));

    if (!map)
        return NULL;
    map->slots = calloc(IDMAP_SLOTS_MIN, sizeof(*map->slots));
    if (!map->slots) {
        free(map);
        return NULL;
    }
    map->size = IDMAP_SLOTS_MIN;
    return map;
}

void idmap_free(struct idmap *map)
{
    if (!map)
        return;
    free(map->slots);
    free(map);
}

/* The slot of id, or NULL. At least one slot is always unused, so the probe ends. */
static struct idmap_slot *idmap_find(const struct idmap *map, const char *id)
{
    unsigned at = idmap_hash(id);

    for (;; at++) {
        struct idmap_slot *slot = &map->slots[at & (map->size - 1)];

        if (slot->id[0] == '\0')
            return NULL;
        if (slot->value && strcmp(slot->id, id) == 0)
            return slot;
    }
}

void *idmap_get(const struct idmap *map, const char *id)
{
    const struct idmap_slot *slot = idmap_find(map, id);

    return slot ? slot->value : NULL;
}

static void idmap_insert(struct idmap *map, const char *id, void *value)
{
    unsigned at = idmap_hash(id);
    struct idmap_slot *slot;

    while ((slot = &map->slots[at & (map->size - 1)])->id[0] != '\0')
        at++;
    memcpy(slot->id, id, ID_SIZE);
    slot->value = value;
    map->count++;
    map->used++;
}

/* A table for one more entry at no more than half full, without graves. */
static int idmap_rebuild(struct idmap *map)
{
    struct idmap_slot *old = map->slots;
    unsigned old_size = map->size;
    unsigned size = IDMAP_SLOTS_MIN;

    while (size / 2 < map->count + 1) {
        if (size >= IDMAP_SLOTS_MAX)
            return -1;
        size *= 2;
    }
    map->slots = calloc(size, sizeof(*map->slots));
    if (!map->slots) {
        map->slots = old;
        return -1;
    }
    map->size = size;
    map->count = map->used = 0;
    for (unsigned i = 0; i < old_size; i++)
        if (old[i].value)
            idmap_insert(map, old[i].id, old[i].value);
    free(old);
    return 0;
}

int idmap_put(struct idmap *map, const char *id, void *value)
{
    struct idmap_slot *slot;

    if (!value || !id_is_valid(id))
        return -1;
    slot = idmap_find(map, id);
    if (slot) {
        slot->value = value;
        return 0;
    }
    /* Probes stay short up to three quarters, graves included. */
    if (map->used + 1 > map->size / 4 * 3 && idmap_rebuild(map) < 0)
        return -1;
    idmap_insert(map, id, value);
    return 0;
}

void *idmap_remove(struct idmap *map, const char *id)
{
    struct idmap_slot *slot = idmap_find(map, id);
    void *value;

    if (!slot)
        return NULL;
    value = slot->value;
    slot->value = NULL;
    map->count--;
    return value;
}

unsigned idmap_count(const struct idmap *map)
{
    return map->count;
}

void *idmap_next(const struct idmap *map, unsigned *cursor)
{
    while (*cursor < map->size) {
        const struct idmap_slot *slot = &map->slots[(*cursor)++];

        if (slot->value)
            return slot->value;
    }
    return NULL;
}
