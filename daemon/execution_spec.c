/*
 * From the jsonb of an execution (and of a sandbox's environment) to wire
 * records. Called by execution.c and sandbox.c. The handlers checked all of it
 * at admission; it is checked again, for a row is data, not code we trust.
 */
#include "daemon/execution_spec.h"

#include <string.h>

#include "common/json.h"
#include "common/wire.h"

/* Largest row by configuration: code, stdin and argv at their bounds, every byte as \u00XX. */
#define SPEC_JSON_MAX ((size_t)192 * 1024 * 1024)
/* argv and env members; a handler's request has JSON_DEFAULT_ELEMENTS at most. */
#define SPEC_ELEMENTS_MAX ((size_t)2 * JSON_DEFAULT_ELEMENTS)
#define SPEC_CODE_MAX ((size_t)16 * 1024 * 1024)
#define SPEC_INPUT_MAX ((size_t)16 * 1024 * 1024)
#define SPEC_PATH_MAX 4095u /* PATH_MAX of Linux, without the NUL */

static json_t *parse(const char *json, size_t len, struct error *err)
{
    const struct json_limits limits = {
        .bytes = SPEC_JSON_MAX, .depth = 3, .elements = SPEC_ELEMENTS_MAX};

    return json_parse_object(json, len, &limits, err);
}

static int put(struct buf *wire, enum wire_spec_tag tag, const void *data, size_t len,
               struct error *err)
{
    if (wire_spec_put(wire, tag, data, len) < 0)
        return error_set(err, ERR_LIMIT_EXCEEDED,
                         "command, environment and code have more than %u bytes", WIRE_SPEC_MAX);
    return 0;
}

static int put_argv(const json_t *object, struct buf *wire, struct error *err)
{
    const json_t *argv = json_object_get(object, "argv");
    const json_t *arg;
    size_t i;

    if (!json_is_array(argv) || json_array_size(argv) == 0)
        return error_set_field(err, ERR_INVALID_FIELD, "argv", "argv must be a list, not empty");
    json_array_foreach(argv, i, arg)
    {
        if (!json_is_string(arg) || json_string_length(arg) >= WIRE_ARG_MAX)
            return error_set_field(err, ERR_INVALID_FIELD, "argv",
                                   "an argument must be text of less than %u bytes", WIRE_ARG_MAX);
        if (put(wire, WIRE_SPEC_ARG, json_string_value(arg), json_string_length(arg), err) < 0)
            return -1;
    }
    return 0;
}

/* NAME=value in out, replacing what it held. */
static int join_env(const char *name, const json_t *value, struct buf *out, struct error *err)
{
    buf_clear(out);
    if (name[0] == '\0' || strchr(name, '=') || !json_is_string(value))
        return error_set_field(err, ERR_INVALID_FIELD, "env",
                               "a name must be not empty and without '=', a value text");
    if (buf_append_str(out, name) < 0 || buf_append(out, "=", 1) < 0 ||
        buf_append(out, json_string_value(value), json_string_length(value)) < 0)
        return error_set_field(err, ERR_LIMIT_EXCEEDED, "env",
                               "a variable must have less than %u bytes", WIRE_ARG_MAX);
    return 0;
}

static int put_env(json_t *object, struct buf *wire, struct error *err)
{
    json_t *env = json_object_get(object, "env");
    _cleanup_buf_ struct buf pair = BUF_INIT(WIRE_ARG_MAX - 1);
    const char *name;
    json_t *value;

    if (!env || json_is_null(env))
        return 0;
    if (!json_is_object(env))
        return error_set_field(err, ERR_INVALID_FIELD, "env", "env must be an object");
    json_object_foreach(env, name, value) if (join_env(name, value, &pair, err) < 0 ||
                                              put(wire, WIRE_SPEC_ENV, pair.data, pair.len, err) <
                                                  0) return -1;
    return 0;
}

