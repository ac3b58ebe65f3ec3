/*
 * What a daemon that takes the guest over from a former one is told (RESYNC),
 * and what must be remembered of executions for it: the UUIDs that were begun,
 * so that none is begun twice, and the last ends, whose frames the former daemon
 * may never have read. Called by session.c and execution.c in PID 1.
 */
#include <errno.h>
#include <string.h>

#include "common/cleanup.h"
#include "guestimg/init/init.h"

_Static_assert(INIT_SEEN_MAX < UINT16_MAX, "an index and one fit 16 bits");

/* UUIDs are random and the daemon's own: any of their bits will do. */
static uint16_t *bucket_of(struct init *init, const uint8_t uuid[WIRE_UUID_SIZE])
{
    return &init->past.seen_buckets[wire_get_u32(uuid) % INIT_SEEN_BUCKETS];
}

bool takeover_has_seen(const struct init *init, const uint8_t uuid[WIRE_UUID_SIZE])
{
    const struct past *past = &init->past;
    unsigned at = past->seen_buckets[wire_get_u32(uuid) % INIT_SEEN_BUCKETS];
    while (at != 0 && memcmp(past->seen[at - 1], uuid, WIRE_UUID_SIZE) != 0)
        at = past->seen_next[at - 1];
    return at != 0;
}

/* The oldest gives way; it stands last in its chain. */
static void forget_oldest(struct init *init, unsigned index)
{
    struct past *past = &init->past;
    uint16_t *at = bucket_of(init, past->seen[index]);
    while (*at != 0 && *at != index + 1)
        at = &past->seen_next[*at - 1];
    *at = 0;
}

bool takeover_first_time(struct init *init, const uint8_t uuid[WIRE_UUID_SIZE])
{
    struct past *past = &init->past;
    unsigned index = (unsigned)(past->seen_count % INIT_SEEN_MAX);
    uint16_t *bucket;
    if (takeover_has_seen(init, uuid))
        return false;
    if (past->seen_count >= INIT_SEEN_MAX)
        forget_oldest(init, index);
    past->seen_count++;
    memcpy(past->seen[index], uuid, WIRE_UUID_SIZE);
    bucket = bucket_of(init, uuid);
    past->seen_next[index] = *bucket;
    *bucket = (uint16_t)(index + 1);
    return true;
}

void takeover_remember_end(struct init *init, const struct wire_over *over)
{
    struct over *slot = &init->past.overs[init->past.overs_count++ % WIRE_OVERS_MAX];
    slot->stream = over->last.stream;
    slot->len = (uint8_t)wire_over_put(slot->payload, over);
}

static void send_live(struct init *init, const struct execution *e)
{
    struct wire_live live = {.pid = (uint32_t)e->main_pid,
                             .stdout_bytes = e->outputs[0].sent,
                             .stderr_bytes = e->outputs[1].sent,
                             .stdin_bytes = e->input.received};
    uint8_t payload[WIRE_LIVE_SIZE];
    memcpy(live.uuid, e->uuid, WIRE_UUID_SIZE);
    live.state = e->state == EXECUTION_STARTING  ? WIRE_LIVE_STARTING
                 : e->state == EXECUTION_RUNNING ? WIRE_LIVE_RUNNING
                                                 : WIRE_LIVE_DRAINING;
    if (e->kill_overdue_ms != 0 || (e->state == EXECUTION_DRAINING && e->end.killed))
        live.flags |= WIRE_LIVE_KILLED;
    if (e->input.open)
        live.flags |= WIRE_LIVE_STDIN;
    if (e->outputs[0].ended)
        live.flags |= WIRE_LIVE_STDOUT_EOF;
    if (e->outputs[1].ended)
        live.flags |= WIRE_LIVE_STDERR_EOF;
    wire_live_put(payload, &live);
    outbox_send(init, WIRE_LIVE, 0, e->stream, payload, sizeof(payload));
}

void takeover_resync(struct init *init, uint64_t nonce)
{
    size_t overs =
        init->past.overs_count < WIRE_OVERS_MAX ? init->past.overs_count : WIRE_OVERS_MAX;
    uint8_t payload[16];
    execution_drop_unbegun(init);
    wire_put_u64(payload, nonce);
    wire_put_u32(payload + 8, WIRE_VERSION);
    wire_put_u32(payload + 12, (uint32_t)(init->executions_count + overs));
    outbox_send(init, WIRE_RESYNCED, 0, 0, payload, sizeof(payload));
    for (struct execution *e = init->executions; e; e = e->next) {
        stream_withdraw_credit(init, e);
        send_live(init, e);
    }
    for (size_t i = 0; i < overs; i++) {
        const struct over *over = &init->past.overs[i];
        outbox_send(init, WIRE_OVER, 0, over->stream, over->payload, over->len);
    }
    for (struct execution *e = init->executions; e; e = e->next)
        stream_grant_input(init, e);
}
