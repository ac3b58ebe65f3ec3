/*
 * Strict JSON. A scanner walks the text once before jansson sees it, with a
 * stack of its own and no recursion: it bounds depth and number of values
 * before anything is built, and it knows the path of what it refuses (NUL,
 * numbers that are not 64-bit integers). jansson then judges the grammar and
 * duplicate keys; its own messages quote the text, so only its position is used.
 * Used by the handlers on request bodies, by the daemon on hand-off messages.
 */
#include "common/json.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/text.h"

/* Room for a path in an error: struct error's field. */
#define PATH_SIZE sizeof(((struct error *)NULL)->field)
/* A 64-bit integer has at most 19 digits and a sign. */
#define INTEGER_CHARS_MAX 20

struct frame {
    bool is_object;
    bool wants_key; /* the next string is a member's name */
    bool has_key;
    size_t key; /* offset and length of its text between the quotes */
    size_t key_len;
    size_t index; /* in an array */
};

struct scan {
    const char *text;
    size_t len;
    size_t pos;
    const struct json_limits *limits;
    struct frame *frames; /* limits->depth of them */
    unsigned depth;       /* frames in use */
    size_t elements;
    struct error *err;
};

/* --- where: paths, lines ---------------------------------------------------------------- */

/* Appends at most what fits; cut between characters, control characters replaced. */
static void path_add(char path[PATH_SIZE], const char *text, size_t len)
{
    size_t used = strlen(path);
    size_t room = PATH_SIZE - 1 - used;

    if (len > room)
        len = room;
    len = text_utf8_prefix(text, len);
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        path[used + i] = text[i];
        if (c < 0x20 || c == 0x7f)
            path[used + i] = '?';
    }
    path[used + len] = '\0';
}

/* The path of the value or name at hand: labels.team, items[3].name; "" at the top. */
static void scan_path(const struct scan *scan, char path[PATH_SIZE])
{
    path[0] = '\0';
    for (unsigned i = 0; i < scan->depth; i++) {
        const struct frame *frame = &scan->frames[i];
        char index[32];

        if (!frame->is_object) {
            (void)snprintf(index, sizeof(index), "[%zu]", frame->index);
            path_add(path, index, strlen(index));
        } else if (frame->has_key) {
            if (path[0] != '\0')
                path_add(path, ".", 1);
            path_add(path, scan->text + frame->key, frame->key_len);
        }
    }
}

/* Line and column (in characters, from 1) of an offset. */
static void locate(const char *text, size_t offset, size_t *line, size_t *column)
{
    *line = 1;
    *column = 1;
    for (size_t i = 0; i < offset; i++) {
        if (text[i] == '\n') {
            (*line)++;
            *column = 1;
        } else if (((unsigned char)text[i] & 0xc0) != 0x80) {
            (*column)++;
        }
    }
}

/* ERR_INVALID_JSON: "<what> at line L, column C". */
static int refuse_at(const char *text, size_t offset, const char *what, struct error *err)
{
    size_t line;
    size_t column;

    locate(text, offset, &line, &column);
    return error_set(err, ERR_INVALID_JSON, "%s at line %zu, column %zu", what, line, column);
}

/* The same, with the path of the member at hand as field. */
static int scan_refuse(const struct scan *scan, size_t offset, const char *what)
{
    char path[PATH_SIZE];
    size_t line;
    size_t column;

    scan_path(scan, path);
    if (path[0] == '\0')
        return refuse_at(scan->text, offset, what, scan->err);
    locate(scan->text, offset, &line, &column);
    return error_set_field(scan->err, ERR_INVALID_JSON, path, "%s: %s (line %zu, column %zu)", path,
                           what, line, column);
}

/* --- the scanner ------------------------------------------------------------------------ */

static int scan_count(struct scan *scan)
{
    if (++scan->elements <= scan->limits->elements)
        return 0;
    return error_set(scan->err, ERR_INVALID_JSON, "more than %zu values", scan->limits->elements);
}

