/* States of sandbox, execution and artifact; the tables are states.def. Pure. */
#ifndef PADDOCK_COMMON_STATES_H
#define PADDOCK_COMMON_STATES_H

#include <stdbool.h>

enum sandbox_state {
#define SANDBOX_STATE(sym, name, terminal) SANDBOX_##sym,
#include "common/states.def"
    SANDBOX_STATE_COUNT
};
enum execution_state {
#define EXECUTION_STATE(sym, name, terminal) EXECUTION_##sym,
#include "common/states.def"
    EXECUTION_STATE_COUNT
};
enum artifact_state {
#define ARTIFACT_STATE(sym, name, terminal) ARTIFACT_##sym,
#include "common/states.def"
    ARTIFACT_STATE_COUNT
};

const char *sandbox_state_name(enum sandbox_state state);
/* Returns 0, or -1 for a name that is not in the table. */
int sandbox_state_parse(const char *name, enum sandbox_state *state);
bool sandbox_state_is_terminal(enum sandbox_state state);
bool sandbox_transition_allowed(enum sandbox_state from, enum sandbox_state to);

const char *execution_state_name(enum execution_state state);
int execution_state_parse(const char *name, enum execution_state *state);
bool execution_state_is_terminal(enum execution_state state);
bool execution_transition_allowed(enum execution_state from, enum execution_state to);

const char *artifact_state_name(enum artifact_state state);
int artifact_state_parse(const char *name, enum artifact_state *state);
bool artifact_state_is_terminal(enum artifact_state state);
bool artifact_transition_allowed(enum artifact_state from, enum artifact_state to);

/* Is the name one of the closed list of reasons? */
bool reason_is_known(const char *name);

#endif
