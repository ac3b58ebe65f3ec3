/*
 * Validation of create requests (see sandbox_request.h). Called by sandboxes.c.
 * A value over a limit is refused and the limit named, never clamped; what the
 * daemon and the guest rely on (sizes, names, totals) is judged here once.
 */
#include "fcgi/sandbox_request.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/json.h"
#include "common/text.h"
#include "fcgi/list.h"

#define ENV_NAME_MAX 255
#define EGRESS_ALLOW_MAX 1000
#define PIDS_MIN 16 /* bash and the guest's own processes need some */

struct sizes {
    int64_t cpus;
    int64_t memory_mb;
    int64_t workspace_mb;
    int64_t pids;
};

static int out_of_memory(struct error *err)
{
    return error_set(err, ERR_INTERNAL, "out of memory");
}

static int put(json_t *object, const char *name, json_t *value, struct error *err)
{
    return json_object_set_new(object, name, value) < 0 ? out_of_memory(err) : 0;
}

static int put_template(const json_t *body, const struct config *cfg, json_t *out,
                        struct error *err)
{
    char name[64] = "";
    const char *template = name;
    if (!config_name_at(cfg->guest_templates, 0, name, sizeof(name)))
        return error_set(err, ERR_INTERNAL, "no default template is configured");
    int rc = json_get_string(body, "template", 63, &template, err);
    if (rc < 0)
        return -1;
    if (rc > 0 && !text_is_name(template, 63))
        return error_set_field(err, ERR_INVALID_FIELD, "template",
                               "template must be a name of lower-case letters, digits and -");
    return put(out, "template", json_string(template), err);
}

static int check_memory(const json_t *body, const struct config *cfg, const struct sizes *sizes,
                        struct error *err)
{
    int64_t needed =
        sizes->workspace_mb + cfg->guest_tmp_mb + cfg->guest_shm_mb + SANDBOX_MEMORY_SPARE_MB;
    if (needed <= sizes->memory_mb)
        return 0;
    const char *field = json_object_get(body, "workspaceMb") ? "workspaceMb" : "memoryMb";
    return error_set_field(err, ERR_INVALID_FIELD, field,
                           "workspaceMb (%" PRId64 "), /tmp (%" PRId64 ") and /dev/shm (%" PRId64
                           ") must leave %d of memoryMb (%" PRId64 "): it must be %" PRId64
                           " or more",
                           sizes->workspace_mb, cfg->guest_tmp_mb, cfg->guest_shm_mb,
                           SANDBOX_MEMORY_SPARE_MB, sizes->memory_mb, needed);
}

static int put_sizes(const json_t *body, const struct config *cfg, json_t *out, struct error *err)
{
    struct sizes sizes = {.cpus = cfg->guest_cpus,
                          .memory_mb = cfg->guest_memory_mb,
                          .workspace_mb = cfg->guest_workspace_mb,
                          .pids = cfg->guest_pids};
    if (json_get_int(body, "cpus", 1, cfg->guest_cpus_max, &sizes.cpus, err) < 0 ||
        json_get_int(body, "memoryMb", 1, cfg->guest_memory_mb_max, &sizes.memory_mb, err) < 0 ||
        json_get_int(body, "workspaceMb", 1, cfg->guest_memory_mb_max, &sizes.workspace_mb, err) <
            0 ||
        json_get_int(body, "pids", PIDS_MIN, cfg->guest_pids_max, &sizes.pids, err) < 0)
        return -1;
    if (check_memory(body, cfg, &sizes, err) < 0)
        return -1;
    if (put(out, "cpus", json_integer(sizes.cpus), err) < 0 ||
        put(out, "memoryMb", json_integer(sizes.memory_mb), err) < 0 ||
        put(out, "workspaceMb", json_integer(sizes.workspace_mb), err) < 0)
        return -1;
    return put(out, "pids", json_integer(sizes.pids), err);
}

/* Seconds, or null for none; left out when the request leaves it to the project's policy. */
static int put_seconds(const json_t *body, const char *name, const struct config *cfg, json_t *out,
                       struct error *err)
{
    int64_t seconds = 0;
    if (json_is_null_member(body, name))
        return put(out, name, json_null(), err);
    int rc = json_get_int(body, name, 1, cfg->limits_ttl_max / 1000, &seconds, err);
    if (rc <= 0)
        return rc;
    return put(out, name, json_integer(seconds), err);
}

static int put_lifetimes(const json_t *body, const struct config *cfg, json_t *out,
                         struct error *err)
{
    if (put_seconds(body, "ttlSeconds", cfg, out, err) < 0)
        return -1;
    return put_seconds(body, "idleSeconds", cfg, out, err);
}

static bool is_env_name(const char *name)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_";
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789";
    return *name && strchr(letters, *name) && strspn(name, allowed) == strlen(name);
}

