/*
 * The host's side of the frame protocol (common/wire.h), called by guest.c (the
 * handshake) and execution.c (streams). What the guest may send, and when:
 *
 *   channel state       accepts                    becomes
 *   HELLO               HELLO                      GREETED
 *   GREETED             -
 *   SETUP (was sent)    READY                      READY
 *   RESYNC              RESYNCED with its nonce    LISTING; every other frame is dropped
 *   LISTING             LIVE, OVER                 READY after the number that RESYNCED told
 *   READY               PONG, only while a PING with its nonce is unanswered; stream frames
 *
 *   stream state        accepts                    becomes
 *   SPEC (being sent)   FAILED                     gone
 *   SENT (all of it)    FAILED                     gone
 *                       STARTED                    RUNNING
 *                       CREDIT on stdin
 *   RUNNING             DATA on stdout, stderr within the credit, until EOF there
 *                       EOF on stdout, stderr, once each
 *                       CREDIT on stdin
 *                       EXIT                       gone
 *   gone                nothing
 *
 * Anything else is a violation. A late frame on a stream that is gone is one, too: only the guest
 * ends a stream, with EXIT or FAILED as its last frame, and the socket keeps the order; so none can
 * be under way. The crossing goes the other way: KILL, CREDIT and stdin that this side sent before
 * it read EXIT or FAILED reach a guest whose stream is gone, and paddock-init ignores those. Stream
 * numbers are not used again before all others were.
 *
 * A guest that does not read makes nothing grow here (channel_send.c); it misses its PONG.
 */
#include "daemon/channel_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "common/cleanup.h"

/* What a guest's paddock-init takes. */
#define CHANNEL_STREAMS_MAX WIRE_STREAMS_MAX
/* A grant beyond this can only be meant to overflow the count. */
#define CHANNEL_CREDIT_MAX (1u << 30)

/* --- the end ------------------------------------------------------------------------------- */

void channel_end(struct channel *channel, enum channel_end end, const struct error *err)
{
    channel->ended = true;
    loop_io_set(channel->io, 0);
    channel->handler->on_end(channel->arg, end, err);
}

int channel_violation(struct error *err, const struct wire_frame *frame, const char *why)
{
    return error_set(err, ERR_PROTOCOL, "%s on stream %u, channel %u: %s",
                     wire_type_name(frame->type), (unsigned)frame->stream, (unsigned)frame->channel,
                     why);
}

/* --- streams ------------------------------------------------------------------------------- */

void channel_stream_add(struct channel_stream *stream)
{
    stream->channel->table[stream->id & stream->channel->mask] = stream;
    stream->channel->stream_count++;
}

void channel_stream_free(struct channel_stream *stream)
{
    struct channel *channel = stream->channel;

    channel_stream_drop_outgoing(stream);
    channel->table[stream->id & channel->mask] = NULL;
    channel->stream_count--;
    free(stream);
}

static struct channel_stream *stream_find(const struct channel *channel, uint32_t id)
{
    struct channel_stream *stream = channel->table[id & channel->mask];

    return stream && stream->id == id ? stream : NULL;
}

/* --- receiving ----------------------------------------------------------------------------- */

static int on_hello(struct channel *channel, const struct wire_frame *frame, struct error *err)
{
    if (channel->state != CHANNEL_HELLO)
        return channel_violation(err, frame, "it was said already");
    channel->state = CHANNEL_GREETED;
    channel->handler->on_hello(channel->arg, wire_get_u32(frame->payload));
    return 0;
}

static int on_ready(struct channel *channel, const struct wire_frame *frame, struct error *err)
{
    if (channel->state != CHANNEL_SETUP)
        return channel_violation(err, frame, "no SETUP to answer");
    channel->state = CHANNEL_READY;
    channel->handler->on_ready(channel->arg);
    return 0;
}

static int on_pong(struct channel *channel, const struct wire_frame *frame, struct error *err)
{
    if (!channel->ping_unanswered || wire_get_u64(frame->payload) != channel->ping_nonce)
        return channel_violation(err, frame, "no PING to answer");
    channel->ping_unanswered = false;
    channel->handler->on_pong(channel->arg);
    return 0;
}

static int on_started(struct channel_stream *stream, const struct wire_frame *frame,
                      struct error *err)
{
    if (stream->state != STREAM_SENT)
        return channel_violation(err, frame, "nothing to start");
    if (wire_get_u32(frame->payload) == 0)
        return channel_violation(err, frame, "process id 0");
    stream->state = STREAM_RUNNING;
    if (!stream->unclaimed)
        stream->handler->on_started(stream->arg);
    return 0;
}

int channel_read_failed(const struct wire_frame *frame, enum wire_step *step, int *errno_value,
                        struct error *err)
{
    uint32_t number = wire_get_u32(frame->payload);
    uint8_t where = frame->payload[4];

