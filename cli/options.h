/* The options of one verb: a table, filled from its words. `--name VALUE` and `--name=VALUE`;
 * `--` ends the options. Anything else is an operand. */
#ifndef PADDOCK_CLI_OPTIONS_H
#define PADDOCK_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "cli/cli.h"

#define OPTION_VALUES_MAX 256

struct option_values {
    const char *at[OPTION_VALUES_MAX]; /* borrowed from argv */
    size_t count;
};

struct option_spec {
    const char *name; /* without the dashes */
    bool repeats;
    bool is_flag;
    struct option_values *values; /* a flag gets one value, "" */
};

/* Fills the tables; operands go to *operands (argv in its order, after "--" included). When
 * rest_after_dashes is not NULL, the words behind "--" go there and not to operands.
 * Returns 0, or CLI_USAGE after having said why. */
int options_parse(struct cli *cli, int argc, char **argv, const struct option_spec specs[],
                  size_t spec_count, struct option_values *operands,
                  struct option_values *rest_after_dashes) __attribute__((warn_unused_result));

/* The only value of an option, or NULL. */
const char *option_value(const struct option_values *values);

#endif
