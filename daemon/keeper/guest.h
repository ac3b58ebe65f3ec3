/*
 * One guest on the keeper's side: its bundle, its cgroups and its `runsc run`
 * process, from start to the last trace removed.
 *
 *   RUNNING --guest_kill--> ENDING --run was reaped--> CLEANING --all removed--> gone
 *      \______________________run was reaped_______________/
 *
 * Nothing here waits: the keeper's loop calls guest_tick when guest_deadline
 * says so, and guest_reaped when the process was waited for.
 */
#ifndef PADDOCK_KEEPER_GUEST_H
#define PADDOCK_KEEPER_GUEST_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/config.h"
#include "common/error.h"
#include "common/log.h"
#include "daemon/keeper/cgroup.h"
#include "daemon/keeper/protocol.h"
#include "daemon/keeper/templates.h"

/* What every guest of a keeper shares; borrowed. */
struct guest_env {
    const struct config *config;
    const struct log *log;
    const struct cgroup *cgroup;
};

struct guest; /* opaque */

/* Host tasks of a guest that may have this many processes: 443 were measured for 200. A fork bomb
 * that the guest's own limit holds (paddock-init sets it) still costs a stub on the host for each
 * attempt until gVisor took it back, at any limit: 1740 at once were the most in some 20 runs. The
 * sentry dies of a limit that is reached, so this one is for the host's sake only. */
static inline uint64_t guest_host_pids(uint32_t pids)
{
    return 3 * (uint64_t)pids + 2500;
}

/* Starts a guest; the request's numbers were checked. On failure nothing is left of it. */
struct guest *guest_start(const struct guest_env *env, const struct template_image *image,
                          const struct keeper_request *request, struct error *err)
    __attribute__((warn_unused_result));
/* Frees the memory and the socket only. */
void guest_free(struct guest *guest);

const char *guest_id(const struct guest *guest);
pid_t guest_pid(const struct guest *guest); /* of `runsc run`; 0 once it was reaped */
/* Main's end of its socket, kept for the next main; -1 once it is ending. */
int guest_socket(const struct guest *guest);
/* Why it is killed; "" while it is not. */
void guest_copy_reason(const struct guest *guest, char out[KEEPER_REASON_MAX]);
void guest_usage(const struct guest *guest, struct cgroup_usage *usage);

/* Begins to end it; again is harmless, and the first reason counts. */
void guest_kill(struct guest *guest, const char *reason);
/* Its `runsc run` was waited for. */
void guest_reaped(struct guest *guest, int wait_status);
/* Monotonic ms of the next guest_tick; INT64_MAX for none. */
int64_t guest_deadline(const struct guest *guest);
/* True once every trace is removed; then *report says how it ended. */
bool guest_tick(struct guest *guest, int64_t now_ms, struct keeper_report *report);

#endif
