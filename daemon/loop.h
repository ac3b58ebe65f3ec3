/*
 * The event loop of paddockd's main process: descriptors, timers, signals. The
 * only file that names libevent is loop.c, so the choice stays open. Single
 * thread; callbacks may add, change and free watches, their own included.
 */
#ifndef PADDOCK_DAEMON_LOOP_H
#define PADDOCK_DAEMON_LOOP_H

#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"

struct loop;
struct loop_io;
struct loop_timer;
struct loop_signal;

enum loop_events { LOOP_READ = 1, LOOP_WRITE = 2 };

typedef void (*loop_io_cb)(int fd, unsigned events, void *arg);
typedef void (*loop_cb)(void *arg);

struct loop *loop_new(struct error *err);
void loop_free(struct loop *loop);
/* Runs until loop_stop. */
void loop_run(struct loop *loop);
void loop_stop(struct loop *loop);

/* Level-triggered watch of fd (borrowed; must be freed before the fd is closed). `events` may be
 * 0 (none for now). NULL without memory. */
struct loop_io *loop_io_new(struct loop *loop, int fd, unsigned events, loop_io_cb cb, void *arg);
/* Cheap when unchanged. Returns 0 or -1. */
int loop_io_set(struct loop_io *io, unsigned events);
void loop_io_free(struct loop_io *io); /* NULL is fine */

/* One-shot timer, not armed yet. The callback may arm it again. */
struct loop_timer *loop_timer_new(struct loop *loop, loop_cb cb, void *arg);
/* (Re)arms: fires once, delay_ms from now (0: in the next turn). Returns 0 or -1. */
int loop_timer_arm(struct loop_timer *timer, int64_t delay_ms);
void loop_timer_disarm(struct loop_timer *timer);
void loop_timer_free(struct loop_timer *timer); /* NULL is fine */

struct loop_signal *loop_signal_new(struct loop *loop, int signum, loop_cb cb, void *arg);
void loop_signal_free(struct loop_signal *signal);

/* Calls free_fn(ptr) at the end of this turn, when no callback holds ptr any more. */
void loop_defer_free(struct loop *loop, void (*free_fn)(void *), void *ptr);

#endif
