/*
 * What main may ask of the keeper, and what the keeper tells: fixed-size
 * structs, one a SOCK_SEQPACKET message (both ends are the same binary). The
 * list is closed; the keeper checks every field again and trusts main with
 * nothing else: no paths, no command lines, no environment.
 */
#ifndef PADDOCK_KEEPER_PROTOCOL_H
#define PADDOCK_KEEPER_PROTOCOL_H

#include <stdint.h>

#include "common/id.h"

enum keeper_op {
    KEEPER_START = 1, /* start a guest; answered by KEEPER_STARTED (with the socket) or _REFUSED */
    KEEPER_END = 2,   /* kill a guest; no answer of its own: KEEPER_ENDED follows when it is gone */
    KEEPER_STATS = 3, /* answered by KEEPER_USAGE; unknown ids answer with zeros */
};

enum keeper_event {
    KEEPER_STARTED = 1, /* one descriptor beside it: main's end of the guest's socket */
    KEEPER_REFUSED = 2, /* the guest could not be started; text says why */
    KEEPER_ENDED = 3,   /* the guest and its cgroup are gone; once for every KEEPER_STARTED */
    KEEPER_USAGE = 4,
};

#define KEEPER_TEMPLATE_MAX 32
#define KEEPER_TEXT_MAX 400

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
};

struct keeper_report {
    uint32_t event; /* enum keeper_event */
    char id[ID_SIZE];
    int32_t exit_status;        /* ENDED: of `runsc run`: 0..255; -1 unknown */
    uint32_t oom_kills;         /* ENDED, USAGE: OOM kills counted in the guest's cgroup */
    uint8_t killed;             /* ENDED: by KEEPER_END */
    uint64_t memory_bytes;      /* USAGE */
    uint64_t cpu_us;            /* ENDED, USAGE: CPU time used in all */
    uint32_t tasks;             /* USAGE: host tasks */
    char text[KEEPER_TEXT_MAX]; /* REFUSED, ENDED: detail for the log; "" if none */
};

#endif
