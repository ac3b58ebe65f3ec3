/*
 * The frame protocol between the daemon and paddock-init, as pure encode and
 * decode: no I/O, no allocation beyond struct buf. The frame types are
 * wire_frames.def. Both peers treat the other's bytes as hostile: a frame that
 * wire_decode refuses, or that comes in a state that does not allow it, is a
 * protocol violation and ends the guest.
 *
 * Credit: a sender may have at most the granted number of DATA payload bytes
 * outstanding a channel; the receiver grants more by CREDIT as it consumes.
 * Exceeding it is a violation, so no peer can make the other buffer more than
 * the window.
 */
#ifndef PADDOCK_COMMON_WIRE_H
#define PADDOCK_COMMON_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/error.h"

#define WIRE_VERSION 2u
#define WIRE_HEADER_SIZE 8u
#define WIRE_FRAME_MAX 65536u /* header and payload */
#define WIRE_PAYLOAD_MAX (WIRE_FRAME_MAX - WIRE_HEADER_SIZE)
#define WIRE_UUID_SIZE 16u
/* Streams that a guest opens at once, and ends that it tells to a daemon which takes it over. */
#define WIRE_STREAMS_MAX 4096u
#define WIRE_OVERS_MAX 256u
/* An execution's spec: argv, environment and script together. Linux itself allows 2 MiB of argv
 * and env on the default stack limit (execve(2)); the script may be as long again and more. */
#define WIRE_SPEC_MAX (16u << 20)
/* One argument or NAME=value string, with its NUL: MAX_ARG_STRLEN of Linux (execve(2)). */
#define WIRE_ARG_MAX 131072u

enum wire_channel { WIRE_STDIN = 0, WIRE_STDOUT = 1, WIRE_STDERR = 2 };
enum wire_direction { WIRE_TO_GUEST, WIRE_TO_HOST, WIRE_BOTH };

enum wire_type {
#define WIRE_FRAME(sym, value, direction, rule, min, max) WIRE_##sym = (value),
#include "common/wire_frames.def"
#undef WIRE_FRAME
};

/* Where starting an execution failed (FAILED frame). */
enum wire_step {
    WIRE_STEP_SPEC = 1,
    WIRE_STEP_FORK = 2,
    WIRE_STEP_CWD = 3,
    WIRE_STEP_SCRIPT = 4,
    WIRE_STEP_EXEC = 5
};

struct wire_frame {
    enum wire_type type;
    uint8_t channel;
    uint32_t stream;
    const uint8_t *payload; /* borrowed from the decoded bytes */
    size_t payload_len;
};

/* Checks one received message against the table: known type, allowed for a frame that travels
 * `direction` (WIRE_TO_GUEST or WIRE_TO_HOST), flags 0, stream rule, payload bounds, channel
 * (0 unless DATA, EOF or CREDIT, whose channel must be 0..2). ERR_PROTOCOL otherwise. */
int wire_decode(const void *data, size_t len, enum wire_direction direction,
                struct wire_frame *frame, struct error *err) __attribute__((warn_unused_result));
/* "DATA"; "?" for an unknown value. */
const char *wire_type_name(unsigned type);

/* Writes the 8-byte header. */
void wire_header(uint8_t out[WIRE_HEADER_SIZE], enum wire_type type, uint8_t channel,
                 uint32_t stream);
/* Big-endian reads for payload fields; the caller checked the length. */
uint32_t wire_get_u32(const uint8_t *data);
uint64_t wire_get_u64(const uint8_t *data);
void wire_put_u32(uint8_t *data, uint32_t value);
void wire_put_u64(uint8_t *data, uint64_t value);

/* --- what a guest tells the daemon that takes it over --------------------------------------- */

enum wire_live_state {
    WIRE_LIVE_STARTING = 1, /* its spec is complete; STARTED or FAILED follows */
    WIRE_LIVE_RUNNING = 2,
    WIRE_LIVE_DRAINING = 3, /* its main process ended; the last output and EXIT follow */
};
enum wire_live_flag {
    WIRE_LIVE_KILLED = 1,     /* KILL came */
    WIRE_LIVE_STDIN = 2,      /* stdin takes DATA and EOF */
    WIRE_LIVE_STDOUT_EOF = 4, /* EOF was sent */
    WIRE_LIVE_STDERR_EOF = 8,
};
#define WIRE_LIVE_FLAGS 15u
#define WIRE_LIVE_SIZE 48u

/* u8[16] uuid, u32 process id (0 while starting), u8 state, u8 flags, u16 0, u64 bytes of stdout
 * and u64 of stderr that were sent so far, u64 bytes of stdin that were received. */
struct wire_live {
    uint8_t uuid[WIRE_UUID_SIZE];
    uint32_t pid;
    enum wire_live_state state;
    unsigned flags; /* enum wire_live_flag */
    uint64_t stdout_bytes;
    uint64_t stderr_bytes;
    uint64_t stdin_bytes;
};

void wire_live_put(uint8_t out[WIRE_LIVE_SIZE], const struct wire_live *live);
/* ERR_PROTOCOL for a state, flags or a process id that cannot be. */
int wire_live_get(const struct wire_frame *frame, struct wire_live *live, struct error *err)
    __attribute__((warn_unused_result));

#define WIRE_OVER_MAX 53u

/* u8[16] uuid, u64 bytes of stdout and u64 of stderr that were sent in all, u8 type of the last
 * frame (EXIT or FAILED), and that frame's payload. */
struct wire_over {
    uint8_t uuid[WIRE_UUID_SIZE];
    uint64_t stdout_bytes;
    uint64_t stderr_bytes;
    struct wire_frame last; /* of the same stream; its payload is borrowed */
};

/* Returns the length. */
size_t wire_over_put(uint8_t out[WIRE_OVER_MAX], const struct wire_over *over);
/* ERR_PROTOCOL when there is no such last frame, or its length is wrong. */
int wire_over_get(const struct wire_frame *frame, struct wire_over *over, struct error *err)
    __attribute__((warn_unused_result));

/* --- the spec of an execution ------------------------------------------------------------- */
/* A run of records: u8 tag, u32 length, bytes. Strings are without NUL. */
enum wire_spec_tag {
    WIRE_SPEC_ARG = 1,    /* one argument; repeats, in order; at least one */
    WIRE_SPEC_ENV = 2,    /* one NAME=value; repeats */
    WIRE_SPEC_CWD = 3,    /* absolute path; once at most; default /workspace */
    WIRE_SPEC_SCRIPT = 4, /* source text, written to a file whose path becomes the last argument */
    WIRE_SPEC_SUFFIX = 5, /* suffix of that file's name: ".mjs", ".py", ".sh" */
    WIRE_SPEC_STDIN = 6,  /* empty; the stdin channel is open for DATA (else /dev/null) */
};

/* A suffix has less than this many bytes, and no slash. */
#define WIRE_SUFFIX_MAX 16u

int wire_spec_put(struct buf *spec, enum wire_spec_tag tag, const void *data, size_t len);

/* Steps through a spec. *offset starts at 0. Returns 1 and a record, 0 at the end, -1 with
 * ERR_PROTOCOL (unknown tag, length past the end, NUL inside a string, string over its limit). */
struct wire_record {
    enum wire_spec_tag tag;
    const uint8_t *data; /* borrowed */
    size_t len;
};
int wire_spec_next(const void *spec, size_t spec_len, size_t *offset, struct wire_record *record,
                   struct error *err) __attribute__((warn_unused_result));

#endif
