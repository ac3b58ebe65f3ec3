/*
 * Single configuration values: readers and writers by type, for config.c. What
 * is written here reads back as the same value, save for a password in a
 * connection string (libpq's two forms), which never comes out: where the text
 * is odd, rather too much is masked than too little.
 */
#include "common/config_value.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

#include "common/text.h"

#define NAME_MAX_LEN 63 /* of a template, as in the database */
#define MASK "********"

struct unit {
    const char *suffix;
    int64_t factor;
};

/* Largest first: writing takes the first that divides the value. */
static const struct unit byte_units[] = {
    {"G", INT64_C(1) << 30}, {"M", INT64_C(1) << 20}, {"K", INT64_C(1) << 10}, {"", 1}};
static const struct unit duration_units[] = {
    {"d", 86400000}, {"h", 3600000}, {"m", 60000}, {"s", 1000}, {"ms", 1}};

static char **string_field(struct config *cfg, const struct config_key *key)
{
    return (char **)((char *)cfg + key->offset);
}

static int64_t *integer_field(struct config *cfg, const struct config_key *key)
{
    return (int64_t *)((char *)cfg + key->offset);
}

static const void *const_field(const struct config *cfg, const struct config_key *key)
{
    return (const char *)cfg + key->offset;
}

static int refuse(const struct config_key *key, struct error *err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static int refuse(const struct config_key *key, struct error *err, const char *fmt, ...)
{
    char field[sizeof(err->field)];
    char why[sizeof(err->detail)];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(why, sizeof(why), fmt, args);
    va_end(args);
    (void)snprintf(field, sizeof(field), "%s.%s", key->section, key->name);
    return error_set_field(err, ERR_CONFIG, field, "%s %s", field, why);
}

/* --- integers --- */

static const struct unit *units_of(enum config_type type, size_t *count)
{
    static const struct unit plain[] = {{"", 1}};

    if (type == CONFIG_BYTES) {
        *count = ARRAY_LEN(byte_units);
        return byte_units;
    }
    if (type == CONFIG_DURATION) {
        *count = ARRAY_LEN(duration_units);
        return duration_units;
    }
    *count = ARRAY_LEN(plain);
    return plain;
}

static void format_integer(enum config_type type, int64_t value, char *out, size_t size)
{
    size_t count;
    const struct unit *units = units_of(type, &count);
    size_t i = 0;

    if (value == 0) /* every unit divides it; bytes have none, a duration reads as seconds */
        i = type == CONFIG_DURATION ? 3 : count - 1;
    while (i + 1 < count && value % units[i].factor != 0)
        i++;
    (void)snprintf(out, size, "%" PRId64 "%s", value / units[i].factor, units[i].suffix);
}

/* Digits and a unit of the type. Returns 0, or -1 when it is not one or does not fit in 64 bits. */
static int read_integer(enum config_type type, const char *text, int64_t *value)
{
    char digits[24];
    size_t len = strspn(text, "-0123456789");

    if (len == 0 || len >= sizeof(digits))
        return -1;
    memcpy(digits, text, len);
    digits[len] = '\0';

    size_t count;
    const struct unit *units = units_of(type, &count);
    for (size_t i = 0; i < count; i++) {
        int64_t factor = units[i].factor;
        int64_t number;
        if (strcmp(text + len, units[i].suffix) != 0)
            continue;
        if (text_parse_i64(digits, INT64_MIN / factor, INT64_MAX / factor, &number) < 0)
            return -1;
        *value = number * factor;
        return 0;
    }
    return -1;
}

void config_value_bounds(const struct config_key *key, char *out, size_t size)
{
    char min[32];
    char max[32];

    switch (key->type) {
    case CONFIG_BOOL:
        (void)snprintf(out, size, "yes or no");
        return;
    case CONFIG_ENUM: {
        const char *list = strrchr(key->help, '(');
        (void)snprintf(out, size, "%s", list ? list : "");
        return;
    }
    case CONFIG_STRING:
    case CONFIG_PATH:
    case CONFIG_NAMES:
        (void)snprintf(out, size, "of %" PRId64 " to %" PRId64 " bytes", key->min, key->max);
        return;
    case CONFIG_INT:
    case CONFIG_BYTES:
    case CONFIG_DURATION:
        break;
    }
    format_integer(key->type, key->min, min, sizeof(min));
    format_integer(key->type, key->max, max, sizeof(max));
    (void)snprintf(out, size, "from %s to %s", min, max);
}

static int set_integer(struct config *cfg, const struct config_key *key, const char *text,
                       struct error *err)
{
    char bounds[80];
    int64_t value;

    config_value_bounds(key, bounds, sizeof(bounds));
    const char *what = "an integer";
    if (key->type == CONFIG_BYTES)
        what = "an integer with optional K, M or G";
    else if (key->type == CONFIG_DURATION)
        what = "an integer with ms, s, m, h or d";
    if (read_integer(key->type, text, &value) < 0)
        return refuse(key, err, "must be %s, %s; it is \"%.60s\"", what, bounds, text);
    if (value < key->min || value > key->max)
        return refuse(key, err, "must be %s; it is %.60s", bounds, text);
    *integer_field(cfg, key) = value;
    return 0;
}

static int set_bool(struct config *cfg, const struct config_key *key, const char *text,
                    struct error *err)
{
    bool yes = strcmp(text, "yes") == 0;

    if (!yes && strcmp(text, "no") != 0)
        return refuse(key, err, "must be yes or no; it is \"%.60s\"", text);
    *(bool *)((char *)cfg + key->offset) = yes;
    return 0;
}

/* --- strings --- */

/* The choices stand at the end of the help: "(one|two)". */
static bool is_choice(const char *help, const char *text)
{
    const char *at = strrchr(help, '(');
    size_t len = strlen(text);

    while (at && *at != '\0' && *at != ')') {
        at++;
        size_t choice_len = strcspn(at, "|)");
        if (len > 0 && choice_len == len && memcmp(at, text, len) == 0)
            return true;
        at += choice_len;
    }
    return false;
}

bool config_name_at(const char *names, unsigned index, char *out, size_t size)
{
    const char *at = names + strspn(names, " ");

    for (; *at; index--) {
        size_t len = strcspn(at, " ");
        if (index == 0) {
            if (len >= size)
                return false;
            memcpy(out, at, len);
            out[len] = '\0';
            return true;
        }
        at += len;
        at += strspn(at, " ");
    }
    return false;
}

static int check_names(const struct config_key *key, const char *text, struct error *err)
{
    char name[NAME_MAX_LEN + 1];
    char earlier[NAME_MAX_LEN + 1];
    unsigned count = 0;

    while (config_name_at(text, count, name, sizeof(name))) {
        if (!text_is_name(name, NAME_MAX_LEN))
            return refuse(key, err,
                          "holds \"%s\", which is not a name: a-z, 0-9 and '-', beginning with a "
                          "letter and not ending in '-'",
                          name);
        for (unsigned i = 0; i < count; i++) {
            if (config_name_at(text, i, earlier, sizeof(earlier)) && strcmp(earlier, name) == 0)
                return refuse(key, err, "names \"%s\" twice", name);
        }
        count++;
    }
    /* Stopped at the end, or at a name too long for the buffer? */
    char any[2048];
    if (config_name_at(text, count, any, sizeof(any)))
        return refuse(key, err, "holds a name of over %d bytes", NAME_MAX_LEN);
    return 0;
}

static int set_string(struct config *cfg, const struct config_key *key, const char *text,
                      struct error *err)
{
    char bounds[200];
    size_t len = strlen(text);

    config_value_bounds(key, bounds, sizeof(bounds));
    if (key->type == CONFIG_ENUM) {
        if (!is_choice(key->help, text))
            return refuse(key, err, "must be one of %s; it is \"%.60s\"", bounds, text);
    } else if (len < (size_t)key->min || len > (size_t)key->max) {
        return refuse(key, err, "must be %s; it has %zu", bounds, len);
    }
    if (key->type == CONFIG_PATH && text[0] != '/')
        return refuse(key, err, "must be an absolute path");
    if (key->type == CONFIG_NAMES && check_names(key, text, err) < 0)
        return -1;

    char *copy = strdup(text);
    if (!copy)
        return refuse(key, err, "cannot be kept: out of memory");
    char **field = string_field(cfg, key);
    free(*field);
    *field = copy;
    return 0;
}

int config_value_set(struct config *cfg, const struct config_key *key, const char *text,
                     struct error *err)
{
    size_t len = strlen(text);

    for (size_t i = 0; i < len; i++) {
        unsigned char byte = (unsigned char)text[i];
        if (byte < 0x20 || byte == 0x7f)
            return refuse(key, err, "holds a control character (0x%02x)", (unsigned)byte);
    }
    if (!text_is_utf8(text, len))
        return refuse(key, err, "is not valid UTF-8");

    switch (key->type) {
    case CONFIG_INT:
    case CONFIG_BYTES:
    case CONFIG_DURATION:
        return set_integer(cfg, key, text, err);
    case CONFIG_BOOL:
        return set_bool(cfg, key, text, err);
    case CONFIG_STRING:
    case CONFIG_PATH:
    case CONFIG_NAMES:
    case CONFIG_ENUM:
        break;
    }
    return set_string(cfg, key, text, err);
}

void config_value_free(struct config *cfg, const struct config_key *key)
{
    switch (key->type) {
    case CONFIG_STRING:
    case CONFIG_PATH:
    case CONFIG_NAMES:
    case CONFIG_ENUM:
        free(*string_field(cfg, key));
        *string_field(cfg, key) = NULL;
        return;
    case CONFIG_INT:
    case CONFIG_BYTES:
    case CONFIG_DURATION:
    case CONFIG_BOOL:
        return;
    }
}

/* --- masking of connection strings --- */

static bool names_secret(const char *name, size_t len)
{
    return (len == strlen("password") && strncasecmp(name, "password", len) == 0) ||
           (len == strlen("sslpassword") && strncasecmp(name, "sslpassword", len) == 0);
}

/* Marks the secrets of a URI, text[from] to text[to] (exclusive). A password may hold an unescaped
 * '@', '/', ':' or '?', which libpq would misread but which is a secret none the less: from the
 * first ':' of the authority to the last '@' all is taken for one. */
static void mark_uri(const char *text, size_t from, size_t to, bool *secret)
{
    const char *colon = memchr(text + from, ':', to - from);
    const char *at = memrchr(text + from, '@', to - from);
    const char *query = memchr(text + from, '?', to - from);

    if (colon && at && colon < at)
        memset(secret + (colon + 1 - text), 1, (size_t)(at - colon - 1));
    for (const char *p = query; p;) {
        const char *name = p + 1;
        const char *end = memchr(name, '&', (size_t)(text + to - name));
        const char *stop = end ? end : text + to;
        const char *equals = memchr(name, '=', (size_t)(stop - name));
        if (equals) {
            char decoded[64];
            size_t len = (size_t)(equals - name);
            bool odd = len >= sizeof(decoded);
            memcpy(decoded, name, odd ? 0 : len);
            decoded[odd ? 0 : len] = '\0';
            /* libpq decodes the name too: pass%77ord is one. */
            if (odd || text_percent_decode(decoded) < 0 || names_secret(decoded, strlen(decoded)))
                memset(secret + (equals + 1 - text), 1, (size_t)(stop - equals - 1));
        }
        p = end;
    }
}

/* Marks the secrets of a "keyword = value" string, read as libpq reads it. Returns false when it
 * is not one. */
static bool mark_pairs(const char *text, bool *secret)
{
    const char *p = text;

    for (;;) {
        while (isspace((unsigned char)*p))
            p++;
        if (*p == '\0')
            return true;
        const char *name = p;
        while (*p && *p != '=' && !isspace((unsigned char)*p))
            p++;
        size_t name_len = (size_t)(p - name);
        while (isspace((unsigned char)*p))
            p++;
        if (*p++ != '=' || name_len == 0)
            return false;
        while (isspace((unsigned char)*p))
            p++;

        const char *value = p;
        bool quoted = *p == '\'';
        p += quoted;
        while (*p && (quoted ? *p != '\'' : !isspace((unsigned char)*p)))
            p += p[0] == '\\' && p[1] ? 2 : 1;
        if (quoted && *p++ != '\'')
            return false;
        const char *nested = memmem(value, (size_t)(p - value), "://", 3);
        if (names_secret(name, name_len))
            memset(secret + (value - text), 1, (size_t)(p - value));
        else if (nested) /* libpq takes a URI as dbname */
            mark_uri(text, (size_t)(nested + 3 - text), (size_t)(p - text), secret);
    }
}

static void write_masked(const char *text, FILE *out)
{
    size_t len = strlen(text);
    const char *scheme = strstr(text, "://");
    bool is_uri =
        scheme && (strncmp(text, "postgres:", 9) == 0 || strncmp(text, "postgresql:", 11) == 0);
    _cleanup_free_ bool *secret = calloc(len + 1, sizeof(*secret));

    if (!secret || (!is_uri && !mark_pairs(text, secret))) {
        (void)fputs(MASK, out);
        return;
    }
    if (is_uri)
        mark_uri(text, (size_t)(scheme + 3 - text), len, secret);
    for (size_t i = 0; i < len; i++) {
        if (!secret[i])
            (void)fputc(text[i], out);
        else if (i == 0 || !secret[i - 1])
            (void)fputs(MASK, out);
    }
}

void config_value_write(const struct config *cfg, const struct config_key *key, FILE *out)
{
    const void *field = const_field(cfg, key);
    char number[32];

    switch (key->type) {
    case CONFIG_STRING:
    case CONFIG_PATH:
    case CONFIG_NAMES:
    case CONFIG_ENUM: {
        const char *text = *(const char *const *)field;
        if (strcmp(key->name, "dsn") == 0)
            write_masked(text, out);
        else
            (void)fputs(text, out);
        return;
    }
    case CONFIG_BOOL:
        (void)fputs(*(const bool *)field ? "yes" : "no", out);
        return;
    case CONFIG_INT:
    case CONFIG_BYTES:
    case CONFIG_DURATION:
        format_integer(key->type, *(const int64_t *)field, number, sizeof(number));
        (void)fputs(number, out);
        return;
    }
}
