/*
 * Validation of a project's policy (policy.h), by the table policy.def. Called
 * by the handler that sets one and by the command line. What must stay true: the
 * database admits exactly these members (a check of the projects table).
 */
#include "common/policy.h"

#include <stdint.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/json.h"
#include "common/text.h"

#define NAME_MAX_BYTES 63
#define NAMES_MAX 64

static const struct {
    const char *name;
    int64_t min;
    int64_t max;
} limits[] = {
#define POLICY_LIMIT(name, min, max, help) {#name, min, max},
#include "common/policy.def"
};

static const char *const lists[] = {
#define POLICY_LIST(name, help) #name,
#include "common/policy.def"
};

static const struct {
    const char *name;
    const char *limit;
} defaults[] = {
#define POLICY_DEFAULT(name, limit) {#name, #limit},
#include "common/policy.def"
};

static int put_limit(const json_t *policy, unsigned i, json_t *out, struct error *err)
{
    const char *name = limits[i].name;
    int64_t value = 0;
    int rc = 0;

    if (!json_is_null_member(policy, name))
        rc = json_get_int(policy, name, limits[i].min, limits[i].max, &value, err);
    if (rc > 0 && json_object_set_new(out, name, json_integer(value)) < 0)
        return error_set(err, ERR_INTERNAL, "out of memory");
    return rc < 0 ? -1 : 0;
}

static bool is_names(const json_t *array)
{
    size_t i;
    json_t *item;

    if (!json_is_array(array) || json_array_size(array) > NAMES_MAX)
        return false;
    json_array_foreach(array, i, item)
    {
        if (!json_is_string(item) || !text_is_name(json_string_value(item), NAME_MAX_BYTES))
            return false;
    }
    return true;
}

static int put_list(const json_t *policy, const char *name, json_t *out, struct error *err)
{
    json_t *array = json_object_get(policy, name);

    if (!array || json_is_null(array))
        return 0;
    if (!is_names(array))
        return error_set_field(err, ERR_INVALID_FIELD, name, "%s must be null or at most %d names",
                               name, NAMES_MAX);
    if (json_object_set(out, name, array) < 0)
        return error_set(err, ERR_INTERNAL, "out of memory");
    return 0;
}

/* A default over its limit would be granted to whoever asks for nothing. */
static int check_defaults(const json_t *policy, struct error *err)
{
    for (unsigned i = 0; i < ARRAY_LEN(defaults); i++) {
        const json_t *value = json_object_get(policy, defaults[i].name);
        const json_t *limit = json_object_get(policy, defaults[i].limit);

        if (value && limit && json_integer_value(value) > json_integer_value(limit))
            return error_set_field(err, ERR_INVALID_FIELD, defaults[i].name,
                                   "%s must not be over %s", defaults[i].name, defaults[i].limit);
    }
    return 0;
}

json_t *policy_from_json(const json_t *policy, struct error *err)
{
    static const char *const names[] = {
#define POLICY_LIMIT(name, min, max, help) #name,
#define POLICY_LIST(name, help) #name,
#include "common/policy.def"
        NULL};
    _cleanup_json_ json_t *out = json_object();

    if (!out) {
        error_set(err, ERR_INTERNAL, "out of memory");
        return NULL;
    }
    if (json_only_fields(policy, names, err) < 0)
        return NULL;
    for (unsigned i = 0; i < ARRAY_LEN(limits); i++)
        if (put_limit(policy, i, out, err) < 0)
            return NULL;
    for (unsigned i = 0; i < ARRAY_LEN(lists); i++)
        if (put_list(policy, lists[i], out, err) < 0)
            return NULL;
    if (check_defaults(out, err) < 0)
        return NULL;
    return steal_ptr(out);
}