    if (number == 0 || number > 4095 || where < WIRE_STEP_SPEC || where > WIRE_STEP_EXEC)
        return channel_violation(err, frame, "no such failure");
    *step = (enum wire_step)where;
    *errno_value = (int)number;
    return 0;
}

static int on_failed(struct channel_stream *stream, const struct wire_frame *frame,
                     struct error *err)
{
    const struct channel_stream_handler *handler = stream->handler;
    void *arg = stream->arg;
    struct channel_found found = {.failed = true};

    if (!stream->exec_sent || stream->state == STREAM_RUNNING)
        return channel_violation(err, frame, "nothing to start");
    if (channel_read_failed(frame, &found.step, &found.errno_value, err) < 0)
        return -1;
    if (stream->unclaimed)
        return channel_takeover_over(stream, &found, err);
    channel_stream_free(stream);
    handler->on_failed(arg, found.step, found.errno_value);
    return 0;
}

int channel_read_exit(const struct wire_frame *frame, struct channel_exit *result,
                      struct error *err)
{
    const uint8_t *p = frame->payload;

    *result = (struct channel_exit){
        .code = p[0], .signal = p[1], .killed = p[2] == 1, .cpu_us = wire_get_u64(p + 4)};
    /* 64 is Linux's last signal; CPU time beyond int64 cannot be recorded, nor be true. */
    if (result->signal > 64 || p[2] > 1 || p[3] != 0 || result->cpu_us > INT64_MAX)
        return channel_violation(err, frame, "no such result");
    return 0;
}

static int on_exit_frame(struct channel_stream *stream, const struct wire_frame *frame,
                         struct error *err)
{
    const struct channel_stream_handler *handler = stream->handler;
    void *arg = stream->arg;
    struct channel_found found = {.failed = false};

    if (stream->state != STREAM_RUNNING)
        return channel_violation(err, frame, "nothing was started");
    if (channel_read_exit(frame, &found.exit, err) < 0)
        return -1;
    if (found.exit.killed && !stream->kill_sent)
        return channel_violation(err, frame, "killed without KILL");
    if (stream->unclaimed)
        return channel_takeover_over(stream, &found, err);
    channel_stream_free(stream);
    handler->on_exit(arg, &found.exit);
    return 0;
}

static struct inflow *stream_inflow(struct channel_stream *stream, uint8_t channel)
{
    return channel == WIRE_STDOUT ? &stream->out : channel == WIRE_STDERR ? &stream->err : NULL;
}

static int on_data(struct channel_stream *stream, const struct wire_frame *frame, struct error *err)
{
    struct inflow *in = stream_inflow(stream, frame->channel);
    uint32_t len = (uint32_t)frame->payload_len;

    if (stream->state != STREAM_RUNNING)
        return channel_violation(err, frame, "nothing was started");
    if (!in)
        return channel_violation(err, frame, "not an output channel");
    if (in->eof)
        return channel_violation(err, frame, "after EOF");
    if (len > in->allowed)
        return channel_violation(err, frame, "beyond the credit");
    in->allowed -= len;
    in->owed += len;
    channel_stream_wake(stream);
    stream->handler->on_data(stream->arg, (enum wire_channel)frame->channel, frame->payload, len);
    return 0;
}

static int on_eof(struct channel_stream *stream, const struct wire_frame *frame, struct error *err)
{
    struct inflow *in = stream_inflow(stream, frame->channel);

    if (stream->state != STREAM_RUNNING)
        return channel_violation(err, frame, "nothing was started");
    if (!in)
        return channel_violation(err, frame, "not an output channel");
    if (in->eof)
        return channel_violation(err, frame, "after EOF");
    in->eof = true;
    return 0;
}

static int on_credit(struct channel_stream *stream, const struct wire_frame *frame,
                     struct error *err)
{
    uint32_t more = wire_get_u32(frame->payload);

    if (stream->state == STREAM_SPEC)
        return channel_violation(err, frame, "nothing was started");
    if (frame->channel != WIRE_STDIN || !stream->has_input)
        return channel_violation(err, frame, "not an input channel");
    if (more == 0 || more > CHANNEL_CREDIT_MAX - stream->input_credit)
        return channel_violation(err, frame, "an impossible amount");
    stream->input_credit += more;
    channel_stream_wake(stream);
    return 0;
}

static int dispatch_stream(struct channel *channel, const struct wire_frame *frame,
                           struct error *err)
{
    struct channel_stream *stream = stream_find(channel, frame->stream);

