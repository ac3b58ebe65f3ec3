/*
 * FastCGI records of a response, for connections that libfcgi no longer holds
 * (handed over), by the FastCGI 1.0 specification, section 3.3 and 5.
 */
#ifndef PADDOCK_COMMON_FCGI_RECORD_H
#define PADDOCK_COMMON_FCGI_RECORD_H

#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"

/* Appends FCGI_STDOUT records that carry data (split at 65,528 bytes: a multiple of 8, so no
 * padding). Nothing for len 0. Returns 0, or -1 when the buffer refused. */
int fcgi_record_stdout(struct buf *out, uint16_t request_id, const void *data, size_t len);
/* Appends the empty FCGI_STDOUT and FCGI_END_REQUEST (application status 0, REQUEST_COMPLETE). */
int fcgi_record_end(struct buf *out, uint16_t request_id);

#endif
