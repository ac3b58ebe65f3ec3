/*
 * The frames of one guest over its SOCK_SEQPACKET descriptor: handshake,
 * heartbeat, and one stream an execution with credit both ways. The guest is
 * hostile: every frame is held against the tables in channel.c, and the first
 * that breaks them ends the channel.
 */
#ifndef PADDOCK_DAEMON_CHANNEL_H
#define PADDOCK_DAEMON_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/error.h"
#include "common/wire.h"
#include "daemon/loop.h"

/* Bytes a guest may send on an output channel before it is granted more. */
#define CHANNEL_WINDOW (256u << 10)

struct channel;
struct channel_stream;

enum channel_end {
    CHANNEL_CLOSED,   /* end of file, or the socket failed */
    CHANNEL_VIOLATED, /* the guest broke the protocol */
    CHANNEL_FOREIGN,  /* taken over, it turned out to speak another version */
};

/* Called from the loop, never from within a channel_ function (but for on_lost). Any of them may
 * free the channel. */
struct channel_handler {
    void (*on_hello)(void *arg, uint32_t version); /* answer with channel_setup */
    void (*on_ready)(void *arg);
    void (*on_pong)(void *arg);
    /* A guest that was taken over has told all: channel_find and channel_claim, then
     * channel_kill_strays. */
    void (*on_resynced)(void *arg);
    /* Once; nothing is read or written any more, and no other callback comes. */
    void (*on_end)(void *arg, enum channel_end end, const struct error *err);
};

struct channel_exit {
    uint8_t code;
    uint8_t signal; /* 0: exited by itself */
    bool killed;    /* by channel_kill */
    uint64_t cpu_us;
};

struct channel_stream_handler {
    void (*on_started)(void *arg);
    void (*on_data)(void *arg, enum wire_channel channel, const void *data, size_t len);
    /* Each of these ends the stream: its pointer is not valid any more. */
    void (*on_exit)(void *arg, const struct channel_exit *result);
    void (*on_failed)(void *arg, enum wire_step step, int errno_value);
    /* channel_free ended it. */
    void (*on_lost)(void *arg);
};

/* Takes fd over when it succeeds. rx: WIRE_FRAME_MAX bytes that every channel of the loop shares.
 * handler and rx are borrowed for the channel's life. */
struct channel *channel_new(struct loop *loop, int fd, void *rx, unsigned max_streams,
                            const struct channel_handler *handler, void *arg, struct error *err);
/* The same for a guest that a former daemon made ready: RESYNC with this nonce, which must differ
 * from the former's, instead of the handshake. */
struct channel *channel_take_over(struct loop *loop, int fd, void *rx, unsigned max_streams,
                                  uint64_t nonce, const struct channel_handler *handler, void *arg,
                                  struct error *err);
/* Closes the descriptor and ends every stream with on_lost; no other callback comes any more. NULL
 * is fine. */
void channel_free(struct channel *channel);

/* Answers HELLO, once: limits and the environment of every execution, as SETUP carries them.
 * Takes env's contents. ERR_LIMIT_EXCEEDED when they do not fit one frame. */
int channel_setup(struct channel *channel, uint32_t pids, uint32_t umask_bits, struct buf *env,
                  struct error *err) __attribute__((warn_unused_result));
/* Sends a PING, unless one is not answered yet: then false. */
bool channel_ping(struct channel *channel);

/* Opens a stream and starts the execution of this UUID, once (the guest refuses it a second time
 * with EEXIST at WIRE_STEP_SPEC). Takes the contents of spec and input (NULL: the spec has
 * no stdin record). ERR_LIMIT_EXCEEDED with as many streams as allowed, ERR_STATE_CONFLICT when the
 * guest is not ready. */
struct channel_stream *channel_exec(struct channel *channel, const uint8_t uuid[WIRE_UUID_SIZE],
                                    struct buf *spec, struct buf *input,
                                    const struct channel_stream_handler *handler, void *arg,
                                    struct error *err);
/* What a guest that was taken over knows of an execution. */
struct channel_found {
    struct channel_stream *stream;       /* it lives, to be claimed; NULL: it is over */
    uint64_t stdout_bytes, stderr_bytes; /* sent so far */
    /* It lives. */
    bool killed; /* KILL came: EXIT may say so */
    bool takes_input;
    uint64_t stdin_bytes; /* received so far */
    /* It is over. */
    bool failed; /* FAILED, else EXIT */
    struct channel_exit exit;
    enum wire_step step;
    int errno_value;
};
/* False: the guest knows nothing of it, or it was claimed. */
bool channel_find(const struct channel *channel, const uint8_t uuid[WIRE_UUID_SIZE],
                  struct channel_found *found);
/* Takes a found stream on: its output flows again. input: all bytes of its stdin from the start,
 * whose contents it takes (NULL where found.takes_input is false; then found.stdin_bytes is at most
 * its length). */
void channel_claim(struct channel_stream *stream, struct buf *input,
                   const struct channel_stream_handler *handler, void *arg);
/* Kills a found stream that cannot be gone on with. */
void channel_abandon(struct channel_stream *stream);
/* Kills the unclaimed streams, but for those that is_known says will be claimed yet. Returns how
 * many. */
unsigned channel_kill_strays(struct channel *channel,
                             bool (*is_known)(void *arg, const uint8_t uuid[WIRE_UUID_SIZE]),
                             void *arg);

/* Asks the guest to end the stream's process tree; EXIT or FAILED still follows. Once. */
void channel_kill(struct channel_stream *stream, uint32_t grace_ms);

/* Bytes of specs and stdin that wait here for the guest to take them. */
size_t channel_outgoing_bytes(const struct channel *channel);

#endif
