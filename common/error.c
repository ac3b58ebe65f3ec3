/*
 * Making and decorating the one error value, and the look-ups of its table
 * (error_codes.def). Called wherever something can fail. Arguments may point
 * into the error itself (decorating one with its own text), so a detail is
 * formatted aside first; a detail that is cut never ends in half a character;
 * errno is left as it was. Depends on no other module: the guest's init links it.
 */
#include "common/error.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/cleanup.h"

struct error_entry {
    const char *name;
    const char *title;
    int status;
};

static const struct error_entry error_table[ERR_COUNT] = {
#define ERROR_CODE(sym, name, status, title) [ERR_##sym] = {name, title, status},
#include "common/error_codes.def"
#undef ERROR_CODE
};

/* Bytes of the UTF-8 sequence that this byte leads. */
static size_t sequence_len(unsigned char lead)
{
    if (lead >= 0xf0)
        return 4;
    if (lead >= 0xe0)
        return 3;
    return lead >= 0xc0 ? 2 : 1;
}

/* Drops a UTF-8 sequence that a cut left unfinished at the end of text. */
static void trim_partial_sequence(char *text)
{
    size_t len = strlen(text);
    size_t lead = len;

    while (lead > 0 && len - lead < 3 && ((unsigned char)text[lead - 1] & 0xc0) == 0x80)
        lead--;
    if (lead == 0)
        return;
    lead--;
    if (len - lead < sequence_len((unsigned char)text[lead]))
        text[lead] = '\0';
}

/* Copies with a cut between characters; from may overlap to. */
static void copy_cut(char *to, size_t size, const char *from)
{
    size_t len = strlen(from);
    bool cut = len >= size;

    if (cut)
        len = size - 1;
    memmove(to, from, len);
    to[len] = '\0';
    if (cut)
        trim_partial_sequence(to);
}

/* vsnprintf that cuts between characters. Text that cannot be formatted reads as empty. */
static void format_cut(char *out, size_t size, const char *fmt, va_list args)
    __attribute__((format(printf, 3, 0)));
static void format_cut(char *out, size_t size, const char *fmt, va_list args)
{
    int wanted = vsnprintf(out, size, fmt, args);

    if (wanted < 0)
        out[0] = '\0';
    else if ((size_t)wanted >= size)
        trim_partial_sequence(out);
}

static void error_fill(struct error *err, enum error_code code, const char *field,
                       const char *detail)
{
    char kept_field[sizeof(err->field)];

    copy_cut(kept_field, sizeof(kept_field), field);
    err->code = code;
    err->errno_value = 0;
    err->retry_after_ms = 0;
    memcpy(err->field, kept_field, sizeof(kept_field));
    copy_cut(err->detail, sizeof(err->detail), detail);
}

int error_set(struct error *err, enum error_code code, const char *fmt, ...)
{
    int saved_errno = errno;
    char detail[sizeof(err->detail)];
    va_list args;

    va_start(args, fmt);
    format_cut(detail, sizeof(detail), fmt, args);
    va_end(args);
    error_fill(err, code, "", detail);
    errno = saved_errno;
    return -1;
}

int error_set_field(struct error *err, enum error_code code, const char *field, const char *fmt,
                    ...)
{
    int saved_errno = errno;
    char detail[sizeof(err->detail)];
    va_list args;

    va_start(args, fmt);
    format_cut(detail, sizeof(detail), fmt, args);
    va_end(args);
    error_fill(err, code, field, detail);
    errno = saved_errno;
    return -1;
}

int error_set_errno(struct error *err, const char *fmt, ...)
{
    int saved_errno = errno;
    char detail[sizeof(err->detail)];
    char reason_buffer[128];
    va_list args;

    va_start(args, fmt);
    format_cut(detail, sizeof(detail), fmt, args);
    va_end(args);

    /* The reason is the better half of the sentence: a long context gives way to it. */
    const char *reason = strerror_r(saved_errno, reason_buffer, sizeof(reason_buffer));
    size_t reason_len = strnlen(reason, sizeof(reason_buffer));
    char context[sizeof(err->detail)];
    copy_cut(context, sizeof(context) - reason_len - strlen(": "), detail);
    size_t context_len = strlen(context);
    memcpy(detail, context, context_len);
    memcpy(detail + context_len, ": ", 2);
    memcpy(detail + context_len + 2, reason, reason_len);
    detail[context_len + 2 + reason_len] = '\0';

    error_fill(err, ERR_SYSTEM, "", detail);
    err->errno_value = saved_errno;
    errno = saved_errno;
    return -1;
}

int error_prefix(struct error *err, const char *fmt, ...)
{
    int saved_errno = errno;
    char context[sizeof(err->detail)];
    char detail[2 * sizeof(err->detail) + 2];
    va_list args;

    va_start(args, fmt);
    format_cut(context, sizeof(context), fmt, args);
    va_end(args);
    (void)snprintf(detail, sizeof(detail), "%s: %s", context, err->detail);
    copy_cut(err->detail, sizeof(err->detail), detail);
    errno = saved_errno;
    return -1;
}

int error_prefix_field(struct error *err, const char *member)
{
    char path[2 * sizeof(err->field)];

    (void)snprintf(path, sizeof(path), "%.*s%s%s", (int)sizeof(err->field) - 1, member,
                   err->field[0] ? "." : "", err->field);
    copy_cut(err->field, sizeof(err->field), path);
    return -1;
}

static const struct error_entry *error_entry_of(enum error_code code)
{
    unsigned index = (unsigned)code;

    if (index == ERR_NONE || index >= ARRAY_LEN(error_table))
        index = ERR_INTERNAL;
    return &error_table[index];
}

const char *error_code_name(enum error_code code)
{
    return error_entry_of(code)->name;
}

const char *error_code_title(enum error_code code)
{
    return error_entry_of(code)->title;
}

int error_code_status(enum error_code code)
{
    return error_entry_of(code)->status;
}

enum error_code error_code_from_name(const char *name)
{
    if (!name)
        return ERR_INTERNAL;
    for (unsigned i = ERR_NONE + 1; i < ARRAY_LEN(error_table); i++) {
        if (strcmp(error_table[i].name, name) == 0)
            return (enum error_code)i;
    }
    return ERR_INTERNAL;
}
