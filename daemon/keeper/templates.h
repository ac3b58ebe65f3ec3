/*
 * The guest images this host offers, found and checked once at start: what
 * guest.templates names in guest.images_dir. A guest's root is the real path
 * found here, so a link that is turned to a new image later changes nothing
 * under a running daemon.
 */
#ifndef PADDOCK_KEEPER_TEMPLATES_H
#define PADDOCK_KEEPER_TEMPLATES_H

#include "common/config.h"
#include "common/error.h"
#include "daemon/keeper/protocol.h"

#define TEMPLATES_MAX 64
#define TEMPLATE_KEY_MAX 128

struct template_image {
    char name[KEEPER_TEMPLATE_MAX + 1];
    char key[TEMPLATE_KEY_MAX + 1]; /* of the manifest: which build of the image it is */
    char *rootfs;                   /* real path; owned */
};

struct templates {
    struct template_image items[TEMPLATES_MAX];
    unsigned count; /* the first is the default */
};

/* ERR_PREFLIGHT names the template and what it lacks. Free with templates_clear either way. */
int templates_load(struct templates *all, const struct config *config, struct error *err)
    __attribute__((warn_unused_result));
/* NULL when this host does not offer it. */
const struct template_image *templates_find(const struct templates *all, const char *name);
void templates_clear(struct templates *all);

#endif
