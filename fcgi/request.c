/*
 * Parsing of one request (see request.h). The path is taken from REQUEST_URI
 * alone, because SCRIPT_NAME and PATH_INFO are decoded and normalised
 * differently by each web server; it is decoded once, a segment at a time, and
 * that value is what routing and authorisation see. Whatever could mean two
 * things (encoded slash, dot segments, empty segments) is refused.
 */
#include "fcgi/request.h"

#include <string.h>
#include <strings.h>

#include "common/json.h"
#include "common/text.h"

#define BODY_CHUNK 16384

static const char *variable(char *const *variables, const char *name)
{
    size_t len = strlen(name);
    for (; *variables; variables++) {
        if (strncmp(*variables, name, len) == 0 && (*variables)[len] == '=')
            return *variables + len + 1;
    }
    return NULL;
}

/* A header that came twice stands twice among the variables of some web servers (others join the
 * two): what is decided on must have one value. */
static bool is_single(char *const *variables, const char *name)
{
    size_t len = strlen(name);
    unsigned count = 0;
    for (; *variables; variables++)
        count += strncmp(*variables, name, len) == 0 && (*variables)[len] == '=';
    return count <= 1;
}

/* A header without a value is none (RFC 3875, section 4.1): some web servers pass it on, some not.
 */
static const char *credential(char *const *variables, const char *name)
{
    const char *value = variable(variables, name);
    return value && *value ? value : NULL;
}

static bool has_control(const char *text)
{
    for (; *text; text++) {
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            return true;
    }
    return false;
}

/* Decodes a piece in place and refuses what no piece of a URI of ours may hold. */
static int decode(char *text, const char *what, struct error *err)
{
    int len = text_percent_decode(text);
    if (len < 0)
        return error_set(err, ERR_MALFORMED, "%s has a bad percent-encoding", what);
    if (!text_is_utf8(text, (size_t)len))
        return error_set(err, ERR_MALFORMED, "%s is not valid UTF-8", what);
    if (has_control(text))
        return error_set(err, ERR_MALFORMED, "%s has a control character", what);
    return 0;
}

static int parse_segment(struct request *req, char *segment, struct error *err)
{
    if (decode(segment, "the path", err) < 0)
        return -1;
    if (*segment == '\0')
        return error_set(err, ERR_MALFORMED, "the path has an empty segment");
    if (strchr(segment, '/'))
        return error_set(err, ERR_MALFORMED, "the path has an encoded slash");
    if (strcmp(segment, ".") == 0 || strcmp(segment, "..") == 0)
        return error_set(err, ERR_MALFORMED, "the path has a dot segment");
    if (req->segment_count == REQUEST_SEGMENTS_MAX)
        return error_set(err, ERR_NOT_FOUND, "no such resource");
    req->segments[req->segment_count++] = segment;
    return 0;
}

static int parse_path(struct request *req, char *path, struct error *err)
{
    if (strcmp(path, "/") == 0)
        return 0;
    char *rest = path + 1;
    while (rest) {
        char *slash = strchr(rest, '/');
        if (slash)
            *slash++ = '\0';
        if (parse_segment(req, rest, err) < 0)
            return -1;
        rest = slash;
    }
    return 0;
}

/* True for names that may be repeated in an error text and a JSON answer as they are. */
static bool is_quotable(const char *name)
{
    size_t len = 0;
    for (; name[len]; len++) {
        if (len >= 64 || name[len] < 0x21 || name[len] > 0x7e)
            return false;
    }
    return len > 0;
}

static int parse_param(struct request *req, char *pair, struct error *err)
{
    char *value = strchr(pair, '=');
    if (!value || value == pair)
        return error_set(err, ERR_MALFORMED, "the query is not name=value pairs joined by &");
    *value++ = '\0';
    if (decode(pair, "the query", err) < 0 || decode(value, "the query", err) < 0)
        return -1;
    if (request_query(req, pair)) {
        if (!is_quotable(pair))
            return error_set(err, ERR_MALFORMED, "a query parameter is given twice");
        return error_set_field(err, ERR_MALFORMED, pair, "the query parameter is given twice");
    }
    if (req->param_count == REQUEST_PARAMS_MAX)
        return error_set(err, ERR_LIMIT_EXCEEDED, "more than %d query parameters",
                         REQUEST_PARAMS_MAX);
    req->params[req->param_count++] = (struct request_param){.name = pair, .value = value};
    return 0;
}

static int parse_query(struct request *req, char *query, struct error *err)
{
    if (*query == '\0')
        return 0;
    char *rest = query;
    while (rest) {
        char *amp = strchr(rest, '&');
        if (amp)
            *amp++ = '\0';
        if (parse_param(req, rest, err) < 0)
            return -1;
        rest = amp;
    }
    return 0;
}

static int parse_uri(struct request *req, const char *uri, struct error *err)
{
    if (!uri || *uri != '/')
        return error_set(err, ERR_MALFORMED, "the request target is not a path");
    size_t len = strlen(uri);
    if (len > REQUEST_URI_MAX)
        return error_set(err, ERR_MALFORMED, "the request target is longer than %d bytes",
                         REQUEST_URI_MAX);
    for (size_t i = 0; i < len; i++) {
        if (uri[i] < 0x21 || uri[i] > 0x7e || uri[i] == '#' || uri[i] == '\\')
            return error_set(err, ERR_MALFORMED,
                             "the request target has a character that must be percent-encoded");
    }
    req->uri = strdup(uri);
    if (!req->uri)
        return error_set(err, ERR_INTERNAL, "out of memory");
    char *query = strchr(req->uri, '?');
    if (query)
        *query++ = '\0';
    if (parse_path(req, req->uri, err) < 0)
        return -1;
    return query ? parse_query(req, query, err) : 0;
}

