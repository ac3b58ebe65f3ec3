/*
 * The sending half of a channel. There is no queue of outgoing frames. What is
 * to be sent is state (a flag, an unsent rest, credit owed), made into a frame
 * when the socket takes one. Streams with something to send stand in a ring and
 * take turns, one frame each, so a 16 MiB script delays no other stream's KILL.
 *
 * Must stay true: credit counts as granted only once its frame was sent.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "daemon/channel_internal.h"

/* A frame's payload fields built here (a body comes behind them). */
#define TX_FIXED_MAX 28u

static void sending_remove(struct channel_stream *stream)
{
    struct channel *channel = stream->channel;

    if (!stream->queued)
        return;
    stream->queued = false;
    if (stream->next == stream) {
        channel->sending = NULL;
        return;
    }
    stream->prev->next = stream->next;
    stream->next->prev = stream->prev;
    if (channel->sending == stream)
        channel->sending = stream->next;
}

static void sending_add(struct channel_stream *stream)
{
    struct channel *channel = stream->channel;
    struct channel_stream *head = channel->sending;

    if (stream->queued)
        return;
    stream->queued = true;
    if (!head) {
        stream->next = stream->prev = stream;
        channel->sending = stream;
        return;
    }
    stream->next = head;
    stream->prev = head->prev;
    head->prev->next = stream;
    head->prev = stream;
}

static void stream_drop_spec(struct channel_stream *stream)
{
    stream->channel->outgoing_bytes -= stream->spec.len - stream->spec_sent;
    buf_free(&stream->spec);
    stream->spec_sent = 0;
}

static void stream_drop_input(struct channel_stream *stream)
{
    stream->channel->outgoing_bytes -= stream->input.len - stream->input_sent;
    buf_free(&stream->input);
    stream->input_sent = 0;
}

enum tx_kind {
    TX_NONE,
    TX_SETUP,
    TX_PING,
    TX_RESYNC,
    TX_EXEC,
    TX_SPEC,
    TX_KILL,
    TX_CREDIT_OUT,
    TX_CREDIT_ERR,
    TX_INPUT,
    TX_INPUT_EOF,
};

struct tx {
    enum tx_kind kind;
    uint8_t fixed[WIRE_HEADER_SIZE + TX_FIXED_MAX];
    size_t fixed_len;
    const void *body; /* borrowed */
    size_t body_len;
};

static void tx_start(struct tx *tx, enum tx_kind kind, enum wire_type type, uint8_t channel,
                     uint32_t stream)
{
    tx->kind = kind;
    wire_header(tx->fixed, type, channel, stream);
    tx->fixed_len = WIRE_HEADER_SIZE;
    tx->body = NULL;
    tx->body_len = 0;
}

static void tx_u32(struct tx *tx, uint32_t value)
{
    wire_put_u32(tx->fixed + tx->fixed_len, value);
    tx->fixed_len += 4;
}

static void tx_body(struct tx *tx, const struct buf *from, size_t offset, size_t max)
{
    size_t left = from->len - offset;

    tx->body = from->data + offset;
    tx->body_len = left < max ? left : max;
}

/* Half the window was consumed: worth a CREDIT frame. */
static bool credit_due(const struct inflow *in)
{
    return !in->eof && in->owed >= CHANNEL_WINDOW / 2;
}

static bool input_due(const struct channel_stream *stream)
{
    if (!stream->has_input || stream->input_eof_sent || stream->kill_sent)
        return false;
    return stream->input_sent == stream->input.len || stream->input_credit > 0;
}

static enum tx_kind stream_due(const struct channel_stream *stream)
{
    if (stream->unclaimed)
        return TX_NONE;
    if (!stream->exec_sent)
        return TX_EXEC;
    if (stream->state == STREAM_SPEC)
        return TX_SPEC;
    /* Only now, for a guest that got KILL in the middle of a spec could still start it. */
    if (stream->kill_wanted && !stream->kill_sent)
        return TX_KILL;
    if (credit_due(&stream->out))
        return TX_CREDIT_OUT;
    if (credit_due(&stream->err))
        return TX_CREDIT_ERR;
    if (input_due(stream))
        return stream->input_sent < stream->input.len ? TX_INPUT : TX_INPUT_EOF;
    return TX_NONE;
}

static void stream_tx(const struct channel_stream *stream, struct tx *tx)
{
    uint32_t id = stream->id;
    enum tx_kind kind = stream_due(stream);

    switch (kind) {
    case TX_EXEC:
        tx_start(tx, kind, WIRE_EXEC, 0, id);
        tx_u32(tx, (uint32_t)stream->spec.len);
        tx_u32(tx, CHANNEL_WINDOW);
        tx_u32(tx, CHANNEL_WINDOW);
        memcpy(tx->fixed + tx->fixed_len, stream->uuid, sizeof(stream->uuid));
        tx->fixed_len += sizeof(stream->uuid);
        break;
    case TX_SPEC:
        tx_start(tx, kind, WIRE_SPEC, 0, id);
        tx_body(tx, &stream->spec, stream->spec_sent, WIRE_PAYLOAD_MAX);
        break;
    case TX_KILL:
        tx_start(tx, kind, WIRE_KILL, 0, id);
        tx_u32(tx, stream->kill_grace_ms);
        break;
    case TX_CREDIT_OUT:
        tx_start(tx, kind, WIRE_CREDIT, WIRE_STDOUT, id);
        tx_u32(tx, stream->out.owed);
        break;
    case TX_CREDIT_ERR:
        tx_start(tx, kind, WIRE_CREDIT, WIRE_STDERR, id);
        tx_u32(tx, stream->err.owed);
        break;
    case TX_INPUT:
        tx_start(tx, kind, WIRE_DATA, WIRE_STDIN, id);
        tx_body(tx, &stream->input, stream->input_sent,
                stream->input_credit < WIRE_PAYLOAD_MAX ? stream->input_credit : WIRE_PAYLOAD_MAX);
        break;
    case TX_INPUT_EOF:
        tx_start(tx, kind, WIRE_EOF, WIRE_STDIN, id);
        break;
    case TX_NONE:
    case TX_SETUP:
    case TX_PING:
    case TX_RESYNC:
        tx->kind = TX_NONE;
        break;
    }
}

