/*
 * What main and its supervisor say to each other: fixed structs, one a message on
 * a SOCK_SEQPACKET pair that main has as descriptor 3. Main may be newer than its
 * supervisor (SIGHUP), so the first message carries versions, and its form never
 * changes.
 *
 *   main        LOADED   its configuration is read, its privileges are gone
 *   supervisor  START    with main's end of the socket to the keeper
 *   main        BEAT     every now and then; READY once its node is registered
 *   supervisor  LEAVE    a newer main is loaded
 *   main        LEFT     it touches guests and rows no more; soon it exits
 */
#ifndef PADDOCK_DAEMON_MAIN_PROTOCOL_H
#define PADDOCK_DAEMON_MAIN_PROTOCOL_H

#include <stdint.h>

#define MAIN_LINK_FD 3
#define MAIN_LINK_VERSION 1u
#define MAIN_FACTS_MAX 16384

enum main_word { MAIN_LOADED = 1, MAIN_READY = 2, MAIN_BEAT = 3, MAIN_LEFT = 4 };
struct main_saying {
    uint32_t word;            /* enum main_word */
    uint32_t link_version;    /* MAIN_LINK_VERSION */
    uint32_t keeper_protocol; /* KEEPER_PROTOCOL */
};

enum main_verb { MAIN_START = 1, MAIN_LEAVE = 2 };
struct main_order {
    uint32_t verb;              /* enum main_verb */
    char facts[MAIN_FACTS_MAX]; /* START: JSON text for the node's row */
};

/* Beats in the time after which main counts as silent. */
#define MAIN_BEATS 4

#endif
