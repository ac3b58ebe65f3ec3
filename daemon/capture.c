/*
 * Head and tail retention of an execution's stdout or stderr. The head fills
 * first; what follows goes into the tail, which becomes a ring when it is full.
 * Called by execution.c with bytes of a guest: any content, any amount.
 *
 * Must stay true: total is exact; head_max + tail_max never exceeds the limit.
 */
#include "daemon/capture.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/text.h"

#define CAPTURE_FIRST_BYTES 1024u
#define UTF8_CONTINUATIONS_MAX 3u

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

void capture_init(struct capture *capture, size_t limit)
{
    *capture = (struct capture){.head_max = limit / 2, .tail_max = limit - limit / 2};
}

void capture_skip(struct capture *capture, uint64_t bytes)
{
    if (bytes == 0)
        return;
    capture->total += bytes;
    capture->tail_max += capture->head_max;
    capture->head_max = 0;
}

/* Room for want bytes in all (at most max), doubling. Without memory max becomes what there is. */
static void grow(char **data, size_t *cap, size_t *max, size_t want)
{
    size_t size = *cap ? *cap : CAPTURE_FIRST_BYTES;
    char *grown;

    want = min_size(want, *max);
    if (want <= *cap)
        return;
    while (size < want)
        size *= 2;
    size = min_size(size, *max);
    grown = realloc(*data, size);
    if (!grown) {
        *max = *cap;
        return;
    }
    *data = grown;
    *cap = size;
}

static size_t append_head(struct capture *capture, const char *data, size_t len)
{
    size_t take;

    grow(&capture->head, &capture->head_cap, &capture->head_max, capture->head_len + len);
    take = min_size(len, capture->head_max - capture->head_len);
    if (take > 0)
        memcpy(capture->head + capture->head_len, data, take);
    capture->head_len += take;
    return take;
}

/* The tail is full: the oldest bytes give way. */
static void ring_append(struct capture *capture, const char *data, size_t len)
{
    size_t first;

    if (len > capture->tail_max) {
        data += len - capture->tail_max;
        len = capture->tail_max;
    }
    if (len == 0)
        return;
    first = min_size(len, capture->tail_max - capture->tail_start);
    memcpy(capture->tail + capture->tail_start, data, first);
    if (len > first)
        memcpy(capture->tail, data + first, len - first);
    capture->tail_start = (capture->tail_start + len) % capture->tail_max;
}

void capture_append(struct capture *capture, const void *data, size_t len)
{
    const char *bytes = data;
    size_t take;

    capture->total += len;
    if (capture->head_len < capture->head_max) {
        take = append_head(capture, bytes, len);
        bytes += take;
        len -= take;
    }
    if (len == 0)
        return;
    grow(&capture->tail, &capture->tail_cap, &capture->tail_max, capture->tail_len + len);
    take = min_size(len, capture->tail_max - capture->tail_len);
    if (take > 0)
        memcpy(capture->tail + capture->tail_len, bytes, take);
    capture->tail_len += take;
    ring_append(capture, bytes + take, len - take);
}

/* Do the len bytes begin a UTF-8 character without completing it? */
static bool is_cut_character(const unsigned char *data, size_t len)
{
    unsigned lead = data[0];
    size_t need = lead >= 0xc2 && lead <= 0xdf   ? 2
                  : lead >= 0xe0 && lead <= 0xef ? 3
                  : lead >= 0xf0 && lead <= 0xf4 ? 4
                                                 : 0;

    if (len >= need)
        return false;
    for (size_t i = 1; i < len; i++)
        if ((data[i] & 0xc0) != 0x80)
            return false;
    return true;
}

/* The head's length without a character that the cut split; unchanged unless the head is UTF-8. */
static size_t trim_head(const char *head, size_t len)
{
    size_t whole = len > 0 ? text_utf8_prefix(head, len) : 0;

    if (whole < len && is_cut_character((const unsigned char *)head + whole, len - whole))
        return whole;
    return len;
}

/* Bytes to drop before the tail so that it begins with a character; 0 unless the rest is UTF-8. */
static size_t trim_tail(const char *tail, size_t len)
{
    size_t skip = 0;

    if (len == 0)
        return 0;
    while (skip < len && skip < UTF8_CONTINUATIONS_MAX &&
           ((unsigned char)tail[skip] & 0xc0) == 0x80)
        skip++;
    return text_is_utf8(tail + skip, len - skip) ? skip : 0;
}

/* The ring in order, at its start; false without memory. */
static bool unroll_tail(struct capture *capture)
{
    size_t older = capture->tail_len - capture->tail_start;
    char *flat;

    if (capture->tail_start == 0)
        return true;
    flat = malloc(capture->tail_len);
    if (!flat)
        return false;
    memcpy(flat, capture->tail + capture->tail_start, older);
    memcpy(flat + older, capture->tail, capture->tail_start);
    free(capture->tail);
    capture->tail = flat;
    capture->tail_start = 0;
    return true;
}

/* Puts the tail behind the head in the head's memory; false without memory. */
static bool join(struct capture *capture, size_t skip)
{
    size_t tail_len = capture->tail_len - skip;
    char *joined;

    if (tail_len == 0)
        return true;
    joined = realloc(capture->head, capture->head_len + tail_len);
    if (!joined)
        return false;
    memcpy(joined + capture->head_len, capture->tail + skip, tail_len);
    capture->head = joined;
    capture->head_len += tail_len;
    return true;
}

void capture_finish(struct capture *capture, struct capture_result *result)
{
    bool omitted = capture->total > (uint64_t)capture->head_len + capture->tail_len;
    size_t cut = capture->head_len;
    size_t skip = 0;

    if (!unroll_tail(capture)) {
        omitted = true;
        capture->tail_len = 0;
    }
    if (omitted) {
        cut = capture->head_len = trim_head(capture->head, capture->head_len);
        skip = trim_tail(capture->tail, capture->tail_len);
    }
    if (!join(capture, skip) && !omitted) {
        omitted = true;
        cut = capture->head_len = trim_head(capture->head, capture->head_len);
    }
    *result = (struct capture_result){
        .data = capture->head,
        .len = capture->head_len,
        .total = capture->total,
        .omitted_at = omitted ? (int64_t)cut : -1,
    };
    capture->head = NULL; /* it is the result's now */
    if (result->len == 0) {
        free(result->data);
        result->data = NULL;
    }
    capture_free(capture);
}

void capture_free(struct capture *capture)
{
    free(capture->head);
    free(capture->tail);
    *capture = (struct capture){.head = NULL};
}
