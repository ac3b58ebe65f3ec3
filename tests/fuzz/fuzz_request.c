/*
 * A request as a web server hands it over: lines of NAME=value up to an empty
 * one, then the body. Routing, query, cursor and JSON body as the handlers call
 * them; a cursor that is accepted is the one that would be issued for its place.
 */
#include <string.h>

#include "common/config.h"
#include "common/json.h"
#include "fcgi/list.h"
#include "fcgi/request.h"
#include "fcgi/route.h"
#include "tests/fuzz/fuzz.h"

#define VARIABLES_MAX 24

static ssize_t read_body(void *arg, void *data, size_t size)
{
    size_t len = size;
    const uint8_t *bytes = fuzz_bytes(arg, &len);

    memcpy(data, bytes, len);
    return (ssize_t)len;
}

static void parse_list(const struct request *req, enum list_kind kind)
{
    struct error err = ERROR_INIT;
    struct list_query query;
    struct list_page_params page;

    if (list_query_parse(req, kind, &query, &err) == 0) {
        MUST(query.limit >= 1 && query.limit <= LIST_LIMIT_MAX);
        MUST(!query.has_cursor || id_is_valid(query.cursor_id));
        list_page_params(&query, query.limit, &page);
        list_query_free(&query);
    }
}

static void parse_cursor(const char *text)
{
    char again[LIST_CURSOR_LEN + 1];
    char id[ID_SIZE];
    int64_t created_us;

    if (!text || list_cursor_decode(text, &created_us, id) < 0)
        return;
    list_cursor_encode(created_us, id, again);
    MUST(strcmp(text, again) == 0);
}

static void handle(struct request *req, struct fuzz_input *body, const struct config *config)
{
    struct error err = ERROR_INIT;
    struct route_match match = {0};

    for (unsigned i = 0; i < req->segment_count; i++)
        MUST(req->segments[i][0] != '\0' && strcmp(req->segments[i], "..") != 0);
    parse_cursor(request_query(req, "cursor"));
    parse_list(req, LIST_SANDBOXES);
    parse_list(req, LIST_EXECUTIONS);
    if (route_find(req, &match, &err) < 0)
        return;
    MUST(match.route != NULL);
    err = (struct error)ERROR_INIT;
    (void)!request_query_only(req, match.route->query, &err);
    err = (struct error)ERROR_INIT;
    if (request_read_body(req, read_body, body, route_body_limit(match.route, config), &err) == 0) {
        _cleanup_json_ json_t *json = request_json(req, &err);

        MUST(json != NULL || error_is_set(&err));
    }
}

/* Cuts text into its lines; returns what comes after the empty one. */
static char *cut_variables(char *text, char *variables[VARIABLES_MAX + 1])
{
    unsigned count = 0;

    while (*text != '\0' && *text != '\n') {
        char *end = strchrnul(text, '\n');
        bool last = *end == '\0';

        *end = '\0';
        if (count < VARIABLES_MAX)
            variables[count++] = text;
        text = last ? end : end + 1;
    }
    variables[count] = NULL;
    return *text == '\n' ? text + 1 : text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error err = ERROR_INIT;
    _cleanup_config_ struct config *config = config_parse("", 0, "fuzz", &err);
    _cleanup_free_ char *text = malloc(size + 1);
    char *variables[VARIABLES_MAX + 1];
    struct fuzz_input body;
    struct request req;

    MUST(config != NULL && text != NULL);
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    body.data = (const uint8_t *)cut_variables(text, variables);
    body.len = size - (size_t)(body.data - (const uint8_t *)text);
    if (request_parse(&req, variables, &err) == 0)
        handle(&req, &body, config);
    else
        MUST(error_is_set(&err));
    request_free(&req);
    return 0;
}
