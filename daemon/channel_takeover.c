/*
 * The part of a channel that takes a guest over from a former daemon: RESYNC,
 * what the guest lists, and the claiming of what it lists. Called by channel.c
 * (frames), guest_link.c (the start) and execution.c (claims).
 *
 * Must stay true: a stream that was listed and not claimed gets no credit and
 * calls nothing back; how it ends meanwhile is kept. Memory is bounded by what
 * RESYNCED may announce.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/channel_internal.h"

/* Largest list: all that a guest can hold open, and the ends that it keeps. */
#define LISTING_MAX (WIRE_STREAMS_MAX + WIRE_OVERS_MAX)

/* --- the list ------------------------------------------------------------------------------ */

static int keep_over(struct channel *channel, const uint8_t uuid[WIRE_UUID_SIZE],
                     const struct channel_found *found, struct error *err)
{
    if (channel->overs_count == channel->overs_size)
        return error_set(err, ERR_PROTOCOL, "the guest lists more than it announced");
    memcpy(channel->over_uuids[channel->overs_count], uuid, WIRE_UUID_SIZE);
    channel->overs[channel->overs_count++] = *found;
    return 0;
}

static void saw_id(struct channel *channel, uint32_t id)
{
    if (id > channel->last_id)
        channel->last_id = id;
}

static int on_over(struct channel *channel, const struct wire_frame *frame, struct error *err)
{
    struct channel_found found = {.stream = NULL};
    struct wire_over over;

    if (wire_over_get(frame, &over, err) < 0)
        return -1;
    found.stdout_bytes = over.stdout_bytes;
    found.stderr_bytes = over.stderr_bytes;
    found.failed = over.last.type == WIRE_FAILED;
    if ((found.failed ? channel_read_failed(&over.last, &found.step, &found.errno_value, err)
                      : channel_read_exit(&over.last, &found.exit, err)) < 0)
        return -1;
    saw_id(channel, frame->stream);
    return keep_over(channel, over.uuid, &found, err);
}

static int on_live(struct channel *channel, const struct wire_frame *frame, struct error *err)
{
    struct channel_stream *stream;
    struct wire_live live;

    if (wire_live_get(frame, &live, err) < 0)
        return -1;
    if (channel->table[frame->stream & channel->mask])
        return channel_violation(err, frame, "its number is taken");
    stream = calloc(1, sizeof(*stream));
    if (!stream)
        return error_set(err, ERR_SYSTEM, "no memory for an execution");
    stream->channel = channel;
    stream->id = frame->stream;
    stream->unclaimed = true;
    stream->live = live;
    memcpy(stream->uuid, live.uuid, sizeof(stream->uuid));
    stream->state = live.state == WIRE_LIVE_STARTING ? STREAM_SENT : STREAM_RUNNING;
    stream->exec_sent = true;
    stream->has_input = (live.flags & WIRE_LIVE_STDIN) != 0;
    stream->kill_wanted = stream->kill_sent = (live.flags & WIRE_LIVE_KILLED) != 0;
    stream->out.eof = (live.flags & WIRE_LIVE_STDOUT_EOF) != 0;
    stream->err.eof = (live.flags & WIRE_LIVE_STDERR_EOF) != 0;
    saw_id(channel, stream->id);
    channel_stream_add(stream);
    return 0;
}

static int on_resynced(struct channel *channel, const struct wire_frame *frame, struct error *err)
{
    uint32_t version = wire_get_u32(frame->payload + 8);
    uint32_t count = wire_get_u32(frame->payload + 12);

    if (version != WIRE_VERSION) {
        error_set(err, ERR_PROTOCOL, "the guest speaks version %u, this daemon %u",
                  (unsigned)version, WIRE_VERSION);
        channel_end(channel, CHANNEL_FOREIGN, err);
        return 0;
    }
    if (count > LISTING_MAX)
        return channel_violation(err, frame, "an impossible number of streams");
    if (count > 0) {
        channel->overs = calloc(count, sizeof(*channel->overs));
        channel->over_uuids = calloc(count, sizeof(*channel->over_uuids));
        if (!channel->overs || !channel->over_uuids)
            return error_set(err, ERR_SYSTEM, "no memory for a guest's executions");
    }
    channel->overs_size = count;
    channel->listing_left = count;
    channel->state = CHANNEL_LISTING;
    return 0;
}

int channel_takeover_frame(struct channel *channel, const struct wire_frame *frame,
                           struct error *err)
{
    int result;

    if (channel->state == CHANNEL_RESYNC) {
        if (frame->type != WIRE_RESYNCED || wire_get_u64(frame->payload) != channel->resync_nonce)
            return 0;
        result = on_resynced(channel, frame, err);
    } else {
        if (frame->type != WIRE_LIVE && frame->type != WIRE_OVER)
            return channel_violation(err, frame, "within the list");
        channel->listing_left--;
        result =
            frame->type == WIRE_LIVE ? on_live(channel, frame, err) : on_over(channel, frame, err);
    }
    if (result == 0 && !channel->ended && channel->state == CHANNEL_LISTING &&
        channel->listing_left == 0) {
        channel->state = CHANNEL_READY;
        channel->handler->on_resynced(channel->arg);
    }
    return result;
}

