/*
 * FastCGI records by the FastCGI 1.0 specification, section 3.3 and 5: of a
 * response, for connections that libfcgi no longer holds (handed over), and of a
 * request, for who asks the handlers without a web server.
 */
#ifndef PADDOCK_COMMON_FCGI_RECORD_H
#define PADDOCK_COMMON_FCGI_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/buf.h"

/* Appends FCGI_STDOUT records that carry data (split at 65,528 bytes: a multiple of 8, so no
 * padding). Nothing for len 0. Returns 0, or -1 when the buffer refused. */
int fcgi_record_stdout(struct buf *out, uint16_t request_id, const void *data, size_t len);
/* Appends the empty FCGI_STDOUT and FCGI_END_REQUEST (application status 0, REQUEST_COMPLETE). */
int fcgi_record_end(struct buf *out, uint16_t request_id);

/* Appends a request without a body, after which the connection is closed: FCGI_BEGIN_REQUEST (role
 * responder), FCGI_PARAMS with the names and values, FCGI_STDIN. Returns 0, or -1 when the buffer
 * refused or the parameters do not fit one record. */
int fcgi_record_request(struct buf *out, uint16_t request_id, const char *const params[][2],
                        size_t count);

/* One record of an answer. */
struct fcgi_record {
    bool is_end;         /* FCGI_END_REQUEST: nothing follows */
    const char *content; /* of FCGI_STDOUT, in the data given; NULL for other types */
    size_t content_len;
};

/* Reads the record at the beginning of data. Returns its whole length, 0 when more bytes are
 * needed, -1 when this is not FastCGI. */
ssize_t fcgi_record_read(const void *data, size_t len, struct fcgi_record *record);

#endif
