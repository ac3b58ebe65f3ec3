/*
 * The listening socket: one instance a path, stale sockets replaced and nothing
 * else, the mode in octal digits, and the end, at which queued connections are
 * still served and new ones refused.
 */
#include "fcgi/listener.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/cleanup.h"

static char folder[32];
static char path[64];
static struct error err;

static void make_folder(void)
{
    snprintf(folder, sizeof(folder), "/tmp/listener-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/s", folder);
}

static void remove_folder(void)
{
    char command[128];

    snprintf(command, sizeof(command), "rm -r %s", folder);
    ck_assert_int_eq(system(command), 0);
}

/* A connected descriptor, or -1 with errno. */
static int dial(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    memcpy(address.sun_path, path, strlen(path) + 1);
    if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0)
        return fd;
    int saved = errno;
    close(fd);
    errno = saved;
    return -1;
}

START_TEST(mode_digits_are_octal)
{
    unsigned mode = 0;

    ck_assert_int_eq(listener_mode(660, &mode, &err), 0);
    ck_assert_uint_eq(mode, 0660);
    ck_assert_int_eq(listener_mode(777, &mode, &err), 0);
    ck_assert_uint_eq(mode, 0777);
    ck_assert_int_eq(listener_mode(680, &mode, &err), -1);
    ck_assert_int_eq(err.code, ERR_CONFIG);
    ck_assert_int_eq(listener_mode(609, &mode, &err), -1);
}
END_TEST

START_TEST(listens_with_its_mode)
{
    struct listener listener;
    struct stat st;

    ck_assert_msg(listener_open(path, 0620, &listener, &err) == 0, "%s", err.detail);
    ck_assert_int_eq(lstat(path, &st), 0);
    ck_assert(S_ISSOCK(st.st_mode));
    ck_assert_uint_eq(st.st_mode & 0777, 0620);
    ck_assert(fcntl(listener.fd, F_GETFD) & FD_CLOEXEC);
    ck_assert(fcntl(listener.fd, F_GETFL) & O_NONBLOCK);
    int fd = dial();
    ck_assert_int_ge(fd, 0);
    close(fd);
    listener_close(&listener);
}
END_TEST

START_TEST(a_second_instance_is_refused)
{
    struct listener first;
    struct listener second;
    char lock[80];

    ck_assert_int_eq(listener_open(path, 0600, &first, &err), 0);
    ck_assert_int_eq(listener_open(path, 0600, &second, &err), -1);
    ck_assert_int_eq(err.code, ERR_PREFLIGHT);
    ck_assert_ptr_nonnull(strstr(err.detail, path));
    /* Even when somebody removed the lock's file. */
    snprintf(lock, sizeof(lock), "%s.lock", path);
    ck_assert_int_eq(unlink(lock), 0);
    ck_assert_int_eq(listener_open(path, 0600, &second, &err), -1);
    ck_assert_int_eq(err.code, ERR_PREFLIGHT);
    int fd = dial();
    ck_assert_int_ge(fd, 0);
    close(fd);
    listener_close(&first);
}
END_TEST

START_TEST(a_stale_socket_is_replaced)
{
    struct listener listener;

    ck_assert_int_eq(listener_open(path, 0600, &listener, &err), 0);
    listener_close(&listener);
    ck_assert_int_eq(dial(), -1);
    ck_assert_int_eq(errno, ECONNREFUSED);
    ck_assert_msg(listener_open(path, 0600, &listener, &err) == 0, "%s", err.detail);
    int fd = dial();
    ck_assert_int_ge(fd, 0);
    close(fd);
    listener_close(&listener);
}
END_TEST

/* What a manager that was killed leaves: children that still hold the socket. */
START_TEST(a_socket_that_only_orphans_hold_is_replaced)
{
    struct listener listener;
    int orphan[2];
    int status;

    ck_assert_int_eq(pipe(orphan), 0);
    pid_t manager = fork();
    if (manager == 0) {
        if (listener_open(path, 0600, &listener, &err) < 0)
            _exit(1);
        if (fork() > 0)
            _exit(0);
        char byte;
        close(listener.lock_fd);
        close(orphan[1]);
        _exit((int)read(orphan[0], &byte, 1)); /* until the test closes its end */
    }
    /* It is dead, and nobody took notice yet. */
    siginfo_t info;
    ck_assert_int_eq(waitid(P_PID, (id_t)manager, &info, WEXITED | WNOWAIT), 0);
    int old = dial();
    ck_assert_int_ge(old, 0);
    ck_assert_msg(listener_open(path, 0600, &listener, &err) == 0, "%s", err.detail);
    int fd = dial();
    ck_assert_int_ge(fd, 0);
    int accepted = accept(listener.fd, NULL, NULL);
    ck_assert_int_ge(accepted, 0);
    ck_assert_int_eq(waitpid(manager, &status, 0), manager);
    ck_assert_int_eq(status, 0);
    close(accepted);
    close(fd);
    close(old);
    close(orphan[0]);
    close(orphan[1]);
    listener_close(&listener);
}
END_TEST

