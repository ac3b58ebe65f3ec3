/*
 * A growable byte buffer with a ceiling. Used for bodies, frames, records.
 * Contents are bytes; buf_cstr adds a NUL behind them without counting it.
 */
#ifndef PADDOCK_COMMON_BUF_H
#define PADDOCK_COMMON_BUF_H

#include <stddef.h>
#include <stdint.h>

#include "common/cleanup.h"

struct buf {
    char *data;     /* owned */
    size_t len;     /* bytes in use */
    size_t cap;     /* bytes allocated */
    size_t max;     /* ceiling for len; 0 = none */
    int overflowed; /* set once an append was refused (ceiling or memory) */
};

#define BUF_INIT(max_bytes) {.max = (max_bytes)}

/* All appends return 0, or -1 when the ceiling or memory refused (nothing is appended then and
 * `overflowed` is set, so a caller may test once at the end). */
int buf_append(struct buf *buf, const void *data, size_t len);
int buf_append_str(struct buf *buf, const char *text);
int buf_printf(struct buf *buf, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Big-endian integers. */
int buf_append_u8(struct buf *buf, uint8_t value);
int buf_append_u16(struct buf *buf, uint16_t value);
int buf_append_u32(struct buf *buf, uint32_t value);
int buf_append_u64(struct buf *buf, uint64_t value);
/* Room for `len` more bytes; returns where to write them, or NULL. Does not change len. */
char *buf_reserve(struct buf *buf, size_t len);
/* Drops the first `len` bytes (at most all). */
void buf_consume(struct buf *buf, size_t len);
/* The contents as a C string (borrowed, valid until the next change); NULL without memory. */
const char *buf_cstr(struct buf *buf);
void buf_clear(struct buf *buf); /* len = 0, keeps the memory */
void buf_free(struct buf *buf);  /* releases; the buffer may be used again */

#define _cleanup_buf_ _cleanup_(buf_free)

#endif