static int scan_open(struct scan *scan, bool is_object)
{
    if (scan->depth == scan->limits->depth) {
        char path[PATH_SIZE];

        scan_path(scan, path);
        return error_set_field(scan->err, ERR_INVALID_JSON, path, "nested deeper than %u levels",
                               scan->limits->depth);
    }
    scan->frames[scan->depth++] = (struct frame){.is_object = is_object, .wants_key = is_object};
    scan->pos++;
    return 0;
}

static int scan_string(struct scan *scan)
{
    struct frame *frame = scan->depth > 0 ? &scan->frames[scan->depth - 1] : NULL;
    bool is_key = frame && frame->wants_key;
    size_t begin = scan->pos + 1;
    size_t at = begin;
    bool has_nul = false;

    while (at < scan->len && scan->text[at] != '"' && !has_nul) {
        if (scan->text[at] == '\0')
            has_nul = true;
        else if (scan->text[at] == '\\')
            has_nul = scan->len - at >= 6 && memcmp(scan->text + at, "\\u0000", 6) == 0;
        if (!has_nul)
            at += scan->text[at] == '\\' ? 2 : 1;
    }
    if (at > scan->len)
        at = scan->len;
    if (is_key) {
        frame->has_key = true;
        frame->wants_key = false;
        frame->key = begin;
        frame->key_len = at - begin;
    }
    if (has_nul)
        return scan_refuse(scan, at, is_key ? "NUL in a name" : "NUL in a string");
    scan->pos = at < scan->len ? at + 1 : at;
    return is_key ? 0 : scan_count(scan);
}

static bool is_number_char(char c)
{
    return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}

static int scan_number(struct scan *scan)
{
    char digits[INTEGER_CHARS_MAX + 1];
    size_t begin = scan->pos;
    size_t len = 0;
    bool is_real = false;

    while (begin + len < scan->len && is_number_char(scan->text[begin + len])) {
        char c = scan->text[begin + len++];
        is_real = is_real || c == '.' || c == 'e' || c == 'E';
    }
    scan->pos = begin + len;
    if (is_real)
        return scan_refuse(scan, begin, "a number must be an integer without fraction or exponent");
    errno = ERANGE;
    if (len <= INTEGER_CHARS_MAX) {
        memcpy(digits, scan->text + begin, len);
        digits[len] = '\0';
        errno = 0;
        (void)strtoll(digits, NULL, 10);
    }
    if (errno == ERANGE)
        return scan_refuse(scan, begin, "an integer does not fit 64 bits");
    return scan_count(scan);
}

static bool is_word_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* true, false, null, or what jansson will refuse. */
static int scan_word(struct scan *scan)
{
    while (scan->pos < scan->len && is_word_char(scan->text[scan->pos]))
        scan->pos++;
    return scan_count(scan);
}

static void scan_comma(struct scan *scan)
{
    if (scan->depth > 0) {
        struct frame *frame = &scan->frames[scan->depth - 1];
        frame->index++;
        frame->has_key = false;
        frame->wants_key = frame->is_object;
    }
    scan->pos++;
}

static int scan_token(struct scan *scan)
{
    char c = scan->text[scan->pos];

    switch (c) {
    case '{':
    case '[':
        return scan_count(scan) < 0 ? -1 : scan_open(scan, c == '{');
    case '}':
    case ']':
        if (scan->depth > 0)
            scan->depth--;
        scan->pos++;
        return 0;
    case ',':
        scan_comma(scan);
        return 0;
    case '"':
        return scan_string(scan);
    case '\0':
        return scan_refuse(scan, scan->pos, "a NUL byte");
    default:
        if ((c >= '0' && c <= '9') || c == '-')
            return scan_number(scan);
        if (is_word_char(c))
            return scan_word(scan);
        scan->pos++; /* white space, colons, and what the grammar refuses later */
        return 0;
    }
}

