/*
 * The growable byte buffer. Every program assembles bodies, frames and records
 * in it, from lengths that strangers choose; so each growth is checked against
 * the ceiling and against overflow before anything is copied, and a refused
 * append leaves the contents as they were. Nothing here depends on other
 * modules: the guest's init links it too.
 */
#include "common/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define BUF_CAP_MIN 64

static int buf_refuse(struct buf *buf)
{
    buf->overflowed = 1;
    return -1;
}

/* Memory for len + more + spare bytes. The ceiling counts `more` but not `spare`, which is room
 * for a NUL behind the contents. */
static int buf_grow(struct buf *buf, size_t more, size_t spare)
{
    if (more > SIZE_MAX - buf->len)
        return -1;
    size_t len = buf->len + more;
    if ((buf->max > 0 && len > buf->max) || len > PTRDIFF_MAX - spare)
        return -1;
    size_t need = len + spare;
    if (need <= buf->cap && buf->data)
        return 0;

    size_t cap = buf->cap > BUF_CAP_MIN ? buf->cap : BUF_CAP_MIN;
    while (cap < need)
        cap *= 2; /* cannot wrap: need is at most PTRDIFF_MAX */
    /* Doubling shall not reserve what the ceiling forbids to use. */
    if (buf->max > 0 && cap > need && cap - 1 > buf->max)
        cap = need > buf->max ? need : buf->max + 1;
    char *data = realloc(buf->data, cap);
    if (!data)
        return -1;
    buf->data = data;
    buf->cap = cap;
    return 0;
}

int buf_append(struct buf *buf, const void *data, size_t len)
{
    if (len == 0)
        return 0;
    if (buf_grow(buf, len, 0) < 0)
        return buf_refuse(buf);
    memcpy(buf->data + buf->len, data, len);
    buf->len += len;
    return 0;
}

int buf_append_str(struct buf *buf, const char *text)
{
    return buf_append(buf, text, strlen(text));
}

int buf_printf(struct buf *buf, const char *fmt, ...)
{
    va_list args;

    /* Most texts are short: try the memory that is there, and measure at the same time. */
    size_t room = buf->data ? buf->cap - buf->len : 0;
    va_start(args, fmt);
    int wanted = vsnprintf(room ? buf->data + buf->len : NULL, room, fmt, args);
    va_end(args);
    if (wanted < 0)
        return buf_refuse(buf);
    size_t len = (size_t)wanted;
    if (buf_grow(buf, len, 1) < 0)
        return buf_refuse(buf);
    if (len >= room) {
        va_start(args, fmt);
        int written = vsnprintf(buf->data + buf->len, len + 1, fmt, args);
        va_end(args);
        if (written != wanted)
            return buf_refuse(buf);
    }
    buf->len += len;
    return 0;
}

int buf_append_u8(struct buf *buf, uint8_t value)
{
    return buf_append(buf, &value, 1);
}

int buf_append_u16(struct buf *buf, uint16_t value)
{
    const uint8_t bytes[2] = {(uint8_t)(value >> 8), (uint8_t)(value & 0xff)};

    return buf_append(buf, bytes, sizeof(bytes));
}

int buf_append_u32(struct buf *buf, uint32_t value)
{
    uint8_t bytes[4];

    for (unsigned i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(value >> (24 - 8 * i));
    return buf_append(buf, bytes, sizeof(bytes));
}

int buf_append_u64(struct buf *buf, uint64_t value)
{
    uint8_t bytes[8];

    for (unsigned i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(value >> (56 - 8 * i));
    return buf_append(buf, bytes, sizeof(bytes));
}

char *buf_reserve(struct buf *buf, size_t len)
{
    if (buf_grow(buf, len, 0) < 0) {
        buf->overflowed = 1;
        return NULL;
    }
    return buf->data + buf->len;
}

void buf_consume(struct buf *buf, size_t len)
{
    if (len >= buf->len) {
        buf->len = 0;
        return;
    }
    if (len == 0)
        return;
    memmove(buf->data, buf->data + len, buf->len - len);
    buf->len -= len;
}

const char *buf_cstr(struct buf *buf)
{
    if (buf_grow(buf, 0, 1) < 0)
        return NULL;
    buf->data[buf->len] = '\0';
    return buf->data;
}

void buf_clear(struct buf *buf)
{
    buf->len = 0;
    buf->overflowed = 0;
}

void buf_free(struct buf *buf)
{
    free(buf->data);
    buf->data = NULL;
    buf->len = 0;
    buf->cap = 0;
    buf->overflowed = 0;
}