int request_parse(struct request *req, char *const *variables, struct error *err)
{
    *req = (struct request){.method = "", .content_length = -1};
    const char *method = variable(variables, "REQUEST_METHOD");
    if (method)
        req->method = method;
    req->is_head = strcmp(req->method, "HEAD") == 0;
    req->authorization = credential(variables, "HTTP_AUTHORIZATION");
    req->api_key = credential(variables, "HTTP_X_API_KEY");
    req->idempotency_key = variable(variables, "HTTP_IDEMPOTENCY_KEY");
    req->prefer = variable(variables, "HTTP_PREFER");
    req->content_type = variable(variables, "CONTENT_TYPE");
    req->remote_addr = variable(variables, "REMOTE_ADDR");

    static const char *const decisive[] = {
        "REQUEST_METHOD",     "REQUEST_URI", "CONTENT_LENGTH", "CONTENT_TYPE",
        "HTTP_AUTHORIZATION", "HTTP_PREFER", "HTTP_X_API_KEY", "HTTP_IDEMPOTENCY_KEY",
    };
    for (size_t i = 0; i < ARRAY_LEN(decisive); i++) {
        if (!is_single(variables, decisive[i]))
            return error_set(err, ERR_MALFORMED, "a header is given twice");
    }
    const char *length = variable(variables, "CONTENT_LENGTH");
    if (length && *length && text_parse_i64(length, 0, INT64_MAX, &req->content_length) < 0)
        return error_set(err, ERR_MALFORMED, "Content-Length is not a number of bytes");
    return parse_uri(req, variable(variables, "REQUEST_URI"), err);
}

void request_free(struct request *req)
{
    free(req->uri);
    req->uri = NULL;
    buf_free(&req->body);
}

static bool is_json_type(const char *type)
{
    static const char json[] = "application/json";
    if (!type || strncasecmp(type, json, sizeof(json) - 1) != 0)
        return false;
    type += sizeof(json) - 1;
    type += strspn(type, " \t");
    return *type == '\0' || *type == ';';
}

static int refuse_too_large(size_t limit, struct error *err)
{
    if (limit == 0)
        return error_set(err, ERR_TOO_LARGE, "this request takes no body");
    return error_set(err, ERR_TOO_LARGE, "the body is longer than %zu bytes", limit);
}

int request_read_body(struct request *req, request_read_fn *read_fn, void *arg, size_t limit,
                      struct error *err)
{
    if (req->content_length > 0 && (uint64_t)req->content_length > limit)
        return refuse_too_large(limit, err);
    char chunk[BODY_CHUNK];
    for (;;) {
        ssize_t n = read_fn(arg, chunk, sizeof(chunk));
        if (n < 0)
            return error_set(err, ERR_MALFORMED, "the body broke off");
        if (n == 0)
            break;
        if ((size_t)n > limit - req->body.len) {
            buf_free(&req->body);
            return refuse_too_large(limit, err);
        }
        if (buf_append(&req->body, chunk, (size_t)n) < 0)
            return error_set(err, ERR_INTERNAL, "out of memory");
    }
    if (req->content_length >= 0 && (uint64_t)req->content_length != req->body.len)
        return error_set(err, ERR_MALFORMED, "the body is not as long as Content-Length says");
    if (req->body.len > 0 && !is_json_type(req->content_type))
        return error_set(err, ERR_UNSUPPORTED_MEDIA_TYPE,
                         "the body must be application/json by its Content-Type");
    return 0;
}

bool request_drain(request_read_fn *read_fn, void *arg)
{
    char chunk[BODY_CHUNK];
    for (size_t total = 0; total < REQUEST_DRAIN_MAX;) {
        ssize_t n = read_fn(arg, chunk, sizeof(chunk));
        if (n <= 0)
            return n == 0;
        total += (size_t)n;
    }
    return false;
}

json_t *request_json(const struct request *req, struct error *err)
{
    if (req->body.len == 0) {
        json_t *empty = json_object();
        if (!empty)
            error_set(err, ERR_INTERNAL, "out of memory");
        return empty;
    }
    /* The route's limit was applied when the body was read. */
    const struct json_limits limits = {
        .bytes = req->body.len, .depth = JSON_DEFAULT_DEPTH, .elements = JSON_DEFAULT_ELEMENTS};
    return json_parse_object(req->body.data, req->body.len, &limits, err);
}

const char *request_query(const struct request *req, const char *name)
{
    for (unsigned i = 0; i < req->param_count; i++) {
        if (strcmp(req->params[i].name, name) == 0)
            return req->params[i].value;
    }
    return NULL;
}

/* Is the name one of the space-separated ones? A final '*' stands for any further bytes. */
static bool name_is_allowed(const char *name, const char *allowed)
{
    size_t name_len = strlen(name);
    while (*allowed) {
        size_t len = strcspn(allowed, " ");
        if (len > 0 && allowed[len - 1] == '*') {
            if (name_len >= len && strncmp(name, allowed, len - 1) == 0)
                return true;
        } else if (len == name_len && strncmp(name, allowed, len) == 0) {
            return true;
        }
        allowed += len;
        allowed += strspn(allowed, " ");
    }
    return false;
}

int request_query_only(const struct request *req, const char *allowed, struct error *err)
{
    for (unsigned i = 0; i < req->param_count; i++) {
        const char *name = req->params[i].name;
        if (name_is_allowed(name, allowed))
            continue;
        if (!is_quotable(name))
            return error_set(err, ERR_UNKNOWN_FIELD, "unknown query parameter");
        return error_set_field(err, ERR_UNKNOWN_FIELD, name, "unknown query parameter \"%s\"",
                               name);
    }
    return 0;
}
