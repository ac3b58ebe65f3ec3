/*
 * Single values of the configuration: from text by the type and bounds of their
 * key, and back to text. For config.c only; programs use common/config.h.
 */
#ifndef PADDOCK_COMMON_CONFIG_VALUE_H
#define PADDOCK_COMMON_CONFIG_VALUE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "common/config.h"

enum config_type {
    CONFIG_STRING,
    CONFIG_PATH,
    CONFIG_NAMES,
    CONFIG_ENUM,
    CONFIG_INT,
    CONFIG_BYTES,
    CONFIG_DURATION,
    CONFIG_BOOL,
};

/* One line of config_keys.def. */
struct config_key {
    const char *section;
    const char *name;
    enum config_type type;
    const char *def;
    int64_t min;
    int64_t max;
    const char *help;
    size_t offset; /* of the field in struct config */
};

/* Checks text (trimmed) and stores it in the key's field, in place of what was there. Returns 0,
 * or -1: ERR_CONFIG with the key in field and a detail that names key and bounds, without the
 * place (the caller knows it) and without the text of a STRING, which may be a secret. */
int config_value_set(struct config *cfg, const struct config_key *key, const char *text,
                     struct error *err) __attribute__((warn_unused_result));

/* The value as config_value_set reads it; a password in a connection string is masked. */
void config_value_write(const struct config *cfg, const struct config_key *key, FILE *out);

/* The bounds in words, "from 1s to 1m"; at most size bytes into out. */
void config_value_bounds(const struct config_key *key, char *out, size_t size);

/* Frees what the key's field owns. */
void config_value_free(struct config *cfg, const struct config_key *key);

#endif