static void grant(struct inflow *in)
{
    in->allowed += in->owed;
    in->owed = 0;
}

static void stream_sent(struct channel_stream *stream, const struct tx *tx)
{
    switch (tx->kind) {
    case TX_EXEC:
        stream->exec_sent = true;
        stream->out.allowed = stream->err.allowed = CHANNEL_WINDOW;
        break;
    case TX_SPEC:
        stream->spec_sent += tx->body_len;
        stream->channel->outgoing_bytes -= tx->body_len;
        if (stream->spec_sent == stream->spec.len) {
            stream_drop_spec(stream);
            stream->state = STREAM_SENT;
        }
        break;
    case TX_KILL:
        stream->kill_sent = true;
        stream_drop_input(stream);
        break;
    case TX_CREDIT_OUT:
        grant(&stream->out);
        break;
    case TX_CREDIT_ERR:
        grant(&stream->err);
        break;
    case TX_INPUT:
        stream->input_sent += tx->body_len;
        stream->input_credit -= (uint32_t)tx->body_len;
        stream->channel->outgoing_bytes -= tx->body_len;
        if (stream->input_sent == stream->input.len)
            stream_drop_input(stream);
        break;
    case TX_INPUT_EOF:
        stream->input_eof_sent = true;
        break;
    case TX_NONE:
    case TX_SETUP:
    case TX_PING:
    case TX_RESYNC:
        break;
    }
}

static void channel_tx(struct channel *channel, struct tx *tx)
{
    tx->kind = TX_NONE;
    if (channel->resync_pending) {
        tx_start(tx, TX_RESYNC, WIRE_RESYNC, 0, 0);
        wire_put_u64(tx->fixed + tx->fixed_len, channel->resync_nonce);
        tx->fixed_len += 8;
    } else if (channel->setup_pending) {
        tx_start(tx, TX_SETUP, WIRE_SETUP, 0, 0);
        tx_body(tx, &channel->setup, 0, WIRE_PAYLOAD_MAX);
    } else if (channel->ping_pending) {
        tx_start(tx, TX_PING, WIRE_PING, 0, 0);
        wire_put_u64(tx->fixed + tx->fixed_len, channel->ping_nonce);
        tx->fixed_len += 8;
    } else {
        /* What a stream had to send may have become void since (credit after its EOF). */
        while (channel->sending && stream_due(channel->sending) == TX_NONE)
            sending_remove(channel->sending);
        if (channel->sending)
            stream_tx(channel->sending, tx);
    }
}

static void channel_sent(struct channel *channel, const struct tx *tx)
{
    struct channel_stream *stream = channel->sending;

    if (tx->kind == TX_RESYNC) {
        channel->resync_pending = false;
    } else if (tx->kind == TX_SETUP) {
        channel->setup_pending = false;
        channel->state = CHANNEL_SETUP;
        buf_free(&channel->setup); /* it may hold secrets; the guest has them now */
    } else if (tx->kind == TX_PING) {
        channel->ping_pending = false;
        channel->ping_unanswered = true;
    } else if (stream) {
        stream_sent(stream, tx);
        if (stream_due(stream) == TX_NONE)
            sending_remove(stream);
        else
            channel->sending = stream->next;
    }
}

/* 1: sent, 0: the socket takes no more now, -1: the peer is gone. */
static int tx_send(int fd, struct tx *tx)
{
    struct iovec iov[2] = {{.iov_base = tx->fixed, .iov_len = tx->fixed_len}};
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 1};

    if (tx->body_len > 0) {
        /* sendmsg only reads; iovec has no const form. */
        iov[1].iov_base = (void *)(uintptr_t)tx->body;
        iov[1].iov_len = tx->body_len;
        msg.msg_iovlen = 2;
    }
    for (;;) {
        if (sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
            return 1;
        if (errno == EINTR)
            continue;
        return errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM ? 0 : -1;
    }
}

/* Sends what there is. After an error only reading goes on: the guest's last frames count, and its
 * end of file ends the channel. */
void channel_flush(struct channel *channel)
{
    struct tx tx;
    bool more = false;

    if (channel->ended || channel->write_dead)
        return;
    for (int i = 0;; i++) {
        int sent;

        channel_tx(channel, &tx);
        if (tx.kind == TX_NONE)
            break;
        if (i == CHANNEL_FRAMES_A_TURN) {
            more = true;
            break;
        }
        sent = tx_send(channel->fd, &tx);
        if (sent <= 0) {
            channel->write_dead = sent < 0;
            more = sent == 0;
            break;
        }
        channel_sent(channel, &tx);
    }
    if (loop_io_set(channel->io, more ? LOOP_READ | LOOP_WRITE : LOOP_READ) < 0)
        channel->write_dead = true;
}

void channel_stream_wake(struct channel_stream *stream)
{
    if (stream_due(stream) != TX_NONE)
        sending_add(stream);
}

void channel_stream_drop_outgoing(struct channel_stream *stream)
{
    sending_remove(stream);
    stream_drop_spec(stream);
    stream_drop_input(stream);
}
