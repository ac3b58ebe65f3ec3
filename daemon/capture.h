/*
 * What is kept of one output stream: its head and its tail, each up to half of
 * the limit, and the exact number of bytes in all. Memory grows with what
 * arrives, never beyond the limit.
 */
#ifndef PADDOCK_DAEMON_CAPTURE_H
#define PADDOCK_DAEMON_CAPTURE_H

#include <stddef.h>
#include <stdint.h>

struct capture {
    char *head; /* owned */
    size_t head_len, head_cap, head_max;
    char *tail; /* owned; a ring once tail_len == tail_max */
    size_t tail_len, tail_cap, tail_max;
    size_t tail_start; /* index of the ring's oldest byte */
    uint64_t total;    /* bytes seen in all */
};

struct capture_result {
    char *data; /* owned by the caller (free); NULL when len is 0 */
    size_t len;
    uint64_t total;     /* of the stream; total - len bytes were omitted */
    int64_t omitted_at; /* where in data they were; -1: nothing was omitted */
};

/* Keeps up to limit bytes (at least 2). Allocates nothing yet. */
void capture_init(struct capture *capture, size_t limit);
/* Before anything else: so many bytes of the stream went by unseen. They are omitted at the start,
 * and all that is kept is the tail of the rest. */
void capture_skip(struct capture *capture, uint64_t bytes);
/* Cannot fail: without memory the bytes count as omitted. */
void capture_append(struct capture *capture, const void *data, size_t len);
/* Moves the kept bytes out and releases the rest. Where bytes were omitted and what is around the
 * cut is UTF-8, the cut is moved so that no character is split. */
void capture_finish(struct capture *capture, struct capture_result *result);
void capture_free(struct capture *capture);

#endif
