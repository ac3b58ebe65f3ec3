/*
 * Frames in both directions and the records of a spec: what is decoded lies
 * within the input and is within the table's bounds, and a spec that was read
 * record by record is the same when it is written again.
 */
#include <string.h>

#include "common/wire.h"
#include "tests/fuzz/fuzz.h"

/* What a guest tells about its streams is, when it is taken, the same when it is written again. */
static void read_again(const struct wire_frame *frame)
{
    uint8_t live_bytes[WIRE_LIVE_SIZE];
    uint8_t over_bytes[WIRE_OVER_MAX];
    struct error err = ERROR_INIT;
    struct wire_live live;
    struct wire_over over;

    if (frame->type == WIRE_LIVE && wire_live_get(frame, &live, &err) == 0) {
        wire_live_put(live_bytes, &live);
        MUST(memcmp(live_bytes, frame->payload, sizeof(live_bytes)) == 0);
    }
    if (frame->type == WIRE_OVER && wire_over_get(frame, &over, &err) == 0) {
        MUST(over.last.type == WIRE_EXIT || over.last.type == WIRE_FAILED);
        MUST(wire_over_put(over_bytes, &over) == frame->payload_len);
        MUST(memcmp(over_bytes, frame->payload, frame->payload_len) == 0);
    }
}

static void decode(struct fuzz_input in, enum wire_direction direction)
{
    struct error err = ERROR_INIT;
    struct wire_frame frame;
    uint8_t header[WIRE_HEADER_SIZE];

    if (wire_decode(in.data, in.len, direction, &frame, &err) < 0) {
        MUST(error_is_set(&err) && err.code == ERR_PROTOCOL);
        return;
    }
    MUST(in.len <= WIRE_FRAME_MAX && frame.payload_len == in.len - WIRE_HEADER_SIZE);
    MUST(frame.payload_len == 0 || frame.payload == in.data + WIRE_HEADER_SIZE);
    MUST(strcmp(wire_type_name(frame.type), "?") != 0);
    wire_header(header, frame.type, frame.channel, frame.stream);
    MUST(memcmp(header, in.data, sizeof(header)) == 0);
    read_again(&frame);
}

static void read_spec(struct fuzz_input in)
{
    struct buf again = BUF_INIT(0);
    struct error err = ERROR_INIT;
    struct wire_record record;
    size_t offset = 0;
    int result;

    while ((result = wire_spec_next(in.data, in.len, &offset, &record, &err)) > 0) {
        MUST(offset <= in.len && record.len <= in.len);
        MUST(record.len == 0 ||
             (record.data >= in.data && record.data + record.len <= in.data + in.len));
        MUST(wire_spec_put(&again, record.tag, record.data, record.len) == 0);
    }
    MUST(result == 0 || error_is_set(&err));
    if (result == 0)
        MUST(again.len == in.len && (in.len == 0 || memcmp(again.data, in.data, in.len) == 0));
    buf_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};

    switch (fuzz_u8(&in) % 3) {
    case 0:
        decode(in, WIRE_TO_GUEST);
        break;
    case 1:
        decode(in, WIRE_TO_HOST);
        break;
    default:
        read_spec(in);
        break;
    }
    return 0;
}
