/* How an execution ended, as its row records it: the mapping from the guest's last frame. Pure. */
#ifndef PADDOCK_DAEMON_EXECUTION_RESULT_H
#define PADDOCK_DAEMON_EXECUTION_RESULT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/states.h"
#include "daemon/channel.h"

struct execution_result {
    enum execution_state state;
    int exit_code;   /* -1: null */
    int signal;      /* 0: null */
    int64_t cpu_us;  /* -1: null */
    char error[400]; /* why it could not be started, or is lost; "": null */
};

/* EXIT. timed_out: the timer fired before it came. */
void execution_result_exit(const struct channel_exit *from, bool timed_out,
                           struct execution_result *result);
/* FAILED. errno_value: Linux's. */
void execution_result_failed(enum wire_step step, int errno_value, struct execution_result *result);
/* It was never given to the guest; text says why. */
void execution_result_refused(const char *text, struct execution_result *result);
/* What became of it is not known; text says why. */
void execution_result_lost(const char *text, struct execution_result *result);

#endif