/* A member that is text, absent or null: then *text is NULL. */
static int get_text(const json_t *object, const char *name, size_t max, const char **text,
                    size_t *len, struct error *err)
{
    *text = NULL;
    *len = 0;
    if (json_is_null_member(object, name))
        return 0;
    if (json_get_string(object, name, max, text, err) < 0)
        return -1;
    if (*text)
        *len = json_string_length(json_object_get(object, name));
    return 0;
}

static int put_text(const json_t *object, const char *name, size_t max, enum wire_spec_tag tag,
                    struct buf *wire, struct error *err)
{
    const char *text;
    size_t len;

    if (get_text(object, name, max, &text, &len, err) < 0)
        return -1;
    return text ? put(wire, tag, text, len, err) : 0;
}

static int put_cwd(const json_t *object, struct buf *wire, struct error *err)
{
    const char *cwd;
    size_t len;

    if (get_text(object, "cwd", SPEC_PATH_MAX, &cwd, &len, err) < 0)
        return -1;
    if (!cwd)
        return 0;
    if (cwd[0] != '/')
        return error_set_field(err, ERR_INVALID_FIELD, "cwd", "cwd must be an absolute path");
    return put(wire, WIRE_SPEC_CWD, cwd, len, err);
}

static int put_input(const json_t *object, struct execution_spec *spec, struct error *err)
{
    const char *text;
    size_t len;

    if (get_text(object, "stdin", SPEC_INPUT_MAX, &text, &len, err) < 0)
        return -1;
    if (!text)
        return 0;
    spec->has_input = true;
    if (buf_append(&spec->input, text, len) < 0)
        return error_set(err, ERR_SYSTEM, "no memory for stdin");
    return put(&spec->wire, WIRE_SPEC_STDIN, NULL, 0, err);
}

/* A file name's end: the guest makes a path of it. */
static int check_suffix(const json_t *object, struct error *err)
{
    const char *suffix;
    size_t len;

    if (get_text(object, "suffix", WIRE_SUFFIX_MAX - 1, &suffix, &len, err) < 0)
        return -1;
    if (suffix && strchr(suffix, '/'))
        return error_set_field(err, ERR_INVALID_FIELD, "suffix", "suffix must be without '/'");
    return 0;
}

int execution_spec_parse(const char *json, size_t len, struct execution_spec *spec,
                         struct error *err)
{
    static const char *const names[] = {"argv", "env", "cwd", "code", "suffix", "stdin", NULL};
    _cleanup_json_ json_t *object = parse(json, len, err);

    *spec = (struct execution_spec){.wire = BUF_INIT(WIRE_SPEC_MAX)};
    if (!object)
        return -1;
    if (json_only_fields(object, names, err) < 0 || put_argv(object, &spec->wire, err) < 0 ||
        put_env(object, &spec->wire, err) < 0 || put_cwd(object, &spec->wire, err) < 0 ||
        check_suffix(object, err) < 0 ||
        put_text(object, "suffix", WIRE_SUFFIX_MAX - 1, WIRE_SPEC_SUFFIX, &spec->wire, err) < 0 ||
        put_text(object, "code", SPEC_CODE_MAX, WIRE_SPEC_SCRIPT, &spec->wire, err) < 0 ||
        put_input(object, spec, err) < 0) {
        execution_spec_free(spec);
        return -1;
    }
    return 0;
}

void execution_spec_free(struct execution_spec *spec)
{
    buf_free(&spec->wire);
    buf_free(&spec->input);
    spec->has_input = false;
}

int execution_env_parse(const char *json, size_t len, struct buf *env, struct error *err)
{
    _cleanup_json_ json_t *object = parse(json, len, err);
    _cleanup_buf_ struct buf pair = BUF_INIT(WIRE_ARG_MAX - 1);
    const char *name;
    json_t *value;

    if (!object)
        return -1;
    json_object_foreach(object, name, value)
    {
        if (join_env(name, value, &pair, err) < 0)
            return -1;
        if (buf_append(env, pair.data, pair.len) < 0 || buf_append_u8(env, 0) < 0)
            return error_set_field(err, ERR_LIMIT_EXCEEDED, "env",
                                   "the environment has more than %zu bytes", env->max);
    }
    return 0;
}
