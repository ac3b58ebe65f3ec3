/* A project's policy, from a request body or the command line, to its normalised form: only the
 * members of common/policy.def that set a limit. Pure. */
#ifndef PADDOCK_COMMON_POLICY_H
#define PADDOCK_COMMON_POLICY_H

#include <jansson.h>

#include "common/error.h"

/* New reference, or NULL with the member at fault named. */
json_t *policy_from_json(const json_t *policy, struct error *err)
    __attribute__((warn_unused_result));

#endif
