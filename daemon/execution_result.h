/* How an execution ended, as its row records it: the mapping from the guest's last frame. Pure. */
#ifndef PADDOCK_DAEMON_EXECUTION_RESULT_H
#define PADDOCK_DAEMON_EXECUTION_RESULT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/states.h"
#include "daemon/channel.h"

/* Why the daemon asked the guest to end it. */
enum execution_stop {
    EXECUTION_STOP_NONE,
    EXECUTION_STOP_TIMEOUT, /* its timer fired */
    EXECUTION_STOP_CANCEL,  /* a client asked for it */
};

struct execution_result {
    enum execution_state state;
    const char *reason; /* static; NULL: it ended by itself */
    int exit_code;      /* -1: null */
    int signal;         /* 0: null */
    int64_t cpu_us;     /* -1: null */
    bool oom_killed;    /* the kernel took its memory's owner, and the guest lived on */
    char error[400];    /* why it could not be started, or is lost; "": null */
};

/* EXIT. stop: what was asked for before it came. */
void execution_result_exit(const struct channel_exit *from, enum execution_stop stop,
                           struct execution_result *result);
/* The kernel's OOM killer took what it ran in, and its guest lives. */
void execution_result_oom_killed(struct execution_result *result);
/* FAILED. errno_value: Linux's. */
void execution_result_failed(enum wire_step step, int errno_value, struct execution_result *result);
/* It was never given to the guest; text says why. */
void execution_result_refused(const char *text, struct execution_result *result);
/* What became of it is not known; text says why. */
void execution_result_lost(const char *text, struct execution_result *result);

#endif
