/*
 * From EXIT and FAILED frames to the columns of an execution, so that the
 * constraints of the table hold by construction. Called by execution.c.
 *
 *   frame                                  state       exit_code        signal
 *   EXIT, timer fired, tree was killed     timed_out   as it came       as it came
 *   EXIT, cancelled, tree was killed       cancelled   as it came       as it came
 *   EXIT, exit code 0, no signal, no kill  succeeded   0                null
 *   EXIT, else                             failed      code, 128 + n    null, n
 *   FAILED at exec: no such file           failed      127 (as a shell) null
 *   FAILED at exec: any other              failed      126 (as a shell) null
 *   FAILED at another step                 failed      null             null
 *
 * A process that ended by itself before KILL reached it is neither timed out nor cancelled: its
 * result is whole.
 */
#include "daemon/execution_result.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static void clear(struct execution_result *result, enum execution_state state)
{
    *result = (struct execution_result){.state = state, .exit_code = -1, .cpu_us = -1};
}

void execution_result_exit(const struct channel_exit *from, enum execution_stop stop,
                           struct execution_result *result)
{
    clear(result, EXECUTION_FAILED);
    result->cpu_us = (int64_t)from->cpu_us;
    result->signal = from->signal;
    result->exit_code = from->signal ? 128 + from->signal : from->code;
    if (from->killed && stop == EXECUTION_STOP_TIMEOUT) {
        result->state = EXECUTION_TIMED_OUT;
        result->reason = "execution_timeout";
    } else if (from->killed && stop == EXECUTION_STOP_CANCEL) {
        result->state = EXECUTION_CANCELLED;
        result->reason = "execution_cancel";
    } else if (result->exit_code == 0 && !from->killed) {
        result->state = EXECUTION_SUCCEEDED;
    }
}

/* gVisor ends the guest's process with 1 and no signal (measured); other codes are its own doing.
 */
void execution_result_oom_killed(struct execution_result *result)
{
    result->oom_killed = true;
    if (result->exit_code == 1 && result->signal == 0)
        result->exit_code = 128 + SIGKILL;
}

static const char *step_text(enum wire_step step)
{
    switch (step) {
    case WIRE_STEP_SPEC:
        return "the guest refused the execution";
    case WIRE_STEP_FORK:
        return "no process could be made";
    case WIRE_STEP_CWD:
        return "the working directory cannot be entered";
    case WIRE_STEP_SCRIPT:
        return "the code cannot be written to a file";
    case WIRE_STEP_EXEC:
        return "the command cannot be executed";
    }
    return "the execution could not be started";
}

void execution_result_failed(enum wire_step step, int errno_value, struct execution_result *result)
{
    const char *why = strerrordesc_np(errno_value);

    clear(result, EXECUTION_FAILED);
    if (step == WIRE_STEP_EXEC)
        result->exit_code = errno_value == ENOENT ? 127 : 126;
    if (why)
        (void)snprintf(result->error, sizeof(result->error), "%s: %s", step_text(step), why);
    else
        (void)snprintf(result->error, sizeof(result->error), "%s: error %d", step_text(step),
                       errno_value);
}

void execution_result_refused(const char *text, struct execution_result *result)
{
    clear(result, EXECUTION_FAILED);
    (void)snprintf(result->error, sizeof(result->error), "%s", text);
}

void execution_result_lost(const char *text, struct execution_result *result)
{
    clear(result, EXECUTION_LOST);
    (void)snprintf(result->error, sizeof(result->error), "%s", text);
}
