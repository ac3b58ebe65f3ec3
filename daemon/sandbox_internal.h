/* What sandbox.c (one sandbox's life) and sandboxes.c (all of them) share. */
#ifndef PADDOCK_DAEMON_SANDBOX_INTERNAL_H
#define PADDOCK_DAEMON_SANDBOX_INTERNAL_H

#include "daemon/guest_link.h"
#include "daemon/idmap.h"
#include "daemon/sandbox.h"

enum sandbox_phase {
    PHASE_CLAIMING,
    PHASE_LOOKING,
    PHASE_PROVISIONING,
    PHASE_READYING,
    PHASE_READY,
    PHASE_STOPPING,
    PHASE_ENDING
};

/* Why this daemon asks for a stop, as bits. */
enum sandbox_stop { STOP_EXECUTION = 1, STOP_IDLE = 2, STOP_TTL = 4 };

struct sandbox {
    struct sandboxes *all;
    char id[ID_SIZE];
    enum sandbox_phase phase;
    struct guest_link *guest; /* PHASE_PROVISIONING to PHASE_STOPPING */
    unsigned running;         /* executions in the guest */
    int64_t born_ms;          /* monotonic */
    int64_t idle_ms;          /* INT64_MAX: no limit */
    struct loop_timer *ttl_timer;
    struct loop_timer *idle_timer;
    struct loop_timer *retry_timer; /* the statement of the phase, or a stop, once more */
    int64_t ttl_retry_ms;
    int64_t retry_ms;
    unsigned stops_wanted;       /* enum sandbox_stop */
    enum sandbox_stop stop_sent; /* in flight; 0: none */
    bool look_sent;              /* a look at the row is in flight */
    bool look_again;             /* and was asked for meanwhile */
    char end_reason[32];         /* PHASE_ENDING */
};

struct sandboxes {
    struct daemon *d;
    struct idmap *by_id;
    struct idmap *executions;
    uint8_t *rx; /* one frame: the receive buffer of every channel */
    bool is_closing;
    void (*on_empty)(struct daemon *d);
    struct loop_timer *empty_timer;
};

/* Work was announced for this id: makes its sandbox, or has it look at its row. */
void sandbox_announced(struct sandboxes *all, const char *id);
/* Frees it as it stands; it is not in the table any more. */
void sandbox_free(struct sandbox *s);
/* It has, or will have, a guest that nobody ends yet. */
bool sandbox_is_live(const struct sandbox *s);
/* Ends the guest; its row is ended when it is gone. */
void sandbox_stop_guest(struct sandbox *s, const char *reason);
/* Stops the row first, and the guest once that is committed. */
void sandbox_want_stop(struct sandbox *s, enum sandbox_stop stop);
/* The channel for a claimed execution, which counts as running from here; NULL unless ready. */
struct channel *sandbox_begin_execution(struct sandbox *s);
void sandbox_execution_ended(struct sandbox *s);

/* Something was removed: tells who waits for the end if it was the last. */
void sandboxes_check_empty(struct sandboxes *all);

#endif
