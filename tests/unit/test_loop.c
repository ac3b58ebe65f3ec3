/* The event loop: watches, timers, signals, deferred frees, and what callbacks may do to them. */
#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "daemon/loop.h"

struct fixture {
    struct loop *loop;
    struct loop_io *io;
    struct loop_io *other;
    struct loop_timer *timer;
    int pair[2];
    int second[2];
    unsigned events;
    int calls;
    int other_calls;
    int freed;
};

static void setup(struct fixture *f)
{
    struct error err = ERROR_INIT;
    *f = (struct fixture){.pair = {-1, -1}, .second = {-1, -1}};
    f->loop = loop_new(&err);
    ck_assert_ptr_nonnull(f->loop);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, f->pair), 0);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, f->second), 0);
}

static void teardown(struct fixture *f)
{
    loop_io_free(f->io);
    loop_io_free(f->other);
    loop_timer_free(f->timer);
    for (int i = 0; i < 2; i++) {
        close(f->pair[i]);
        close(f->second[i]);
    }
    loop_free(f->loop);
}

static void stop_cb(void *arg)
{
    struct fixture *f = arg;
    f->calls++;
    loop_stop(f->loop);
}

static void io_stop_cb(int fd, unsigned events, void *arg)
{
    struct fixture *f = arg;
    (void)fd;
    f->events |= events;
    f->calls++;
    loop_stop(f->loop);
}

static void io_other_cb(int fd, unsigned events, void *arg)
{
    struct fixture *f = arg;
    (void)fd;
    (void)events;
    f->other_calls++;
}

START_TEST(a_readable_descriptor_is_told_until_it_is_read)
{
    struct fixture f;
    setup(&f);
    f.io = loop_io_new(f.loop, f.pair[0], LOOP_READ, io_stop_cb, &f);
    ck_assert_int_eq(write(f.pair[1], "x", 1), 1);
    loop_run(f.loop);
    loop_run(f.loop); /* level-triggered: nobody read */
    ck_assert_int_eq(f.calls, 2);
    ck_assert_uint_eq(f.events, LOOP_READ);
    teardown(&f);
}
END_TEST

START_TEST(the_end_of_file_reads_as_readable)
{
    struct fixture f;
    setup(&f);
    f.io = loop_io_new(f.loop, f.pair[0], LOOP_READ, io_stop_cb, &f);
    ck_assert_int_eq(shutdown(f.pair[1], SHUT_WR), 0);
    loop_run(f.loop);
    ck_assert_uint_eq(f.events, LOOP_READ);
    teardown(&f);
}
END_TEST

START_TEST(a_watch_of_nothing_says_nothing_and_can_be_woken)
{
    struct fixture f;
    setup(&f);
    f.io = loop_io_new(f.loop, f.pair[0], 0, io_other_cb, &f);
    f.timer = loop_timer_new(f.loop, stop_cb, &f);
    ck_assert_int_eq(write(f.pair[1], "x", 1), 1);
    loop_timer_arm(f.timer, 1);
    loop_run(f.loop);
    ck_assert_int_eq(f.other_calls, 0);

    ck_assert_int_eq(loop_io_set(f.io, LOOP_READ | LOOP_WRITE), 0);
    loop_timer_arm(f.timer, 1);
    loop_run(f.loop);
    ck_assert_int_gt(f.other_calls, 0);

    ck_assert_int_eq(loop_io_set(f.io, 0), 0);
    f.other_calls = 0;
    loop_timer_arm(f.timer, 1);
    loop_run(f.loop);
    ck_assert_int_eq(f.other_calls, 0);
    teardown(&f);
}
END_TEST

/* Both descriptors are ready in the same turn; whichever callback runs first frees both watches. */
static void free_both_cb(int fd, unsigned events, void *arg)
{
    struct fixture *f = arg;
    (void)fd;
    (void)events;
    f->calls++;
    loop_io_free(f->io);
    loop_io_free(f->other);
    f->io = f->other = NULL;
    loop_stop(f->loop);
}

