/*
 * The configuration as a whole: the table of keys, defaults, file, environment
 * and the checks across keys. Called once by each program at its start. Every
 * error names its place, FILE:LINE or the environment variable, and never quotes
 * a line, which may hold a password. Single values: config_value.c.
 */
#include "common/config.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>

#include "common/buf.h"
#include "common/config_value.h"

#define CONFIG_FILE_MAX 1048576
#define CONFIG_LINE_MAX 4096
#define CONFIG_NAME_SHOWN 200 /* of a file's name in a message: the text behind it must fit too */
/* A guest needs this beside its tmpfs content: gVisor's own share is about 13 MiB, an interpreter
 * and its data the rest. */
#define GUEST_FREE_MB 64

enum key_index {
#define CONFIG_KEY(section, key, type, def, min, max, help) KEY_##section##_##key,
#include "common/config_keys.def"
#undef CONFIG_KEY
    KEY_COUNT
};

static const struct config_key keys[KEY_COUNT] = {
#define CONFIG_KEY(section, key, type, def, min, max, help)                                        \
    {#section, #key, CONFIG_##type, def, min, max, help, offsetof(struct config, section##_##key)},
#include "common/config_keys.def"
#undef CONFIG_KEY
};

/* Where a value came from: a line of the file, or one of these. */
#define FROM_DEFAULT 0U
#define FROM_ENVIRONMENT UINT32_MAX

struct parser {
    struct config *cfg;
    const char *name;         /* the file's, as messages give it */
    const char *section;      /* of the table; NULL before the first header */
    uint32_t line;            /* being read */
    uint32_t from[KEY_COUNT]; /* of each value */
};

/* Puts FILE:LINE before the error and returns -1. */
static int at_line(const struct parser *parser, uint32_t line, struct error *err)
{
    return error_prefix(err, "%s:%" PRIu32, parser->name, line);
}

static void variable_name(const struct config_key *key, char *out, size_t size)
{
    (void)snprintf(out, size, "PADDOCK_%s_%s", key->section, key->name);
    for (char *p = out; *p; p++) {
        if (*p >= 'a' && *p <= 'z')
            *p = (char)(*p - 'a' + 'A');
    }
}

/* Puts the place that the key's value came from before the error. */
static int at_key(const struct parser *parser, enum key_index index, struct error *err)
{
    char variable[96];

    if (parser->from[index] == FROM_ENVIRONMENT) {
        variable_name(&keys[index], variable, sizeof(variable));
        return error_prefix(err, "%s", variable);
    }
    if (parser->from[index] == FROM_DEFAULT)
        return error_prefix(err, "default");
    return at_line(parser, parser->from[index], err);
}

/* --- the file --- */

static char *trim(char *text)
{
    text += strspn(text, " \t");
    size_t len = strlen(text);
    while (len > 0 && (text[len - 1] == ' ' || text[len - 1] == '\t'))
        len--;
    text[len] = '\0';
    return text;
}

/* May the word stand in a message? Anything else might be a secret or a terminal's escape. */
static bool is_word(const char *text)
{
    size_t len = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.");

    return len > 0 && len <= 64 && text[len] == '\0';
}

static int read_section(struct parser *parser, char *text, struct error *err)
{
    size_t len = strlen(text);

    if (text[len - 1] != ']')
        return error_set(err, ERR_CONFIG, "a section header must end in ']'");
    text[len - 1] = '\0';
    const char *section = trim(text + 1);
    for (size_t i = 0; i < KEY_COUNT; i++) {
        if (strcmp(keys[i].section, section) == 0) {
            parser->section = keys[i].section;
            return 0;
        }
    }
    return error_set(err, ERR_CONFIG, "unknown section [%s]", is_word(section) ? section : "?");
}

static int read_pair(struct parser *parser, char *text, struct error *err)
{
    char *equals = strchr(text, '=');

    if (!equals)
        return error_set(err, ERR_CONFIG, "'=' is missing: a line is [section] or key = value");
    *equals = '\0';
    const char *name = trim(text);
    if (!is_word(name))
        return error_set(err, ERR_CONFIG, "what stands before '=' is not a key");
    if (!parser->section)
        return error_set(err, ERR_CONFIG, "key %s stands before any [section]", name);
    for (size_t i = 0; i < KEY_COUNT; i++) {
        if (strcmp(keys[i].section, parser->section) != 0 || strcmp(keys[i].name, name) != 0)
            continue;
        if (parser->from[i] != FROM_DEFAULT)
            return error_set(err, ERR_CONFIG, "duplicate key %s.%s: line %" PRIu32 " sets it too",
                             keys[i].section, keys[i].name, parser->from[i]);
        parser->from[i] = parser->line;
        return config_value_set(parser->cfg, &keys[i], trim(equals + 1), err);
    }
    return error_set(err, ERR_CONFIG, "unknown key %s in section [%s]", name, parser->section);
}

/* One line, without its newline. */
static int read_line(struct parser *parser, const char *data, size_t len, struct error *err)
{
    char line[CONFIG_LINE_MAX + 1];

    if (len > 0 && data[len - 1] == '\r')
        len--;
    if (len > CONFIG_LINE_MAX)
        return error_set(err, ERR_CONFIG, "the line is longer than %d bytes", CONFIG_LINE_MAX);
    if (memchr(data, '\0', len))
        return error_set(err, ERR_CONFIG, "the line holds a NUL byte");
    if (parser->line == 1 && len >= 3 && memcmp(data, "\xef\xbb\xbf", 3) == 0)
        return error_set(err, ERR_CONFIG, "the file begins with a byte order mark");
    memcpy(line, data, len);
    line[len] = '\0';
    char *text = trim(line);
    int result = 0;
    if (*text == '[')
        result = read_section(parser, text, err);
    else if (*text != '\0' && *text != '#' && *text != ';')
        result = read_pair(parser, text, err);
    explicit_bzero(line, len); /* may have held the password of the database */
    return result;
}

static int read_text(struct parser *parser, const char *text, size_t len, struct error *err)
{
    const char *end = text + len;

    if (len > CONFIG_FILE_MAX)
        return error_set(err, ERR_CONFIG, "%s: is larger than %d bytes", parser->name,
                         CONFIG_FILE_MAX);
    for (const char *at = text; at < end;) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        const char *stop = newline ? newline : end;
        parser->line++;
        if (read_line(parser, at, (size_t)(stop - at), err) < 0)
            return at_line(parser, parser->line, err);
        at = newline ? newline + 1 : end;
    }
    return 0;
}

