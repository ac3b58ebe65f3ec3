/*
 * What the keeper has to tell main: a queue while a main is there, and the ends
 * that none has recorded yet, which are told to each main that comes.
 */
#ifndef PADDOCK_KEEPER_REPORTS_H
#define PADDOCK_KEEPER_REPORTS_H

#include <stdbool.h>

#include "daemon/keeper/protocol.h"

struct report_node;

struct reports {
    int sock;                          /* to main; -1: none is there */
    struct report_node *first, **last; /* the queue */
    unsigned count;
    struct report_node *ends, **last_end; /* not recorded, oldest first */
    unsigned ends_count;
    bool failed; /* one was lost for want of memory: this main knows too little */
};

void reports_init(struct reports *reports);
/* Releases all, the socket too. */
void reports_clear(struct reports *reports);

/* A main is there (takes sock over) or gone; what was queued for the former is dropped. The caller
 * tells the new one what is held, then reports_tell_ends. */
void reports_attach(struct reports *reports, int sock);
void reports_detach(struct reports *reports);
void reports_tell_ends(struct reports *reports);

/* Queues a report, if a main is there. */
void reports_add(struct reports *reports, const struct keeper_report *report);
/* The same for KEEPER_ENDED, which is kept until reports_forget. */
void reports_add_end(struct reports *reports, const struct keeper_report *report);
void reports_forget(struct reports *reports, const char *id);

/* How the guest of a STARTED or HELD report is when it is sent. False: it is gone, and its report
 * void. *fd: the socket beside it (borrowed), -1 for none. */
typedef bool (*reports_guest)(void *arg, struct keeper_report *report, int *fd);

/* Sends what the socket takes. False: main is gone, or failed. */
bool reports_flush(struct reports *reports, reports_guest guest, void *arg)
    __attribute__((warn_unused_result));

#endif