    if (!stream)
        return channel_violation(err, frame, "no such stream");
    switch (frame->type) {
    case WIRE_STARTED:
        return on_started(stream, frame, err);
    case WIRE_FAILED:
        return on_failed(stream, frame, err);
    case WIRE_DATA:
        return on_data(stream, frame, err);
    case WIRE_EOF:
        return on_eof(stream, frame, err);
    case WIRE_CREDIT:
        return on_credit(stream, frame, err);
    case WIRE_EXIT:
        return on_exit_frame(stream, frame, err);
    case WIRE_HELLO:
    case WIRE_SETUP:
    case WIRE_READY:
    case WIRE_PING:
    case WIRE_PONG:
    case WIRE_EXEC:
    case WIRE_SPEC:
    case WIRE_SIGNAL:
    case WIRE_KILL:
    case WIRE_RESET:
    case WIRE_RESYNC:
    case WIRE_RESYNCED:
    case WIRE_LIVE:
    case WIRE_OVER:
        break;
    }
    return channel_violation(err, frame, "not for this side");
}

static int dispatch(struct channel *channel, const struct wire_frame *frame, struct error *err)
{
    if (channel->state == CHANNEL_RESYNC || channel->state == CHANNEL_LISTING)
        return channel_takeover_frame(channel, frame, err);
    if (frame->type == WIRE_HELLO)
        return on_hello(channel, frame, err);
    if (frame->type == WIRE_READY)
        return on_ready(channel, frame, err);
    if (frame->type == WIRE_PONG)
        return on_pong(channel, frame, err);
    if (frame->stream == 0)
        return channel_violation(err, frame, "nobody asked");
    return dispatch_stream(channel, frame, err);
}

/* One message: 1 read and dispatched, 0 nothing there, -1 the channel has ended. */
static int receive_one(struct channel *channel)
{
    struct iovec iov = {.iov_base = channel->rx, .iov_len = WIRE_FRAME_MAX};
    /* No room for control data: descriptors that the peer may send are dropped by the kernel. */
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    struct error err = ERROR_INIT;
    struct wire_frame frame;
    ssize_t len = recvmsg(channel->fd, &msg, MSG_DONTWAIT);

    if (len < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    /* The guest went without reading all we sent. Reported once, before its own last frames. */
    if (len < 0 && errno == ECONNRESET)
        return 1;
    if (len < 0) {
        error_set_errno(&err, "the guest's socket");
        channel_end(channel, CHANNEL_CLOSED, &err);
        return -1;
    }
    if (len == 0) {
        error_set(&err, ERR_PROTOCOL, "the guest closed its socket");
        channel_end(channel, CHANNEL_CLOSED, &err);
        return -1;
    }
    if (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC))
        error_set(&err, ERR_PROTOCOL, "a message that is no frame: too long, or with descriptors");
    else if (wire_decode(channel->rx, (size_t)len, WIRE_TO_HOST, &frame, &err) == 0 &&
             dispatch(channel, &frame, &err) == 0)
        return channel->ended ? -1 : 1;
    channel_end(channel, CHANNEL_VIOLATED, &err);
    return -1;
}

static void channel_event(int fd, unsigned events, void *arg)
{
    struct channel *channel = arg;

    (void)fd;
    if (events & LOOP_READ)
        for (int i = 0; i < CHANNEL_FRAMES_A_TURN; i++) {
            int read = receive_one(channel);

            if (read < 0)
                return;
            if (read == 0)
                break;
        }
    channel_flush(channel);
}

/* --- for the callers ----------------------------------------------------------------------- */

struct channel *channel_make(struct loop *loop, int fd, void *rx, unsigned max_streams,
                             uint32_t table_size, const struct channel_handler *handler, void *arg,
                             struct error *err)
{
    struct channel *channel = calloc(1, sizeof(*channel));

    if (!channel) {
        error_set(err, ERR_SYSTEM, "no memory for a guest's channel");
        return NULL;
    }
    *channel = (struct channel){.loop = loop,
                                .fd = fd,
                                .rx = rx,
                                .handler = handler,
                                .arg = arg,
                                .max_streams = max_streams,
                                .mask = table_size - 1};
    channel->table = calloc(table_size, sizeof(struct channel_stream *));
    channel->io = loop_io_new(loop, fd, LOOP_READ, channel_event, channel);
    if (!channel->table || !channel->io) {
        loop_io_free(channel->io);
        free(channel->table);
        free(channel);
        error_set(err, ERR_SYSTEM, "no memory for a guest's channel");
        return NULL;
    }
    return channel;
}

struct channel *channel_new(struct loop *loop, int fd, void *rx, unsigned max_streams,
                            const struct channel_handler *handler, void *arg, struct error *err)
{
    uint32_t size = 1;

    if (max_streams > CHANNEL_STREAMS_MAX)
        max_streams = CHANNEL_STREAMS_MAX;
    while (size < max_streams)
        size *= 2;
    return channel_make(loop, fd, rx, max_streams, size, handler, arg, err);
}

