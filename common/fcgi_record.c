/*
 * Writes the FastCGI records of a response (FastCGI 1.0, section 3.3 record
 * header, 5.3 FCGI_STDOUT, 5.5 FCGI_END_REQUEST). Called by the daemon for
 * connections handed over to it. A refusal leaves the buffer as it was, so a
 * record is never cut.
 */
#include "common/fcgi_record.h"

#include <string.h>

#define RECORD_HEADER_SIZE 8u
#define RECORD_CONTENT_MAX 65528u /* the largest multiple of 8 below 64 KiB: no padding */

#define FCGI_VERSION 1
#define FCGI_END_REQUEST 3
#define FCGI_STDOUT 6
#define END_REQUEST_BODY_SIZE 8 /* u32 application status, u8 protocol status, 3 reserved */

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
