/*
 * The keeper: the root process that starts, measures and kills guests on main's
 * closed list of requests (protocol.h). It is PID 1 of a PID namespace that
 * holds every runsc process, so that when it dies, however it dies, the kernel
 * kills every guest. It reads nothing a guest wrote and opens no socket but the
 * guests' pairs.
 */
#ifndef PADDOCK_KEEPER_KEEPER_H
#define PADDOCK_KEEPER_KEEPER_H

#include <sys/types.h>

#include "common/config.h"
#include "common/error.h"
#include "common/log.h"
#include "daemon/keeper/cgroup.h"
#include "daemon/keeper/templates.h"

struct keeper_setup { /* borrowed for the keeper's life */
    const struct config *config;
    const struct log *log;
    const struct cgroup *cgroup; /* prepared */
    const struct templates *templates;
};

/* Kills and removes what a former run left: cgroups in every hierarchy, runsc's state, bundles.
 * Waits (up to 10 s) for what was killed. To be called where every process is visible: before the
 * keeper's PID namespace is made, and by the keeper at its end. */
int keeper_sweep(const struct keeper_setup *setup, struct error *err)
    __attribute__((warn_unused_result));

/* Forks the keeper into new PID and mount namespaces. sock: its end of the socket to main (the
 * caller closes its copy); lock_fd is kept open by the keeper so that the state folder stays locked
 * until it is gone (-1: none). It dies with the caller. Returns its pid or -1. */
pid_t keeper_spawn(const struct keeper_setup *setup, int sock, int lock_fd, struct error *err)
    __attribute__((warn_unused_result));

/* Serves requests until main closes the socket (0) or breaks the protocol (1); every guest is dead
 * and removed when it returns. */
int keeper_run(const struct keeper_setup *setup, int sock);

#endif
