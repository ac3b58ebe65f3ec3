/*
 * Writes log records: one logfmt line, one write(2). Called by every program.
 * Whatever a message holds, a record stays one line of printable ASCII (but for
 * the "…" of a cut), so no input can split or forge one; it stays below
 * PIPE_BUF, so records of several processes on one pipe never mix; errno
 * survives. A record that cannot be written is lost: logging never fails a request. One that a
 * full disk cut off is ended before this process writes another.
 */
#include "common/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/cleanup.h"

#define RECORD_MAX 2048 /* bytes of one record, its newline included */
#define ELLIPSIS "\xe2\x80\xa6"
/* What must always fit behind the text: a cut's ellipsis, a closing quote, the newline. */
#define RECORD_TAIL (sizeof(ELLIPSIS) - 1 + 2)

struct record {
    char data[RECORD_MAX];
    size_t len;
    bool cut;
};

static const char *const level_names[] = {
    [LOG_DEBUG] = "debug", [LOG_INFO] = "info", [LOG_WARN] = "warn", [LOG_ERROR] = "error"};
static const char *const level_colours[] = {[LOG_DEBUG] = "\033[2m",
                                            [LOG_INFO] = "\033[32m",
                                            [LOG_WARN] = "\033[33m",
                                            [LOG_ERROR] = "\033[31m"};

void log_init(struct log *log, const char *program)
{
    *log = (struct log){.fd = STDERR_FILENO, .level = LOG_INFO, .program = program};
}

int log_level_parse(const char *text, enum log_level *level)
{
    if (!text)
        return -1;
    for (unsigned i = 0; i < ARRAY_LEN(level_names); i++) {
        if (strcmp(level_names[i], text) == 0) {
            *level = (enum log_level)i;
            return 0;
        }
    }
    return -1;
}

/* All of the bytes or none: an escape is never cut in half. */
static void record_raw(struct record *record, const char *data, size_t len)
{
    if (record->cut || len > RECORD_MAX - RECORD_TAIL - record->len) {
        record->cut = true;
        return;
    }
    memcpy(record->data + record->len, data, len);
    record->len += len;
}

static void record_str(struct record *record, const char *text)
{
    record_raw(record, text, strlen(text));
}

/* Text of any origin. A word may not hold a space either. */
static void record_escaped(struct record *record, const char *text, bool word)
{
    for (const char *p = text; *p && !record->cut; p++) {
        unsigned char byte = (unsigned char)*p;
        char escape[8];
        if (byte == '\n') {
            record_raw(record, "\\n", 2);
        } else if (byte == '"' || byte == '\\') {
            escape[0] = '\\';
            escape[1] = *p;
            record_raw(record, escape, 2);
        } else if (byte < 0x20 || byte >= 0x7f || (word && byte == ' ')) {
            (void)snprintf(escape, sizeof(escape), "\\x%02x", (unsigned)byte);
            record_raw(record, escape, 4);
        } else {
            record_raw(record, p, 1);
        }
    }
}

/* Everything before the message. */
static void record_begin(struct record *record, const struct log *log, enum log_level level,
                         const char *event)
{
    char text[96];
    struct timespec now = {0};
    struct tm utc = {0};

    record->len = 0;
    record->cut = false;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)gmtime_r(&now.tv_sec, &utc);
    size_t len = strftime(text, sizeof(text), "ts=%Y-%m-%dT%H:%M:%S", &utc);
    (void)snprintf(text + len, sizeof(text) - len, ".%03ldZ level=", now.tv_nsec / 1000000);
    record_str(record, text);

    bool coloured = isatty(log->fd) == 1;
    if (coloured)
        record_str(record, level_colours[level]);
    record_str(record, level_names[level]);
    if (coloured)
        record_str(record, "\033[0m");

    record_str(record, " prog=");
    record_escaped(record, log->program ? log->program : "unknown", true);
    (void)snprintf(text, sizeof(text), " pid=%ld", (long)getpid());
    record_str(record, text);
    if (log->request_id[0]) {
        char request_id[sizeof(log->request_id) + 1] = "";
        memcpy(request_id, log->request_id, sizeof(log->request_id));
        record_str(record, " request_id=");
        record_escaped(record, request_id, true);
    }
    record_str(record, " event=");
    record_escaped(record, event, true);
}

/* Returns the bytes that were written. */
static size_t write_all(int fd, const char *data, size_t len)
{
    size_t done = 0;
    while (done < len) {
        ssize_t n = write(fd, data + done, len - done);
        if (n > 0)
            done += (size_t)n;
        else if (n == 0 || errno != EINTR)
            break;
    }
    return done;
}

/* Closes the line (room for that was kept) and writes it. */
static void record_end(struct record *record, int fd, bool in_quotes)
{
    if (record->cut) {
        memcpy(record->data + record->len, ELLIPSIS, sizeof(ELLIPSIS) - 1);
        record->len += sizeof(ELLIPSIS) - 1;
    }
    if (in_quotes)
        record->data[record->len++] = '"';
    record->data[record->len++] = '\n';

    static atomic_bool torn;
    if (atomic_exchange(&torn, false) && write_all(fd, "\n", 1) < 1)
        torn = true;
    size_t done = torn ? 0 : write_all(fd, record->data, record->len);
    if (done > 0 && done < record->len)
        torn = true;
}

static bool log_wants(const struct log *log, enum log_level level)
{
    return (unsigned)level < ARRAY_LEN(level_names) && level >= log->level;
}

void log_write(const struct log *log, enum log_level level, const char *event, const char *fmt, ...)
{
    if (!log_wants(log, level))
        return;
    int saved_errno = errno;
    struct record record;

    record_begin(&record, log, level, event);
    if (fmt) {
        char message[RECORD_MAX];
        va_list args;
        va_start(args, fmt);
        int wanted = vsnprintf(message, sizeof(message), fmt, args);
        va_end(args);
        if (wanted > 0) {
            record_raw(&record, " ", 1);
            record_escaped(&record, message, false);
        }
    }
    record_end(&record, log->fd, false);
    errno = saved_errno;
}

void log_error_value(const struct log *log, enum log_level level, const char *event,
                     const struct error *err)
{
    if (!log_wants(log, level))
        return;
    int saved_errno = errno;
    struct record record;

    record_begin(&record, log, level, event);
    record_str(&record, " code=");
    record_str(&record, error_code_name(err->code));
    if (err->field[0]) {
        record_str(&record, " field=");
        record_escaped(&record, err->field, true);
    }
    if (err->errno_value != 0) {
        char text[32];
        (void)snprintf(text, sizeof(text), " errno=%d", err->errno_value);
        record_str(&record, text);
    }
    record_str(&record, " detail=\"");
    record_escaped(&record, err->detail, false);
    record_end(&record, log->fd, true);
    errno = saved_errno;
}
