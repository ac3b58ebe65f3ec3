/*
 * Messages with descriptors: what arrives, what is refused, and that no
 * descriptor is left behind in this process whatever a peer sends.
 */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "common/cleanup.h"
#include "common/fdpass.h"

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

static void make_pair(int sv[2])
{
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv), 0);
}

/* Sends count descriptors (all of them fd) beside len bytes, as a hostile peer may. */
static void send_raw(int sock, size_t len, int fd, size_t count)
{
    static char data[8192];
    union {
        char space[CMSG_SPACE(32 * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {.iov_base = data, .iov_len = len};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    memset(&control, 0, sizeof(control));
    if (count > 0) {
        msg.msg_control = control.space;
        msg.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
        ck_assert_ptr_nonnull(cmsg);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(count * sizeof(int));
        for (size_t i = 0; i < count; i++)
            memcpy(CMSG_DATA(cmsg) + i * sizeof(int), &fd, sizeof(int));
    }
    ck_assert_int_eq(sendmsg(sock, &msg, MSG_NOSIGNAL), (ssize_t)len);
}

START_TEST(a_message_and_its_descriptor_arrive)
{
    struct error err = ERROR_INIT;
    int sv[2];
    int pipe_fds[2];
    char data[64];
    int fd;

    make_pair(sv);
    ck_assert_int_eq(pipe(pipe_fds), 0);
    ck_assert_int_eq(fdpass_send(sv[0], "hello", 5, pipe_fds[1], &err), 0);
    ck_assert_int_eq(fdpass_send(sv[0], "bare", 4, -1, &err), 0);
    ck_assert_int_ge(fcntl(pipe_fds[1], F_GETFD), 0);

    ck_assert_int_eq(fdpass_recv(sv[1], data, sizeof(data), &fd, &err), 5);
    ck_assert_mem_eq(data, "hello", 5);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_ne(fd, pipe_fds[1]);
    ck_assert_int_eq(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    ck_assert_int_eq(write(fd, "x", 1), 1);
    ck_assert_int_eq(read(pipe_fds[0], data, 1), 1);

    int none = 12345;
    ck_assert_int_eq(fdpass_recv(sv[1], data, sizeof(data), &none, &err), 4);
    ck_assert_int_eq(none, -1);
    close(fd);
}
END_TEST

START_TEST(end_of_file_reads_as_zero)
{
    struct error err = ERROR_INIT;
    int sv[2];
    char data[8];
    int fd;

    make_pair(sv);
    close(sv[0]);
    ck_assert_int_eq(fdpass_recv(sv[1], data, sizeof(data), &fd, &err), 0);
    ck_assert_int_eq(fd, -1);
}
END_TEST

START_TEST(nothing_there_is_eagain)
{
    struct error err = ERROR_INIT;
    int sv[2];
    char data[8];
    int fd;

    make_pair(sv);
    ck_assert_int_eq(fcntl(sv[1], F_SETFL, O_NONBLOCK), 0);
    ck_assert_int_eq(fdpass_recv(sv[1], data, sizeof(data), &fd, &err), -1);
    ck_assert_int_eq(err.code, ERR_SYSTEM);
    ck_assert_int_eq(err.errno_value, EAGAIN);
}
END_TEST

START_TEST(surplus_descriptors_are_closed_and_refused)
{
    size_t count = (size_t)_i;
    struct error err = ERROR_INIT;
    int sv[2];
    char data[64];
    int fd;

    make_pair(sv);
    unsigned before = count_fds();
    send_raw(sv[0], 3, sv[0], count);
    ck_assert_int_eq(fdpass_recv(sv[1], data, sizeof(data), &fd, &err), -1);
    ck_assert_int_eq(err.code, ERR_PROTOCOL);
    ck_assert_int_eq(fd, -1);
    ck_assert_uint_eq(count_fds(), before);
    /* the socket goes on */
    ck_assert_int_eq(fdpass_send(sv[0], "next", 4, -1, &err), 0);
    ck_assert_int_eq(fdpass_recv(sv[1], data, sizeof(data), &fd, &err), 4);
}
END_TEST

START_TEST(cut_messages_are_refused_with_their_descriptor)
{
    struct error err = ERROR_INIT;
    int sv[2];
    char data[64];
    int fd;

    make_pair(sv);
    unsigned before = count_fds();
    send_raw(sv[0], sizeof(data) + 1, sv[0], 1);
    send_raw(sv[0], sizeof(data), sv[0], 0);
    ck_assert_int_eq(fdpass_recv(sv[1], data, sizeof(data), &fd, &err), -1);
    ck_assert_int_eq(err.code, ERR_PROTOCOL);
    ck_assert_int_eq(fd, -1);
    ck_assert_uint_eq(count_fds(), before);
    ck_assert_int_eq(fdpass_recv(sv[1], data, sizeof(data), &fd, &err), sizeof(data));
}
END_TEST

START_TEST(a_descriptor_without_bytes_is_refused)
{
    struct error err = ERROR_INIT;
    int sv[2];
    char data[64];
    int fd;

    make_pair(sv);
    unsigned before = count_fds();
    send_raw(sv[0], 0, sv[0], 1);
    ck_assert_int_eq(fdpass_recv(sv[1], data, sizeof(data), &fd, &err), -1);
    ck_assert_int_eq(err.code, ERR_PROTOCOL);
    ck_assert_uint_eq(count_fds(), before);
}
END_TEST

START_TEST(sending_fails_with_an_error_not_a_signal)
{
    struct error err = ERROR_INIT;
    int sv[2];

    make_pair(sv);
    ck_assert_int_eq(fdpass_send(sv[0], "", 0, -1, &err), -1);
    ck_assert_int_eq(err.errno_value, EINVAL);
    ck_assert_int_eq(fdpass_send(sv[0], "x", 1, 987654, &err), -1);
    ck_assert_int_eq(err.errno_value, EBADF);
    close(sv[1]);
    ck_assert_int_eq(fdpass_send(sv[0], "x", 1, -1, &err), -1);
    ck_assert_int_eq(err.code, ERR_SYSTEM);
    ck_assert_int_eq(err.errno_value, EPIPE);
}
END_TEST

/* --- sockets with a path ------------------------------------------------------------------ */

static char folder[64];

static void make_folder(void)
{
    strcpy(folder, "/tmp/paddock-fdpass-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static void remove_folder(void)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;

    ck_assert_ptr_nonnull(dir);
    while ((entry = readdir(dir)))
        unlinkat(dirfd(dir), entry->d_name, 0);
    closedir(dir);
    ck_assert_int_eq(rmdir(folder), 0);
}

static const char *in_folder(const char *name)
{
    static char path[128];

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

START_TEST(clients_reach_a_listener)
{
    struct error err = ERROR_INIT;
    _cleanup_close_ int listener = fdpass_listen(in_folder("s"), 0620, 8, &err);
    struct stat st;
    char data[8];
    int fd;

    ck_assert_int_ge(listener, 0);
    ck_assert_int_eq(fcntl(listener, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    ck_assert_int_eq(stat(in_folder("s"), &st), 0);
    ck_assert_uint_eq(st.st_mode & 0777, 0620);

    _cleanup_close_ int client = fdpass_connect(in_folder("s"), &err);
    ck_assert_int_ge(client, 0);
    ck_assert_int_eq(fcntl(client, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    _cleanup_close_ int server = accept(listener, NULL, NULL);
    ck_assert_int_ge(server, 0);
    ck_assert_int_eq(fdpass_send(client, "one", 3, client, &err), 0);
    ck_assert_int_eq(fdpass_send(client, "two", 3, -1, &err), 0);
    ck_assert_int_eq(fdpass_recv(server, data, sizeof(data), &fd, &err), 3);
    ck_assert_mem_eq(data, "one", 3);
    close(fd);
    ck_assert_int_eq(fdpass_recv(server, data, sizeof(data), &fd, &err), 3);
    ck_assert_mem_eq(data, "two", 3);
}
END_TEST

START_TEST(a_stale_socket_is_replaced_and_a_live_one_is_not)
{
    struct error err = ERROR_INIT;
    int first = fdpass_listen(in_folder("s"), 0600, 8, &err);

    ck_assert_int_ge(first, 0);
    ck_assert_int_eq(fdpass_listen(in_folder("s"), 0600, 8, &err), -1);
    ck_assert_int_eq(err.code, ERR_SYSTEM);
    ck_assert_int_eq(err.errno_value, EADDRINUSE);
    _cleanup_close_ int client = fdpass_connect(in_folder("s"), &err);
    ck_assert_int_ge(client, 0);

    close(first); /* its file stays */
    ck_assert_int_eq(fdpass_connect(in_folder("s"), &err), -1);
    ck_assert_int_eq(err.errno_value, ECONNREFUSED);
    _cleanup_close_ int second = fdpass_listen(in_folder("s"), 0600, 8, &err);
    ck_assert_int_ge(second, 0);
}
END_TEST

START_TEST(files_that_are_no_socket_stay)
{
    struct error err = ERROR_INIT;
    struct stat st;

    close(open(in_folder("file"), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    ck_assert_int_eq(fdpass_listen(in_folder("file"), 0600, 8, &err), -1);
    ck_assert_int_eq(err.code, ERR_SYSTEM);
    ck_assert_int_eq(lstat(in_folder("file"), &st), 0);
    ck_assert(S_ISREG(st.st_mode));

    ck_assert_int_eq(symlink("file", in_folder("link")), 0);
    ck_assert_int_eq(fdpass_listen(in_folder("link"), 0600, 8, &err), -1);
    ck_assert_int_eq(lstat(in_folder("link"), &st), 0);
    ck_assert(S_ISLNK(st.st_mode));
}
END_TEST

START_TEST(paths_that_do_not_fit_are_refused)
{
    struct error err = ERROR_INIT;
    char path[200];
    struct sockaddr_un addr;

    memset(path, 'x', sizeof(path));
    path[0] = '/';
    path[sizeof(addr.sun_path)] = '\0';
    ck_assert_int_eq(fdpass_listen(path, 0600, 8, &err), -1);
    ck_assert_int_eq(err.errno_value, ENAMETOOLONG);
    ck_assert_int_eq(fdpass_connect(path, &err), -1);
    ck_assert_int_eq(err.errno_value, ENAMETOOLONG);
    /* an empty path would be the abstract namespace */
    ck_assert_int_eq(fdpass_listen("", 0600, 8, &err), -1);
    ck_assert_int_eq(fdpass_connect("", &err), -1);
    ck_assert_int_eq(fdpass_connect(in_folder("absent"), &err), -1);
    ck_assert_int_eq(err.errno_value, ENOENT);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fdpass");
    TCase *tc = tcase_create("messages");

    tcase_add_test(tc, a_message_and_its_descriptor_arrive);
    tcase_add_test(tc, end_of_file_reads_as_zero);
    tcase_add_test(tc, nothing_there_is_eagain);
    tcase_add_loop_test(tc, surplus_descriptors_are_closed_and_refused, 2, 33);
    tcase_add_test(tc, cut_messages_are_refused_with_their_descriptor);
    tcase_add_test(tc, a_descriptor_without_bytes_is_refused);
    tcase_add_test(tc, sending_fails_with_an_error_not_a_signal);
    suite_add_tcase(suite, tc);

    tc = tcase_create("paths");
    tcase_add_checked_fixture(tc, make_folder, remove_folder);
    tcase_add_test(tc, clients_reach_a_listener);
    tcase_add_test(tc, a_stale_socket_is_replaced_and_a_live_one_is_not);
    tcase_add_test(tc, files_that_are_no_socket_stay);
    tcase_add_test(tc, paths_that_do_not_fit_are_refused);
    suite_add_tcase(suite, tc);

    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