/* Walks to `end`; grammar is not judged here. */
static int scan_until(struct scan *scan, size_t end)
{
    while (scan->pos < end) {
        if (scan_token(scan) < 0)
            return -1;
    }
    return 0;
}

/* --- parsing ---------------------------------------------------------------------------- */

static const char *grammar_text(enum json_error_code code)
{
    if (code == json_error_duplicate_key)
        return "the name appears twice";
    if (code == json_error_premature_end_of_input)
        return "the JSON text ends too early";
    if (code == json_error_end_of_input_expected)
        return "something follows the JSON object";
    if (code == json_error_stack_overflow)
        return "nested too deeply";
    return "not valid JSON";
}

/* What jansson refused, at the place where it stopped. `scan` is walked anew up to there. */
static int refuse_grammar(struct scan *scan, const json_error_t *jerr)
{
    enum json_error_code code = json_error_code(jerr);
    size_t stop = jerr->position > 0 ? (size_t)jerr->position : 0;

    if (code == json_error_out_of_memory)
        return error_set(scan->err, ERR_INTERNAL, "out of memory");
    if (stop > scan->len)
        stop = scan->len;
    scan->pos = 0;
    scan->depth = 0;
    scan->elements = 0;
    if (scan_until(scan, stop) < 0)
        return -1;
    return scan_refuse(scan, stop, grammar_text(code));
}

static int check_text(const char *text, size_t len, const struct json_limits *limits,
                      struct error *err)
{
    static const char blanks[] = {' ', '\t', '\r', '\n'};
    size_t first = 0;
    size_t valid;

    if (len > limits->bytes)
        return error_set(err, ERR_TOO_LARGE, "%zu bytes of JSON where at most %zu are accepted",
                         len, limits->bytes);
    while (first < len && memchr(blanks, text[first], sizeof(blanks)))
        first++;
    if (first == len)
        return error_set(err, ERR_INVALID_JSON, "a JSON object is wanted, and there is nothing");
    valid = text_utf8_prefix(text, len);
    if (valid < len)
        return refuse_at(text, valid, "invalid UTF-8", err);
    if (text[first] != '{')
        return error_set(err, ERR_INVALID_JSON, "the JSON text is not an object");
    return 0;
}

json_t *json_parse_object(const char *text, size_t len, const struct json_limits *limits,
                          struct error *err)
{
    _cleanup_free_ struct frame *frames = NULL;
    struct scan scan = {.text = text, .len = len, .limits = limits, .err = err};
    json_error_t jerr;
    json_t *object;

    if (check_text(text, len, limits, err) < 0)
        return NULL;
    frames = calloc((size_t)limits->depth + 1, sizeof(*frames));
    if (!frames) {
        error_set(err, ERR_INTERNAL, "out of memory");
        return NULL;
    }
    scan.frames = frames;
    if (scan_until(&scan, len) < 0)
        return NULL;
    object = json_loadb(text, len, JSON_REJECT_DUPLICATES, &jerr);
    if (!object)
        refuse_grammar(&scan, &jerr);
    return object;
}

char *json_canonical(const json_t *json)
{
    return json_dumps(json, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY);
}

/* --- request fields --------------------------------------------------------------------- */

static bool is_named(const char *name, const char *const names[])
{
    for (size_t i = 0; names[i]; i++) {
        if (strcmp(name, names[i]) == 0)
            return true;
    }
    return false;
}

int json_only_fields(const json_t *object, const char *const names[], struct error *err)
{
    /* Iteration changes nothing, but jansson's iterators take no const. */
    union {
        const json_t *in;
        json_t *out;
    } cast = {.in = object};

    for (void *it = json_object_iter(cast.out); it; it = json_object_iter_next(cast.out, it)) {
        const char *name = json_object_iter_key(it);
        char shown[PATH_SIZE] = "";

        if (is_named(name, names))
            continue;
        path_add(shown, name, strlen(name));
        return error_set_field(err, ERR_UNKNOWN_FIELD, shown, "the field %s is not known here",
                               shown);
    }
    return 0;
}

