/*
 * Structured logging: one line a record, logfmt, on a descriptor (stderr by
 * default; systemd's journal takes it from there):
 *
 *   ts=2026-01-02T03:04:05.678Z level=info prog=paddockd pid=12 event=guest_ready id=… ms=131
 *
 * Never log code, output, environment values, URLs with queries, tokens or file
 * content. Control characters, quotes and non-ASCII bytes of a message come out
 * escaped, so a record can never be split or forged. On a terminal the level is
 * coloured.
 */
#ifndef PADDOCK_COMMON_LOG_H
#define PADDOCK_COMMON_LOG_H

#include "common/error.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

/* Lives in a program's context struct; plain data, may be copied. */
struct log {
    int fd;               /* borrowed */
    enum log_level level; /* records below are dropped */
    const char *program;  /* borrowed, static */
    char request_id[40];  /* "" outside a request */
};

/* fd 2, level info. */
void log_init(struct log *log, const char *program);

/* "debug" "info" "warn" "error" -> level. Returns 0, or -1 for anything else. */
int log_level_parse(const char *text, enum log_level *level);

/* One record. `event` is a snake_case constant; fmt gives `key=value key=value`
 * and may be NULL. A record over 2 KiB is cut and ends in "…". Preserves errno. */
void log_write(const struct log *log, enum log_level level, const char *event, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* One record from an error: code=, field=, errno=, detail="…" (when cut, "…" stands before the
 * closing quote). */
void log_error_value(const struct log *log, enum log_level level, const char *event,
                     const struct error *err);

#define log_debug(log, event, ...) log_write((log), LOG_DEBUG, (event), __VA_ARGS__)
#define log_info(log, event, ...) log_write((log), LOG_INFO, (event), __VA_ARGS__)
#define log_warn(log, event, ...) log_write((log), LOG_WARN, (event), __VA_ARGS__)
#define log_fail(log, event, ...) log_write((log), LOG_ERROR, (event), __VA_ARGS__)

#endif