START_TEST(a_callback_frees_its_own_watch_and_that_of_another_that_is_ready)
{
    struct fixture f;
    setup(&f);
    f.io = loop_io_new(f.loop, f.pair[0], LOOP_READ, free_both_cb, &f);
    f.other = loop_io_new(f.loop, f.second[0], LOOP_READ, free_both_cb, &f);
    ck_assert_int_eq(write(f.pair[1], "x", 1), 1);
    ck_assert_int_eq(write(f.second[1], "x", 1), 1);
    loop_run(f.loop);
    ck_assert_int_eq(f.calls, 1);
    teardown(&f);
}
END_TEST

static void reuse_cb(int fd, unsigned events, void *arg)
{
    struct fixture *f = arg;
    (void)fd;
    (void)events;
    /* The other descriptor is ready too; its number is taken over by one that is not. */
    loop_io_free(f->other);
    ck_assert_int_eq(dup2(f->pair[1], f->second[0]), f->second[0]);
    f->other = loop_io_new(f->loop, f->second[0], LOOP_READ, io_other_cb, f);
    loop_io_free(f->io);
    f->io = NULL;
    loop_stop(f->loop);
}

START_TEST(a_reused_descriptor_number_does_not_inherit_readiness)
{
    struct fixture f;
    setup(&f);
    f.io = loop_io_new(f.loop, f.pair[0], LOOP_READ, reuse_cb, &f);
    f.other = loop_io_new(f.loop, f.second[0], LOOP_READ, io_other_cb, &f);
    ck_assert_int_eq(write(f.pair[1], "x", 1), 1);
    loop_run(f.loop);
    f.other_calls = 0;
    f.timer = loop_timer_new(f.loop, stop_cb, &f);
    loop_timer_arm(f.timer, 1);
    loop_run(f.loop);
    ck_assert_int_eq(f.other_calls, 0);
    teardown(&f);
}
END_TEST

START_TEST(a_timer_fires_once_and_not_early)
{
    struct fixture f;
    setup(&f);
    f.timer = loop_timer_new(f.loop, stop_cb, &f);
    int64_t begin = clock_mono_ms();
    loop_timer_arm(f.timer, 30);
    loop_run(f.loop);
    ck_assert_int_ge(clock_mono_ms() - begin, 29);
    struct loop_timer *second = loop_timer_new(f.loop, stop_cb, &f);
    loop_timer_arm(second, 5);
    loop_run(f.loop);
    ck_assert_int_eq(f.calls, 2);
    loop_timer_free(second);
    teardown(&f);
}
END_TEST

static void count_cb(void *arg)
{
    struct fixture *f = arg;
    f->other_calls++;
}

START_TEST(a_timer_that_is_armed_again_fires_at_the_later_time_only)
{
    struct fixture f;
    setup(&f);
    struct loop_timer *moved = loop_timer_new(f.loop, count_cb, &f);
    f.timer = loop_timer_new(f.loop, stop_cb, &f);
    loop_timer_arm(moved, 1);
    loop_timer_arm(moved, 3600000);
    loop_timer_arm(f.timer, 10);
    loop_run(f.loop);
    ck_assert_int_eq(f.other_calls, 0);

    loop_timer_arm(moved, 0);
    loop_timer_disarm(moved);
    loop_timer_arm(f.timer, 5);
    loop_run(f.loop);
    ck_assert_int_eq(f.other_calls, 0);
    loop_timer_free(moved);
    teardown(&f);
}
END_TEST

static void rearm_cb(void *arg)
{
    struct fixture *f = arg;
    if (++f->calls == 1000)
        loop_stop(f->loop);
    else
        loop_timer_arm(f->timer, 0);
}

START_TEST(a_timer_that_arms_itself_at_once_lets_others_run)
{
    struct fixture f;
    setup(&f);
    f.timer = loop_timer_new(f.loop, rearm_cb, &f);
    f.io = loop_io_new(f.loop, f.pair[0], LOOP_READ, io_other_cb, &f);
    ck_assert_int_eq(write(f.pair[1], "x", 1), 1);
    loop_timer_arm(f.timer, 0);
    loop_run(f.loop);
    ck_assert_int_ge(f.other_calls, 900);
    teardown(&f);
}
END_TEST

