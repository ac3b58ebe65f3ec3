/* What the two halves of a channel share: channel.c (life, receiving) and channel_send.c. */
#ifndef PADDOCK_DAEMON_CHANNEL_INTERNAL_H
#define PADDOCK_DAEMON_CHANNEL_INTERNAL_H

#include "daemon/channel.h"

/* Frames a turn each way, so that one busy guest does not hold up the others. */
#define CHANNEL_FRAMES_A_TURN 32

enum channel_state { CHANNEL_HELLO, CHANNEL_GREETED, CHANNEL_SETUP, CHANNEL_READY };
enum stream_state { STREAM_SPEC, STREAM_SENT, STREAM_RUNNING };

/* What the guest may send on stdout or stderr. */
struct inflow {
    uint32_t allowed; /* rest of the credit that was sent */
    uint32_t owed;    /* consumed since, not granted anew yet */
    bool eof;
};

struct channel_stream {
    struct channel *channel;
    uint32_t id;
    enum stream_state state;
    const struct channel_stream_handler *handler;
    void *arg;
    bool exec_sent;
    struct buf spec;
    size_t spec_sent;
    bool has_input;
    bool input_eof_sent;
    struct buf input;
    size_t input_sent;
    uint32_t input_credit;
    struct inflow out, err;
    bool kill_wanted;
    bool kill_sent;
    uint32_t kill_grace_ms;
    bool queued; /* in the ring of streams with something to send */
    struct channel_stream *next, *prev;
};

struct channel {
    struct loop *loop;
    struct loop_io *io;
    int fd;
    uint8_t *rx;
    const struct channel_handler *handler;
    void *arg;
    enum channel_state state;
    bool ended;      /* no callback any more */
    bool write_dead; /* the peer is gone; what it sent before is still read */
    bool setup_pending;
    struct buf setup; /* the SETUP payload */
    bool ping_pending;
    bool ping_unanswered; /* it was sent */
    uint64_t ping_nonce;
    uint32_t last_id;
    unsigned max_streams, stream_count;
    struct channel_stream **table; /* by id & mask */
    uint32_t mask;
    struct channel_stream *sending; /* ring, its head sends next */
    size_t outgoing_bytes;
};

/* Sends what there is to send and the socket takes. Calls nothing back. */
void channel_flush(struct channel *channel);
/* Puts the stream among those that send, if it has something to send. */
void channel_stream_wake(struct channel_stream *stream);
/* Releases all that the stream still had to send. */
void channel_stream_drop_outgoing(struct channel_stream *stream);

#endif
