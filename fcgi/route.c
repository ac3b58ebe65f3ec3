/*
 * The route table (routes.def) and the search in it. Called once a request by
 * exchange.c. A path is compared segment by segment on its decoded form; a
 * variable takes any one segment and is judged by whoever uses it.
 */
#include "fcgi/route.h"

#include <string.h>

#include "common/cleanup.h"
#include "fcgi/handlers.h"

#define ACCESS_NONE .access = ROUTE_ACCESS_NONE, .scope = SCOPE_NONE
#define ACCESS_TOKEN .access = ROUTE_ACCESS_TOKEN, .scope = SCOPE_NONE
#define ACCESS_READ .access = ROUTE_ACCESS_SCOPE, .scope = SCOPE_READ
#define ACCESS_WRITE .access = ROUTE_ACCESS_SCOPE, .scope = SCOPE_WRITE
#define ACCESS_ADMIN .access = ROUTE_ACCESS_SCOPE, .scope = SCOPE_ADMIN
#define ACCESS_INSTALLATION .access = ROUTE_ACCESS_INSTALLATION, .scope = SCOPE_ADMIN
#define LIMIT_NONE SIZE_MAX
#define LIMIT_web_body_max offsetof(struct config, web_body_max)

static const struct route routes[] = {
#define ROUTE(method_, template_, access_, handler_, limit_, query_, help_)                        \
    {.method = #method_,                                                                           \
     .template = (template_),                                                                      \
     ACCESS_##access_,                                                                             \
     .handler = (handler_),                                                                        \
     .body_limit_offset = LIMIT_##limit_,                                                          \
     .query = (query_),                                                                            \
     .help = (help_)},
#include "fcgi/routes.def"
#undef ROUTE
};

/* The path's segments with the short name `/sandbox/{project}…` spelt out. */
struct path {
    const char *segments[REQUEST_SEGMENTS_MAX + 3];
    unsigned count;
};

static void path_append(struct path *path, const char *segment)
{
    path->segments[path->count++] = segment;
}

static void path_from_request(struct path *path, const struct request *req)
{
    unsigned next = 0;
    path->count = 0;
    if (req->segment_count >= 2 && strcmp(req->segments[0], "sandbox") == 0) {
        path_append(path, "api");
        path_append(path, "v1");
        path_append(path, "projects");
        path_append(path, req->segments[1]);
        path_append(path, "sandboxes");
        next = 2;
    }
    while (next < req->segment_count)
        path_append(path, req->segments[next++]);
}

static void set_variable(struct route_match *match, const char *name, size_t len, const char *value)
{
    if (len == 9 && strncmp(name, "{project}", len) == 0)
        match->project = value;
    else if (len == 4 && strncmp(name, "{id}", len) == 0)
        match->sandbox = value;
    else
        match->execution = value;
}

static bool path_matches(const struct path *path, const char *template, struct route_match *match)
{
    unsigned i = 0;
    for (const char *at = template; *at; i++) {
        at++; /* the slash */
        size_t len = strcspn(at, "/");
        if (i == path->count)
            return false;
        const char *segment = path->segments[i];
        if (*at == '{')
            set_variable(match, at, len, segment);
        else if (strlen(segment) != len || strncmp(segment, at, len) != 0)
            return false;
        at += len;
    }
    return i == path->count;
}

static bool method_matches(const char *method, const struct request *req)
{
    return strcmp(method, req->is_head ? "GET" : req->method) == 0;
}

static void allow_add(char *allow, const char *method)
{
    size_t len = strlen(allow);
    (void)snprintf(allow + len, ROUTE_ALLOW_SIZE - len, "%s%s%s", len ? ", " : "", method,
                   strcmp(method, "GET") == 0 ? ", HEAD" : "");
}

static unsigned variable_count(const char *template)
{
    unsigned count = 0;
    for (; *template; template ++)
        count += *template == '{';
    return count;
}

/* The template that a path is of: that with fewest variables, so `usage` is no sandbox's id,
 * whatever the method. NULL: none. */
static const char *template_of(const struct path *path)
{
    const char *best = NULL;
    struct route_match ignored;
    for (size_t i = 0; i < ARRAY_LEN(routes); i++) {
        const char *template = routes[i].template;
        if (path_matches(path, template, &ignored) &&
            (!best || variable_count(template) < variable_count(best)))
            best = template;
    }
    return best;
}

int route_find(const struct request *req, struct route_match *match, struct error *err)
{
    struct path path;
    path_from_request(&path, req);
    *match = (struct route_match){0};
    const char *template = template_of(&path);
    for (size_t i = 0; template && i < ARRAY_LEN(routes); i++) {
        struct route_match found = {0};
        if (strcmp(routes[i].template, template) != 0 || !path_matches(&path, template, &found))
            continue;
        if (method_matches(routes[i].method, req)) {
            found.route = &routes[i];
            *match = found;
            return 0;
        }
        allow_add(match->allow, routes[i].method);
    }
    if (match->allow[0])
        return error_set(err, ERR_METHOD_NOT_ALLOWED, "this resource allows %s", match->allow);
    return error_set(err, ERR_NOT_FOUND, "no such resource");
}

size_t route_body_limit(const struct route *route, const struct config *cfg)
{
    if (route->body_limit_offset == SIZE_MAX)
        return 0;
    int64_t limit = 0;
    memcpy(&limit, (const char *)cfg + route->body_limit_offset, sizeof(limit));
    return (size_t)limit;
}

const struct route *route_at(size_t index)
{
    return index < ARRAY_LEN(routes) ? &routes[index] : NULL;
}

void route_print(FILE *out)
{
    for (size_t i = 0; i < ARRAY_LEN(routes); i++)
        (void)fprintf(out, "  %-6s %s\n         %s\n", routes[i].method, routes[i].template,
                      routes[i].help);
}