/* --- defaults and environment --- */

static int read_defaults(struct parser *parser, struct error *err)
{
    for (size_t i = 0; i < KEY_COUNT; i++) {
        if (config_value_set(parser->cfg, &keys[i], keys[i].def, err) < 0)
            return at_key(parser, (enum key_index)i, err);
    }
    return 0;
}

static int read_environment(struct parser *parser, struct error *err)
{
    char variable[96];

    for (size_t i = 0; i < KEY_COUNT; i++) {
        variable_name(&keys[i], variable, sizeof(variable));
        /* secure_: whoever starts a program with more rights than their own does not
         * configure it. */
        const char *value = secure_getenv(variable);
        if (!value)
            continue;
        parser->from[i] = FROM_ENVIRONMENT;
        size_t len = strnlen(value, CONFIG_LINE_MAX + 1);
        if (len > CONFIG_LINE_MAX)
            return error_set(err, ERR_CONFIG, "%s: the value is longer than %d bytes", variable,
                             CONFIG_LINE_MAX);
        char text[CONFIG_LINE_MAX + 1];
        memcpy(text, value, len + 1);
        int result = config_value_set(parser->cfg, &keys[i], trim(text), err);
        explicit_bzero(text, sizeof(text));
        if (result < 0)
            return at_key(parser, (enum key_index)i, err);
    }
    return 0;
}

/* --- checks across keys --- */

/* The key to blame: the first of the given that somebody set. */
static enum key_index blamed(const struct parser *parser, const enum key_index *indices,
                             size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (parser->from[indices[i]] != FROM_DEFAULT)
            return indices[i];
    }
    return indices[0];
}

static int refuse(const struct parser *parser, enum key_index index, struct error *err,
                  const char *fmt, ...) __attribute__((format(printf, 4, 5)));
static int refuse(const struct parser *parser, enum key_index index, struct error *err,
                  const char *fmt, ...)
{
    char field[sizeof(err->field)];
    char why[sizeof(err->detail)];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(why, sizeof(why), fmt, args);
    va_end(args);
    (void)snprintf(field, sizeof(field), "%s.%s", keys[index].section, keys[index].name);
    error_set_field(err, ERR_CONFIG, field, "%s", why);
    return at_key(parser, index, err);
}

