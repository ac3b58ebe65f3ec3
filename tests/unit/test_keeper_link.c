/*
 * Main's end of the keeper's socket: requests and reports as whole messages,
 * malformed reports, and the keeper's end. The test is the keeper.
 */
#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/fdpass.h"
#include "daemon/keeper_link.h"

#define ID "0001aaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"

struct fixture {
    struct daemon d; /* first: callbacks get it back as the fixture */
    struct loop_timer *guard;
    int keeper; /* the keeper's end */
    int reports;
    int stop_at;
    int lost;
    int fds;
    struct keeper_report last;
    bool timed_out;
};

static void on_report(struct daemon *d, const struct keeper_report *report, int fd)
{
    struct fixture *f = (struct fixture *)d;
    ck_assert_int_eq(f->lost, 0);
    f->last = *report;
    if (fd >= 0) {
        f->fds++;
        close(fd);
    }
    if (++f->reports == f->stop_at)
        loop_stop(d->loop);
}

static void on_lost(struct daemon *d)
{
    struct fixture *f = (struct fixture *)d;
    f->lost++;
    loop_stop(d->loop);
}

static void guard_fired(void *arg)
{
    struct fixture *f = arg;
    f->timed_out = true;
    loop_stop(f->d.loop);
}

static void setup(struct fixture *f)
{
    struct error err = ERROR_INIT;
    int pair[2];
    memset(f, 0, sizeof(*f));
    log_init(&f->d.log, "test_keeper_link");
    f->d.log.level = LOG_ERROR + 1;
    f->d.loop = loop_new(&err);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    f->keeper = pair[1];
    f->d.keeper = keeper_link_new(&f->d, pair[0], on_report, on_lost, &err);
    ck_assert_msg(f->d.keeper != NULL, "%s", err.detail);
    f->guard = loop_timer_new(f->d.loop, guard_fired, f);
}

static void teardown(struct fixture *f)
{
    keeper_link_free(f->d.keeper);
    loop_timer_free(f->guard);
    loop_free(f->d.loop);
    if (f->keeper >= 0)
        close(f->keeper);
}

static void loop_guarded(struct fixture *f)
{
    loop_timer_arm(f->guard, 30000);
    loop_run(f->d.loop);
    ck_assert(!f->timed_out);
}

static struct keeper_report report_of(enum keeper_event event)
{
    struct keeper_report report;
    memset(&report, 0, sizeof(report));
    report.event = event;
    memcpy(report.id, ID, sizeof(ID));
    return report;
}

static void report(struct fixture *f, const void *data, size_t len, int fd)
{
    struct error err = ERROR_INIT;
    ck_assert_msg(fdpass_send(f->keeper, data, len, fd, &err) == 0, "%s", err.detail);
}

static unsigned count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned count = 0;
    ck_assert_ptr_nonnull(dir);
    while (readdir(dir))
        count++;
    closedir(dir);
    return count;
}

START_TEST(every_request_arrives_in_order_however_slow_the_keeper)
{
    struct fixture f;
    struct error err = ERROR_INIT;
    struct keeper_request request;
    setup(&f);
    memset(&request, 0, sizeof(request));
    request.op = KEEPER_STATS;
    for (uint32_t i = 0; i < 5000; i++) { /* far more than the socket holds */
        request.pids = i;
        ck_assert_int_eq(keeper_link_send(f.d.keeper, &request, &err), 0);
    }
    for (uint32_t i = 0; i < 5000;) {
        ssize_t n = recv(f.keeper, &request, sizeof(request), MSG_DONTWAIT);
        if (n < 0) { /* a turn of the loop writes more */
            loop_timer_arm(f.guard, 1);
            loop_run(f.d.loop);
            continue;
        }
        ck_assert_int_eq(n, (ssize_t)sizeof(request));
        ck_assert_uint_eq(request.pids, i++);
    }
    ck_assert_int_eq(f.lost, 0);
    teardown(&f);
}
END_TEST

START_TEST(a_started_guest_comes_with_its_socket)
{
    struct fixture f;
    setup(&f);
    struct keeper_report started = report_of(KEEPER_STARTED);
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    report(&f, &started, sizeof(started), fd);
    close(fd);
    f.stop_at = 1;
    loop_guarded(&f);
    ck_assert_int_eq(f.fds, 1);
    ck_assert_str_eq(f.last.id, ID);
    teardown(&f);
}
END_TEST

enum malformed {
    SHORT,
    EVENT_ZERO,
    EVENT_HIGH,
    STARTED_WITHOUT,
    ENDED_WITH,
    ID_BAD,
    ID_ENDLESS,
    TEXT_ENDLESS,
    MALFORMED_COUNT
};

START_TEST(a_malformed_report_ends_the_link_and_leaves_no_descriptor)
{
    struct fixture f;
    setup(&f);
    struct keeper_report bad = report_of(KEEPER_ENDED);
    size_t len = sizeof(bad);
    int fd = -1;
    unsigned before = count_fds();
    switch ((enum malformed)_i) {
    case SHORT:
        len--;
        break;
    case EVENT_ZERO:
        bad.event = 0;
        break;
    case EVENT_HIGH:
        bad.event = KEEPER_USAGE + 1;
        break;
    case STARTED_WITHOUT:
        bad.event = KEEPER_STARTED;
        break;
    case ENDED_WITH:
        fd = open("/dev/null", O_RDWR | O_CLOEXEC);
        break;
    case ID_BAD:
        bad.id[0] = 'G';
        break;
    case ID_ENDLESS:
        memset(bad.id, 'a', sizeof(bad.id));
        break;
    case TEXT_ENDLESS:
        memset(bad.text, 'a', sizeof(bad.text));
        break;
    case MALFORMED_COUNT:
        break;
    }
    report(&f, &bad, len, fd);
    if (fd >= 0)
        close(fd);
    loop_guarded(&f);
    ck_assert_int_eq(f.lost, 1);
    ck_assert_int_eq(f.reports, 0);
    ck_assert_uint_eq(count_fds(), before);
    teardown(&f);
}
END_TEST

START_TEST(what_the_keeper_said_before_it_went_is_heard_and_the_loss_told_once)
{
    struct fixture f;
    struct error err = ERROR_INIT;
    struct keeper_request request;
    setup(&f);
    struct keeper_report ended = report_of(KEEPER_ENDED);
    for (int i = 0; i < 100; i++)
        report(&f, &ended, sizeof(ended), -1);
    close(f.keeper);
    f.keeper = -1;
    memset(&request, 0, sizeof(request));
    /* Found out by the write or by the read, whichever comes first. */
    ck_assert_int_eq(keeper_link_send(f.d.keeper, &request, &err), 0);
    loop_guarded(&f);
    ck_assert_int_eq(f.reports, 100);
    ck_assert_int_eq(f.lost, 1);
    ck_assert_int_eq(keeper_link_send(f.d.keeper, &request, &err), -1);
    ck_assert_int_eq(err.code, ERR_DAEMON_UNAVAILABLE);
    loop_timer_arm(f.guard, 5);
    loop_run(f.d.loop);
    ck_assert_int_eq(f.lost, 1);
    teardown(&f);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("keeper_link");
    TCase *tc = tcase_create("keeper_link");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, every_request_arrives_in_order_however_slow_the_keeper);
    tcase_add_test(tc, a_started_guest_comes_with_its_socket);
    tcase_add_loop_test(tc, a_malformed_report_ends_the_link_and_leaves_no_descriptor, 0,
                        MALFORMED_COUNT);
    tcase_add_test(tc, what_the_keeper_said_before_it_went_is_heard_and_the_loss_told_once);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
