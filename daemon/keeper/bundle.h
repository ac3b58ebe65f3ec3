/*
 * The OCI bundle of a guest: <state_dir>/guests/<id>/ with config.json and
 * runsc's log. What stands in it comes from this file, the template's place and
 * the request's numbers; no text of a request but the id.
 */
#ifndef PADDOCK_KEEPER_BUNDLE_H
#define PADDOCK_KEEPER_BUNDLE_H

#include <jansson.h>
#include <stdint.h>

#include "common/error.h"

#define BUNDLE_LOG "runsc.log"
#define BUNDLE_INIT "/sbin/paddock-init"

struct bundle_spec {
    const char *rootfs;       /* real path */
    const char *cgroups_path; /* cgroup_guest_path */
    uint32_t cpus;
    uint64_t memory_bytes;
    uint64_t workspace_bytes;
    uint64_t tmp_bytes;
    uint64_t shm_bytes;
    uint64_t host_pids;
};

/* The config.json; a new reference, NULL without memory. */
json_t *bundle_config(const struct bundle_spec *spec);
/* Makes dir (must not exist), its config.json and an empty log, for root only. Nothing is left
 * behind on failure. */
int bundle_write(const struct bundle_spec *spec, const char *dir, struct error *err)
    __attribute__((warn_unused_result));
/* Removes dir and the files in it; a missing one is fine. */
int bundle_remove(const char *dir, struct error *err) __attribute__((warn_unused_result));

#endif
