/*
 * The configuration: one file of `[section]` and `key = value` lines; every key
 * stands in config_keys.def with type, default, bounds and help. An unknown
 * section or key, a duplicate, or a bad value is an error that names file and
 * line. PADDOCK_<SECTION>_<KEY> in the environment overrides the file.
 *
 * Read a value as cfg->guest_memory_mb: section, underscore, key.
 */
#ifndef PADDOCK_COMMON_CONFIG_H
#define PADDOCK_COMMON_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "common/cleanup.h"
#include "common/error.h"

#define CONFIG_DEFAULT_PATH "/etc/paddock/paddock.conf"

#define CONFIG_FIELD_STRING char *
#define CONFIG_FIELD_PATH char *
#define CONFIG_FIELD_NAMES char *
#define CONFIG_FIELD_ENUM char *
#define CONFIG_FIELD_INT int64_t
#define CONFIG_FIELD_BYTES int64_t
#define CONFIG_FIELD_DURATION int64_t
#define CONFIG_FIELD_BOOL bool

struct config {
#define CONFIG_KEY(section, key, type, def, min, max, help) CONFIG_FIELD_##type section##_##key;
#include "common/config_keys.def"
#undef CONFIG_KEY
};

/* Defaults, then the file, then the environment, then cross-key checks (defaults within their
 * _max). path NULL: CONFIG_DEFAULT_PATH, whose absence is no error; a path given must exist.
 * Returns a config the caller frees, or NULL with ERR_CONFIG ("FILE:LINE: …"). */
struct config *config_load(const char *path, struct error *err) __attribute__((warn_unused_result));
/* The same from text in memory (tests, fuzzing); `name` stands for the file in messages. */
struct config *config_parse(const char *text, size_t len, const char *name, struct error *err)
    __attribute__((warn_unused_result));
void config_free(struct config *cfg);
static inline void cleanup_config_p(struct config **cfg)
{
    if (*cfg)
        config_free(*cfg);
}
#define _cleanup_config_ _cleanup_(cleanup_config_p)

/* Every key as a loadable file; with_help adds the help, default and bounds as comments. A
 * password in database.dsn is masked. */
void config_show(const struct config *cfg, FILE *out, bool with_help);

/* web.socket_mode as a file mode: the digits read as octal. */
unsigned config_socket_mode(const struct config *cfg);

/* The i-th name of a NAMES value copied into out; false past the last or when it does not fit. */
bool config_name_at(const char *names, unsigned index, char *out, size_t size);

#endif
