/*
 * Validation of exec requests (see exec_request.h). Called by executions.c. The
 * bounds are those of Linux's execve and of the configuration; what passes here
 * must be something the guest can start, except for what only the guest knows
 * (whether the program and the folder exist).
 */
#include "fcgi/exec_request.h"

#include <inttypes.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/json.h"
#include "common/wire.h"

#define ARGV_MAX 4096
/* MAX_ARG_STRLEN counts the NUL (execve(2)). */
#define STRING_MAX ((size_t)WIRE_ARG_MAX - 1)
#define CWD_MAX 4095 /* PATH_MAX without its NUL */
#define TAG_MAX 200
#define WAIT_MAX_MS 300000
#define WAIT_MARGIN_MS 5000
#define WORKSPACE "/workspace"

struct language {
    const char *name;
    const char *program;
    const char *suffix;
};

static const struct language languages[] = {
    {"javascript", "node", ".mjs"},
    {"python", "python3", ".py"},
    {"bash", "/bin/bash", ".sh"},
};

static int out_of_memory(struct error *err)
{
    return error_set(err, ERR_INTERNAL, "out of memory");
}

static int put(json_t *object, const char *name, json_t *value, struct error *err)
{
    return json_object_set_new(object, name, value) < 0 ? out_of_memory(err) : 0;
}

static int refuse_long_string(const char *field, size_t len, struct error *err)
{
    return error_set_field(err, ERR_LIMIT_EXCEEDED, field,
                           "a string of %zu bytes; Linux takes at most %zu in one argument or "
                           "NAME=value (MAX_ARG_STRLEN)",
                           len, STRING_MAX);
}

/* Checks an argv array and adds what it takes to *total. */
static int check_argv(const json_t *argv, size_t *total, struct error *err)
{
    size_t count = json_array_size(argv);
    if (count == 0)
        return error_set_field(err, ERR_INVALID_FIELD, "cmd", "cmd must name a program");
    if (count > ARGV_MAX)
        return error_set_field(err, ERR_LIMIT_EXCEEDED, "cmd", "cmd has more than %d arguments",
                               ARGV_MAX);
    size_t i;
    json_t *arg;
    json_array_foreach(argv, i, arg)
    {
        if (!json_is_string(arg))
            return error_set_field(err, ERR_INVALID_FIELD, "cmd",
                                   "cmd must be a string or an array of strings");
        size_t len = json_string_length(arg);
        if (i == 0 && len == 0)
            return error_set_field(err, ERR_INVALID_FIELD, "cmd", "cmd must name a program");
        if (len > STRING_MAX)
            return refuse_long_string("cmd", len, err);
        *total += len + 1;
    }
    return 0;
}

static int put_cmd(json_t *cmd, json_t *spec, size_t *total, struct error *err)
{
    _cleanup_json_ json_t *argv = NULL;
    if (json_is_string(cmd)) {
        argv = json_pack("[s, s, O]", "/bin/bash", "-c", cmd);
        if (!argv)
            return out_of_memory(err);
    } else if (json_is_array(cmd)) {
        argv = json_copy(cmd);
        if (!argv)
            return out_of_memory(err);
    } else {
        return error_set_field(err, ERR_INVALID_FIELD, "cmd",
                               "cmd must be a string or an array of strings");
    }
    if (check_argv(argv, total, err) < 0)
        return -1;
    if (put(spec, "argv", steal_ptr(argv), err) < 0 || put(spec, "code", json_null(), err) < 0)
        return -1;
    return put(spec, "suffix", json_null(), err);
}

