/*
 * The held answers of one handler (see pending.h): a list, oldest first, and an
 * epoll set of its own that the handler's loop watches as one descriptor. Used
 * by child.c and reply.c. What must stay true: an answer is in the list exactly
 * while its descriptor is open and watched, and `bytes` is the sum of what they have left.
 */
#include "fcgi/pending.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <unistd.h>

#define EVENTS_AT_ONCE 64

struct held {
    TAILQ_ENTRY(held) link;
    int fd;
    struct buf data;
    size_t sent;
    int64_t progress_ms;
};

TAILQ_HEAD(held_list, held);

struct pending {
    int epoll_fd;
    struct held_list list;
    size_t count;
    size_t bytes;
    unsigned dropped; /* since the last run */
};

struct pending *pending_new(struct error *err)
{
    struct pending *p = calloc(1, sizeof(*p));
    if (!p) {
        error_set(err, ERR_INTERNAL, "out of memory");
        return NULL;
    }
    TAILQ_INIT(&p->list);
    p->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (p->epoll_fd < 0) {
        error_set_errno(err, "cannot wait for slow clients");
        free(p);
        return NULL;
    }
    return p;
}

static void held_free(struct pending *p, struct held *held)
{
    TAILQ_REMOVE(&p->list, held, link);
    p->count--;
    p->bytes -= held->data.len - held->sent;
    close(held->fd);
    buf_free(&held->data);
    free(held);
}

void pending_free(struct pending *p)
{
    if (!p)
        return;
    struct held *held;
    while ((held = TAILQ_FIRST(&p->list)))
        held_free(p, held);
    close(p->epoll_fd);
    free(p);
}

int pending_fd(const struct pending *p)
{
    return p->epoll_fd;
}

size_t pending_count(const struct pending *p)
{
    return p->count;
}

size_t pending_bytes(const struct pending *p)
{
    return p->bytes;
}

/* Sends until the connection takes no more. Returns 1 when all is sent, 0 when not yet, -1 when the
 * connection broke. */
static int send_some(int fd, const struct buf *data, size_t *sent)
{
    while (*sent < data->len) {
        ssize_t n = send(fd, data->data + *sent, data->len - *sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN ? 0 : -1;
        *sent += (size_t)n;
    }
    return 1;
}

static void make_room(struct pending *p, size_t bytes)
{
    while (p->count > 0 && (p->count == PENDING_COUNT_MAX || p->bytes > PENDING_BYTES_MAX ||
                            bytes > PENDING_BYTES_MAX - p->bytes)) {
        held_free(p, TAILQ_FIRST(&p->list));
        p->dropped++;
    }
}

static bool hold(struct pending *p, int fd, const struct buf *data, size_t sent, int64_t now_ms)
{
    struct held *held = calloc(1, sizeof(*held));
    if (!held)
        return false;
    struct epoll_event event = {.events = EPOLLOUT, .data.ptr = held};
    if (epoll_ctl(p->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0) {
        free(held);
        return false;
    }
    *held = (struct held){.fd = fd, .data = *data, .sent = sent, .progress_ms = now_ms};
    TAILQ_INSERT_TAIL(&p->list, held, link);
    p->count++;
    p->bytes += data->len - sent;
    return true;
}

void pending_send(struct pending *p, int fd, struct buf *data, int64_t now_ms)
{
    struct buf owned = *data;
    *data = (struct buf)BUF_INIT(data->max);
    size_t sent = 0;
    int rc = send_some(fd, &owned, &sent);
    if (rc == 0) {
        make_room(p, owned.len - sent);
        if (hold(p, fd, &owned, sent, now_ms))
            return;
        p->dropped++;
    }
    close(fd);
    buf_free(&owned);
}

static void held_continue(struct pending *p, struct held *held, int64_t now_ms)
{
    size_t before = held->sent;
    int rc = send_some(held->fd, &held->data, &held->sent);
    p->bytes -= held->sent - before;
    if (held->sent > before)
        held->progress_ms = now_ms;
    if (rc != 0)
        held_free(p, held);
}

unsigned pending_run(struct pending *p, int64_t now_ms)
{
    struct epoll_event events[EVENTS_AT_ONCE];
    int n = p->count > 0 ? epoll_wait(p->epoll_fd, events, EVENTS_AT_ONCE, 0) : 0;
    for (int i = 0; i < n; i++)
        held_continue(p, events[i].data.ptr, now_ms);

    struct held *next;
    for (struct held *held = TAILQ_FIRST(&p->list); held; held = next) {
        next = TAILQ_NEXT(held, link);
        if (now_ms - held->progress_ms < PENDING_IDLE_MS)
            continue;
        held_free(p, held);
        p->dropped++;
    }
    unsigned dropped = p->dropped;
    p->dropped = 0;
    return dropped;
}
