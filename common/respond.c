/*
 * HTTP answers as CGI text. Called by the FastCGI handlers and by the daemon for
 * handed-over connections, so that both speak alike. What must stay true: no
 * value breaks out of its header line; an answer is appended whole or not at
 * all; what is internal plumbing never reaches a client.
 */
#include "common/respond.h"

#include <stdio.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/json.h"
#include "common/text.h"

#define PROBLEM_TYPE_PREFIX "urn:paddock:error:"

static const struct {
    int status;
    const char *reason; /* RFC 9110, section 15; 429: RFC 6585 */
} reasons[] = {
    {200, "OK"},
    {201, "Created"},
    {202, "Accepted"},
    {204, "No Content"},
    {206, "Partial Content"},
    {304, "Not Modified"},
    {400, "Bad Request"},
    {401, "Unauthorized"},
    {403, "Forbidden"},
    {404, "Not Found"},
    {405, "Method Not Allowed"},
    {409, "Conflict"},
    {410, "Gone"},
    {411, "Length Required"},
    {412, "Precondition Failed"},
    {413, "Content Too Large"},
    {415, "Unsupported Media Type"},
    {416, "Range Not Satisfiable"},
    {422, "Unprocessable Content"},
    {429, "Too Many Requests"},
    {500, "Internal Server Error"},
    {501, "Not Implemented"},
    {502, "Bad Gateway"},
    {503, "Service Unavailable"},
    {504, "Gateway Timeout"},
};

const char *respond_reason(int status)
{
    for (size_t i = 0; i < ARRAY_LEN(reasons); i++) {
        if (reasons[i].status == status)
            return reasons[i].reason;
    }
    return "Unknown";
}

/* A header line, unless value is NULL or empty. A value with a control or non-ASCII byte is
 * dropped: it could end the line and forge another. */
static void put_header(struct buf *out, const char *name, const char *value)
{
    if (!value || value[0] == '\0')
        return;
    for (const char *p = value; *p; p++) {
        if (*p < 0x20 || *p > 0x7e)
            return;
    }
    buf_printf(out, "%s: %s\r\n", name, value);
}

static void put_head(struct buf *out, int status, const struct answer_meta *meta, const char *type,
                     size_t body_len)
{
    buf_printf(out, "Status: %d %s\r\n", status, respond_reason(status));
    put_header(out, "Content-Type", type);
    buf_printf(out, "Content-Length: %zu\r\n", body_len);
    put_header(out, "X-Request-Id", meta->request_id);
    put_header(out, "Cache-Control", "no-store");
    put_header(out, "X-Content-Type-Options", "nosniff");
    put_header(out, "Location", meta->location);
    put_header(out, "Allow", meta->allow);
    if (meta->replayed)
        put_header(out, "Idempotency-Replayed", "true");
}

/* Head, `more` (further header lines), body. */
static int put_answer(struct buf *out, int status, const struct answer_meta *meta, const char *type,
                      const char *more, const json_t *body)
{
    _cleanup_free_ char *text = body ? json_dumps(body, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    size_t begin = out->len;
    int overflowed_before = out->overflowed;
    size_t len;

    if (!text)
        return -1;
    len = strlen(text);
    out->overflowed = 0;
    put_head(out, status, meta, type, len + 1);
    buf_append_str(out, more);
    buf_append_str(out, "\r\n");
    if (!meta->head_only) {
        buf_append(out, text, len);
        buf_append_str(out, "\n");
    }
    if (out->overflowed) {
        out->len = begin;
        return -1;
    }
    out->overflowed = overflowed_before;
    return 0;
}

int respond_json(struct buf *out, int status, const struct answer_meta *meta, const json_t *body)
{
    return put_answer(out, status, meta, "application/json", "", body);
}

/* The error as a client may see it: plumbing keeps its texts (paths, peers) for the log. */
static void make_public(const struct error *err, struct error *shown)
{
    *shown = *err;
    switch ((int)err->code) {
    case ERR_NONE:
    case ERR_CONFIG:
    case ERR_SYSTEM:
    case ERR_PROTOCOL:
    case ERR_PREFLIGHT:
        error_set(shown, ERR_INTERNAL, "the server's log tells more under this request id");
        break;
    case ERR_CONFLICT:
    case ERR_DATABASE_UNAVAILABLE:
        error_set(shown, ERR_DATABASE_UNAVAILABLE, "the database cannot take the request now");
        shown->retry_after_ms = err->retry_after_ms > 0 ? err->retry_after_ms : 1000;
        break;
    default:
        break;
    }
}

/* A JSON string of the text's valid part; texts may have been cut. */
static json_t *safe_string(const char *text)
{
    return json_stringn(text, text_utf8_prefix(text, strlen(text)));
}

static json_t *problem_body(const struct error *err, const char *request_id)
{
    const char *name = error_code_name(err->code);
    char type[128];
    json_t *body;

    (void)snprintf(type, sizeof(type), PROBLEM_TYPE_PREFIX "%s", name);
    body = json_pack("{s:s, s:s, s:i, s:o*, s:s}", "type", type, "title",
                     error_code_title(err->code), "status", error_code_status(err->code), "detail",
                     err->detail[0] ? safe_string(err->detail) : NULL, "code", name);
    if (!body)
        return NULL;
    /* A member that memory refuses is left out; the answer is still true. */
    if (request_id && request_id[0])
        json_object_set_new(body, "requestId", safe_string(request_id));
    if (err->field[0])
        json_object_set_new(body, "field", safe_string(err->field));
    if (err->retry_after_ms > 0)
        json_object_set_new(body, "retryAfterMs", json_integer(err->retry_after_ms));
    return body;
}

int respond_problem(struct buf *out, const struct error *err, const struct answer_meta *meta)
{
    _cleanup_json_ json_t *body = NULL;
    struct error shown;
    char more[128] = "";
    int status;

    make_public(err, &shown);
    status = error_code_status(shown.code);
    if (shown.retry_after_ms > 0)
        (void)snprintf(
            more, sizeof(more), "Retry-After: %jd\r\n",
            (intmax_t)(shown.retry_after_ms / 1000 + (shown.retry_after_ms % 1000 != 0)));
    else if (status == 401)
        (void)snprintf(more, sizeof(more), "WWW-Authenticate: Bearer\r\n");
    body = problem_body(&shown, meta->request_id);
    return put_answer(out, status, meta, "application/problem+json", more, body);
}
