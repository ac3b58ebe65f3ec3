/*
 * Parsing of a verb's words against its option table. Own code rather than
 * getopt_long because options and operands of exec must not be reordered past
 * "--", and a repeated single option is a mistake that getopt would hide.
 */
#include "cli/options.h"

#include <string.h>

static int add_value(struct cli *cli, struct option_values *values, const char *name,
                     const char *value)
{
    if (values->count == OPTION_VALUES_MAX)
        return cli_usage(cli, "%s is given more than %d times", name, OPTION_VALUES_MAX);
    values->at[values->count++] = value;
    return 0;
}

static const struct option_spec *find(const struct option_spec specs[], size_t count,
                                      const char *name, size_t name_len)
{
    for (size_t i = 0; i < count; i++) {
        if (strlen(specs[i].name) == name_len && memcmp(specs[i].name, name, name_len) == 0)
            return &specs[i];
    }
    return NULL;
}

static int take_option(struct cli *cli, int argc, char **argv, int *index,
                       const struct option_spec specs[], size_t spec_count)
{
    const char *name = argv[*index] + 2;
    size_t name_len = strcspn(name, "=");
    const struct option_spec *spec = find(specs, spec_count, name, name_len);

    if (spec == NULL)
        return cli_usage(cli, "unknown option --%.*s", (int)name_len, name);
    if (!spec->repeats && spec->values->count > 0)
        return cli_usage(cli, "--%s is given twice", spec->name);
    if (spec->is_flag) {
        if (name[name_len] == '=')
            return cli_usage(cli, "--%s takes no value", spec->name);
        return add_value(cli, spec->values, spec->name, "");
    }
    if (name[name_len] == '=')
        return add_value(cli, spec->values, spec->name, name + name_len + 1);
    if (*index + 1 >= argc)
        return cli_usage(cli, "--%s wants a value", spec->name);
    *index += 1;
    return add_value(cli, spec->values, spec->name, argv[*index]);
}

int options_parse(struct cli *cli, int argc, char **argv, const struct option_spec specs[],
                  size_t spec_count, struct option_values *operands,
                  struct option_values *rest_after_dashes)
{
    bool ended = false;

    for (int i = 0; i < argc; i++) {
        int status;

        if (!ended && strcmp(argv[i], "--") == 0) {
            ended = true;
            continue;
        }
        if (!ended && strncmp(argv[i], "--", 2) == 0)
            status = take_option(cli, argc, argv, &i, specs, spec_count);
        else if (ended && rest_after_dashes != NULL)
            status = add_value(cli, rest_after_dashes, "an argument", argv[i]);
        else
            status = add_value(cli, operands, "an operand", argv[i]);
        if (status != 0)
            return status;
    }
    return 0;
}

const char *option_value(const struct option_values *values)
{
    return values->count > 0 ? values->at[0] : NULL;
}