static void self_free_cb(void *arg)
{
    struct fixture *f = arg;
    loop_timer_free(f->timer);
    f->timer = NULL;
    loop_stop(f->loop);
}

START_TEST(a_timer_may_free_itself)
{
    struct fixture f;
    setup(&f);
    f.timer = loop_timer_new(f.loop, self_free_cb, &f);
    loop_timer_arm(f.timer, 0);
    loop_run(f.loop);
    ck_assert_ptr_null(f.timer);
    teardown(&f);
}
END_TEST

START_TEST(a_signal_is_a_callback)
{
    struct fixture f;
    setup(&f);
    struct loop_signal *signal = loop_signal_new(f.loop, SIGUSR1, stop_cb, &f);
    ck_assert_ptr_nonnull(signal);
    raise(SIGUSR1);
    loop_run(f.loop);
    raise(SIGUSR1);
    loop_run(f.loop);
    ck_assert_int_eq(f.calls, 2);
    loop_signal_free(signal);
    teardown(&f);
}
END_TEST

static void mark_freed(void *ptr)
{
    struct fixture *f = ptr;
    f->freed++;
}

static void mark_freed_and_defer(void *ptr)
{
    struct fixture *f = ptr;
    f->freed++;
    loop_defer_free(f->loop, mark_freed, f);
}

static void defer_cb(int fd, unsigned events, void *arg)
{
    struct fixture *f = arg;
    (void)fd;
    (void)events;
    f->calls++;
    ck_assert_int_eq(f->freed, 0); /* for neither callback of this turn */
    loop_defer_free(f->loop, mark_freed_and_defer, f);
    loop_stop(f->loop);
}

START_TEST(a_deferred_free_comes_after_every_callback_of_the_turn)
{
    struct fixture f;
    setup(&f);
    f.io = loop_io_new(f.loop, f.pair[0], LOOP_READ, defer_cb, &f);
    f.other = loop_io_new(f.loop, f.second[0], LOOP_READ, defer_cb, &f);
    ck_assert_int_eq(write(f.pair[1], "x", 1), 1);
    ck_assert_int_eq(write(f.second[1], "x", 1), 1);
    loop_run(f.loop);
    ck_assert_int_eq(f.calls, 2);
    ck_assert_int_eq(f.freed, 4);
    loop_defer_free(f.loop, mark_freed, &f); /* never run again: loop_free does it */
    int freed = f.freed;
    teardown(&f);
    ck_assert_int_eq(f.freed, freed + 1);
}
END_TEST

START_TEST(a_stop_before_the_run_counts)
{
    struct fixture f;
    setup(&f);
    loop_stop(f.loop);
    loop_run(f.loop); /* would wait for ever */
    teardown(&f);
}
END_TEST

START_TEST(a_file_that_cannot_be_watched_is_refused)
{
    struct fixture f;
    setup(&f);
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_ptr_null(loop_io_new(f.loop, fd, LOOP_READ, io_stop_cb, &f));
    close(fd);
    teardown(&f);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("loop");
    TCase *tc = tcase_create("loop");
    tcase_add_test(tc, a_readable_descriptor_is_told_until_it_is_read);
    tcase_add_test(tc, the_end_of_file_reads_as_readable);
    tcase_add_test(tc, a_watch_of_nothing_says_nothing_and_can_be_woken);
    tcase_add_test(tc, a_callback_frees_its_own_watch_and_that_of_another_that_is_ready);
    tcase_add_test(tc, a_reused_descriptor_number_does_not_inherit_readiness);
    tcase_add_test(tc, a_timer_fires_once_and_not_early);
    tcase_add_test(tc, a_timer_that_is_armed_again_fires_at_the_later_time_only);
    tcase_add_test(tc, a_timer_that_arms_itself_at_once_lets_others_run);
    tcase_add_test(tc, a_timer_may_free_itself);
    tcase_add_test(tc, a_signal_is_a_callback);
    tcase_add_test(tc, a_deferred_free_comes_after_every_callback_of_the_turn);
    tcase_add_test(tc, a_stop_before_the_run_counts);
    tcase_add_test(tc, a_file_that_cannot_be_watched_is_refused);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
