/*
 * The one error value. Caller-owned, no allocation; the last argument of every
 * function that can fail. Made where the failure happens, decorated at most
 * once, logged once, answered once. The table of codes is error_codes.def.
 */
#ifndef PADDOCK_COMMON_ERROR_H
#define PADDOCK_COMMON_ERROR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

enum error_code {
    ERR_NONE = 0,
#define ERROR_CODE(sym, name, status, title) ERR_##sym,
#include "common/error_codes.def"
#undef ERROR_CODE
    ERR_COUNT
};

struct error {
    enum error_code code;   /* ERR_NONE: no error */
    int errno_value;        /* 0 when no system call was at fault */
    int64_t retry_after_ms; /* 0: no advice to retry */
    char field[96];         /* request field or config key at fault; "" if none */
    char detail[512];       /* one sentence, safe to show to a client; never a secret */
};

#define ERROR_INIT {.code = ERR_NONE}

/* Sets code and detail (printf form). Always returns -1, so that `return error_set(...)` reads
 * well. A detail that does not fit is cut at the end. */
int error_set(struct error *err, enum error_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Like error_set, and names the field at fault. */
int error_set_field(struct error *err, enum error_code code, const char *field, const char *fmt,
                    ...) __attribute__((format(printf, 4, 5)));

/* ERR_SYSTEM with errno as it is now; ": strerror" is appended to the detail. Returns -1. */
int error_set_errno(struct error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Puts "context: " before the detail. Returns -1. */
int error_prefix(struct error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Makes the field at fault one of a member: "mode" of `egress` is egress.mode. Returns -1. */
int error_prefix_field(struct error *err, const char *member);

static inline bool error_is_set(const struct error *err)
{
    return err->code != ERR_NONE;
}

/* Table look-ups. An out-of-range code reads as ERR_INTERNAL. */
const char *error_code_name(enum error_code code);  /* "not_found" */
const char *error_code_title(enum error_code code); /* "Not found" */
int error_code_status(enum error_code code);        /* 404 */
/* Name to code; ERR_INTERNAL when the name is not in the table. */
enum error_code error_code_from_name(const char *name);

#endif
