/*
 * The hand-off message as JSON. Handlers encode it; the daemon decodes it and
 * trusts no field: whoever can reach the socket may send anything. One check
 * serves both ways, so nothing is sent that the other side refuses.
 */
#include "common/handoff.h"

#include <string.h>

#include "common/json.h"

#define WAIT_MAX_MS 300000

static const char *const wait_names[] = {
    [HANDOFF_SANDBOX_READY] = "sandbox_ready",
    [HANDOFF_SANDBOX_ENDED] = "sandbox_ended",
    [HANDOFF_EXECUTION_ENDED] = "execution_ended",
};

static const char *const field_names[] = {
    "wait",          "id",       "sandboxId",  "requestId",     "tokenId",
    "fcgiRequestId", "waitMs",   "statusDone", "statusPending", "replayed",
    "headOnly",      "location", NULL};

static int refuse(struct error *err, const char *field)
{
    return error_set_field(err, ERR_PROTOCOL, field, "hand-off message: bad or missing %s", field);
}

static bool status_fits(int status)
{
    return status == 200 || status == 201 || status == 202;
}

/* Visible ASCII, as a header value may be. */
static bool location_fits(const char *location)
{
    for (const char *p = location; *p; p++) {
        if (*p < 0x21 || *p > 0x7e)
            return false;
    }
    return true;
}

static bool token_id_fits(const char *id)
{
    return strlen(id) == TOKEN_ID_LEN && strspn(id, "0123456789abcdef") == TOKEN_ID_LEN;
}

static int check(const struct handoff *msg, struct error *err)
{
    if ((size_t)msg->wait >= ARRAY_LEN(wait_names))
        return refuse(err, "wait");
    if (!id_is_valid(msg->id))
        return refuse(err, "id");
    if (!id_is_valid(msg->sandbox_id))
        return refuse(err, "sandboxId");
    if (msg->wait != HANDOFF_EXECUTION_ENDED && strcmp(msg->id, msg->sandbox_id) != 0)
        return refuse(err, "sandboxId");
    if (!id_is_valid(msg->request_id))
        return refuse(err, "requestId");
    if (!token_id_fits(msg->token_id))
        return refuse(err, "tokenId");
    if (msg->fcgi_request_id == 0) /* 0 is for management records (FastCGI 1.0, section 4) */
        return refuse(err, "fcgiRequestId");
    if (msg->wait_ms < 0 || msg->wait_ms > WAIT_MAX_MS)
        return refuse(err, "waitMs");
    if (!status_fits(msg->status_done))
        return refuse(err, "statusDone");
    if (!status_fits(msg->status_pending))
        return refuse(err, "statusPending");
    if (!location_fits(msg->location))
        return refuse(err, "location");
    return 0;
}

int handoff_encode(const struct handoff *msg, char *out, size_t size, struct error *err)
{
    _cleanup_json_ json_t *json = NULL;
    size_t len;

    if (check(msg, err) < 0)
        return -1;
    json =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:I, s:i, s:i, s:b, s:b, s:s}", "wait",
                  wait_names[msg->wait], "id", msg->id, "sandboxId", msg->sandbox_id, "requestId",
                  msg->request_id, "tokenId", msg->token_id, "fcgiRequestId",
                  (int)msg->fcgi_request_id, "waitMs", (json_int_t)msg->wait_ms, "statusDone",
                  msg->status_done, "statusPending", msg->status_pending, "replayed",
                  (int)msg->replayed, "headOnly", (int)msg->head_only, "location", msg->location);
    if (!json)
        return error_set(err, ERR_INTERNAL, "out of memory");
    if (size > HANDOFF_MAX)
        size = HANDOFF_MAX;
    len = json_dumpb(json, out, size, JSON_COMPACT);
    if (len == 0 || len > size)
        return error_set(err, ERR_INTERNAL, "hand-off message: %zu bytes, over %zu", len, size);
    return (int)len;
}

static int read_text(const json_t *json, const char *field, char *out, size_t size,
                     struct error *err)
{
    const char *text;

    if (json_get_string(json, field, size - 1, &text, err) != 1)
        return refuse(err, field);
    memcpy(out, text, strlen(text) + 1);
    return 0;
}

static int read_int(const json_t *json, const char *field, int64_t max, int64_t *value,
                    struct error *err)
{
    return json_get_int(json, field, 0, max, value, err) == 1 ? 0 : refuse(err, field);
}

static int read_bool(const json_t *json, const char *field, bool *value, struct error *err)
{
    return json_get_bool(json, field, value, err) == 1 ? 0 : refuse(err, field);
}

static int read_wait(const json_t *json, enum handoff_wait *wait, struct error *err)
{
    const char *name;

    if (json_get_string(json, "wait", 64, &name, err) != 1)
        return refuse(err, "wait");
    for (size_t i = 0; i < ARRAY_LEN(wait_names); i++) {
        if (strcmp(name, wait_names[i]) == 0) {
            *wait = (enum handoff_wait)i;
            return 0;
        }
    }
    return refuse(err, "wait");
}

static int read_fields(const json_t *json, struct handoff *msg, struct error *err)
{
    int64_t fcgi_request_id;
    int64_t status_done;
    int64_t status_pending;

    if (read_wait(json, &msg->wait, err) < 0 ||
        read_text(json, "id", msg->id, sizeof(msg->id), err) < 0 ||
        read_text(json, "sandboxId", msg->sandbox_id, sizeof(msg->sandbox_id), err) < 0 ||
        read_text(json, "requestId", msg->request_id, sizeof(msg->request_id), err) < 0 ||
        read_text(json, "tokenId", msg->token_id, sizeof(msg->token_id), err) < 0 ||
        read_text(json, "location", msg->location, sizeof(msg->location), err) < 0 ||
        read_int(json, "fcgiRequestId", UINT16_MAX, &fcgi_request_id, err) < 0 ||
        read_int(json, "waitMs", WAIT_MAX_MS, &msg->wait_ms, err) < 0 ||
        read_int(json, "statusDone", 599, &status_done, err) < 0 ||
        read_int(json, "statusPending", 599, &status_pending, err) < 0 ||
        read_bool(json, "replayed", &msg->replayed, err) < 0 ||
        read_bool(json, "headOnly", &msg->head_only, err) < 0)
        return -1;
    msg->fcgi_request_id = (uint16_t)fcgi_request_id;
    msg->status_done = (int)status_done;
    msg->status_pending = (int)status_pending;
    return 0;
}

int handoff_decode(const char *data, size_t len, struct handoff *msg, struct error *err)
{
    static const struct json_limits limits = {
        .bytes = HANDOFF_MAX, .depth = 1, .elements = ARRAY_LEN(field_names)};
    _cleanup_json_ json_t *json = json_parse_object(data, len, &limits, err);

    memset(msg, 0, sizeof(*msg));
    if (!json || json_only_fields(json, field_names, err) < 0) {
        err->code = ERR_PROTOCOL;
        return error_prefix(err, "hand-off message");
    }
    if (read_fields(json, msg, err) < 0)
        return -1;
    return check(msg, err);
}
