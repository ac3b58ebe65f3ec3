/* See audit.h. */
#include "common/audit.h"

#include <string.h>

#include "common/cleanup.h"

bool audit_action_is_known(const char *name)
{
    static const char *const actions[] = {
#define AUDIT_ACTION(name, meaning) name,
#include "common/audit_actions.def"
#undef AUDIT_ACTION
    };

    for (unsigned i = 0; i < ARRAY_LEN(actions); i++) {
        if (strcmp(actions[i], name) == 0)
            return true;
    }
    return false;
}
