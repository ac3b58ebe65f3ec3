/*
 * The tables of states.def as functions: names, terminal states, allowed
 * transitions, reasons. Called by handlers for filters and by the daemon before
 * it writes a state. The database enforces the same tables; a unit test compares
 * the two. An out-of-range state has no name, is not terminal and goes nowhere.
 */
#include "common/states.h"

#include <stddef.h>
#include <string.h>

#include "common/cleanup.h"

struct state_entry {
    const char *name;
    bool terminal;
};

static const struct state_entry sandbox_states[SANDBOX_STATE_COUNT] = {
#define SANDBOX_STATE(sym, name, terminal) [SANDBOX_##sym] = {name, terminal},
#include "common/states.def"
};
static const bool sandbox_transitions[SANDBOX_STATE_COUNT][SANDBOX_STATE_COUNT] = {
#define SANDBOX_TRANSITION(from, to) [SANDBOX_##from][SANDBOX_##to] = true,
#include "common/states.def"
};
static const struct state_entry execution_states[EXECUTION_STATE_COUNT] = {
#define EXECUTION_STATE(sym, name, terminal) [EXECUTION_##sym] = {name, terminal},
#include "common/states.def"
};
static const bool execution_transitions[EXECUTION_STATE_COUNT][EXECUTION_STATE_COUNT] = {
#define EXECUTION_TRANSITION(from, to) [EXECUTION_##from][EXECUTION_##to] = true,
#include "common/states.def"
};
static const char *const reasons[] = {
#define REASON(name, meaning) name,
#include "common/states.def"
};

/* Index of the name, or -1. */
static int find_state(const struct state_entry *table, unsigned count, const char *name)
{
    for (unsigned i = 0; name && i < count; i++) {
        if (strcmp(table[i].name, name) == 0)
            return (int)i;
    }
    return -1;
}

const char *sandbox_state_name(enum sandbox_state state)
{
    return (unsigned)state < SANDBOX_STATE_COUNT ? sandbox_states[state].name : "unknown";
}

int sandbox_state_parse(const char *name, enum sandbox_state *state)
{
    int found = find_state(sandbox_states, SANDBOX_STATE_COUNT, name);

    if (found < 0)
        return -1;
    *state = (enum sandbox_state)found;
    return 0;
}

bool sandbox_state_is_terminal(enum sandbox_state state)
{
    return (unsigned)state < SANDBOX_STATE_COUNT && sandbox_states[state].terminal;
}

bool sandbox_transition_allowed(enum sandbox_state from, enum sandbox_state to)
{
    return (unsigned)from < SANDBOX_STATE_COUNT && (unsigned)to < SANDBOX_STATE_COUNT &&
           sandbox_transitions[from][to];
}

const char *execution_state_name(enum execution_state state)
{
    return (unsigned)state < EXECUTION_STATE_COUNT ? execution_states[state].name : "unknown";
}

int execution_state_parse(const char *name, enum execution_state *state)
{
    int found = find_state(execution_states, EXECUTION_STATE_COUNT, name);

    if (found < 0)
        return -1;
    *state = (enum execution_state)found;
    return 0;
}

bool execution_state_is_terminal(enum execution_state state)
{
    return (unsigned)state < EXECUTION_STATE_COUNT && execution_states[state].terminal;
}

bool execution_transition_allowed(enum execution_state from, enum execution_state to)
{
    return (unsigned)from < EXECUTION_STATE_COUNT && (unsigned)to < EXECUTION_STATE_COUNT &&
           execution_transitions[from][to];
}

bool reason_is_known(const char *name)
{
    for (size_t i = 0; name && i < ARRAY_LEN(reasons); i++) {
        if (strcmp(reasons[i], name) == 0)
            return true;
    }
    return false;
}
