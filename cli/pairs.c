/* NAME=VALUE words of the command line, into JSON objects and query strings. */
#include "cli/pairs.h"

#include <string.h>

#include "cli/client.h"

int pairs_set(struct cli *cli, const struct option_values *pairs, const char *field, json_t *body)
{
    json_t *object;

    if (pairs->count == 0)
        return 0;
    object = json_object();
    json_object_set_new(body, field, object);
    for (size_t i = 0; i < pairs->count; i++) {
        const char *equals = strchr(pairs->at[i], '=');
        _cleanup_free_ char *name = NULL;
        json_t *value;

        if (equals == NULL || equals == pairs->at[i])
            return cli_usage(cli, "\"%s\" is not NAME=VALUE", pairs->at[i]);
        name = strndup(pairs->at[i], (size_t)(equals - pairs->at[i]));
        value = json_string(equals + 1);
        if (name == NULL || value == NULL || json_object_set_new(object, name, value) != 0)
            return cli_usage(cli, "the value of %s is not UTF-8 text", name != NULL ? name : "?");
    }
    return 0;
}

void pairs_query(struct buf *path, const char *name, const char *value)
{
    if (value == NULL)
        return;
    buf_append_str(path, "&");
    client_escape(path, name);
    buf_append_str(path, "=");
    client_escape(path, value);
}