START_TEST(a_lock_that_is_let_go_at_once_is_waited_for)
{
    struct listener listener;
    char lock[80];
    char byte;
    int ready[2];
    int status;

    ck_assert_int_eq(pipe(ready), 0);
    snprintf(lock, sizeof(lock), "%s.lock", path);
    pid_t newborn = fork();
    if (newborn == 0) {
        int fd = open(lock, O_RDWR | O_CREAT, 0600);
        if (flock(fd, LOCK_EX) < 0 || write(ready[1], "", 1) != 1)
            _exit(1);
        (void)poll(NULL, 0, 300);
        _exit(0);
    }
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    ck_assert_msg(listener_open(path, 0600, &listener, &err) == 0, "%s", err.detail);
    ck_assert_int_eq(waitpid(newborn, &status, 0), newborn);
    ck_assert_int_eq(status, 0);
    close(ready[0]);
    close(ready[1]);
    listener_close(&listener);
}
END_TEST

START_TEST(a_file_is_left_alone)
{
    struct listener listener;
    struct stat st;
    int fd = open(path, O_WRONLY | O_CREAT, 0600);

    ck_assert_int_ge(fd, 0);
    close(fd);
    ck_assert_int_eq(listener_open(path, 0600, &listener, &err), -1);
    ck_assert_int_eq(err.code, ERR_PREFLIGHT);
    ck_assert_int_eq(lstat(path, &st), 0);
    ck_assert(S_ISREG(st.st_mode));
}
END_TEST

START_TEST(the_queue_is_served_to_its_end)
{
    struct listener listener;

    ck_assert_int_eq(listener_open(path, 0600, &listener, &err), 0);
    int queued = dial();
    ck_assert_int_ge(queued, 0);
    listener_refuse(&listener);
    ck_assert_int_eq(dial(), -1);
    ck_assert_int_eq(errno, ECONNREFUSED);
    int accepted = accept(listener.fd, NULL, NULL);
    ck_assert_int_ge(accepted, 0);
    ck_assert_int_eq(accept(listener.fd, NULL, NULL), -1);
    ck_assert(errno == EAGAIN || errno == EINVAL);
    close(accepted);
    close(queued);
    listener_close(&listener);
}
END_TEST

START_TEST(only_a_listening_socket_is_adopted)
{
    struct listener first;
    struct listener adopted;
    int plain = socket(AF_UNIX, SOCK_STREAM, 0);

    ck_assert_int_eq(listener_open(path, 0600, &first, &err), 0);
    ck_assert_int_eq(listener_inherit(&first, 1, &err), 0);
    ck_assert_int_eq(fcntl(first.fd, F_GETFD) & FD_CLOEXEC, 0);
    ck_assert_int_eq(listener_adopt(first.fd, first.lock_fd, &adopted, &err), 0);
    ck_assert(fcntl(adopted.fd, F_GETFD) & FD_CLOEXEC);
    ck_assert_int_eq(listener_adopt(plain, first.lock_fd, &adopted, &err), -1);
    ck_assert_int_eq(listener_adopt(1000, first.lock_fd, &adopted, &err), -1);
    ck_assert_int_eq(listener_adopt(first.fd, 1000, &adopted, &err), -1);
    close(plain);
    listener_close(&first);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("listener");
    TCase *tcase = tcase_create("listener");

    tcase_add_checked_fixture(tcase, make_folder, remove_folder);
    tcase_add_test(tcase, mode_digits_are_octal);
    tcase_add_test(tcase, listens_with_its_mode);
    tcase_add_test(tcase, a_second_instance_is_refused);
    tcase_add_test(tcase, a_stale_socket_is_replaced);
    tcase_add_test(tcase, a_socket_that_only_orphans_hold_is_replaced);
    tcase_add_test(tcase, a_lock_that_is_let_go_at_once_is_waited_for);
    tcase_add_test(tcase, a_file_is_left_alone);
    tcase_add_test(tcase, the_queue_is_served_to_its_end);
    tcase_add_test(tcase, only_a_listening_socket_is_adopted);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
