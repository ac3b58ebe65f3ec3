/*
 * A main process as its supervisor sees it: started from the program's file on
 * disk, spoken to over a socket, watched for beats. Two of these are all there
 * is: the one that works, and one that comes or goes.
 */
#ifndef PADDOCK_DAEMON_MAIN_SLOT_H
#define PADDOCK_DAEMON_MAIN_SLOT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/error.h"
#include "common/log.h"

enum main_state {
    MAIN_NONE,
    MAIN_LOADING, /* started; LOADED is awaited */
    MAIN_IDLE,    /* loaded, waits for START */
    MAIN_WORKING, /* it has a socket to the keeper */
    MAIN_LEAVING, /* was told to; LEFT is awaited */
    MAIN_GOING,   /* only its end is awaited */
};

struct main_slot {
    pid_t pid; /* 0: none */
    int link;  /* -1: none */
    enum main_state state;
    bool is_ready;   /* its node is registered */
    bool has_beaten; /* since this was looked at */
    int64_t due_ms;  /* it must have said something by then; INT64_MAX: no hurry */
    bool was_silent; /* … and had not, so it was killed */
    int status;      /* of waitpid, once pid is 0 again */
};

#define MAIN_SLOT_INIT {.link = -1, .due_ms = INT64_MAX}

/* Executes program with config_path (NULL: the default) as a main that dies with the caller.
 * silence_ms: it must say LOADED within this. */
int main_slot_start(struct main_slot *slot, const char *program, const char *config_path,
                    int64_t silence_ms, struct error *err) __attribute__((warn_unused_result));
/* START, for one that is idle. keeper_sock stays the caller's. */
int main_slot_give(struct main_slot *slot, int keeper_sock, const char *facts_json,
                   int64_t silence_ms, struct error *err) __attribute__((warn_unused_result));
/* LEAVE, for one that works; it is killed when it has not LEFT within leave_ms. */
void main_slot_leave(struct main_slot *slot, int64_t leave_ms);
void main_slot_signal(const struct main_slot *slot, int sig);

/* Reads what it said. */
void main_slot_read(struct main_slot *slot, int64_t silence_ms, const struct log *log);
/* Kills it if it was silent for too long. */
void main_slot_check(struct main_slot *slot, int64_t now_ms, const struct log *log);
/* It was waited for. */
void main_slot_ended(struct main_slot *slot, int status);
/* Exit code, or 128 + signal. */
int main_slot_code(const struct main_slot *slot);

#endif
