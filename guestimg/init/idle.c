/*
 * The idle supervisor: made ready ahead of time, with its pipes, because a fork
 * is the dearest step of a start that can be taken before it is asked for. One
 * whose execution has ended and left nothing behind is taken again, which costs
 * no fork at all. Called by session.c (to refill) and execution.c (which takes
 * it by moving the link out of init->idle, and gives back what it may). What
 * must stay true: it was forked after the SETUP that is in force, since it
 * inherits the environment and umask.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "guestimg/init/init.h"

/* Of the pipes for stdin, stdout and stderr. */
struct ends {
    int ours[3];
    int theirs[3];
};

static void ends_close(const struct ends *ends)
{
    for (size_t i = 0; i < 3; i++) {
        cleanup_close_p(&ends->ours[i]);
        cleanup_close_p(&ends->theirs[i]);
    }
}
#define _cleanup_ends_ _cleanup_(ends_close)

static int open_pipes(struct ends *ends)
{
    for (size_t i = 0; i < 3; i++) {
        int pair[2];
        if (pipe2(pair, O_CLOEXEC) < 0)
            return errno;
        ends->ours[i] = i == 0 ? pair[1] : pair[0];
        ends->theirs[i] = i == 0 ? pair[0] : pair[1];
        if (fcntl(ends->ours[i], F_SETFL, O_NONBLOCK) < 0)
            return errno;
        if (i > 0)
            (void)fcntl(ends->ours[i], F_SETPIPE_SZ, INIT_PIPE_BYTES);
    }
    return 0;
}

/* Takes our ends of the pipes. */
static void set_idle(struct init *init, pid_t pid, int control_fd, struct ends *ends)
{
    init->idle = (struct supervisor_link){
        .pid = pid,
        .stdin_fd = ends->ours[0],
        .stdout_fd = ends->ours[1],
        .stderr_fd = ends->ours[2],
        .control = {.kind = WATCH_IDLE, .fd = control_fd},
    };
    ends->ours[0] = ends->ours[1] = ends->ours[2] = -1;
    init_watch(init, &init->idle.control, EPOLLIN);
}

/* --- one that served before ----------------------------------------------------------------- */

static bool send_again(int control_fd, const int stdio[3])
{
    struct control control = {.kind = CONTROL_AGAIN};
    struct iovec part = {.iov_base = &control, .iov_len = sizeof(control)};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(3 * sizeof(int))];
    } room = {0};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = room.bytes,
                             .msg_controllen = sizeof(room.bytes)};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(3 * sizeof(int));
    memcpy(CMSG_DATA(head), stdio, 3 * sizeof(int));
    return sendmsg(control_fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof(control);
}

void idle_keep(struct init *init, pid_t pid, int control_fd)
{
    if (init->spare_pid != 0) {
        close(control_fd); /* at whose end it exits */
        return;
    }
    init->spare_pid = pid;
    init->spare_fd = control_fd;
}

/* Returns its control socket, or -1 if there is none that can be taken again. */
static int take_spare(struct init *init, const struct ends *ends, pid_t *pid)
{
    if (init->spare_pid == 0)
        return -1;
    *pid = init->spare_pid;
    init->spare_pid = 0;
    if (send_again(init->spare_fd, ends->theirs))
        return init->spare_fd;
    close(init->spare_fd);
    return -1;
}

/* --- a new one ------------------------------------------------------------------------------ */

/* Returns its control socket, or -1 with errno. */
static int fork_supervisor(const struct init *init, const struct ends *ends, pid_t *pid)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -1;
    _cleanup_close_ int theirs = pair[1];
    *pid = fork();
    if (*pid == 0)
        supervisor_main(init, theirs, ends->theirs);
    if (*pid > 0)
        return pair[0];
    int failure = errno;
    close(pair[0]);
    errno = failure;
    return -1;
}

int idle_ensure(struct init *init)
{
    if (init->idle.pid != 0)
        return 0;
    _cleanup_ends_ struct ends ends = {{-1, -1, -1}, {-1, -1, -1}};
    /* Owned by the guest's user, so that a process may open its own /dev/stdout again. */
    privilege_borrow_user(init->options);
    int failure = open_pipes(&ends);
    privilege_return();
    if (failure != 0)
        return failure;
    pid_t pid = 0;
    int control_fd = take_spare(init, &ends, &pid);
    if (control_fd < 0)
        control_fd = fork_supervisor(init, &ends, &pid);
    if (control_fd < 0)
        return errno;
    set_idle(init, pid, control_fd, &ends);
    return 0;
}

void idle_discard(struct init *init)
{
    if (init->spare_pid != 0) {
        close(init->spare_fd);
        init->spare_pid = 0;
    }
    if (init->idle.pid == 0)
        return;
    init_watch_close(init, &init->idle.control); /* at whose end it exits */
    close(init->idle.stdin_fd);
    close(init->idle.stdout_fd);
    close(init->idle.stderr_fd);
    init->idle.pid = 0;
}

/* It says nothing while idle, so this is its end (or a stale event of one that was taken). */
void idle_on_event(struct init *init)
{
    char byte;
    ssize_t got = recv(init->idle.control.fd, &byte, 1, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    idle_discard(init);
}
