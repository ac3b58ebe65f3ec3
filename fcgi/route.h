/*
 * From method and path to a route of the table (routes.def). Pure: nothing here
 * authenticates or answers.
 */
#ifndef PADDOCK_FCGI_ROUTE_H
#define PADDOCK_FCGI_ROUTE_H

#include <stddef.h>
#include <stdio.h>

#include "common/config.h"
#include "common/error.h"
#include "common/token.h"
#include "fcgi/request.h"

struct exchange;

typedef int route_handler_fn(struct exchange *x, struct error *err);

enum route_access {
    ROUTE_ACCESS_NONE,         /* no token asked for */
    ROUTE_ACCESS_TOKEN,        /* any valid token */
    ROUTE_ACCESS_SCOPE,        /* a valid token with the route's scope */
    ROUTE_ACCESS_INSTALLATION, /* the same, and it belongs to no project */
};

struct route {
    const char *method;
    const char *template; /* what logs name; holds no client's bytes */
    enum route_access access;
    enum scope scope; /* SCOPE_NONE: any */
    route_handler_fn *handler;
    size_t body_limit_offset; /* of the key in struct config; SIZE_MAX: no body taken */
    const char *query;
    const char *help;
};

#define ROUTE_ALLOW_SIZE 64

struct route_match {
    const struct route *route; /* NULL until found */
    /* Path variables, NULL where the template has none; borrowed from the request. */
    const char *project;
    const char *sandbox;
    const char *execution;
    char allow[ROUTE_ALLOW_SIZE]; /* the Allow header, set with ERR_METHOD_NOT_ALLOWED */
};

/* Returns 0, or -1 with ERR_NOT_FOUND or ERR_METHOD_NOT_ALLOWED. */
int route_find(const struct request *req, struct route_match *match, struct error *err)
    __attribute__((warn_unused_result));
/* Largest body the route takes, in bytes. */
size_t route_body_limit(const struct route *route, const struct config *cfg);
/* The i-th route of the table, NULL past the last. */
const struct route *route_at(size_t index);
/* One line a route, for --help. */
void route_print(FILE *out);

#endif