/* A default for guests may not be over what a request may ask for. */
static int check_within(const struct parser *parser, enum key_index index, int64_t value,
                        enum key_index max_index, int64_t max, struct error *err)
{
    const enum key_index both[] = {index, max_index};

    if (value <= max)
        return 0;
    return refuse(parser, blamed(parser, both, ARRAY_LEN(both)), err,
                  "%s.%s (%" PRId64 ") is over %s.%s (%" PRId64 ")", keys[index].section,
                  keys[index].name, value, keys[max_index].section, keys[max_index].name, max);
}

static int check_memory(const struct parser *parser, struct error *err)
{
    static const enum key_index parts[] = {KEY_guest_memory_mb, KEY_guest_workspace_mb,
                                           KEY_guest_tmp_mb, KEY_guest_shm_mb};
    const struct config *cfg = parser->cfg;
    int64_t tmpfs_mb = cfg->guest_workspace_mb + cfg->guest_tmp_mb + cfg->guest_shm_mb;

    if (tmpfs_mb + GUEST_FREE_MB <= cfg->guest_memory_mb)
        return 0;
    return refuse(parser, blamed(parser, parts, ARRAY_LEN(parts)), err,
                  "guest.workspace_mb (%" PRId64 "), guest.tmp_mb (%" PRId64
                  ") and guest.shm_mb (%" PRId64 ") are %" PRId64
                  " MiB of tmpfs, whose content counts as the guest's memory; at least %d MiB of"
                  " guest.memory_mb (%" PRId64 ") must stay free of it",
                  cfg->guest_workspace_mb, cfg->guest_tmp_mb, cfg->guest_shm_mb, tmpfs_mb,
                  GUEST_FREE_MB, cfg->guest_memory_mb);
}

static int check_timing(const struct parser *parser, struct error *err)
{
    static const enum key_index lease[] = {KEY_daemon_lease, KEY_daemon_heartbeat};
    static const enum key_index guest[] = {KEY_guest_heartbeat_timeout, KEY_guest_heartbeat};
    const struct config *cfg = parser->cfg;

    if (cfg->daemon_lease <= 2 * cfg->daemon_heartbeat)
        return refuse(parser, blamed(parser, lease, ARRAY_LEN(lease)), err,
                      "daemon.lease (%" PRId64 " ms) must be over twice daemon.heartbeat (%" PRId64
                      " ms): one late renewal must not end the node",
                      cfg->daemon_lease, cfg->daemon_heartbeat);
    if (cfg->guest_heartbeat_timeout <= cfg->guest_heartbeat)
        return refuse(parser, blamed(parser, guest, ARRAY_LEN(guest)), err,
                      "guest.heartbeat_timeout (%" PRId64
                      " ms) must be over guest.heartbeat (%" PRId64 " ms)",
                      cfg->guest_heartbeat_timeout, cfg->guest_heartbeat);
    return 0;
}

static int check_socket_mode(const struct parser *parser, struct error *err)
{
    for (int64_t rest = parser->cfg->web_socket_mode; rest > 0; rest /= 10) {
        if (rest % 10 > 7)
            return refuse(parser, KEY_web_socket_mode, err,
                          "web.socket_mode (%" PRId64 ") must be octal digits (0 to 7)",
                          parser->cfg->web_socket_mode);
    }
    return 0;
}

static int check_across(const struct parser *parser, struct error *err)
{
    const struct config *cfg = parser->cfg;

    if (check_within(parser, KEY_guest_cpus, cfg->guest_cpus, KEY_guest_cpus_max,
                     cfg->guest_cpus_max, err) < 0 ||
        check_within(parser, KEY_guest_memory_mb, cfg->guest_memory_mb, KEY_guest_memory_mb_max,
                     cfg->guest_memory_mb_max, err) < 0 ||
        check_within(parser, KEY_guest_pids, cfg->guest_pids, KEY_guest_pids_max,
                     cfg->guest_pids_max, err) < 0 ||
        check_memory(parser, err) < 0 || check_timing(parser, err) < 0 ||
        check_socket_mode(parser, err) < 0)
        return -1;
    return 0;
}

/* --- from outside --- */

