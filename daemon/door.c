/*
 * The hand-off socket: handlers connect, send messages with a descriptor beside
 * each, and hear nothing back (the answer goes over the descriptor). run.c makes
 * the one door; answers get what comes through it, and the sandboxes hear of
 * work that a message shows to be new.
 *
 * What must stay true: a message is hostile until it is decoded; a descriptor is
 * either given to answers or closed; a busy handler cannot starve the others.
 */
#include "daemon/door.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "common/cleanup.h"
#include "common/fdpass.h"
#include "common/handoff.h"
#include "daemon/answer.h"
#include "daemon/sandbox.h"

#define SOCKET_MODE 0660
#define BACKLOG 512
/* web.children goes to 256; two generations of them during a reload. */
#define HANDLERS_MAX 512
#define MESSAGES_A_TURN 32
#define ACCEPTS_A_TURN 32
/* Without descriptors or memory to accept with, try again after this. */
#define ACCEPT_PAUSE_MS 100

struct handler {
    LIST_ENTRY(handler) entry;
    struct door *door;
    int fd;
    struct loop_io *io;
};

LIST_HEAD(handler_list, handler);

struct door {
    struct daemon *d;
    int fd;
    struct loop_io *io;
    struct loop_timer *pause;
    struct handler_list handlers;
    unsigned count;
    bool closing;
};

static void handler_free(struct handler *handler)
{
    LIST_REMOVE(handler, entry);
    handler->door->count--;
    loop_io_free(handler->io);
    close(handler->fd);
    free(handler);
}

/* A FastCGI connection is a stream socket; on anything else an answer could block or be lost. */
static bool is_stream_socket(int fd)
{
    int type = 0;
    socklen_t len = sizeof(type);
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) == 0 && type == SOCK_STREAM;
}

/* What its handler has just admitted is begun at once, before the database's notification comes
 * and before anything is read for the answer. */
static void begin_work(const struct door *door, const struct handoff *msg)
{
    const struct daemon *d = door->d;
    /* What comes while closing is the next daemon's. */
    if (!door->closing && msg->status_done == 201 && !msg->replayed)
        sandboxes_work(d->sandboxes, msg->wait == HANDOFF_EXECUTION_ENDED ? 'e' : 's', msg->id);
}

enum receipt { RECEIPT_TAKEN, RECEIPT_NOTHING, RECEIPT_END };

static enum receipt receive_one(struct handler *handler)
{
    struct daemon *d = handler->door->d;
    char data[HANDOFF_MAX];
    struct handoff msg;
    struct error err = ERROR_INIT;
    _cleanup_close_ int fd = -1;

    ssize_t len = fdpass_recv(handler->fd, data, sizeof(data), &fd, &err);
    if (len == 0)
        return RECEIPT_END;
    if (len < 0 && err.code == ERR_SYSTEM && err.errno_value == EAGAIN)
        return RECEIPT_NOTHING;
    if (len > 0 && fd < 0)
        error_set(&err, ERR_PROTOCOL, "a hand-off without a descriptor");
    else if (len > 0 && !is_stream_socket(fd))
        error_set(&err, ERR_PROTOCOL, "a hand-off of something that is no stream socket");
    else if (len > 0 && handoff_decode(data, (size_t)len, &msg, &err) == 0) {
        begin_work(handler->door, &msg);
        answers_add(d->answers, &msg, steal_fd(&fd));
        return RECEIPT_TAKEN;
    }
    log_error_value(&d->log, LOG_WARN, "handler_refused", &err);
    return RECEIPT_END;
}

static void handler_ready(int fd, unsigned events, void *arg)
{
    struct handler *handler = arg;
    (void)fd;
    (void)events;
    for (int i = 0; i < MESSAGES_A_TURN; i++) {
        switch (receive_one(handler)) {
        case RECEIPT_TAKEN:
            break;
        case RECEIPT_NOTHING:
            return;
        case RECEIPT_END:
            handler_free(handler);
            return;
        }
    }
}

/* Takes fd. */
static void handler_add(struct door *door, int fd)
{
    if (door->count >= HANDLERS_MAX) {
        log_warn(&door->d->log, "handlers_max", "count=%u", door->count);
        close(fd);
        return;
    }
    struct handler *handler = calloc(1, sizeof(*handler));
    if (handler)
        handler->io = loop_io_new(door->d->loop, fd, LOOP_READ, handler_ready, handler);
    if (!handler || !handler->io) {
        free(handler);
        close(fd);
        return;
    }
    handler->door = door;
    handler->fd = fd;
    LIST_INSERT_HEAD(&door->handlers, handler, entry);
    door->count++;
}

/* Returns false when there is nobody more to accept for now. */
static bool accept_one(struct door *door)
{
    int fd = accept4(door->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
        handler_add(door, fd);
        return true;
    }
    if (errno == EINTR || errno == ECONNABORTED)
        return true;
    if (errno != EAGAIN) {
        struct error err = ERROR_INIT;
        error_set_errno(&err, "cannot accept a handler");
        log_error_value(&door->d->log, LOG_WARN, "accept_failed", &err);
        /* The socket stays readable: without a pause the loop would spin. */
        if (loop_timer_arm(door->pause, ACCEPT_PAUSE_MS) == 0)
            loop_io_set(door->io, 0);
    }
    return false;
}

static void door_ready(int fd, unsigned events, void *arg)
{
    struct door *door = arg;
    (void)fd;
    (void)events;
    for (int i = 0; i < ACCEPTS_A_TURN && accept_one(door); i++)
        continue;
}

static void pause_over(void *arg)
{
    struct door *door = arg;
    if (loop_io_set(door->io, LOOP_READ) < 0)
        loop_timer_arm(door->pause, ACCEPT_PAUSE_MS);
}

struct door *door_new(struct daemon *d, struct error *err)
{
    struct door *door = calloc(1, sizeof(*door));
    if (!door) {
        error_set(err, ERR_SYSTEM, "out of memory");
        return NULL;
    }
    door->d = d;
    door->fd = fdpass_listen(d->config->daemon_handoff_socket, SOCKET_MODE, BACKLOG, err);
    if (door->fd < 0) {
        free(door);
        return NULL;
    }
    int flags = fcntl(door->fd, F_GETFL);
    if (flags >= 0 && fcntl(door->fd, F_SETFL, flags | O_NONBLOCK) == 0) {
        door->pause = loop_timer_new(d->loop, pause_over, door);
        door->io = loop_io_new(d->loop, door->fd, LOOP_READ, door_ready, door);
    }
    if (!door->io || !door->pause) {
        error_set_errno(err, "cannot watch %s", d->config->daemon_handoff_socket);
        door_free(door);
        return NULL;
    }
    return door;
}

/* What was sent before the door closed is still taken: shutting down only the reading side lets
 * queued messages through and refuses the next one to its sender, who then answers by himself. */
static void handler_close(struct handler *handler)
{
    shutdown(handler->fd, SHUT_RD);
    while (receive_one(handler) == RECEIPT_TAKEN)
        continue;
    handler_free(handler);
}

void door_free(struct door *door)
{
    struct handler *handler;
    if (!door)
        return;
    door->closing = true;
    if (door->io && door->pause) {
        for (int i = 0; i < BACKLOG && accept_one(door); i++)
            continue;
    }
    loop_io_free(door->io);
    loop_timer_free(door->pause);
    close(door->fd);
    while ((handler = LIST_FIRST(&door->handlers)))
        handler_close(handler);
    free(door);
}