static int put_code(const json_t *body, const struct config *cfg, json_t *spec, size_t *total,
                    struct error *err)
{
    const char *code = NULL;
    const char *name = NULL;
    if (json_get_string(body, "code", (size_t)cfg->limits_code_bytes, &code, err) < 0)
        return -1;
    int rc = json_get_string(body, "language", 32, &name, err);
    if (rc < 0)
        return -1;
    if (rc == 0)
        return error_set_field(err, ERR_INVALID_FIELD, "language", "code needs a language");
    for (size_t i = 0; i < ARRAY_LEN(languages); i++) {
        const struct language *language = &languages[i];
        if (strcmp(name, language->name) != 0)
            continue;
        *total += strlen(language->program) + 1;
        if (put(spec, "argv", json_pack("[s]", language->program), err) < 0 ||
            put(spec, "code", json_string(code), err) < 0)
            return -1;
        return put(spec, "suffix", json_string(language->suffix), err);
    }
    return error_set_field(err, ERR_INVALID_FIELD, "language",
                           "language must be javascript, python or bash");
}

static int put_program(const json_t *body, const struct config *cfg, json_t *spec, size_t *total,
                       struct error *err)
{
    json_t *cmd = json_object_get(body, "cmd");
    const json_t *code = json_object_get(body, "code");
    if ((cmd != NULL) == (code != NULL))
        return error_set_field(err, ERR_INVALID_FIELD, "cmd", "give either cmd or code");
    if (code)
        return put_code(body, cfg, spec, total, err);
    if (json_object_get(body, "language"))
        return error_set_field(err, ERR_INVALID_FIELD, "language", "language belongs to code");
    return put_cmd(cmd, spec, total, err);
}

static int put_env(const json_t *body, json_t *spec, size_t *total, struct error *err)
{
    json_t *env = NULL;
    int rc =
        json_get_string_map(body, "env", JSON_DEFAULT_ELEMENTS, STRING_MAX, STRING_MAX, &env, err);
    if (rc < 0)
        return -1;
    if (rc == 0)
        return put(spec, "env", json_object(), err);
    const char *name;
    json_t *value;
    json_object_foreach(env, name, value)
    {
        size_t len = strlen(name) + 1 + json_string_length(value);
        if (*name == '\0' || strchr(name, '='))
            return error_set_field(err, ERR_INVALID_FIELD, "env",
                                   "names must not be empty nor contain =");
        if (len > STRING_MAX)
            return refuse_long_string("env", len, err);
        *total += len + 1;
    }
    return put(spec, "env", json_incref(env), err);
}

int exec_request_resolve_cwd(const char *path, char *out, size_t size)
{
    size_t len = 0;
    if (*path != '/') {
        if (sizeof(WORKSPACE) > size)
            return -1;
        len = sizeof(WORKSPACE) - 1;
        memcpy(out, WORKSPACE, len);
    }
    while (*path) {
        path += strspn(path, "/");
        size_t part = strcspn(path, "/");
        if (part == 2 && strncmp(path, "..", 2) == 0) {
            while (len > 0 && out[len - 1] != '/')
                len--;
            len -= len > 0;
        } else if (part > 0 && !(part == 1 && *path == '.')) {
            if (len + 1 + part >= size)
                return -1;
            out[len++] = '/';
            memcpy(out + len, path, part);
            len += part;
        }
        path += part;
    }
    if (len == 0)
        out[len++] = '/';
    out[len] = '\0';
    return 0;
}

static int put_cwd(const json_t *body, json_t *spec, struct error *err)
{
    const char *cwd = "";
    char resolved[CWD_MAX + 1];
    if (json_get_string(body, "cwd", CWD_MAX, &cwd, err) < 0)
        return -1;
    if (exec_request_resolve_cwd(cwd, resolved, sizeof(resolved)) < 0)
        return error_set_field(err, ERR_LIMIT_EXCEEDED, "cwd",
                               "the folder's absolute path is longer than %d bytes", CWD_MAX);
    return put(spec, "cwd", json_string(resolved), err);
}

/* A string or null; absent is null. */
static int put_optional_string(const json_t *body, const char *name, size_t max, json_t *out,
                               struct error *err)
{
    const char *value = NULL;
    if (json_is_null_member(body, name))
        return put(out, name, json_null(), err);
    int rc = json_get_string(body, name, max, &value, err);
    if (rc < 0)
        return -1;
    return put(out, name, rc ? json_string(value) : json_null(), err);
}

