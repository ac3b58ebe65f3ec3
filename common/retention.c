/* See retention.h. Ages are kept in ms by the configuration and given in seconds. */
#include "common/retention.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/cleanup.h"

void retention_params_set(struct retention_params *params, const struct config *config)
{
    const int64_t numbers[] = {
        RETENTION_BATCH, config->retention_output / 1000, config->retention_sandboxes / 1000,
        config->retention_idempotency_keys / 1000, config->retention_audit / 1000};

    for (unsigned i = 0; i < ARRAY_LEN(numbers); i++) {
        (void)snprintf(params->text[i], sizeof(params->text[i]), "%" PRId64, numbers[i]);
        params->at[i] = params->text[i];
    }
}
