/*
 * The hand-off socket under good and hostile handlers: what reaches the answers,
 * who is disconnected, and that no descriptor stays open in the daemon. The
 * answers are replaced by a recorder in this file.
 */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/fdpass.h"
#include "common/handoff.h"
#include "daemon/answer.h"
#include "daemon/door.h"
#include "daemon/sandbox.h"

#define ID "0001aaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"

/* Stands for the opaque struct of answer.c. */
struct answers {
    struct loop *loop;
    unsigned added;
    unsigned stop_at;
    struct handoff last;
};

/* Stands for the opaque struct of sandboxes.c. */
struct sandboxes {
    const struct answers *answers;
    unsigned begun;
    char kind;
    char id[ID_SIZE];
    unsigned added_before;
};

struct fixture {
    struct daemon d;
    struct config config;
    struct answers answers;
    struct sandboxes sandboxes;
    struct loop_timer *guard;
    char folder[64];
    char path[96];
    unsigned fds_before;
    bool timed_out;
};

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

void answers_add(struct answers *answers, const struct handoff *msg, int fd)
{
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    answers->last = *msg;
    answers->added++;
    close(fd);
    if (answers->added == answers->stop_at)
        loop_stop(answers->loop);
}

void sandboxes_work(struct sandboxes *all, char kind, const char *id)
{
    all->begun++;
    all->kind = kind;
    snprintf(all->id, sizeof(all->id), "%s", id);
    all->added_before = all->answers->added;
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
    memset(f, 0, sizeof(*f));
    snprintf(f->folder, sizeof(f->folder), "/tmp/test_door.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(f->folder));
    snprintf(f->path, sizeof(f->path), "%s/handoff.sock", f->folder);
    f->d.loop = loop_new(&err);
    ck_assert_ptr_nonnull(f->d.loop);
    f->config.daemon_handoff_socket = f->path;
    f->d.config = &f->config;
    log_init(&f->d.log, "test_door");
    f->d.log.level = LOG_ERROR + 1;
    f->answers.loop = f->d.loop;
    f->d.answers = &f->answers;
    f->sandboxes.answers = &f->answers;
    f->d.sandboxes = &f->sandboxes;
    f->d.door = door_new(&f->d, &err);
    ck_assert_msg(f->d.door != NULL, "%s", err.detail);
    f->guard = loop_timer_new(f->d.loop, guard_fired, f);
    f->fds_before = count_fds();
}

static void teardown(struct fixture *f)
{
    door_free(f->d.door);
    loop_timer_free(f->guard);
    loop_free(f->d.loop);
    unlink(f->path);
    rmdir(f->folder);
}

static int connect_handler(struct fixture *f)
{
    struct error err = ERROR_INIT;
    int sock = fdpass_connect(f->path, &err);
    ck_assert_msg(sock >= 0, "%s", err.detail);
    return sock;
}

static size_t good_message(char out[HANDOFF_MAX])
{
    struct error err = ERROR_INIT;
    struct handoff msg = {.wait = HANDOFF_SANDBOX_READY,
                          .id = ID,
                          .sandbox_id = ID,
                          .request_id = ID,
                          .token_id = "0123456789abcdef",
                          .fcgi_request_id = 1,
                          .wait_ms = 1000,
                          .status_done = 201,
                          .status_pending = 202,
                          .location = "/api/v1/x"};
    int len = handoff_encode(&msg, out, HANDOFF_MAX, &err);
    ck_assert_msg(len > 0, "%s", err.detail);
    return (size_t)len;
}

/* A stand-in for the web server's connection; the other end stays with the test. */
static int stream_end(int *other)
{
    int pair[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    *other = pair[1];
    return pair[0];
}

static void send_message(int sock, const void *data, size_t len, int fd)
{
    struct error err = ERROR_INIT;
    ck_assert_msg(fdpass_send(sock, data, len, fd, &err) == 0, "%s", err.detail);
}

static void run_until_added(struct fixture *f, unsigned count)
{
    f->answers.stop_at = count;
    loop_timer_arm(f->guard, 10000);
    loop_run(f->d.loop);
    ck_assert(!f->timed_out);
}

static void closed_cb(int fd, unsigned events, void *arg)
{
    struct fixture *f = arg;
    char byte;
    (void)events;
    if (recv(fd, &byte, 1, MSG_DONTWAIT) <= 0)
        loop_stop(f->d.loop);
}

/* Runs until the daemon closed its end of sock. */
static void run_until_closed(struct fixture *f, int sock)
{
    struct loop_io *io = loop_io_new(f->d.loop, sock, LOOP_READ, closed_cb, f);
    loop_timer_arm(f->guard, 10000);
    loop_run(f->d.loop);
    ck_assert(!f->timed_out);
    loop_io_free(io);
}

START_TEST(a_hand_off_reaches_the_answers)
{
    struct fixture f;
    char data[HANDOFF_MAX];
    int other;
    setup(&f);
    int sock = connect_handler(&f);
    int fd = stream_end(&other);
    send_message(sock, data, good_message(data), fd);
    run_until_added(&f, 1);
    ck_assert_str_eq(f.answers.last.id, ID);
    ck_assert_int_eq(f.answers.last.status_done, 201);
    close(fd);
    close(other);
    close(sock);
    teardown(&f);
}
END_TEST

struct beginning {
    enum handoff_wait wait;
    int status_done;
    bool replayed;
    char kind; /* 0: nothing is begun */
};

static const struct beginning beginnings[] = {
    {HANDOFF_SANDBOX_READY, 201, false, 's'}, {HANDOFF_EXECUTION_ENDED, 201, false, 'e'},
    {HANDOFF_EXECUTION_ENDED, 201, true, 0},  {HANDOFF_EXECUTION_ENDED, 200, false, 0},
    {HANDOFF_SANDBOX_ENDED, 200, false, 0},
};

START_TEST(what_is_new_is_begun_before_it_is_waited_for)
{
    const struct beginning *b = &beginnings[_i];
    struct fixture f;
    struct error err = ERROR_INIT;
    char data[HANDOFF_MAX];
    int other;
    setup(&f);
    int sock = connect_handler(&f);
    int fd = stream_end(&other);
    ck_assert_int_eq(handoff_decode(data, good_message(data), &f.answers.last, &err), 0);
    struct handoff msg = f.answers.last;
    msg.wait = b->wait;
    msg.status_done = b->status_done;
    msg.replayed = b->replayed;
    int len = handoff_encode(&msg, data, sizeof(data), &err);
    ck_assert_int_gt(len, 0);
    send_message(sock, data, (size_t)len, fd);
    run_until_added(&f, 1);
    ck_assert_uint_eq(f.sandboxes.begun, b->kind ? 1 : 0);
    ck_assert_int_eq(f.sandboxes.kind, b->kind);
    ck_assert_uint_eq(f.sandboxes.added_before, 0);
    if (b->kind)
        ck_assert_str_eq(f.sandboxes.id, ID);
    close(fd);
    close(other);
    close(sock);
    teardown(&f);
}
END_TEST

START_TEST(many_hand_offs_of_many_handlers_all_arrive)
{
    struct fixture f;
    char data[HANDOFF_MAX];
    int socks[20];
    int other;
    setup(&f);
    size_t len = good_message(data);
    int fd = stream_end(&other);
    for (size_t i = 0; i < ARRAY_LEN(socks); i++)
        socks[i] = connect_handler(&f);
    unsigned sent = 0;
    for (int round = 0; round < 9; round++) {
        for (size_t i = 0; i < ARRAY_LEN(socks); i++, sent++)
            send_message(socks[i], data, len, fd);
    }
    run_until_added(&f, sent);
    for (size_t i = 0; i < ARRAY_LEN(socks); i++)
        close(socks[i]);
    close(fd);
    close(other);
    teardown(&f);
}
END_TEST

struct hostile {
    const char *name;
    const char *text; /* NULL: the good message */
    size_t len;       /* 0: of the text */
    enum { WITH_STREAM, WITH_NONE, WITH_FILE, WITH_PIPE, WITH_DGRAM } with;
};

static const struct hostile hostiles[] = {
    {"no descriptor", NULL, 0, WITH_NONE},
    {"a file", NULL, 0, WITH_FILE},
    {"a pipe", NULL, 0, WITH_PIPE},
    {"a datagram socket", NULL, 0, WITH_DGRAM},
    {"no JSON", "hello", 0, WITH_STREAM},
    {"an empty object", "{}", 0, WITH_STREAM},
    {"a NUL", "\0", 1, WITH_STREAM},
    {"an array", "[]", 0, WITH_STREAM},
    {"deep nesting", "{\"a\":[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]}", 0, WITH_STREAM},
    {"bad UTF-8", "{\"id\":\"\xff\xfe\"}", 0, WITH_STREAM},
};

START_TEST(nonsense_disconnects_its_sender_and_leaves_no_descriptor)
{
    struct fixture f;
    const struct hostile *h = &hostiles[_i];
    char good[HANDOFF_MAX];
    int fd = -1;
    int other = -1;
    setup(&f);
    switch (h->with) {
    case WITH_STREAM:
        fd = stream_end(&other);
        break;
    case WITH_FILE:
        fd = open("/dev/null", O_RDWR | O_CLOEXEC);
        break;
    case WITH_PIPE: {
        int ends[2];
        ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
        fd = ends[0];
        other = ends[1];
        break;
    }
    case WITH_DGRAM:
        fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        break;
    case WITH_NONE:
        break;
    }
    int sock = connect_handler(&f);
    if (h->text)
        send_message(sock, h->text, h->len ? h->len : strlen(h->text), fd);
    else
        send_message(sock, good, good_message(good), fd);
    run_until_closed(&f, sock);
    ck_assert_msg(f.answers.added == 0, "%s got through", h->name);
    close(sock);
    if (fd >= 0)
        close(fd);
    if (other >= 0)
        close(other);
    ck_assert_uint_eq(count_fds(), f.fds_before);
    teardown(&f);
}
END_TEST

START_TEST(a_message_over_the_limit_is_refused)
{
    struct fixture f;
    static char big[HANDOFF_MAX + 1];
    int other;
    setup(&f);
    memset(big, ' ', sizeof(big));
    big[0] = '{';
    big[sizeof(big) - 1] = '}';
    int fd = stream_end(&other);
    int sock = connect_handler(&f);
    send_message(sock, big, sizeof(big), fd);
    run_until_closed(&f, sock);
    ck_assert_uint_eq(f.answers.added, 0);
    close(sock);
    close(fd);
    close(other);
    ck_assert_uint_eq(count_fds(), f.fds_before);
    teardown(&f);
}
END_TEST

START_TEST(several_descriptors_at_once_are_refused_and_closed)
{
    struct fixture f;
    char data[HANDOFF_MAX];
    union {
        char space[CMSG_SPACE(20 * sizeof(int))];
        struct cmsghdr align;
    } control;
    int other;
    setup(&f);
    int fd = stream_end(&other);
    int sock = connect_handler(&f);
    struct iovec iov = {.iov_base = data, .iov_len = good_message(data)};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.space,
                         .msg_controllen = sizeof(control.space)};
    memset(&control, 0, sizeof(control));
    struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
    cmsg->cmsg_level = SOL_SOCKET;
    cmsg->cmsg_type = SCM_RIGHTS;
    cmsg->cmsg_len = CMSG_LEN(20 * sizeof(int));
    for (size_t i = 0; i < 20; i++)
        memcpy(CMSG_DATA(cmsg) + i * sizeof(int), &fd, sizeof(int));
    ck_assert_int_gt(sendmsg(sock, &msg, 0), 0);
    run_until_closed(&f, sock);
    ck_assert_uint_eq(f.answers.added, 0);
    close(sock);
    close(fd);
    close(other);
    ck_assert_uint_eq(count_fds(), f.fds_before);
    teardown(&f);
}
END_TEST

START_TEST(a_hostile_handler_does_not_disturb_another)
{
    struct fixture f;
    char data[HANDOFF_MAX];
    int other;
    setup(&f);
    int fd = stream_end(&other);
    int good = connect_handler(&f);
    int bad = connect_handler(&f);
    send_message(bad, "x", 1, fd);
    run_until_closed(&f, bad);
    send_message(good, data, good_message(data), fd);
    run_until_added(&f, 1);
    close(good);
    close(bad);
    close(fd);
    close(other);
    teardown(&f);
}
END_TEST

START_TEST(a_handler_that_leaves_is_forgotten)
{
    struct fixture f;
    char data[HANDOFF_MAX];
    int other;
    setup(&f);
    int fd = stream_end(&other);
    for (unsigned i = 1; i <= 50; i++) {
        int sock = connect_handler(&f);
        send_message(sock, data, good_message(data), fd);
        close(sock);
        run_until_added(&f, i);
    }
    /* The last one's end of file is read in a later turn than its message; one more handler is
     * served after it. */
    int sock = connect_handler(&f);
    send_message(sock, "x", 1, -1);
    run_until_closed(&f, sock);
    close(sock);
    close(fd);
    close(other);
    ck_assert_uint_eq(count_fds(), f.fds_before);
    teardown(&f);
}
END_TEST

START_TEST(more_handlers_than_there_can_be_are_turned_away)
{
    struct fixture f;
    enum { MANY = 520 };
    static int socks[MANY];
    setup(&f);
    for (int i = 0; i < 500; i++)
        socks[i] = connect_handler(&f);
    /* The backlog is shorter than MANY: the first ones are accepted by a turn of the loop. */
    char data[HANDOFF_MAX];
    int other;
    int fd = stream_end(&other);
    send_message(socks[499], data, good_message(data), fd);
    run_until_added(&f, 1);
    for (int i = 500; i < MANY; i++)
        socks[i] = connect_handler(&f);
    run_until_closed(&f, socks[MANY - 1]);
    send_message(socks[0], data, good_message(data), fd);
    run_until_added(&f, 2);
    for (int i = 0; i < MANY; i++)
        close(socks[i]);
    close(fd);
    close(other);
    teardown(&f);
}
END_TEST

START_TEST(what_was_sent_before_the_door_closed_is_taken_and_the_next_refused)
{
    struct fixture f;
    char data[HANDOFF_MAX];
    struct error err = ERROR_INIT;
    int other;
    setup(&f);
    size_t len = good_message(data);
    int fd = stream_end(&other);
    int known = connect_handler(&f);
    send_message(known, data, len, fd);
    run_until_added(&f, 1);
    int unknown = connect_handler(&f); /* not accepted yet */
    send_message(known, data, len, fd);
    send_message(known, data, len, fd);
    send_message(unknown, data, len, fd);
    door_free(f.d.door);
    ck_assert_uint_eq(f.sandboxes.begun, 1); /* the first; the others are the next daemon's */
    f.d.door = NULL;
    ck_assert_uint_eq(f.answers.added, 4);
    ck_assert_int_eq(fdpass_send(known, data, len, fd, &err), -1);
    ck_assert_int_eq(fdpass_connect(f.path, &err), -1);
    close(known);
    close(unknown);
    close(fd);
    close(other);
    teardown(&f);
}
END_TEST

START_TEST(the_socket_is_for_owner_and_group)
{
    struct fixture f;
    struct stat st;
    setup(&f);
    ck_assert_int_eq(stat(f.path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0660);
    teardown(&f);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("door");
    TCase *tc = tcase_create("door");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, a_hand_off_reaches_the_answers);
    tcase_add_loop_test(tc, what_is_new_is_begun_before_it_is_waited_for, 0,
                        (int)ARRAY_LEN(beginnings));
    tcase_add_test(tc, many_hand_offs_of_many_handlers_all_arrive);
    tcase_add_loop_test(tc, nonsense_disconnects_its_sender_and_leaves_no_descriptor, 0,
                        (int)ARRAY_LEN(hostiles));
    tcase_add_test(tc, a_message_over_the_limit_is_refused);
    tcase_add_test(tc, several_descriptors_at_once_are_refused_and_closed);
    tcase_add_test(tc, a_hostile_handler_does_not_disturb_another);
    tcase_add_test(tc, a_handler_that_leaves_is_forgotten);
    tcase_add_test(tc, more_handlers_than_there_can_be_are_turned_away);
    tcase_add_test(tc, what_was_sent_before_the_door_closed_is_taken_and_the_next_refused);
    tcase_add_test(tc, the_socket_is_for_owner_and_group);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
