/*
 * The smoke guest: proof, before any work is taken, that this host's runsc moves
 * data both ways under load. A real guest of the first template, started by the
 * keeper as any other, runs two CPU burners, four `cat` that echo 4 MiB each,
 * and some short programs; every byte is compared.
 */
#ifndef PADDOCK_KEEPER_SMOKE_H
#define PADDOCK_KEEPER_SMOKE_H

#include "common/config.h"
#include "common/error.h"

/* keeper_sock: main's end. Reads what the guest sends, so the caller runs it without privileges, as
 * main does. The guest is ended and gone when it returns 0; -1 with ERR_PREFLIGHT when it failed,
 * or another code when that could not be found out (somebody killed it, or the keeper). */
int smoke_run(const struct config *config, int keeper_sock, struct error *err)
    __attribute__((warn_unused_result));

#endif