/* The end of a long name says more than its beginning. */
static void shorten(const char *name, char *out, size_t size)
{
    size_t len = strlen(name);

    if (len <= CONFIG_NAME_SHOWN) {
        (void)snprintf(out, size, "%s", name);
        return;
    }
    const char *tail = name + len - CONFIG_NAME_SHOWN;
    while (((unsigned char)*tail & 0xc0) == 0x80)
        tail++;
    (void)snprintf(out, size, "…%s", tail);
}

struct config *config_parse(const char *text, size_t len, const char *name, struct error *err)
{
    char shown[CONFIG_NAME_SHOWN + 8];
    _cleanup_config_ struct config *cfg = calloc(1, sizeof(*cfg));

    shorten(name, shown, sizeof(shown));
    struct parser parser = {.cfg = cfg, .name = shown};
    if (!cfg) {
        error_set(err, ERR_CONFIG, "%s: out of memory", shown);
        return NULL;
    }
    if (read_defaults(&parser, err) < 0 || read_text(&parser, text, len, err) < 0 ||
        read_environment(&parser, err) < 0 || check_across(&parser, err) < 0)
        return NULL;
    return steal_ptr(cfg);
}

/* The whole file, or as much as proves it too large. */
static int read_file(int fd, struct buf *text, const char *name, struct error *err)
{
    while (text->len <= CONFIG_FILE_MAX) {
        char *to = buf_reserve(text, 16384);
        if (!to)
            return error_set(err, ERR_CONFIG, "%s: out of memory", name);
        ssize_t n = read(fd, to, 16384);
        if (n == 0)
            return 0;
        if (n > 0) {
            text->len += (size_t)n;
        } else if (errno != EINTR) {
            error_set_errno(err, "%s: cannot be read", name);
            err->code = ERR_CONFIG;
            return -1;
        }
    }
    return 0;
}

unsigned config_socket_mode(const struct config *cfg)
{
    unsigned mode = 0;
    unsigned shift = 0;

    for (int64_t rest = cfg->web_socket_mode; rest > 0; rest /= 10, shift += 3)
        mode |= (unsigned)(rest % 10) << shift;
    return mode;
}

struct config *config_load(const char *path, struct error *err)
{
    const char *name = path ? path : CONFIG_DEFAULT_PATH;
    char shown[CONFIG_NAME_SHOWN + 8];
    _cleanup_buf_ struct buf text = BUF_INIT(0);
    _cleanup_close_ int fd = open(name, O_RDONLY | O_CLOEXEC | O_NOCTTY);

    shorten(name, shown, sizeof(shown));
    if (fd < 0 && (path || errno != ENOENT)) {
        error_set_errno(err, "%s: cannot be opened", shown);
        err->code = ERR_CONFIG;
        return NULL;
    }
    if (fd >= 0 && read_file(fd, &text, shown, err) < 0)
        return NULL;
    struct config *cfg = config_parse(text.data ? text.data : "", text.len, name, err);
    if (text.data)
        explicit_bzero(text.data, text.cap);
    return cfg;
}

void config_free(struct config *cfg)
{
    if (!cfg)
        return;
    if (cfg->database_dsn)
        explicit_bzero(cfg->database_dsn, strlen(cfg->database_dsn));
    for (size_t i = 0; i < KEY_COUNT; i++)
        config_value_free(cfg, &keys[i]);
    free(cfg);
}

void config_show(const struct config *cfg, FILE *out, bool with_help)
{
    const char *section = "";
    char bounds[200];

    if (with_help)
        (void)fputs(
            "# Each key may be set as PADDOCK_<SECTION>_<KEY> in the environment, which wins over"
            " the file.\n\n",
            out);
    for (size_t i = 0; i < KEY_COUNT; i++) {
        const struct config_key *key = &keys[i];
        if (strcmp(section, key->section) != 0) {
            (void)fprintf(out, "%s[%s]\n", i > 0 ? "\n" : "", key->section);
            section = key->section;
        } else if (with_help) {
            (void)fputc('\n', out);
        }
        if (with_help) {
            (void)fprintf(out, "# %s\n# Default: %s", key->help, key->def);
            config_value_bounds(key, bounds, sizeof(bounds));
            if (key->type != CONFIG_ENUM) /* its help ends in the choices */
                (void)fprintf(out, "; %s", bounds);
            (void)fputc('\n', out);
        }
        (void)fprintf(out, "%s = ", key->name);
        config_value_write(cfg, key, out);
        (void)fputc('\n', out);
    }
}
