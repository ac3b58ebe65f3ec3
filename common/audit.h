/* The actions that the audit records (audit_actions.def), for those who filter by them. */
#ifndef PADDOCK_COMMON_AUDIT_H
#define PADDOCK_COMMON_AUDIT_H

#include <stdbool.h>

bool audit_action_is_known(const char *name);

#endif
