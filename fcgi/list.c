/*
 * Lists (see list.h). Called by the list handlers. Whatever reaches SQL from
 * here was checked to the last character, so that a hostile value is a 400 with
 * its name, never a database error.
 */
#include "fcgi/list.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/db.h"
#include "common/json.h"
#include "common/states.h"
#include "common/text.h"

/* 9999-12-31T23:59:59.999999Z; beyond it the database's own arithmetic could fail. */
#define CURSOR_US_MAX INT64_C(253402300799999999)

static const char base64url[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

static int hex_value(char c)
{
    return c <= '9' ? c - '0' : c - 'a' + 10;
}

void list_cursor_encode(int64_t created_us, const char *id, char out[LIST_CURSOR_LEN + 1])
{
    uint8_t raw[24];
    for (unsigned i = 0; i < 8; i++)
        raw[i] = (uint8_t)((uint64_t)created_us >> (56 - 8 * i));
    for (unsigned i = 8; i < 24; i++) {
        id += *id == '-';
        raw[i] = (uint8_t)(hex_value(id[0]) << 4 | hex_value(id[1]));
        id += 2;
    }
    for (unsigned i = 0, at = 0; i < 24; i += 3) {
        uint32_t group = (uint32_t)raw[i] << 16 | (uint32_t)raw[i + 1] << 8 | raw[i + 2];
        for (int shift = 18; shift >= 0; shift -= 6)
            out[at++] = base64url[group >> shift & 63];
    }
    out[LIST_CURSOR_LEN] = '\0';
}

int list_cursor_decode(const char *text, int64_t *created_us, char id[ID_SIZE])
{
    uint8_t raw[24];
    if (strlen(text) != LIST_CURSOR_LEN)
        return -1;
    for (unsigned i = 0, at = 0; i < LIST_CURSOR_LEN; i += 4) {
        uint32_t group = 0;
        for (unsigned k = 0; k < 4; k++) {
            const char *found = strchr(base64url, text[i + k]);
            if (!found)
                return -1;
            group = group << 6 | (uint32_t)(found - base64url);
        }
        raw[at++] = (uint8_t)(group >> 16);
        raw[at++] = (uint8_t)(group >> 8);
        raw[at++] = (uint8_t)group;
    }
    uint64_t us = 0;
    for (unsigned i = 0; i < 8; i++)
        us = us << 8 | raw[i];
    if (us > (uint64_t)CURSOR_US_MAX)
        return -1;
    *created_us = (int64_t)us;
    char *out = id;
    for (unsigned i = 8; i < 24; i++) {
        if (i == 12 || i == 14 || i == 16 || i == 18)
            *out++ = '-';
        text_hex(&raw[i], 1, out);
        out += 2;
    }
    *out = '\0';
    return 0;
}

bool list_label_key_is_valid(const char *key)
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._/-";
    size_t len = strlen(key);
    return len >= 1 && len <= LIST_LABEL_KEY_MAX && strspn(key, allowed) == len;
}

static int parse_labels(const struct request *req, struct list_query *query, struct error *err)
{
    static const char prefix[] = "label.";
    _cleanup_json_ json_t *labels = NULL;
    for (unsigned i = 0; i < req->param_count; i++) {
        const struct request_param *param = &req->params[i];
        if (strncmp(param->name, prefix, sizeof(prefix) - 1) != 0)
            continue;
        const char *key = param->name + sizeof(prefix) - 1;
        if (!list_label_key_is_valid(key) || strlen(param->value) > LIST_LABEL_VALUE_MAX)
            return error_set_field(err, ERR_INVALID_FIELD, "label",
                                   "a label filter is a key of 1 to %d bytes of letters, digits "
                                   "and ._/- with a value of up to %d bytes",
                                   LIST_LABEL_KEY_MAX, LIST_LABEL_VALUE_MAX);
        if (!labels)
            labels = json_object();
        if (json_object_set_new(labels, key, json_string(param->value)) < 0)
            return error_set(err, ERR_INTERNAL, "out of memory");
    }
    if (labels) {
        query->labels = json_canonical(labels);
        if (!query->labels)
            return error_set(err, ERR_INTERNAL, "out of memory");
    }
    return 0;
}

