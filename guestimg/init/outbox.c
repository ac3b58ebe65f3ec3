/*
 * Frames on their way to the host. A frame goes out at once when nothing waits
 * before it and the socket takes it; else it is queued. Called from everywhere
 * in PID 1. What must stay true: nothing here blocks, order is kept, and the
 * queue is bounded: DATA is only read from pipes while it is empty, the host's
 * frames (which cause answers) only while it is not crowded, and what remains
 * is a few frames for each of a bounded number of streams.
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "guestimg/init/init.h"

#define OUTBOX_CROWDED_BYTES ((size_t)256 * 1024)
/* Five small frames for each of WIRE_STREAMS_MAX streams, one DATA frame, the crowd limit. */
#define OUTBOX_MAX_BYTES ((size_t)4 * 1024 * 1024)

bool outbox_is_empty(const struct init *init)
{
    return init->outbox.len == 0;
}

bool outbox_is_crowded(const struct init *init)
{
    return init->outbox.len > OUTBOX_CROWDED_BYTES;
}

static void update_socket_watch(struct init *init)
{
    uint32_t events = 0;
    if (!outbox_is_crowded(init))
        events |= EPOLLIN;
    if (!outbox_is_empty(init))
        events |= EPOLLOUT;
    init_watch(init, &init->socket, events);
}

/* Returns 1 when sent, 0 when the socket is full, -1 when the session is over. */
static int send_now(struct init *init, const void *frame, size_t len)
{
    for (;;) {
        ssize_t sent = send(init->socket.fd, frame, len, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent == (ssize_t)len)
            return 1;
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && (errno == EAGAIN || errno == ENOBUFS))
            return 0;
        if (sent < 0 && (errno == EPIPE || errno == ECONNRESET))
            init_stop(init, INIT_EXIT_OK, "host is gone");
        else
            init_stop(init, INIT_EXIT_INTERNAL, "send: %s", strerror(sent < 0 ? errno : EIO));
        return -1;
    }
}

static void queue(struct init *init, const void *frame, size_t len)
{
    uint32_t len32 = (uint32_t)len;
    init->outbox.max = OUTBOX_MAX_BYTES;
    if (!buf_reserve(&init->outbox, sizeof(len32) + len) ||
        buf_append(&init->outbox, &len32, sizeof(len32)) < 0 ||
        buf_append(&init->outbox, frame, len) < 0) {
        init_stop(init, INIT_EXIT_INTERNAL, "no memory for outgoing frames");
        return;
    }
    update_socket_watch(init);
}

static void send_or_queue(struct init *init, const void *frame, size_t len)
{
    if (init->stopping)
        return;
    if (outbox_is_empty(init) && send_now(init, frame, len) != 0)
        return;
    queue(init, frame, len);
}

void outbox_send_in_place(struct init *init, enum wire_type type, uint8_t channel, uint32_t stream,
                          size_t payload_len)
{
    wire_header(init->frame_out, type, channel, stream);
    send_or_queue(init, init->frame_out, WIRE_HEADER_SIZE + payload_len);
}

void outbox_send(struct init *init, enum wire_type type, uint8_t channel, uint32_t stream,
                 const void *payload, size_t payload_len)
{
    uint8_t frame[WIRE_HEADER_SIZE + 64];
    if (payload_len > sizeof(frame) - WIRE_HEADER_SIZE) {
        init_stop(init, INIT_EXIT_INTERNAL, "frame too long to copy");
        return;
    }
    wire_header(frame, type, channel, stream);
    if (payload_len > 0)
        memcpy(frame + WIRE_HEADER_SIZE, payload, payload_len);
    send_or_queue(init, frame, WIRE_HEADER_SIZE + payload_len);
}

void outbox_flush(struct init *init)
{
    size_t done = 0;
    while (done < init->outbox.len && !init->stopping) {
        uint32_t len;
        memcpy(&len, init->outbox.data + done, sizeof(len));
        int sent = send_now(init, init->outbox.data + done + sizeof(len), len);
        if (sent < 0)
            return;
        if (sent == 0)
            break;
        done += sizeof(len) + len;
    }
    buf_consume(&init->outbox, done);
    update_socket_watch(init);
    if (!outbox_is_empty(init))
        return;
    struct execution *next;
    for (struct execution *e = init->executions; e && outbox_is_empty(init); e = next) {
        next = e->next;
        stream_advance(init, e);
    }
}
