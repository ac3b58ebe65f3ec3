/* What the parts of a channel share: channel.c (life, receiving), channel_send.c, and
 * channel_takeover.c. */
#ifndef PADDOCK_DAEMON_CHANNEL_INTERNAL_H
#define PADDOCK_DAEMON_CHANNEL_INTERNAL_H

#include "daemon/channel.h"

/* Frames a turn each way, so that one busy guest does not hold up the others. */
#define CHANNEL_FRAMES_A_TURN 32

enum channel_state {
    CHANNEL_HELLO,
    CHANNEL_GREETED,
    CHANNEL_SETUP,
    CHANNEL_READY,
    CHANNEL_RESYNC,  /* asked; what comes was meant for the former daemon */
    CHANNEL_LISTING, /* RESYNCED came, LIVE and OVER are coming */
};
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
    uint8_t uuid[WIRE_UUID_SIZE];
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
    /* Found by a take-over and not claimed yet: it has no handler, and nothing to send. */
    bool unclaimed;
    struct wire_live live; /* what LIVE said of it */
    bool queued;           /* in the ring of streams with something to send */
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
    /* a take-over */
    bool resync_pending;
    uint64_t resync_nonce;
    uint32_t listing_left;
    struct channel_found *overs; /* streams that ended, with their results */
    uint8_t (*over_uuids)[WIRE_UUID_SIZE];
    uint32_t overs_count, overs_size;
};

/* table_size: of a power of two, more than the streams that will be open at once. Does not take fd
 * over when it fails. */
struct channel *channel_make(struct loop *loop, int fd, void *rx, unsigned max_streams,
                             uint32_t table_size, const struct channel_handler *handler, void *arg,
                             struct error *err);
/* Into the table; its place is free. */
void channel_stream_add(struct channel_stream *stream);
void channel_stream_free(struct channel_stream *stream);
int channel_violation(struct error *err, const struct wire_frame *frame, const char *why);
void channel_end(struct channel *channel, enum channel_end end, const struct error *err);
/* The payloads of EXIT and FAILED. */
int channel_read_exit(const struct wire_frame *frame, struct channel_exit *result,
                      struct error *err);
int channel_read_failed(const struct wire_frame *frame, enum wire_step *step, int *errno_value,
                        struct error *err);
/* A frame while the state is RESYNC or LISTING. */
int channel_takeover_frame(struct channel *channel, const struct wire_frame *frame,
                           struct error *err);
/* An unclaimed stream ended: keeps its result. Frees the stream. */
int channel_takeover_over(struct channel_stream *stream, const struct channel_found *found,
                          struct error *err);

/* Sends what there is to send and the socket takes. Calls nothing back. */
void channel_flush(struct channel *channel);
/* Puts the stream among those that send, if it has something to send. */
void channel_stream_wake(struct channel_stream *stream);
/* Releases all that the stream still had to send. */
void channel_stream_drop_outgoing(struct channel_stream *stream);

#endif
