/*
 * The event loop over libevent_core: the only file that names libevent. Each
 * turn waits for events, runs every callback that is due, and then frees what
 * the callbacks deferred. Everything in paddockd's main process calls this.
 *
 * What must stay true: a watch touches nothing of its own after its callback
 * (the callback may have freed it), and no callback runs for a freed watch.
 */
#include "daemon/loop.h"

#include <errno.h>
#include <event2/event.h>
#include <stdlib.h>

#include "common/cleanup.h"

struct deferred {
    struct deferred *next;
    void (*free_fn)(void *);
    void *ptr;
};

struct loop {
    struct event_base *base;
    struct deferred *deferred;
    bool stopping;
};

struct loop_io {
    struct event *event;
    struct loop *loop;
    int fd;
    unsigned events; /* what is watched now */
    loop_io_cb cb;
    void *arg;
};

struct loop_timer {
    struct event *event;
    loop_cb cb;
    void *arg;
};

struct loop_signal {
    struct event *event;
    loop_cb cb;
    void *arg;
};

/* libevent would write lines of its own to stderr; every failure is returned to us as well. */
static void no_log(int severity, const char *text)
{
    (void)severity;
    (void)text;
}

struct loop *loop_new(struct error *err)
{
    event_set_log_callback(no_log);
    struct loop *loop = calloc(1, sizeof(*loop));
    struct event_config *config = event_config_new();
    if (loop && config) {
        /* One thread, and nothing of the environment may choose another method of waiting. */
        event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK);
        event_config_set_flag(config, EVENT_BASE_FLAG_IGNORE_ENV);
        loop->base = event_base_new_with_config(config);
    }
    if (config)
        event_config_free(config);
    if (!loop || !loop->base) {
        free(loop);
        error_set(err, ERR_SYSTEM, "the event loop could not be made");
        return NULL;
    }
    return loop;
}

/* A free function may defer again; what it defers is freed in the same sweep. */
static void free_deferred(struct loop *loop)
{
    while (loop->deferred) {
        struct deferred *list = steal_ptr(loop->deferred);
        while (list) {
            struct deferred *next = list->next;
            list->free_fn(list->ptr);
            free(list);
            list = next;
        }
    }
}

void loop_free(struct loop *loop)
{
    if (!loop)
        return;
    free_deferred(loop);
    event_base_free(loop->base);
    free(loop);
}

void loop_run(struct loop *loop)
{
    while (!loop->stopping) {
        free_deferred(loop);
        event_base_loop(loop->base, EVLOOP_ONCE | EVLOOP_NO_EXIT_ON_EMPTY);
    }
    free_deferred(loop);
    loop->stopping = false;
}

void loop_stop(struct loop *loop)
{
    loop->stopping = true;
}

static void io_event(evutil_socket_t fd, short what, void *arg)
{
    struct loop_io *io = arg;
    unsigned events = 0;
    if (what & EV_READ)
        events |= LOOP_READ;
    if (what & EV_WRITE)
        events |= LOOP_WRITE;
    io->cb(fd, events, io->arg);
}

/* The event is not pending here. */
static int io_watch(struct loop_io *io, unsigned events)
{
    short what = EV_PERSIST;
    if (events & LOOP_READ)
        what |= EV_READ;
    if (events & LOOP_WRITE)
        what |= EV_WRITE;
    io->events = 0;
    if (events == 0)
        return 0;
    if (event_assign(io->event, io->loop->base, io->fd, what, io_event, io) != 0 ||
        event_add(io->event, NULL) != 0)
        return -1;
    io->events = events;
    return 0;
}

struct loop_io *loop_io_new(struct loop *loop, int fd, unsigned events, loop_io_cb cb, void *arg)
{
    struct loop_io *io = calloc(1, sizeof(*io));
    if (!io)
        return NULL;
    *io = (struct loop_io){.loop = loop, .fd = fd, .cb = cb, .arg = arg};
    io->event = event_new(loop->base, fd, EV_PERSIST | EV_READ, io_event, io);
    if (!io->event || io_watch(io, events) < 0) {
        if (io->event)
            event_free(io->event);
        free(io);
        return NULL;
    }
    return io;
}

int loop_io_set(struct loop_io *io, unsigned events)
{
    if (io->events == events)
        return 0;
    event_del(io->event);
    return io_watch(io, events);
}

void loop_io_free(struct loop_io *io)
{
    if (!io)
        return;
    event_free(io->event);
    free(io);
}

static void timer_event(evutil_socket_t fd, short what, void *arg)
{
    struct loop_timer *timer = arg;
    (void)fd;
    (void)what;
    timer->cb(timer->arg);
}

struct loop_timer *loop_timer_new(struct loop *loop, loop_cb cb, void *arg)
{
    struct loop_timer *timer = calloc(1, sizeof(*timer));
    if (!timer)
        return NULL;
    timer->cb = cb;
    timer->arg = arg;
    timer->event = event_new(loop->base, -1, 0, timer_event, timer);
    if (!timer->event) {
        free(timer);
        return NULL;
    }
    return timer;
}

int loop_timer_arm(struct loop_timer *timer, int64_t delay_ms)
{
    if (delay_ms < 0)
        delay_ms = 0;
    struct timeval delay = {.tv_sec = (time_t)(delay_ms / 1000),
                            .tv_usec = (suseconds_t)(delay_ms % 1000) * 1000};
    return event_add(timer->event, &delay);
}

void loop_timer_disarm(struct loop_timer *timer)
{
    event_del(timer->event);
}

void loop_timer_free(struct loop_timer *timer)
{
    if (!timer)
        return;
    event_free(timer->event);
    free(timer);
}

static void signal_event(evutil_socket_t fd, short what, void *arg)
{
    struct loop_signal *signal = arg;
    (void)fd;
    (void)what;
    signal->cb(signal->arg);
}

struct loop_signal *loop_signal_new(struct loop *loop, int signum, loop_cb cb, void *arg)
{
    struct loop_signal *signal = calloc(1, sizeof(*signal));
    if (!signal)
        return NULL;
    signal->cb = cb;
    signal->arg = arg;
    signal->event = evsignal_new(loop->base, signum, signal_event, signal);
    if (!signal->event || event_add(signal->event, NULL) != 0) {
        if (signal->event)
            event_free(signal->event);
        free(signal);
        return NULL;
    }
    return signal;
}

void loop_signal_free(struct loop_signal *signal)
{
    if (!signal)
        return;
    event_free(signal->event);
    free(signal);
}

void loop_defer_free(struct loop *loop, void (*free_fn)(void *), void *ptr)
{
    struct deferred *deferred = malloc(sizeof(*deferred));
    if (!deferred)
        return; /* a leak is the lesser harm: somebody may still hold ptr */
    *deferred = (struct deferred){.next = loop->deferred, .free_fn = free_fn, .ptr = ptr};
    loop->deferred = deferred;
}
