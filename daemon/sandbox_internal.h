/* What sandbox.c (one sandbox's life), sandbox_takeover.c (its beginning in a guest of a former
 * daemon) and sandboxes.c (all of them) share. */
#ifndef PADDOCK_DAEMON_SANDBOX_INTERNAL_H
#define PADDOCK_DAEMON_SANDBOX_INTERNAL_H

#include "daemon/guest_link.h"
#include "daemon/idmap.h"
#include "daemon/sandbox.h"
#include "daemon/usage.h"

enum sandbox_phase {
    PHASE_CLAIMING,
    PHASE_LOOKING,
    PHASE_PROVISIONING,
    PHASE_READYING,
    PHASE_READY,
    PHASE_STOPPING,
    PHASE_ENDING,
    /* of sandbox_takeover.c */
    PHASE_HELD,
    PHASE_ADOPTING,
    PHASE_RESYNCING
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
    int64_t retry_ms;
    unsigned stops_wanted;       /* enum sandbox_stop */
    enum sandbox_stop stop_sent; /* in flight; 0: none */
    bool look_sent;              /* a look at the row is in flight */
    bool look_again;             /* and was asked for meanwhile */
    char end_reason[32];         /* PHASE_ENDING; PHASE_HELD, if it is over */
    int held_fd;                 /* PHASE_HELD, PHASE_ADOPTING: its guest's socket; -1: none */
    bool is_over;                /* PHASE_HELD: the guest ended */
    int64_t idle_left_ms;        /* PHASE_RESYNCING; INT64_MAX: not idle, or no limit */
    bool listed;                 /* the keeper's last list has its guest */
    struct usage_sample sample;
    uint64_t cpu_us; /* PHASE_ENDING: of the guest in all */
};

struct sandboxes {
    struct daemon *d;
    struct idmap *by_id;
    struct idmap *executions;
    uint8_t *rx; /* one frame: the receive buffer of every channel */
    bool is_closing;
    bool is_leaving; /* no new work, but what is here goes on */
    void (*on_empty)(struct daemon *d);
    struct loop_timer *empty_timer;
    bool is_listing; /* KEEPER_LIST was sent */
    void (*on_attached)(struct daemon *d);
    struct usage *usage;
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

/* --- within one sandbox's life ---------------------------------------------------------------- */

struct sandbox *sandbox_new(struct sandboxes *all, const char *id, enum sandbox_phase phase);
/* The one place where the phase changes. False: not from here. */
bool sandbox_advance(struct sandbox *s, enum sandbox_phase to, const char *reason);
/* Out of the table, and freed. */
void sandbox_remove(struct sandbox *s);
/* Sends a statement whose parameters are id, node, epoch and up to three more. */
int sandbox_send(struct sandbox *s, enum statement stmt, const char *more1, const char *more2,
                 const char *more3, dbq_result_cb cb, struct error *err);
/* The phase's statement once more, later. */
void sandbox_retry_later(struct sandbox *s, const struct error *err);
void sandbox_arm(const struct sandbox *s, struct loop_timer *timer, int64_t delay_ms);
/* A deadline; INT64_MAX: none. */
void sandbox_arm_in(struct sandbox *s, struct loop_timer *timer, int64_t delay_ms);
void sandbox_arm_idle(struct sandbox *s);
/* There is no guest any more. */
void sandbox_end_row(struct sandbox *s, const char *reason);
extern const struct guest_link_handler sandbox_guest_handler;

/* --- sandbox_takeover.c ------------------------------------------------------------------------
 */

/* HELD, or ENDED of a guest that has no object here or is not adopted yet. Owns fd. True: taken. */
bool sandbox_take_report(struct sandboxes *all, const struct keeper_report *report, int fd);
/* The node is registered: on with what is held. */
void sandbox_adopt(struct sandbox *s);
/* Its guest told its streams. */
void sandbox_resynced(struct sandbox *s);
/* The phase's statement once more. */
void sandbox_takeover_retry(struct sandbox *s);
/* The daemon shuts down. */
void sandbox_takeover_stop(struct sandbox *s);
/* Its guest is being taken over. */
bool sandbox_is_taken_over(const struct sandbox *s);
/* Kills what runs in a guest that was taken over and is no execution of ours. */
void sandbox_kill_strays(struct sandbox *s);
/* Tells the keeper to end a guest, or that its end is recorded (no reason). */
void sandbox_tell_keeper(struct daemon *d, enum keeper_op op, const char *id, const char *reason);

/* --- sandboxes.c -------------------------------------------------------------------------------
 */

/* An unended execution of a sandbox that is being taken over: row of
 * SANDBOX_UNENDED_EXECUTIONS. */
void sandboxes_adopt_execution(struct sandboxes *all, const struct sandbox *s, const PGresult *res,
                               int row);
/* The executions that wait for this sandbox go on, or (it ends) are dropped. */
void sandboxes_release_waiting(struct sandboxes *all, const struct sandbox *s, bool resume);
/* Tells the failed executions of a sandbox whether the kernel took their memory. One kill is one
 * execution's: which, cannot be known, so it is the first that failed since. */
void sandboxes_measured(struct sandboxes *all, const char *sandbox_id, bool oom_killed);
/* Something was removed: tells who waits for the end if it was the last. */
void sandboxes_check_empty(struct sandboxes *all);

#endif