static int parse_state(const struct request *req, enum list_kind kind, struct list_query *query,
                       struct error *err)
{
    enum sandbox_state sandbox;
    enum execution_state execution;
    query->state = request_query(req, "state");
    if (!query->state)
        return 0;
    int rc = kind == LIST_SANDBOXES ? sandbox_state_parse(query->state, &sandbox)
                                    : execution_state_parse(query->state, &execution);
    if (rc < 0)
        return error_set_field(err, ERR_INVALID_FIELD, "state", "no such state");
    return 0;
}

int list_time_parse(const struct request *req, const char *name, const char **value,
                    struct error *err)
{
    *value = request_query(req, name);
    if (*value && !text_is_time(*value))
        return error_set_field(err, ERR_INVALID_FIELD, name,
                               "%s must be a date and time of RFC 3339, as in "
                               "2026-01-02T03:04:05Z",
                               name);
    return 0;
}

int list_limit_parse(const struct request *req, int64_t *limit, struct error *err)
{
    const char *text = request_query(req, "limit");
    *limit = LIST_LIMIT_DEFAULT;
    if (text && text_parse_i64(text, 1, LIST_LIMIT_MAX, limit) < 0)
        return error_set_field(err, ERR_INVALID_FIELD, "limit", "limit must be 1 to %d",
                               LIST_LIMIT_MAX);
    return 0;
}

static int parse_page(const struct request *req, struct list_query *query, struct error *err)
{
    if (list_limit_parse(req, &query->limit, err) < 0)
        return -1;
    const char *cursor = request_query(req, "cursor");
    query->has_cursor = cursor != NULL;
    if (cursor && list_cursor_decode(cursor, &query->cursor_us, query->cursor_id) < 0)
        return error_set_field(err, ERR_INVALID_FIELD, "cursor",
                               "the cursor is not one that a list gave");
    return 0;
}

int list_query_parse(const struct request *req, enum list_kind kind, struct list_query *query,
                     struct error *err)
{
    *query = (struct list_query){0};
    query->template = request_query(req, "template");
    if (query->template && !text_is_name(query->template, 63))
        return error_set_field(err, ERR_INVALID_FIELD, "template", "not a template's name");
    if (parse_page(req, query, err) < 0 || parse_state(req, kind, query, err) < 0 ||
        list_time_parse(req, "createdAfter", &query->created_after, err) < 0 ||
        list_time_parse(req, "createdBefore", &query->created_before, err) < 0)
        return -1;
    return parse_labels(req, query, err);
}

void list_query_free(struct list_query *query)
{
    free(query->labels);
    query->labels = NULL;
}

void list_page_params(const struct list_query *query, int64_t rows, struct list_page_params *out)
{
    *out = (struct list_page_params){0};
    (void)snprintf(out->rows_text, sizeof(out->rows_text), "%" PRId64, rows + 1);
    out->rows = out->rows_text;
    if (!query->has_cursor)
        return;
    (void)snprintf(out->cursor_us_text, sizeof(out->cursor_us_text), "%" PRId64, query->cursor_us);
    out->cursor_us = out->cursor_us_text;
    out->cursor_id = query->cursor_id;
}

/* The cursor behind a row, as JSON: its time and id, or its number where lists go by that. Null
 * when the row has no place. */
static json_t *row_cursor(const PGresult *res, int row)
{
    int64_t us = 0;
    const char *created = db_column(res, row, "created_us");
    const char *id = db_column(res, row, "id");
    if (id && text_parse_i64(id, 1, INT64_MAX, &us) == 0)
        return json_string(id);
    if (!created || !id || !id_is_valid(id) || text_parse_i64(created, 0, CURSOR_US_MAX, &us) < 0)
        return json_null();
    char cursor[LIST_CURSOR_LEN + 1];
    list_cursor_encode(us, id, cursor);
    return json_string(cursor);
}

json_t *list_page(const PGresult *res, int64_t limit, json_t *(*resource)(const PGresult *, int))
{
    int rows = PQntuples(res);
    bool more = rows > limit;
    if (more)
        rows = (int)limit;
    _cleanup_json_ json_t *page = json_object();
    json_t *items = json_array();
    if (json_object_set_new(page, "items", items) < 0)
        return NULL;
    for (int i = 0; i < rows; i++) {
        if (json_array_append_new(items, resource(res, i)) < 0)
            return NULL;
    }
    json_t *next = more && rows > 0 ? row_cursor(res, rows - 1) : json_null();
    if (json_object_set_new(page, "nextCursor", next) < 0)
        return NULL;
    return steal_ptr(page);
}
