/*
 * What both lists share: limit, cursor, filters by state, labels and time. The
 * cursor is the place of the last item of a page (its time in microseconds and
 * its id), so pages neither repeat nor skip rows when new ones come.
 */
#ifndef PADDOCK_FCGI_LIST_H
#define PADDOCK_FCGI_LIST_H

#include <jansson.h>
#include <libpq-fe.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"
#include "common/id.h"
#include "fcgi/request.h"

#define LIST_LIMIT_MAX 200
#define LIST_LIMIT_DEFAULT 50
#define LIST_CURSOR_LEN 32 /* base64url of 8 bytes of time and 16 of id */
#define LIST_LABEL_KEY_MAX 63
#define LIST_LABEL_VALUE_MAX 255

struct list_query {
    int64_t limit;
    bool has_cursor;
    int64_t cursor_us;
    char cursor_id[ID_SIZE];
    /* Borrowed from the request, NULL: no filter. */
    const char *state;
    const char *template;
    const char *created_after;
    const char *created_before;
    char *labels; /* owned: a JSON object, NULL: no filter */
};

enum list_kind { LIST_SANDBOXES, LIST_EXECUTIONS };

/* Parameter names are already those of the route. ERR_INVALID_FIELD names the parameter. */
int list_query_parse(const struct request *req, enum list_kind kind, struct list_query *query,
                     struct error *err) __attribute__((warn_unused_result));
void list_query_free(struct list_query *query);
/* Single parameters, for other lists. *value: borrowed, NULL when absent. */
int list_limit_parse(const struct request *req, int64_t *limit, struct error *err)
    __attribute__((warn_unused_result));
int list_time_parse(const struct request *req, const char *name, const char **value,
                    struct error *err) __attribute__((warn_unused_result));

void list_cursor_encode(int64_t created_us, const char *id, char out[LIST_CURSOR_LEN + 1]);
int list_cursor_decode(const char *text, int64_t *created_us, char id[ID_SIZE])
    __attribute__((warn_unused_result));

/* 1 to 63 bytes of [A-Za-z0-9._/-]. */
bool list_label_key_is_valid(const char *key);

/* The parameters of a page's statement, as text. */
struct list_page_params {
    const char *cursor_us; /* NULL: from the newest */
    const char *cursor_id; /* NULL: from the newest; borrowed from the query */
    const char *rows;
    char cursor_us_text[24];
    char rows_text[24];
};

/* Asks for one row more than `rows`, by which list_page knows whether there are more. */
void list_page_params(const struct list_query *query, int64_t rows, struct list_page_params *out);

/* { "items": […], "nextCursor": … } from a result that was asked for one row more than `limit`
 * rows. New reference, NULL without memory. */
json_t *list_page(const PGresult *res, int64_t limit, json_t *(*resource)(const PGresult *, int));

#endif