static json_t *spec_from_body(const json_t *body, const struct config *cfg, struct error *err)
{
    size_t total = 0;
    _cleanup_json_ json_t *spec = json_object();
    if (!spec) {
        out_of_memory(err);
        return NULL;
    }
    if (put_program(body, cfg, spec, &total, err) < 0 || put_env(body, spec, &total, err) < 0 ||
        put_cwd(body, spec, err) < 0 ||
        put_optional_string(body, "stdin", (size_t)cfg->limits_stdin_bytes, spec, err) < 0)
        return NULL;
    if (total > (size_t)cfg->limits_argv_bytes) {
        error_set_field(err, ERR_LIMIT_EXCEEDED, json_object_get(body, "cmd") ? "cmd" : "env",
                        "arguments and env take %zu bytes; limits.argv_bytes allows %" PRId64,
                        total, cfg->limits_argv_bytes);
        return NULL;
    }
    return steal_ptr(spec);
}

static int put_timeout(const json_t *body, const struct config *cfg, json_t *out, struct error *err)
{
    int64_t timeout_ms = 0;
    const char *on_timeout = "kill";
    int rc = 0;
    if (!json_is_null_member(body, "timeoutMs"))
        rc = json_get_int(body, "timeoutMs", 1, cfg->limits_exec_timeout_max, &timeout_ms, err);
    if (rc < 0 || json_get_string(body, "onTimeout", 16, &on_timeout, err) < 0)
        return -1;
    if (strcmp(on_timeout, "kill") != 0 && strcmp(on_timeout, "terminate") != 0)
        return error_set_field(err, ERR_INVALID_FIELD, "onTimeout",
                               "onTimeout must be kill or terminate");
    if (put(out, "timeoutMs", rc ? json_integer(timeout_ms) : json_null(), err) < 0)
        return -1;
    return put(out, "onTimeout", json_string(on_timeout), err);
}

static int put_flags(const json_t *body, json_t *out, struct error *err)
{
    bool background = false;
    bool stream = false;
    if (json_get_bool(body, "background", &background, err) < 0 ||
        json_get_bool(body, "stream", &stream, err) < 0)
        return -1;
    if (stream)
        return error_set_field(err, ERR_UNSATISFIABLE, "stream",
                               "streamed answers are not available on this installation");
    return put(out, "background", json_boolean(background), err);
}

json_t *exec_request_from_body(const json_t *body, const struct config *cfg, struct error *err)
{
    static const char *const fields[] = {"cmd",        "code",   "language",  "cwd",
                                         "env",        "stdin",  "timeoutMs", "onTimeout",
                                         "background", "stream", "tag",       NULL};
    if (json_only_fields(body, fields, err) < 0)
        return NULL;
    _cleanup_json_ json_t *out = json_object();
    if (!out) {
        out_of_memory(err);
        return NULL;
    }
    json_t *spec = spec_from_body(body, cfg, err);
    if (!spec || put(out, "spec", spec, err) < 0 || put_timeout(body, cfg, out, err) < 0 ||
        put_flags(body, out, err) < 0 || put_optional_string(body, "tag", TAG_MAX, out, err) < 0)
        return NULL;
    return steal_ptr(out);
}

int64_t exec_request_default_wait_ms(const json_t *request)
{
    if (json_is_true(json_object_get(request, "background")))
        return 0;
    const json_t *timeout = json_object_get(request, "timeoutMs");
    if (!json_is_integer(timeout))
        return WAIT_MAX_MS;
    int64_t timeout_ms = json_integer_value(timeout);
    if (timeout_ms > WAIT_MAX_MS - WAIT_MARGIN_MS)
        return WAIT_MAX_MS;
    return (timeout_ms + 999) / 1000 * 1000 + WAIT_MARGIN_MS;
}