/* A callback of the channel may be on the stack; its memory goes at the turn's end. */
static void channel_destroy(void *ptr)
{
    struct channel *channel = ptr;

    buf_free(&channel->setup);
    free(channel->overs);
    free(channel->over_uuids);
    free(channel->table);
    free(channel);
}

void channel_free(struct channel *channel)
{
    if (!channel)
        return;
    channel->ended = true;
    loop_io_free(channel->io);
    channel->io = NULL;
    close(channel->fd);
    for (uint32_t i = 0; i <= channel->mask; i++) {
        struct channel_stream *stream = channel->table[i];

        if (stream) {
            const struct channel_stream_handler *handler = stream->handler;
            void *arg = stream->arg;
            bool unclaimed = stream->unclaimed;

            channel_stream_free(stream);
            if (!unclaimed)
                handler->on_lost(arg);
        }
    }
    loop_defer_free(channel->loop, channel_destroy, channel);
}

int channel_setup(struct channel *channel, uint32_t pids, uint32_t umask_bits, struct buf *env,
                  struct error *err)
{
    if (channel->ended || channel->state != CHANNEL_GREETED || channel->setup_pending)
        return error_set(err, ERR_STATE_CONFLICT, "the guest waits for no SETUP");
    if (env->len > WIRE_PAYLOAD_MAX - 8)
        return error_set(err, ERR_LIMIT_EXCEEDED, "the environment has %zu bytes of at most %u",
                         env->len, WIRE_PAYLOAD_MAX - 8);
    if (buf_append_u32(&channel->setup, pids) < 0 ||
        buf_append_u32(&channel->setup, umask_bits) < 0 ||
        buf_append(&channel->setup, env->data, env->len) < 0)
        return error_set(err, ERR_SYSTEM, "no memory for the environment");
    buf_free(env);
    channel->setup_pending = true;
    channel_flush(channel);
    return 0;
}

bool channel_ping(struct channel *channel)
{
    if (channel->ended || channel->ping_pending || channel->ping_unanswered)
        return false;
    channel->ping_nonce++;
    channel->ping_pending = true;
    channel_flush(channel);
    return true;
}

/* The next number whose place in the table is free. There is one: fewer streams than places. */
static uint32_t next_stream_id(struct channel *channel)
{
    do
        channel->last_id++;
    while (channel->last_id == 0 || channel->table[channel->last_id & channel->mask]);
    return channel->last_id;
}

static void take_buf(struct buf *to, struct buf *from)
{
    *to = *from;
    *from = (struct buf)BUF_INIT(from->max);
}

struct channel_stream *channel_exec(struct channel *channel, const uint8_t uuid[WIRE_UUID_SIZE],
                                    struct buf *spec, struct buf *input,
                                    const struct channel_stream_handler *handler, void *arg,
                                    struct error *err)
{
    struct channel_stream *stream;

    if (channel->ended || channel->state != CHANNEL_READY) {
        error_set(err, ERR_STATE_CONFLICT, "the guest is not ready");
        return NULL;
    }
    if (channel->stream_count >= channel->max_streams) {
        error_set(err, ERR_LIMIT_EXCEEDED, "the guest has %u of at most %u executions at once",
                  channel->stream_count, channel->max_streams);
        return NULL;
    }
    if (spec->len == 0 || spec->len > WIRE_SPEC_MAX) {
        error_set(err, ERR_LIMIT_EXCEEDED,
                  "command, environment and code have %zu bytes of 1 to %u", spec->len,
                  WIRE_SPEC_MAX);
        return NULL;
    }
    stream = calloc(1, sizeof(*stream));
    if (!stream) {
        error_set(err, ERR_SYSTEM, "no memory for an execution");
        return NULL;
    }
    stream->channel = channel;
    stream->id = next_stream_id(channel);
    stream->handler = handler;
    stream->arg = arg;
    memcpy(stream->uuid, uuid, sizeof(stream->uuid));
    take_buf(&stream->spec, spec);
    if (input) {
        stream->has_input = true;
        take_buf(&stream->input, input);
    }
    channel->outgoing_bytes += stream->spec.len + stream->input.len;
    channel_stream_add(stream);
    channel_stream_wake(stream);
    channel_flush(channel);
    return stream;
}

void channel_kill(struct channel_stream *stream, uint32_t grace_ms)
{
    if (stream->kill_wanted)
        return;
    stream->kill_wanted = true;
    stream->kill_grace_ms = grace_ms;
    channel_stream_wake(stream);
    channel_flush(stream->channel);
}

size_t channel_outgoing_bytes(const struct channel *channel)
{
    return channel->outgoing_bytes;
}
