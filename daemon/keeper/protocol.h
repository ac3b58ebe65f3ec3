/*
 * What main may ask of the keeper, and what the keeper tells: fixed-size
 * structs, one a SOCK_SEQPACKET message. The list is closed; the keeper checks
 * every field again and trusts main with nothing else: no paths, no command
 * lines, no environment.
 *
 * Main comes and goes; the keeper stays. Each main gets a fresh socket, and what
 * the keeper holds is told on it first: KEEPER_HELD for each guest, KEEPER_ENDED
 * for each end that no main has recorded yet, then KEEPER_ATTACHED. A main may
 * be newer than its keeper (SIGHUP): KEEPER_PROTOCOL changes with anything here.
 */
#ifndef PADDOCK_KEEPER_PROTOCOL_H
#define PADDOCK_KEEPER_PROTOCOL_H

#include <stdint.h>

#include "common/id.h"

#define KEEPER_PROTOCOL 2

enum keeper_op {
    KEEPER_START = 1, /* start a guest; answered by KEEPER_STARTED (with the socket) or _REFUSED */
    KEEPER_END = 2,   /* kill a guest; no answer of its own: KEEPER_ENDED follows when it is gone */
    KEEPER_STATS = 3, /* answered by KEEPER_USAGE; unknown ids answer with zeros */
    KEEPER_FORGET = 4, /* the guest's end is recorded; KEEPER_ENDED need not be told to another */
    KEEPER_LIST = 5,   /* answered by KEEPER_LISTED for each guest, then KEEPER_LIST_END; the id is
                          any, and comes back */
};

enum keeper_event {
    KEEPER_STARTED = 1, /* one descriptor beside it: main's end of the guest's socket */
    KEEPER_REFUSED = 2, /* the guest could not be started; text says why */
    KEEPER_ENDED = 3,   /* the guest and its cgroup are gone; once for every KEEPER_STARTED or
                           _HELD, and to every later main until KEEPER_FORGET */
    KEEPER_USAGE = 4,
    KEEPER_HELD = 5,     /* a guest of a former main; its socket beside it */
    KEEPER_ATTACHED = 6, /* that was all; no id */
    KEEPER_LISTED = 7,
    KEEPER_LIST_END = 8,
};

#define KEEPER_TEMPLATE_MAX 32
#define KEEPER_TEXT_MAX 400
#define KEEPER_REASON_MAX 32

struct keeper_request {
    uint32_t op; /* enum keeper_op */
    char id[ID_SIZE];
    char template_name[KEEPER_TEMPLATE_MAX + 1]; /* text_is_name */
    uint32_t cpus;
    uint64_t memory_bytes;    /* the whole guest: RAM, tmpfs, gVisor; no swap beyond it */
    uint64_t workspace_bytes; /* tmpfs sizes */
    uint64_t tmp_bytes;
    uint64_t shm_bytes;
    uint32_t pids; /* in the guest; the keeper derives the generous host-side limit */
    char reason[KEEPER_REASON_MAX]; /* END: why, given back with KEEPER_ENDED; a word */
};

/* From the supervisor, on a socket of its own: a main, whose socket is beside it. */
#define KEEPER_CONTROL_MAIN 1u
struct keeper_control {
    uint32_t op;
};

struct keeper_report {
    uint32_t event; /* enum keeper_event */
    char id[ID_SIZE];
    int32_t exit_status;            /* ENDED: of `runsc run`: 0..255; -1 unknown */
    uint32_t oom_kills;             /* ENDED, USAGE: OOM kills counted in the guest's cgroup */
    uint8_t killed;                 /* ENDED: by KEEPER_END, or for want of a main */
    uint8_t ending;                 /* HELD, LISTED: it is being killed, or dead already */
    uint64_t memory_bytes;          /* USAGE */
    uint64_t cpu_us;                /* ENDED, USAGE: CPU time used in all */
    uint32_t tasks;                 /* USAGE: host tasks */
    char reason[KEEPER_REASON_MAX]; /* HELD, ENDED: why it was killed; "" if it was not */
    char text[KEEPER_TEXT_MAX];     /* REFUSED, ENDED: detail for the log; "" if none */
};

#endif