int channel_takeover_over(struct channel_stream *stream, const struct channel_found *found,
                          struct error *err)
{
    struct channel *channel = stream->channel;
    struct channel_found kept = *found;
    int result;

    kept.stdout_bytes = stream->live.stdout_bytes;
    kept.stderr_bytes = stream->live.stderr_bytes;
    result = keep_over(channel, stream->uuid, &kept, err);
    channel_stream_free(stream);
    return result;
}

/* --- claiming ------------------------------------------------------------------------------ */

static bool is_same(const uint8_t a[WIRE_UUID_SIZE], const uint8_t b[WIRE_UUID_SIZE])
{
    return memcmp(a, b, WIRE_UUID_SIZE) == 0;
}

bool channel_find(const struct channel *channel, const uint8_t uuid[WIRE_UUID_SIZE],
                  struct channel_found *found)
{
    for (uint32_t i = 0; channel->overs_size > 0 && i <= channel->mask; i++) {
        struct channel_stream *stream = channel->table[i];

        if (!stream || !stream->unclaimed || !is_same(stream->uuid, uuid))
            continue;
        *found = (struct channel_found){.stream = stream,
                                        .stdout_bytes = stream->live.stdout_bytes,
                                        .stderr_bytes = stream->live.stderr_bytes,
                                        .killed = stream->kill_sent,
                                        .takes_input = stream->has_input,
                                        .stdin_bytes = stream->live.stdin_bytes};
        return true;
    }
    for (uint32_t i = 0; i < channel->overs_count; i++)
        if (is_same(channel->over_uuids[i], uuid)) {
            *found = channel->overs[i];
            return true;
        }
    return false;
}

void channel_claim(struct channel_stream *stream, struct buf *input,
                   const struct channel_stream_handler *handler, void *arg)
{
    stream->unclaimed = false;
    stream->handler = handler;
    stream->arg = arg;
    stream->out.owed = stream->err.owed = CHANNEL_WINDOW; /* granted at once */
    if (stream->has_input && input) {
        stream->input = *input;
        *input = (struct buf)BUF_INIT(input->max);
        stream->input_sent = (size_t)stream->live.stdin_bytes;
        stream->channel->outgoing_bytes += stream->input.len - stream->input_sent;
    }
    channel_stream_wake(stream);
    channel_flush(stream->channel);
}

/* --- strays -------------------------------------------------------------------------------- */

static void ignore(void *arg)
{
    (void)arg;
}

static void ignore_data(void *arg, enum wire_channel channel, const void *data, size_t len)
{
    (void)arg;
    (void)channel;
    (void)data;
    (void)len;
}

static void ignore_exit(void *arg, const struct channel_exit *result)
{
    (void)arg;
    (void)result;
}

static void ignore_failed(void *arg, enum wire_step step, int errno_value)
{
    (void)arg;
    (void)step;
    (void)errno_value;
}

static const struct channel_stream_handler stray_handler = {.on_started = ignore,
                                                            .on_data = ignore_data,
                                                            .on_exit = ignore_exit,
                                                            .on_failed = ignore_failed,
                                                            .on_lost = ignore};

void channel_abandon(struct channel_stream *stream)
{
    stream->kill_wanted = true; /* first of all, so stdin needs nothing more */
    channel_claim(stream, NULL, &stray_handler, NULL);
}

unsigned channel_kill_strays(struct channel *channel,
                             bool (*is_known)(void *arg, const uint8_t uuid[WIRE_UUID_SIZE]),
                             void *arg)
{
    unsigned count = 0;

    for (uint32_t i = 0; i <= channel->mask; i++) {
        struct channel_stream *stream = channel->table[i];

        if (!stream || !stream->unclaimed || is_known(arg, stream->uuid))
            continue;
        count++;
        channel_abandon(stream);
    }
    return count;
}

/* --- the start ----------------------------------------------------------------------------- */

struct channel *channel_take_over(struct loop *loop, int fd, void *rx, unsigned max_streams,
                                  uint64_t nonce, const struct channel_handler *handler, void *arg,
                                  struct error *err)
{
    /* The former daemon's limit may have been another: room for every number it can have given. */
    struct channel *channel =
        channel_make(loop, fd, rx, max_streams, WIRE_STREAMS_MAX, handler, arg, err);

    if (!channel)
        return NULL;
    channel->state = CHANNEL_RESYNC;
    channel->resync_pending = true;
    channel->resync_nonce = nonce;
    channel_flush(channel);
    return channel;
}
