/*
 * The ages of the configuration as the parameters of RETENTION_CLEAN, for the
 * daemon (each minute) and the command line (paddock maintenance).
 */
#ifndef PADDOCK_COMMON_RETENTION_H
#define PADDOCK_COMMON_RETENTION_H

#include "common/config.h"

/* Rows of each kind that one call may delete: a transaction of milliseconds. */
#define RETENTION_BATCH 100

struct retention_params {
    const char *at[5]; /* into text */
    char text[5][24];
};

void retention_params_set(struct retention_params *params, const struct config *config);

#endif
