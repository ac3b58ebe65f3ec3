/* What verbs print: a JSON value with --json, else a table or a list of fields. */
#ifndef PADDOCK_CLI_OUTPUT_H
#define PADDOCK_CLI_OUTPUT_H

#include <jansson.h>
#include <libpq-fe.h>

#include "cli/cli.h"

/* All rows as an array of objects, keys from the columns in camel case; numbers and
 * booleans by their type.
 * New reference; NULL without memory. */
json_t *output_rows(const PGresult *res);

/* Prints an array of objects: with --json as it is, else a table of the columns named
 * (NULL-terminated; a dotted name reaches into an object). */
void output_table(const struct cli *cli, const json_t *array, const char *const columns[]);
/* Prints one object: with --json as it is, else "name  value" lines; nested values as JSON. */
void output_object(const struct cli *cli, const json_t *object);

/* Prints an array of objects as CSV (RFC 4180) with a header line; null is empty, nested values are
 * JSON. */
void output_csv(const json_t *array, const char *const columns[]);

#endif
