/*
 * Is everything here that guests need? Run once, as root, before anything is
 * started (and by `paddockd --check`): each missing piece is one sentence that
 * names it and its mend. What was found is kept for the keeper, and as JSON for
 * the node's row.
 */
#ifndef PADDOCK_KEEPER_PREFLIGHT_H
#define PADDOCK_KEEPER_PREFLIGHT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/config.h"
#include "common/error.h"
#include "common/log.h"
#include "daemon/keeper/cgroup.h"
#include "daemon/keeper/runsc.h"
#include "daemon/keeper/templates.h"

#define PREFLIGHT_NOTE_MAX 256

struct preflight {
    uid_t uid; /* of daemon.user */
    gid_t gid;
    char runsc_version[RUNSC_VERSION_MAX];
    struct cgroup *cgroup; /* prepared and proved; owned */
    struct templates templates;
    char *facts_json;              /* {runsc, cgroup, kernel, templates}; owned */
    char note[PREFLIGHT_NOTE_MAX]; /* what the last check that passed found, for people */
};

/* The checks, in the order in which they are made. */
enum preflight_check {
    PREFLIGHT_USER, /* root, and daemon.user */
    PREFLIGHT_STORE,
    PREFLIGHT_KERNEL,
    PREFLIGHT_RUNSC,
    PREFLIGHT_CGROUPS,
    PREFLIGHT_IMAGES,
    PREFLIGHT_COUNT
};

/* "store": as a report names it. */
const char *preflight_name(enum preflight_check check);
/* The check without which this one cannot be judged; PREFLIGHT_COUNT: there is none. */
enum preflight_check preflight_needs(enum preflight_check check);
/* One check by itself, those that it needs having passed; sets found->note. ERR_PREFLIGHT;
 * ERR_SYSTEM for what another try may find mended by itself: a full disk. */
int preflight_run(enum preflight_check check, struct preflight *found, const struct config *config,
                  const struct log *log, struct error *err) __attribute__((warn_unused_result));

/* Root, daemon.user, and the folders: made where missing. Errors as those of preflight_run. */
int preflight_host(struct preflight *found, const struct config *config, const struct log *log,
                   struct error *err) __attribute__((warn_unused_result));
/* The same without room on their disk: what a main process needs that takes over guests which live.
 */
int preflight_main(struct preflight *found, const struct config *config, const struct log *log,
                   struct error *err) __attribute__((warn_unused_result));
/* Kernel, runsc, cgroups, images; writes a warning for what is allowed but second best. Makes the
 * cgroup parent. ERR_PREFLIGHT. After preflight_host. */
int preflight_guests(struct preflight *found, const struct config *config, const struct log *log,
                     struct error *err) __attribute__((warn_unused_result));
/* Does the file system of the state folder have room for guests' bundles? free_mb: UINT64_MAX for
 * one without bounds. Returns -1 with errno when it cannot be looked at. */
int preflight_room(const char *state_dir, bool *has_room, uint64_t *free_mb)
    __attribute__((warn_unused_result));
/* Releases what was found, also of a preflight that failed; found must be zeroed before. */
void preflight_clear(struct preflight *found);

#endif
