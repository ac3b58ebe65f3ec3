/*
 * The keeper: the root process that starts, measures and kills guests on main's
 * closed list of requests (protocol.h). It is PID 1 of a PID namespace that
 * holds every runsc process, so that when it dies, however it dies, the kernel
 * kills every guest. It keeps main's end of each guest's socket for the next
 * main; it reads nothing a guest wrote and opens no socket but the guests' pairs.
 */
#ifndef PADDOCK_KEEPER_KEEPER_H
#define PADDOCK_KEEPER_KEEPER_H

#include <stdbool.h>
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

/* Removes what belongs to no guest that is_held knows, as far as that is possible at once: the
 * keeper's own look at the host, each minute. */
void keeper_sweep_strays(const struct keeper_setup *setup,
                         bool (*is_held)(void *arg, const char *id), void *arg);

/* Forks the keeper into new PID and mount namespaces. control: its end of a SOCK_SEQPACKET socket
 * of the supervisor's (the caller closes its copy), whose end is the keeper's; lock_fd is kept open
 * by the keeper so that the state folder stays locked until it is gone (-1: none). It dies with the
 * caller. Returns its pid or -1. */
pid_t keeper_spawn(const struct keeper_setup *setup, int control, int lock_fd, struct error *err)
    __attribute__((warn_unused_result));

/* Gives the keeper a main: `sock`, its end of a SOCK_SEQPACKET pair (the caller closes its copy).
 * One that was there before loses its socket. */
int keeper_give_main(int control, int sock, struct error *err) __attribute__((warn_unused_result));

/* Serves one main after another until control is closed (0) or says what it must not (1); every
 * guest is dead and removed when it returns. */
int keeper_run(const struct keeper_setup *setup, int control);

#endif
