/*
 * FastCGI records (FastCGI 1.0, section 3.3 record header, 3.4 name-value pairs,
 * 5.1 FCGI_BEGIN_REQUEST, 5.2 FCGI_PARAMS, 5.3 FCGI_STDOUT, 5.5
 * FCGI_END_REQUEST). Responses are written by the daemon for connections handed
 * over to it; requests by the command line, to look whether handlers answer. A
 * refusal leaves the buffer as it was, so a record is never cut.
 */
#include "common/fcgi_record.h"

#include <string.h>

#define RECORD_HEADER_SIZE 8u
#define RECORD_CONTENT_MAX 65528u /* the largest multiple of 8 below 64 KiB: no padding */

#define FCGI_VERSION 1
#define FCGI_BEGIN_REQUEST 1
#define FCGI_END_REQUEST 3
#define FCGI_PARAMS 4
#define FCGI_STDIN 5
#define FCGI_STDOUT 6
#define FCGI_RESPONDER 1
#define BEGIN_REQUEST_BODY_SIZE 8 /* u16 role, u8 flags, 5 reserved */
#define END_REQUEST_BODY_SIZE 8   /* u32 application status, u8 protocol status, 3 reserved */

static void put_header(uint8_t *out, uint8_t type, uint16_t request_id, size_t content_len)
{
    out[0] = FCGI_VERSION;
    out[1] = type;
    out[2] = (uint8_t)(request_id >> 8);
    out[3] = (uint8_t)(request_id & 0xff);
    out[4] = (uint8_t)(content_len >> 8);
    out[5] = (uint8_t)(content_len & 0xff);
    out[6] = 0; /* padding */
    out[7] = 0; /* reserved */
}

int fcgi_record_stdout(struct buf *out, uint16_t request_id, const void *data, size_t len)
{
    const char *next = data;
    uint8_t header[RECORD_HEADER_SIZE];
    size_t records = len / RECORD_CONTENT_MAX + (len % RECORD_CONTENT_MAX != 0);

    if (len == 0)
        return 0;
    if (len > SIZE_MAX / 2 || !buf_reserve(out, len + records * RECORD_HEADER_SIZE))
        return -1;
    while (len > 0) {
        size_t part = len < RECORD_CONTENT_MAX ? len : RECORD_CONTENT_MAX;

        put_header(header, FCGI_STDOUT, request_id, part);
        if (buf_append(out, header, sizeof(header)) < 0 || buf_append(out, next, part) < 0)
            return -1;
        next += part;
        len -= part;
    }
    return 0;
}

int fcgi_record_end(struct buf *out, uint16_t request_id)
{
    uint8_t records[RECORD_HEADER_SIZE + RECORD_HEADER_SIZE + END_REQUEST_BODY_SIZE] = {0};

    put_header(records, FCGI_STDOUT, request_id, 0);
    put_header(records + RECORD_HEADER_SIZE, FCGI_END_REQUEST, request_id, END_REQUEST_BODY_SIZE);
    /* the body's zeros: status 0, FCGI_REQUEST_COMPLETE */
    return buf_append(out, records, sizeof(records));
}

/* A length below 128 takes one byte, else four with the top bit set. */
static int put_length(struct buf *out, size_t len)
{
    if (len < 128)
        return buf_append_u8(out, (uint8_t)len);
    return buf_append_u32(out, (uint32_t)len | 0x80000000u);
}

static int put_params(struct buf *out, const char *const params[][2], size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (put_length(out, strlen(params[i][0])) < 0 ||
            put_length(out, strlen(params[i][1])) < 0 || buf_append_str(out, params[i][0]) < 0 ||
            buf_append_str(out, params[i][1]) < 0)
            return -1;
    }
    return 0;
}

int fcgi_record_request(struct buf *out, uint16_t request_id, const char *const params[][2],
                        size_t count)
{
    _cleanup_buf_ struct buf pairs = BUF_INIT(RECORD_CONTENT_MAX);
    _cleanup_buf_ struct buf records = BUF_INIT(0);
    uint8_t begin[RECORD_HEADER_SIZE + BEGIN_REQUEST_BODY_SIZE] = {0};
    uint8_t header[RECORD_HEADER_SIZE];

    if (put_params(&pairs, params, count) < 0)
        return -1;
    put_header(begin, FCGI_BEGIN_REQUEST, request_id, BEGIN_REQUEST_BODY_SIZE);
    begin[RECORD_HEADER_SIZE + 1] = FCGI_RESPONDER;
    buf_append(&records, begin, sizeof(begin));
    if (pairs.len > 0) {
        put_header(header, FCGI_PARAMS, request_id, pairs.len);
        buf_append(&records, header, sizeof(header));
        buf_append(&records, pairs.data, pairs.len);
    }
    put_header(header, FCGI_PARAMS, request_id, 0);
    buf_append(&records, header, sizeof(header));
    put_header(header, FCGI_STDIN, request_id, 0);
    buf_append(&records, header, sizeof(header));
    return records.overflowed ? -1 : buf_append(out, records.data, records.len);
}

ssize_t fcgi_record_read(const void *data, size_t len, struct fcgi_record *record)
{
    const uint8_t *header = data;
    size_t content;
    size_t whole;

    if (len > 0 && header[0] != FCGI_VERSION)
        return -1;
    if (len < RECORD_HEADER_SIZE)
        return 0;
    content = (size_t)header[4] << 8 | header[5];
    whole = RECORD_HEADER_SIZE + content + header[6];
    if (len < whole)
        return 0;
    *record = (struct fcgi_record){.is_end = header[1] == FCGI_END_REQUEST};
    if (header[1] == FCGI_STDOUT) {
        record->content = (const char *)data + RECORD_HEADER_SIZE;
        record->content_len = content;
    }
    return (ssize_t)whole;
}
