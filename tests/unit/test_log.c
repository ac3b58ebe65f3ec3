/*
 * Log records as they come out of a pipe: form, escaping, cuts, levels, errno.
 */
#include "common/log.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define ELLIPSIS "…"

static int reader = -1;
static struct log logger;
static char record[PIPE_BUF + 1];

static void setup(void)
{
    int ends[2];

    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    ck_assert_int_eq(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    reader = ends[0];
    log_init(&logger, "test");
    ck_assert_int_eq(logger.fd, STDERR_FILENO);
    ck_assert_int_eq(logger.level, LOG_INFO);
    logger.fd = ends[1];
}

static void teardown(void)
{
    close(reader);
    close(logger.fd);
}

/* All that was written since the last call; "" for nothing. */
static const char *take(void)
{
    ssize_t n = read(reader, record, sizeof(record) - 1);

    record[n > 0 ? n : 0] = '\0';
    return record;
}

/* One line, nothing in it but printable ASCII (and the ellipsis of a cut). */
static void assert_one_line(const char *text)
{
    size_t len = strlen(text);

    ck_assert_uint_gt(len, 0);
    ck_assert_int_eq(text[len - 1], '\n');
    for (size_t i = 0; i + 1 < len; i++) {
        if (strncmp(text + i, ELLIPSIS, strlen(ELLIPSIS)) == 0) {
            i += strlen(ELLIPSIS) - 1;
            continue;
        }
        if (text[i] < 0x20 || text[i] == 0x7f)
            ck_abort_msg("byte 0x%02x at %zu", (unsigned)(unsigned char)text[i], i);
    }
}

START_TEST(record_has_its_form)
{
    char wanted[100];

    log_info(&logger, "guest_ready", "id=%s ms=%d", "abc", 131);
    const char *text = take();
    assert_one_line(text);
    ck_assert_int_eq(strncmp(text, "ts=", 3), 0);
    ck_assert_uint_eq(strcspn(text + 3, " "), strlen("2026-01-02T03:04:05.678Z"));
    ck_assert_int_eq(text[3 + 23], 'Z');
    snprintf(wanted, sizeof(wanted),
             " level=info prog=test pid=%d event=guest_ready id=abc ms=131\n", (int)getpid());
    ck_assert_str_eq(text + 3 + 24, wanted);
}
END_TEST

START_TEST(request_id_appears_within_a_request)
{
    strcpy(logger.request_id, "0f");
    log_info(&logger, "x", NULL);
    ck_assert_ptr_nonnull(strstr(take(), " request_id=0f event=x\n"));
    /* Without a NUL: read no further than the array. */
    memset(logger.request_id, 'q', sizeof(logger.request_id));
    log_info(&logger, "x", NULL);
    const char *at = strstr(take(), "request_id=");
    ck_assert_ptr_nonnull(at);
    ck_assert_uint_eq(strspn(at + 11, "q"), sizeof(logger.request_id));
}
END_TEST

START_TEST(levels_drop_what_is_below)
{
    enum log_level level = LOG_ERROR;

    log_debug(&logger, "no", NULL);
    ck_assert_str_eq(take(), "");
    logger.level = LOG_ERROR;
    log_warn(&logger, "no", "x=%d", 1);
    ck_assert_str_eq(take(), "");
    log_fail(&logger, "yes", "x=%d", 1);
    ck_assert_ptr_nonnull(strstr(take(), "level=error"));
    logger.level = LOG_DEBUG;
    log_debug(&logger, "yes", NULL);
    ck_assert_ptr_nonnull(strstr(take(), "level=debug"));

    ck_assert_int_eq(log_level_parse("debug", &level), 0);
    ck_assert_int_eq(level, LOG_DEBUG);
    ck_assert_int_eq(log_level_parse("warn", &level), 0);
    ck_assert_int_eq(level, LOG_WARN);
    ck_assert_int_eq(log_level_parse("INFO", &level), -1);
    ck_assert_int_eq(log_level_parse("", &level), -1);
    ck_assert_int_eq(log_level_parse("info ", &level), -1);
    ck_assert_int_eq(log_level_parse(NULL, &level), -1);
    ck_assert_int_eq(level, LOG_WARN);
    ck_assert_int_eq(log_level_parse("error", &level), 0);
    ck_assert_int_eq(log_level_parse("info", &level), 0);
    ck_assert_int_eq(level, LOG_INFO);
}
END_TEST

START_TEST(no_message_splits_or_forges_a_record)
{
    log_info(&logger, "x", "name=%s", "a\nts=2026 level=error\r\n\t\x1b[31m\x7f\"\\é\xff");
    const char *text = take();
    assert_one_line(text);
    ck_assert_ptr_nonnull(strstr(text, " name=a\\nts=2026 level=error\\x0d\\n\\x09\\x1b[31m\\x7f"
                                       "\\\"\\\\\\xc3\\xa9\\xff\n"));
}
END_TEST

START_TEST(every_byte_is_printable_in_the_record)
{
    char text[256];

    for (int i = 0; i < 255; i++)
        text[i] = (char)(unsigned char)(i + 1);
    text[255] = '\0';
    log_info(&logger, "x", "%s", text);
    assert_one_line(take());
    memcpy(logger.request_id, text, sizeof(logger.request_id) - 1);
    logger.request_id[sizeof(logger.request_id) - 1] = '\0';
    log_info(&logger, text, NULL);
    assert_one_line(take());
    ck_assert_ptr_null(strstr(record, "event= "));
}
END_TEST

START_TEST(long_records_are_cut_and_say_so)
{
    char text[5000];

    for (int escapes = 0; escapes < 2; escapes++) {
        /* Every length around the ceiling: no record is over it, no escape is halved. */
        for (size_t len = 300; len < 2200; len += 1) {
            memset(text, escapes ? '\x01' : 'x', len);
            text[len] = '\0';
            log_info(&logger, "x", "%s", text);
            const char *out = take();
            assert_one_line(out);
            size_t out_len = strlen(out);
            ck_assert_uint_le(out_len, 2048);
            bool whole = strstr(out, ELLIPSIS) == NULL;
            const char *message = strstr(out, " event=x ") + strlen(" event=x ");
            size_t message_len = strcspn(message, "\n");
            if (whole) {
                ck_assert_uint_eq(message_len, escapes ? 4 * len : len);
            } else {
                ck_assert_uint_ge(out_len, 2048 - 8);
                ck_assert_str_eq(out + out_len - strlen(ELLIPSIS) - 1, ELLIPSIS "\n");
                if (escapes)
                    ck_assert_uint_eq((message_len - strlen(ELLIPSIS)) % 4, 0);
            }
        }
    }
    memset(text, 'y', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    log_info(&logger, "x", "%s", text);
    assert_one_line(take());
    ck_assert_ptr_nonnull(strstr(record, "yy" ELLIPSIS "\n"));
}
END_TEST

START_TEST(an_error_is_one_record)
{
    struct error err = ERROR_INIT;

    errno = ENOENT;
    error_set_errno(&err, "cannot open \"%s\"", "a b");
    log_error_value(&logger, LOG_WARN, "open_failed", &err);
    const char *text = take();
    assert_one_line(text);
    ck_assert_ptr_nonnull(strstr(text, " level=warn "));
    ck_assert_ptr_nonnull(strstr(text,
                                 " event=open_failed code=system_error errno=2 detail=\"cannot "
                                 "open \\\"a b\\\": No such file or directory\"\n"));
    error_set_field(&err, ERR_UNKNOWN_FIELD, "a b\n", "unknown");
    log_error_value(&logger, LOG_ERROR, "x", &err);
    ck_assert_ptr_nonnull(
        strstr(take(), " code=unknown_field field=a\\x20b\\n detail=\"unknown\"\n"));
    logger.level = LOG_ERROR;
    log_error_value(&logger, LOG_INFO, "x", &err);
    ck_assert_str_eq(take(), "");
}
END_TEST

START_TEST(a_cut_detail_is_still_quoted)
{
    struct error err = ERROR_INIT;
    char text[600];

    memset(text, '\x02', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    error_set(&err, ERR_INTERNAL, "%s", text);
    log_error_value(&logger, LOG_ERROR, "x", &err);
    const char *out = take();
    assert_one_line(out);
    ck_assert_uint_le(strlen(out), 2048);
    ck_assert_str_eq(out + strlen(out) - strlen("\\x02" ELLIPSIS "\"\n"), "\\x02" ELLIPSIS "\"\n");
}
END_TEST

START_TEST(errno_survives)
{
    struct error err = ERROR_INIT;
    struct log closed = logger;

    signal(SIGPIPE, SIG_IGN);
    error_set(&err, ERR_INTERNAL, "x");
    closed.fd = -1;
    errno = EXDEV;
    log_info(&logger, "x", "n=%d", 1);
    log_error_value(&logger, LOG_ERROR, "x", &err);
    log_info(&closed, "x", NULL);
    log_error_value(&closed, LOG_ERROR, "x", &err);
    ck_assert_int_eq(errno, EXDEV);
    ck_assert_ptr_nonnull(strstr(take(), "event=x n=1\n"));
}
END_TEST

START_TEST(a_full_pipe_loses_records_not_time)
{
    ck_assert_int_eq(fcntl(logger.fd, F_SETFL, O_NONBLOCK), 0);
    for (int i = 0; i < 5000; i++)
        log_info(&logger, "x", "n=%d 0123456789012345678901234567890123456789", i);
    /* What did get in is whole. */
    const char *text = take();
    ck_assert_int_eq(strncmp(text, "ts=", 3), 0);
    ck_assert_ptr_nonnull(strstr(text, " n=0 "));
}
END_TEST

/* As a full disk does: the limit on a file's size lets part of a record in. */
START_TEST(a_record_that_was_cut_off_is_ended_before_the_next)
{
    FILE *file = tmpfile();
    struct log full = logger;
    struct rlimit limit;
    char text[1000];

    ck_assert_ptr_nonnull(file);
    full.fd = fileno(file);
    log_info(&full, "first", NULL);
    off_t first = lseek(full.fd, 0, SEEK_END);
    (void)signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = (rlim_t)first + 10;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    log_info(&full, "second", NULL);
    log_info(&full, "third", NULL);
    limit.rlim_cur = limit.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    log_info(&full, "fourth", NULL);
    log_info(&full, "fifth", NULL);
    ssize_t len = pread(full.fd, text, sizeof(text) - 1, first);
    ck_assert_int_gt(len, 10);
    text[len] = '\0';
    ck_assert_int_eq(strncmp(text + 10, "\nts=", 4), 0);
    ck_assert_ptr_null(strstr(text, "third"));
    const char *fourth = strstr(text, "event=fourth\nts=");
    ck_assert_ptr_nonnull(fourth);
    ck_assert_ptr_nonnull(strstr(fourth, "event=fifth\n"));
    (void)fclose(file);
}
END_TEST

START_TEST(a_terminal_gets_colour)
{
    int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (terminal < 0 || grantpt(terminal) < 0 || unlockpt(terminal) < 0)
        return; /* no pseudo-terminals here */
    char path[100];
    ck_assert_int_eq(ptsname_r(terminal, path, sizeof(path)), 0);
    int end = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (end >= 0) {
        struct log colour = logger;
        char text[500];
        colour.fd = end;
        log_warn(&colour, "x", NULL);
        ssize_t n = read(terminal, text, sizeof(text) - 1);
        ck_assert_int_gt(n, 0);
        text[n] = '\0';
        ck_assert_ptr_nonnull(strstr(text, "level=\033[33mwarn\033[0m prog="));
        close(end);
    }
    close(terminal);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("log");
    TCase *tcase = tcase_create("log");
    SRunner *runner = srunner_create(suite);

    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, record_has_its_form);
    tcase_add_test(tcase, request_id_appears_within_a_request);
    tcase_add_test(tcase, levels_drop_what_is_below);
    tcase_add_test(tcase, no_message_splits_or_forges_a_record);
    tcase_add_test(tcase, every_byte_is_printable_in_the_record);
    tcase_add_test(tcase, long_records_are_cut_and_say_so);
    tcase_add_test(tcase, an_error_is_one_record);
    tcase_add_test(tcase, a_cut_detail_is_still_quoted);
    tcase_add_test(tcase, errno_survives);
    tcase_add_test(tcase, a_full_pipe_loses_records_not_time);
    tcase_add_test(tcase, a_record_that_was_cut_off_is_ended_before_the_next);
    tcase_add_test(tcase, a_terminal_gets_colour);
    suite_add_tcase(suite, tcase);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
