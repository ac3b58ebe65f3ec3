/*
 * One HTTP request as the web server passed it (CGI variables and a body),
 * parsed strictly and once: path segments and query from the raw REQUEST_URI,
 * the few headers anything is decided on, the body. Nothing here knows routes
 * or libfcgi. Every byte is hostile.
 */
#ifndef PADDOCK_FCGI_REQUEST_H
#define PADDOCK_FCGI_REQUEST_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/buf.h"
#include "common/error.h"

#define REQUEST_URI_MAX 8192 /* bytes, as lighttpd's default for a whole header */
#define REQUEST_SEGMENTS_MAX 16
#define REQUEST_PARAMS_MAX 64
/* A refused body is still read so that web servers see their write succeed (FastCGI peers that
 * are answered while they write report an error instead of the answer), but not without end. */
#define REQUEST_DRAIN_MAX ((size_t)64 * 1024 * 1024)

struct request_param {
    const char *name;  /* decoded, borrowed from the request */
    const char *value; /* decoded, borrowed from the request */
};

struct request {
    const char *method; /* borrowed from the CGI variables; "" when absent */
    bool is_head;
    char *uri; /* owned; cut into the decoded pieces below */
    const char *segments[REQUEST_SEGMENTS_MAX];
    unsigned segment_count;
    struct request_param params[REQUEST_PARAMS_MAX];
    unsigned param_count;
    /* Headers, NULL when absent; borrowed from the CGI variables. */
    const char *authorization;
    const char *api_key;
    const char *idempotency_key;
    const char *prefer;
    const char *content_type;
    const char *remote_addr; /* of the web server's client; NULL when it does not say */
    int64_t content_length;  /* -1: not given */
    struct buf body;
};

/* Reads up to size bytes of the body: their number, 0 at the end, -1 when the peer broke off. */
typedef ssize_t request_read_fn(void *arg, void *data, size_t size);

/* Fills req from NAME=value strings (NULL-terminated), which must outlive it. The method and the
 * headers are set even when it fails. Returns 0, or -1 with ERR_MALFORMED or ERR_NOT_FOUND. */
int request_parse(struct request *req, char *const *variables, struct error *err)
    __attribute__((warn_unused_result));
void request_free(struct request *req);

/* Reads the body to its end. Over limit: ERR_TOO_LARGE, nothing kept. Not as long as announced:
 * ERR_MALFORMED. Not JSON by its Content-Type: ERR_UNSUPPORTED_MEDIA_TYPE. */
int request_read_body(struct request *req, request_read_fn *read_fn, void *arg, size_t limit,
                      struct error *err) __attribute__((warn_unused_result));
/* Reads and drops what is left of the body, up to REQUEST_DRAIN_MAX. True at its end. */
bool request_drain(request_read_fn *read_fn, void *arg);

/* The body as a JSON object; an empty body is an empty object. New reference or NULL. */
json_t *request_json(const struct request *req, struct error *err)
    __attribute__((warn_unused_result));

/* Value of a query parameter, NULL when absent. */
const char *request_query(const struct request *req, const char *name);
/* Refuses parameters that are not in `allowed` (space-separated names; "label.*" allows every
 * name with that beginning). ERR_UNKNOWN_FIELD names the parameter. */
int request_query_only(const struct request *req, const char *allowed, struct error *err)
    __attribute__((warn_unused_result));

#endif