static int put_env(const json_t *body, const struct config *cfg, json_t *out, struct error *err)
{
    json_t *env = NULL;
    size_t max = (size_t)cfg->limits_env_bytes;
    /* Each variable takes at least "N=" and a NUL. */
    int rc = json_get_string_map(body, "env", max / 3, ENV_NAME_MAX, max, &env, err);
    if (rc < 0)
        return -1;
    if (rc == 0)
        return put(out, "env", json_object(), err);

    size_t total = 0;
    const char *name;
    json_t *value;
    json_object_foreach(env, name, value)
    {
        if (!is_env_name(name))
            return error_set_field(err, ERR_INVALID_FIELD, "env",
                                   "names must be letters, digits and _, not beginning with a "
                                   "digit");
        total += strlen(name) + 1 + json_string_length(value) + 1;
    }
    if (total > max)
        return error_set_field(err, ERR_LIMIT_EXCEEDED, "env",
                               "env takes %zu bytes; limits.env_bytes allows %zu", total, max);
    return put(out, "env", json_incref(env), err);
}

static int put_labels(const json_t *body, const struct config *cfg, json_t *out, struct error *err)
{
    json_t *labels = NULL;
    int rc = json_get_string_map(body, "labels", (size_t)cfg->limits_labels, LIST_LABEL_KEY_MAX,
                                 LIST_LABEL_VALUE_MAX, &labels, err);
    if (rc < 0)
        return -1;
    if (rc == 0)
        return put(out, "labels", json_object(), err);
    const char *key;
    json_t *value;
    json_object_foreach(labels, key, value)
    {
        if (!list_label_key_is_valid(key))
            return error_set_field(err, ERR_INVALID_FIELD, "labels",
                                   "keys must be 1 to %d letters, digits and ._/-",
                                   LIST_LABEL_KEY_MAX);
    }
    return put(out, "labels", json_incref(labels), err);
}

static int check_egress(const json_t *egress, struct error *err)
{
    static const char *const fields[] = {"mode", "allow", NULL};
    const char *mode = "none";
    if (json_only_fields(egress, fields, err) < 0)
        return error_prefix_field(err, "egress");
    const json_t *allow = json_object_get(egress, "allow");
    if (allow && !json_is_array(allow))
        return error_set_field(err, ERR_INVALID_FIELD, "egress.allow",
                               "allow must be an array of names");
    if (allow && json_array_size(allow) > EGRESS_ALLOW_MAX)
        return error_set_field(err, ERR_LIMIT_EXCEEDED, "egress.allow",
                               "allow has more than %d entries", EGRESS_ALLOW_MAX);
    if (json_get_string(egress, "mode", 16, &mode, err) < 0)
        return error_prefix_field(err, "egress");
    if (strcmp(mode, "public") == 0 || strcmp(mode, "allowlist") == 0)
        return error_set_field(err, ERR_UNSATISFIABLE, "egress",
                               "egress is not available on this installation");
    if (strcmp(mode, "none") != 0)
        return error_set_field(err, ERR_INVALID_FIELD, "egress.mode",
                               "mode must be none, public or allowlist");
    if (allow && json_array_size(allow) > 0)
        return error_set_field(err, ERR_INVALID_FIELD, "egress.allow",
                               "allow must be empty with mode none");
    return 0;
}

static int put_egress(const json_t *body, json_t *out, struct error *err)
{
    const json_t *egress = json_object_get(body, "egress");
    if (egress && !json_is_object(egress))
        return error_set_field(err, ERR_INVALID_FIELD, "egress", "egress must be an object");
    if (egress && check_egress(egress, err) < 0)
        return -1;
    return put(out, "egress", json_pack("{s:s, s:[]}", "mode", "none", "allow"), err);
}

json_t *sandbox_request_from_body(const json_t *body, const struct config *cfg, struct error *err)
{
    static const char *const fields[] = {"template", "cpus",       "memoryMb",    "workspaceMb",
                                         "pids",     "ttlSeconds", "idleSeconds", "env",
                                         "labels",   "egress",     "exclusive",   NULL};
    bool exclusive = false;
    if (json_only_fields(body, fields, err) < 0)
        return NULL;
    _cleanup_json_ json_t *out = json_object();
    if (!out) {
        out_of_memory(err);
        return NULL;
    }
    if (put_template(body, cfg, out, err) < 0 || put_sizes(body, cfg, out, err) < 0 ||
        put_lifetimes(body, cfg, out, err) < 0 || put_env(body, cfg, out, err) < 0 ||
        put_labels(body, cfg, out, err) < 0 || put_egress(body, out, err) < 0 ||
        json_get_bool(body, "exclusive", &exclusive, err) < 0 ||
        put(out, "exclusive", json_boolean(exclusive), err) < 0)
        return NULL;
    return steal_ptr(out);
}

json_t *sandbox_update_from_body(const json_t *body, const struct config *cfg, struct error *err)
{
    static const char *const fields[] = {"ttlSeconds", "idleSeconds", "labels", NULL};
    if (json_only_fields(body, fields, err) < 0)
        return NULL;
    if (json_object_size(body) == 0) {
        error_set(err, ERR_MALFORMED, "nothing to change: name ttlSeconds, idleSeconds or labels");
        return NULL;
    }
    _cleanup_json_ json_t *out = json_object();
    if (!out) {
        out_of_memory(err);
        return NULL;
    }
    if (put_lifetimes(body, cfg, out, err) < 0 ||
        (json_object_get(body, "labels") && put_labels(body, cfg, out, err) < 0))
        return NULL;
    return steal_ptr(out);
}
