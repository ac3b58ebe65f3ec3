/*
 * Answers that are taken slowly: sent whole and in order whenever the reader
 * gets to them, bounded in number and bytes, dropped when idle, and closed in
 * every case.
 */
#include "fcgi/pending.h"

#include <check.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MIB ((size_t)1024 * 1024)

static struct pending *pending;

/* What is sent: this pattern over and over. */
#define PERIOD 251
static char pattern[65536 + PERIOD];

static const char *pattern_at(size_t at)
{
    return pattern + at % PERIOD;
}

static void setup(void)
{
    struct error err = ERROR_INIT;
    for (size_t i = 0; i < sizeof(pattern); i++)
        pattern[i] = (char)(i % PERIOD);
    pending = pending_new(&err);
    ck_assert_ptr_nonnull(pending);
}

static void teardown(void)
{
    pending_free(pending);
}

/* Sends size bytes; returns the reader's end. */
static int send_bytes(size_t size, int64_t now_ms)
{
    int pair[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    struct buf data = BUF_INIT(0);
    char *room = buf_reserve(&data, size);
    ck_assert_ptr_nonnull(room);
    for (size_t at = 0; at < size; at += 65536)
        memcpy(room + at, pattern_at(at), size - at < 65536 ? size - at : 65536);
    data.len = size;
    pending_send(pending, pair[1], &data, now_ms);
    ck_assert_uint_eq(data.len, 0);
    ck_assert_ptr_null(data.data);
    return pair[0];
}

/* What can be read without waiting, checked against what was sent. */
static size_t take(int fd, size_t at, size_t most, bool *end)
{
    char chunk[65536];
    size_t taken = 0;
    *end = false;
    while (taken < most) {
        size_t want = most - taken < sizeof(chunk) ? most - taken : sizeof(chunk);
        ssize_t n = recv(fd, chunk, want, MSG_DONTWAIT);
        if (n <= 0) {
            *end = n == 0;
            break;
        }
        ck_assert_mem_eq(chunk, pattern_at(at + taken), (size_t)n);
        taken += (size_t)n;
    }
    return taken;
}

/* Reads to the end, running the other side. Returns the bytes. */
static size_t take_all(int fd, size_t at)
{
    bool end = false;
    while (!end) {
        at += take(fd, at, SIZE_MAX, &end);
        pending_run(pending, 0);
    }
    close(fd);
    return at;
}

START_TEST(what_is_taken_at_once_is_not_held)
{
    int fd = send_bytes(1000, 0);
    ck_assert_uint_eq(pending_count(pending), 0);
    ck_assert_uint_eq(take_all(fd, 0), 1000);
}
END_TEST

START_TEST(the_rest_is_sent_as_it_is_taken)
{
    int fd = send_bytes(5 * MIB, 0);
    ck_assert_uint_eq(pending_count(pending), 1);
    size_t held = pending_bytes(pending);
    ck_assert_uint_lt(held, 5 * MIB);
    struct pollfd poll_fd = {.fd = pending_fd(pending), .events = POLLIN};
    ck_assert_int_eq(poll(&poll_fd, 1, 0), 0);
    bool end;
    size_t taken = take(fd, 0, MIB / 8, &end);
    /* The kernel tells once half of the socket's room is free. */
    while (poll(&poll_fd, 1, 0) == 0)
        taken += take(fd, taken, 4096, &end);
    ck_assert_uint_eq(pending_run(pending, 1), 0);
    ck_assert_uint_lt(pending_bytes(pending), held);
    ck_assert_uint_eq(take_all(fd, taken), 5 * MIB);
    ck_assert_uint_eq(pending_count(pending), 0);
    ck_assert_uint_eq(pending_bytes(pending), 0);
}
END_TEST

START_TEST(one_that_takes_nothing_holds_up_no_other)
{
    int stuck = send_bytes(MIB, 0);
    int reader = send_bytes(3 * MIB, 0);
    ck_assert_uint_eq(pending_count(pending), 2);
    ck_assert_uint_eq(take_all(reader, 0), 3 * MIB);
    ck_assert_uint_eq(pending_count(pending), 1);
    close(stuck);
}
END_TEST

START_TEST(a_reader_that_leaves_is_forgotten_and_no_drop)
{
    int fd = send_bytes(MIB, 0);
    close(fd);
    ck_assert_uint_eq(pending_run(pending, 0), 0);
    ck_assert_uint_eq(pending_count(pending), 0);
    ck_assert_uint_eq(pending_bytes(pending), 0);
}
END_TEST

START_TEST(only_the_idle_are_dropped)
{
    int idle = send_bytes(MIB, 0);
    int alive = send_bytes(MIB, 0);
    bool end;
    size_t taken = take(alive, 0, MIB / 4, &end);
    ck_assert_uint_eq(pending_run(pending, PENDING_IDLE_MS - 1), 0);
    ck_assert_uint_eq(pending_count(pending), 2);
    ck_assert_uint_eq(pending_run(pending, PENDING_IDLE_MS), 1);
    ck_assert_uint_eq(pending_count(pending), 1);
    ck_assert_uint_lt(take_all(idle, 0), MIB);
    ck_assert_uint_eq(take_all(alive, taken), MIB);
}
END_TEST

START_TEST(beyond_the_bytes_the_longest_held_goes)
{
    int fds[9];
    for (size_t i = 0; i < 9; i++)
        fds[i] = send_bytes(PENDING_BYTES_MAX / 8, 0);
    ck_assert_uint_le(pending_bytes(pending), PENDING_BYTES_MAX);
    ck_assert_uint_eq(pending_count(pending), 8);
    ck_assert_uint_eq(pending_run(pending, 0), 1);
    ck_assert_uint_lt(take_all(fds[0], 0), PENDING_BYTES_MAX / 8);
    for (size_t i = 1; i < 9; i++)
        ck_assert_uint_eq(take_all(fds[i], 0), PENDING_BYTES_MAX / 8);
}
END_TEST

START_TEST(a_single_one_may_be_larger)
{
    int small = send_bytes(MIB, 0);
    int fd = send_bytes(PENDING_BYTES_MAX + MIB, 0);
    ck_assert_uint_eq(pending_count(pending), 1);
    ck_assert_uint_eq(take_all(fd, 0), PENDING_BYTES_MAX + MIB);
    ck_assert_uint_eq(pending_run(pending, 0), 0);
    close(small);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pending");
    TCase *tcase = tcase_create("all");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, what_is_taken_at_once_is_not_held);
    tcase_add_test(tcase, the_rest_is_sent_as_it_is_taken);
    tcase_add_test(tcase, one_that_takes_nothing_holds_up_no_other);
    tcase_add_test(tcase, a_reader_that_leaves_is_forgotten_and_no_drop);
    tcase_add_test(tcase, only_the_idle_are_dropped);
    tcase_add_test(tcase, beyond_the_bytes_the_longest_held_goes);
    tcase_add_test(tcase, a_single_one_may_be_larger);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
