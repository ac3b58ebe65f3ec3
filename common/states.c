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

struct machine {
    const struct state_entry *states;
    const bool *transitions; /* from by to */
    unsigned count;
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
static const struct state_entry artifact_states[ARTIFACT_STATE_COUNT] = {
#define ARTIFACT_STATE(sym, name, terminal) [ARTIFACT_##sym] = {name, terminal},
#include "common/states.def"
};
static const bool artifact_transitions[ARTIFACT_STATE_COUNT][ARTIFACT_STATE_COUNT] = {
#define ARTIFACT_TRANSITION(from, to) [ARTIFACT_##from][ARTIFACT_##to] = true,
#include "common/states.def"
};
static const struct machine sandboxes = {sandbox_states, &sandbox_transitions[0][0],
                                         SANDBOX_STATE_COUNT};
static const struct machine executions = {execution_states, &execution_transitions[0][0],
                                          EXECUTION_STATE_COUNT};
static const struct machine artifacts = {artifact_states, &artifact_transitions[0][0],
                                         ARTIFACT_STATE_COUNT};
static const char *const reasons[] = {
#define REASON(name, meaning) name,
#include "common/states.def"
};

static const char *name_of(const struct machine *machine, unsigned state)
{
    return state < machine->count ? machine->states[state].name : "unknown";
}

/* Index of the name, or -1. */
static int find(const struct machine *machine, const char *name)
{
    for (unsigned i = 0; name && i < machine->count; i++) {
        if (strcmp(machine->states[i].name, name) == 0)
            return (int)i;
    }
    return -1;
}

static bool is_terminal(const struct machine *machine, unsigned state)
{
    return state < machine->count && machine->states[state].terminal;
}

static bool is_allowed(const struct machine *machine, unsigned from, unsigned to)
{
    return from < machine->count && to < machine->count &&
           machine->transitions[from * machine->count + to];
}

const char *sandbox_state_name(enum sandbox_state state)
{
    return name_of(&sandboxes, (unsigned)state);
}

int sandbox_state_parse(const char *name, enum sandbox_state *state)
{
    int found = find(&sandboxes, name);

    if (found < 0)
        return -1;
    *state = (enum sandbox_state)found;
    return 0;
}

bool sandbox_state_is_terminal(enum sandbox_state state)
{
    return is_terminal(&sandboxes, (unsigned)state);
}

bool sandbox_transition_allowed(enum sandbox_state from, enum sandbox_state to)
{
    return is_allowed(&sandboxes, (unsigned)from, (unsigned)to);
}

const char *execution_state_name(enum execution_state state)
{
    return name_of(&executions, (unsigned)state);
}

int execution_state_parse(const char *name, enum execution_state *state)
{
    int found = find(&executions, name);

    if (found < 0)
        return -1;
    *state = (enum execution_state)found;
    return 0;
}

bool execution_state_is_terminal(enum execution_state state)
{
    return is_terminal(&executions, (unsigned)state);
}

bool execution_transition_allowed(enum execution_state from, enum execution_state to)
{
    return is_allowed(&executions, (unsigned)from, (unsigned)to);
}

const char *artifact_state_name(enum artifact_state state)
{
    return name_of(&artifacts, (unsigned)state);
}

int artifact_state_parse(const char *name, enum artifact_state *state)
{
    int found = find(&artifacts, name);

    if (found < 0)
        return -1;
    *state = (enum artifact_state)found;
    return 0;
}

bool artifact_state_is_terminal(enum artifact_state state)
{
    return is_terminal(&artifacts, (unsigned)state);
}

bool artifact_transition_allowed(enum artifact_state from, enum artifact_state to)
{
    return is_allowed(&artifacts, (unsigned)from, (unsigned)to);
}

bool reason_is_known(const char *name)
{
    for (size_t i = 0; name && i < ARRAY_LEN(reasons); i++) {
        if (strcmp(reasons[i], name) == 0)
            return true;
    }
    return false;
}
