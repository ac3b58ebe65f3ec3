/*
 * The idle supervisor: forked ahead of time, with its pipes, because a fork is
 * the dearest step of a start that can be taken before it is asked for. Called
 * by session.c (to refill) and execution.c (which takes it by moving the link
 * out of init->idle). What must stay true: it was forked after the SETUP that
 * is in force, since it inherits the environment and umask.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "guestimg/init/init.h"

struct ends {
    int ours[4]; /* stdin, stdout, stderr, control */
    int theirs[4];
};

static void ends_close(const struct ends *ends)
{
    for (size_t i = 0; i < 4; i++) {
        cleanup_close_p(&ends->ours[i]);
        cleanup_close_p(&ends->theirs[i]);
    }
}

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

static int open_ends(const struct init_options *options, struct ends *ends)
{
    /* Owned by the guest's user, so that a process may open its own /dev/stdout again. */
    privilege_borrow_user(options);
    int failure = open_pipes(ends);
    privilege_return();
    int pair[2];
    if (failure == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        failure = errno;
    if (failure != 0)
        return failure;
    ends->ours[3] = pair[0];
    ends->theirs[3] = pair[1];
    return 0;
}

int idle_fork(struct init *init)
{
    if (init->idle.pid != 0)
        return 0;
    struct ends ends = {{-1, -1, -1, -1}, {-1, -1, -1, -1}};
    int failure = open_ends(init->options, &ends);
    if (failure != 0) {
        ends_close(&ends);
        return failure;
    }
    pid_t pid = fork();
    if (pid < 0) {
        failure = errno;
        ends_close(&ends);
        return failure;
    }
    if (pid == 0)
        supervisor_main(init, ends.theirs[3], ends.theirs);
    for (size_t i = 0; i < 4; i++)
        close(ends.theirs[i]);
    init->idle = (struct supervisor_link){
        .pid = pid,
        .stdin_fd = ends.ours[0],
        .stdout_fd = ends.ours[1],
        .stderr_fd = ends.ours[2],
        .control = {.kind = WATCH_IDLE, .fd = ends.ours[3]},
    };
    init_watch(init, &init->idle.control, EPOLLIN);
    return 0;
}

void idle_discard(struct init *init)
{
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
