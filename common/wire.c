/*
 * The frame protocol: header, table checks, spec records. Called by the daemon
 * and by paddock-init, each on bytes the other wrote. Pure; what wire_decode and
 * wire_spec_next let through keeps every bound of wire_frames.def and wire.h.
 */
#include "common/wire.h"

#include <limits.h>
#include <stdbool.h>
#include <string.h>

/* tag (u8) and length (u32) before each record of a spec */
#define SPEC_HEADER_SIZE 5u

enum stream_rule { RULE_CONTROL, RULE_STREAM };

struct frame_rule {
    const char *name; /* NULL: no such type */
    enum wire_direction direction;
    enum stream_rule stream;
    size_t payload_min;
    size_t payload_max;
};

#define MAX WIRE_PAYLOAD_MAX
static const struct frame_rule rules[] = {
#define WIRE_FRAME(sym, value, direction, rule, min, max)                                          \
    [value] = {#sym, WIRE_##direction, RULE_##rule, (min), (max)},
#include "common/wire_frames.def"
#undef WIRE_FRAME
};
#undef MAX

static const struct frame_rule *find_rule(unsigned type)
{
    if (type >= ARRAY_LEN(rules) || !rules[type].name)
        return NULL;
    return &rules[type];
}

const char *wire_type_name(unsigned type)
{
    const struct frame_rule *rule = find_rule(type);

    return rule ? rule->name : "?";
}

static uint16_t get_u16(const uint8_t *data)
{
    return (uint16_t)((unsigned)data[0] << 8 | data[1]);
}

uint32_t wire_get_u32(const uint8_t *data)
{
    return (uint32_t)get_u16(data) << 16 | get_u16(data + 2);
}

uint64_t wire_get_u64(const uint8_t *data)
{
    return (uint64_t)wire_get_u32(data) << 32 | wire_get_u32(data + 4);
}

void wire_put_u32(uint8_t *data, uint32_t value)
{
    data[0] = (uint8_t)(value >> 24);
    data[1] = (uint8_t)(value >> 16);
    data[2] = (uint8_t)(value >> 8);
    data[3] = (uint8_t)value;
}

void wire_put_u64(uint8_t *data, uint64_t value)
{
    wire_put_u32(data, (uint32_t)(value >> 32));
    wire_put_u32(data + 4, (uint32_t)value);
}

void wire_header(uint8_t out[WIRE_HEADER_SIZE], enum wire_type type, uint8_t channel,
                 uint32_t stream)
{
    out[0] = (uint8_t)type;
    out[1] = channel;
    out[2] = 0;
    out[3] = 0;
    wire_put_u32(out + 4, stream);
}

static bool has_channel(enum wire_type type)
{
    return type == WIRE_DATA || type == WIRE_EOF || type == WIRE_CREDIT;
}

static int check_frame(const struct wire_frame *frame, enum wire_direction direction,
                       struct error *err)
{
    const struct frame_rule *rule = find_rule(frame->type);

    if (!rule)
        return error_set(err, ERR_PROTOCOL, "frame type %u is not known", (unsigned)frame->type);
    if (rule->direction != WIRE_BOTH && rule->direction != direction)
        return error_set(err, ERR_PROTOCOL, "%s may not travel to the %s", rule->name,
                         direction == WIRE_TO_GUEST ? "guest" : "host");
    if ((rule->stream == RULE_CONTROL) != (frame->stream == 0))
        return error_set(err, ERR_PROTOCOL, "%s on stream %u", rule->name, frame->stream);
    if (frame->channel > (has_channel(frame->type) ? WIRE_STDERR : 0))
        return error_set(err, ERR_PROTOCOL, "%s on channel %u", rule->name, frame->channel);
    if (frame->payload_len < rule->payload_min || frame->payload_len > rule->payload_max)
        return error_set(err, ERR_PROTOCOL, "%s with %zu bytes of payload, not %zu to %zu",
                         rule->name, frame->payload_len, rule->payload_min, rule->payload_max);
    return 0;
}

int wire_decode(const void *data, size_t len, enum wire_direction direction,
                struct wire_frame *frame, struct error *err)
{
    const uint8_t *bytes = data;

    if (len < WIRE_HEADER_SIZE || len > WIRE_FRAME_MAX)
        return error_set(err, ERR_PROTOCOL, "a frame of %zu bytes, not %u to %u", len,
                         WIRE_HEADER_SIZE, WIRE_FRAME_MAX);
    if (get_u16(bytes + 2) != 0)
        return error_set(err, ERR_PROTOCOL, "%s with flags 0x%04x", wire_type_name(bytes[0]),
                         get_u16(bytes + 2));
    frame->type = (enum wire_type)bytes[0];
    frame->channel = bytes[1];
    frame->stream = wire_get_u32(bytes + 4);
    frame->payload = bytes + WIRE_HEADER_SIZE;
    frame->payload_len = len - WIRE_HEADER_SIZE;
    return check_frame(frame, direction, err);
}

void wire_live_put(uint8_t out[WIRE_LIVE_SIZE], const struct wire_live *live)
{
    memcpy(out, live->uuid, WIRE_UUID_SIZE);
    wire_put_u32(out + 16, live->pid);
    out[20] = (uint8_t)live->state;
    out[21] = (uint8_t)live->flags;
    out[22] = out[23] = 0;
    wire_put_u64(out + 24, live->stdout_bytes);
    wire_put_u64(out + 32, live->stderr_bytes);
    wire_put_u64(out + 40, live->stdin_bytes);
}

/* A count that no daemon can record is none. */
static bool is_count(uint64_t bytes)
{
    return bytes <= INT64_MAX;
}

int wire_live_get(const struct wire_frame *frame, struct wire_live *live, struct error *err)
{
    const uint8_t *in = frame->payload;

    memcpy(live->uuid, in, WIRE_UUID_SIZE);
    live->pid = wire_get_u32(in + 16);
    live->state = (enum wire_live_state)in[20];
    live->flags = in[21];
    live->stdout_bytes = wire_get_u64(in + 24);
    live->stderr_bytes = wire_get_u64(in + 32);
    live->stdin_bytes = wire_get_u64(in + 40);
    if (in[20] < WIRE_LIVE_STARTING || in[20] > WIRE_LIVE_DRAINING ||
        (live->flags & ~WIRE_LIVE_FLAGS) != 0 || get_u16(in + 22) != 0 ||
        (live->pid == 0) != (live->state == WIRE_LIVE_STARTING) || !is_count(live->stdout_bytes) ||
        !is_count(live->stderr_bytes) || !is_count(live->stdin_bytes))
        return error_set(err, ERR_PROTOCOL, "LIVE on stream %u: no such state",
                         (unsigned)frame->stream);
    return 0;
}

/* uuid and two counts, before the last frame's type */
#define OVER_FIXED_SIZE 32u

size_t wire_over_put(uint8_t out[WIRE_OVER_MAX], const struct wire_over *over)
{
    memcpy(out, over->uuid, WIRE_UUID_SIZE);
    wire_put_u64(out + 16, over->stdout_bytes);
    wire_put_u64(out + 24, over->stderr_bytes);
    out[OVER_FIXED_SIZE] = (uint8_t)over->last.type;
    memcpy(out + OVER_FIXED_SIZE + 1, over->last.payload, over->last.payload_len);
    return OVER_FIXED_SIZE + 1 + over->last.payload_len;
}

int wire_over_get(const struct wire_frame *frame, struct wire_over *over, struct error *err)
{
    const uint8_t *in = frame->payload;

    memcpy(over->uuid, in, WIRE_UUID_SIZE);
    over->stdout_bytes = wire_get_u64(in + 16);
    over->stderr_bytes = wire_get_u64(in + 24);
    over->last = (struct wire_frame){.type = (enum wire_type)in[OVER_FIXED_SIZE],
                                     .stream = frame->stream,
                                     .payload = in + OVER_FIXED_SIZE + 1,
                                     .payload_len = frame->payload_len - OVER_FIXED_SIZE - 1};
    if ((over->last.type != WIRE_EXIT && over->last.type != WIRE_FAILED) ||
        !is_count(over->stdout_bytes) || !is_count(over->stderr_bytes))
        return error_set(err, ERR_PROTOCOL, "OVER on stream %u: no such end",
                         (unsigned)frame->stream);
    return check_frame(&over->last, WIRE_TO_HOST, err);
}

int wire_spec_put(struct buf *spec, enum wire_spec_tag tag, const void *data, size_t len)
{
    uint8_t header[SPEC_HEADER_SIZE];

    /* Room for both parts first, so that a refusal leaves no half record behind. */
    if (len > WIRE_SPEC_MAX || !buf_reserve(spec, SPEC_HEADER_SIZE + len))
        return -1;
    header[0] = (uint8_t)tag;
    wire_put_u32(header + 1, (uint32_t)len);
    if (buf_append(spec, header, sizeof(header)) < 0)
        return -1;
    return len > 0 ? buf_append(spec, data, len) : 0;
}

/* A string of 0 … limit - 1 bytes without NUL. */
static int check_string(const struct wire_record *record, const char *what, size_t limit,
                        struct error *err)
{
    if (record->len >= limit)
        return error_set(err, ERR_PROTOCOL, "spec: %s of %zu bytes, over %zu", what, record->len,
                         limit - 1);
    if (memchr(record->data, '\0', record->len))
        return error_set(err, ERR_PROTOCOL, "spec: NUL inside %s", what);
    return 0;
}

static int check_env(const struct wire_record *record, struct error *err)
{
    const uint8_t *equals;

    if (check_string(record, "an environment entry", WIRE_ARG_MAX, err) < 0)
        return -1;
    equals = memchr(record->data, '=', record->len);
    if (!equals || equals == record->data)
        return error_set(err, ERR_PROTOCOL, "spec: an environment entry is not NAME=value");
    return 0;
}

static int check_record(const struct wire_record *record, struct error *err)
{
    switch (record->tag) {
    case WIRE_SPEC_ARG:
        return check_string(record, "an argument", WIRE_ARG_MAX, err);
    case WIRE_SPEC_ENV:
        return check_env(record, err);
    case WIRE_SPEC_CWD:
        if (check_string(record, "the working directory", PATH_MAX, err) < 0)
            return -1;
        if (record->len == 0 || record->data[0] != '/')
            return error_set(err, ERR_PROTOCOL, "spec: the working directory is not absolute");
        return 0;
    case WIRE_SPEC_SCRIPT:
        return 0;
    case WIRE_SPEC_SUFFIX:
        if (check_string(record, "the suffix", WIRE_SUFFIX_MAX, err) < 0)
            return -1;
        /* it becomes part of a file name */
        if (memchr(record->data, '/', record->len))
            return error_set(err, ERR_PROTOCOL, "spec: a slash in the suffix");
        return 0;
    case WIRE_SPEC_STDIN:
        if (record->len != 0)
            return error_set(err, ERR_PROTOCOL, "spec: the stdin record is not empty");
        return 0;
    }
    return error_set(err, ERR_PROTOCOL, "spec: tag %u is not known", (unsigned)record->tag);
}

int wire_spec_next(const void *spec, size_t spec_len, size_t *offset, struct wire_record *record,
                   struct error *err)
{
    const uint8_t *bytes = spec;
    size_t left;

    if (spec_len > WIRE_SPEC_MAX)
        return error_set(err, ERR_PROTOCOL, "spec: %zu bytes, over %u", spec_len, WIRE_SPEC_MAX);
    if (*offset > spec_len)
        return error_set(err, ERR_PROTOCOL, "spec: offset past the end");
    left = spec_len - *offset;
    if (left == 0)
        return 0;
    if (left < SPEC_HEADER_SIZE)
        return error_set(err, ERR_PROTOCOL, "spec: ends inside a record's header");
    record->tag = (enum wire_spec_tag)bytes[*offset];
    record->len = wire_get_u32(bytes + *offset + 1);
    record->data = bytes + *offset + SPEC_HEADER_SIZE;
    if (record->len > left - SPEC_HEADER_SIZE)
        return error_set(err, ERR_PROTOCOL, "spec: a record of %zu bytes where %zu are left",
                         record->len, left - SPEC_HEADER_SIZE);
    if (check_record(record, err) < 0)
        return -1;
    *offset += SPEC_HEADER_SIZE + record->len;
    return 1;
}
