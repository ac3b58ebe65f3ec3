/*
 * Strict JSON over jansson (RFC 8259) for bytes from outside: duplicate keys,
 * NUL characters, invalid UTF-8, excess depth or size, and numbers that are not
 * plain integers where one is wanted are refused by name. And typed getters
 * that refuse what the table of a request does not name.
 */
#ifndef PADDOCK_COMMON_JSON_H
#define PADDOCK_COMMON_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/cleanup.h"
#include "common/error.h"

static inline void cleanup_json_p(json_t **json)
{
    json_decref(*json);
}
#define _cleanup_json_ _cleanup_(cleanup_json_p)

struct json_limits {
    size_t bytes;    /* whole text */
    unsigned depth;  /* nesting of arrays and objects */
    size_t elements; /* values in all, keys not counted */
};

/* The limits for request bodies: the size comes from the route. */
#define JSON_DEFAULT_DEPTH 16
#define JSON_DEFAULT_ELEMENTS 20000

/* Parses text (need not end in NUL) to an object. Returns a new reference, or NULL with
 * ERR_INVALID_JSON (not JSON, not an object, duplicate key, NUL, bad UTF-8, depth, elements)
 * or ERR_TOO_LARGE. Every number must be written as an integer that fits 64 bits: 3600.0 and 1e5
 * are refused. The error says where (err->field is the path of the member, if there is one) and
 * repeats nothing of the text but member names. */
json_t *json_parse_object(const char *text, size_t len, const struct json_limits *limits,
                          struct error *err) __attribute__((warn_unused_result));

/* Compact dump with sorted keys: the canonical form that fingerprints hash.
 * Returns a malloc'd string or NULL without memory. */
char *json_canonical(const json_t *json);

/* --- request fields ------------------------------------------------------------------- */

/* Refuses members of `object` that are not in `names` (NULL-terminated). ERR_UNKNOWN_FIELD names
 * the first. */
int json_only_fields(const json_t *object, const char *const names[], struct error *err)
    __attribute__((warn_unused_result));

/* Each getter: absent -> value untouched, returns 0. Wrong type or out of range -> -1 with
 * ERR_INVALID_FIELD, or ERR_LIMIT_EXCEEDED over the maximum (the text names the bound). Present
 * -> value set, returns 1. null is a wrong type: see json_is_null_member. */
int json_get_int(const json_t *object, const char *name, int64_t min, int64_t max, int64_t *value,
                 struct error *err) __attribute__((warn_unused_result));
int json_get_bool(const json_t *object, const char *name, bool *value, struct error *err)
    __attribute__((warn_unused_result));
/* value: borrowed from object. A NUL inside a string never gets this far. */
int json_get_string(const json_t *object, const char *name, size_t max_bytes, const char **value,
                    struct error *err) __attribute__((warn_unused_result));
/* An object whose values are strings (env, labels); at most max_members, names of 1 to
 * max_name_bytes, values up to max_value_bytes. value: borrowed. */
int json_get_string_map(const json_t *object, const char *name, size_t max_members,
                        size_t max_name_bytes, size_t max_value_bytes, json_t **value,
                        struct error *err) __attribute__((warn_unused_result));
/* True when the member is present and null. */
bool json_is_null_member(const json_t *object, const char *name);

#endif