int json_get_int(const json_t *object, const char *name, int64_t min, int64_t max, int64_t *value,
                 struct error *err)
{
    const json_t *member = json_object_get(object, name);
    int64_t number;

    if (!member)
        return 0;
    if (!json_is_integer(member))
        return error_set_field(err, ERR_INVALID_FIELD, name, "%s must be an integer", name);
    number = json_integer_value(member);
    if (number < min)
        return error_set_field(err, ERR_INVALID_FIELD, name, "%s must be at least %jd", name,
                               (intmax_t)min);
    if (number > max)
        return error_set_field(err, ERR_LIMIT_EXCEEDED, name, "%s may be at most %jd", name,
                               (intmax_t)max);
    *value = number;
    return 1;
}

int json_get_bool(const json_t *object, const char *name, bool *value, struct error *err)
{
    const json_t *member = json_object_get(object, name);

    if (!member)
        return 0;
    if (!json_is_boolean(member))
        return error_set_field(err, ERR_INVALID_FIELD, name, "%s must be true or false", name);
    *value = json_is_true(member);
    return 1;
}

int json_get_string(const json_t *object, const char *name, size_t max_bytes, const char **value,
                    struct error *err)
{
    const json_t *member = json_object_get(object, name);

    if (!member)
        return 0;
    if (!json_is_string(member))
        return error_set_field(err, ERR_INVALID_FIELD, name, "%s must be a string", name);
    if (json_string_length(member) > max_bytes)
        return error_set_field(err, ERR_LIMIT_EXCEEDED, name, "%s may have at most %zu bytes", name,
                               max_bytes);
    *value = json_string_value(member);
    return 1;
}

static int check_map_member(const char *map, const char *name, const json_t *member,
                            size_t max_name_bytes, size_t max_value_bytes, struct error *err)
{
    char path[PATH_SIZE] = "";

    path_add(path, map, strlen(map));
    if (name[0] == '\0')
        return error_set_field(err, ERR_INVALID_FIELD, path, "%s has a member without a name", map);
    path_add(path, ".", 1);
    path_add(path, name, strlen(name));
    if (strlen(name) > max_name_bytes)
        return error_set_field(err, ERR_LIMIT_EXCEEDED, path,
                               "a name in %s may have at most %zu bytes", map, max_name_bytes);
    if (!json_is_string(member))
        return error_set_field(err, ERR_INVALID_FIELD, path, "%s must be a string", path);
    if (json_string_length(member) > max_value_bytes)
        return error_set_field(err, ERR_LIMIT_EXCEEDED, path, "%s may have at most %zu bytes", path,
                               max_value_bytes);
    return 0;
}

int json_get_string_map(const json_t *object, const char *name, size_t max_members,
                        size_t max_name_bytes, size_t max_value_bytes, json_t **value,
                        struct error *err)
{
    json_t *map = json_object_get(object, name);

    if (!map)
        return 0;
    if (!json_is_object(map))
        return error_set_field(err, ERR_INVALID_FIELD, name, "%s must be an object of strings",
                               name);
    if (json_object_size(map) > max_members)
        return error_set_field(err, ERR_LIMIT_EXCEEDED, name, "%s may have at most %zu members",
                               name, max_members);
    for (void *it = json_object_iter(map); it; it = json_object_iter_next(map, it)) {
        if (check_map_member(name, json_object_iter_key(it), json_object_iter_value(it),
                             max_name_bytes, max_value_bytes, err) < 0)
            return -1;
    }
    *value = map;
    return 1;
}

bool json_is_null_member(const json_t *object, const char *name)
{
    const json_t *member = json_object_get(object, name);

    return member && json_is_null(member);
}
