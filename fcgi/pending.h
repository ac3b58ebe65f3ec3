/*
 * Answers that a web server takes slowly, because its client does: a handler
 * must not wait for them. child.c lends one of these to each reply and runs it
 * whenever its descriptor is readable, and at least once a second while it holds
 * something. Connections are non-blocking; memory is bounded by dropping.
 */
#ifndef PADDOCK_FCGI_PENDING_H
#define PADDOCK_FCGI_PENDING_H

#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/error.h"

/* Bytes that one handler holds for the slow. Beyond that the answer that has been held the longest
 * is dropped (its client sees it break off); a single answer may be larger. */
#define PENDING_BYTES_MAX ((size_t)64 * 1024 * 1024)
#define PENDING_COUNT_MAX 1024
/* Not a byte taken for so long: dropped. As the write time-outs of the web servers' examples. */
#define PENDING_IDLE_MS 120000

struct pending;

/* Returns NULL with err when the kernel or memory refused. */
struct pending *pending_new(struct error *err) __attribute__((warn_unused_result));
/* Drops what is still held. NULL is allowed. */
void pending_free(struct pending *p);

/* Readable when pending_run has something to do. */
int pending_fd(const struct pending *p);
size_t pending_count(const struct pending *p);
size_t pending_bytes(const struct pending *p);

/* Sends data on fd and closes it, now or later. Takes both: data is empty afterwards. */
void pending_send(struct pending *p, int fd, struct buf *data, int64_t now_ms);
/* Sends what can be sent, drops what is idle. Returns how many answers were dropped since
 * the last run, those not counted whose web server left. */
unsigned pending_run(struct pending *p, int64_t now_ms);

#endif
