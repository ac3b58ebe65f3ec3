/*
 * Messages with a descriptor beside them (SCM_RIGHTS). Used by the handlers'
 * hand-off, the daemon's door and the keeper's socket. What must stay true:
 * no descriptor a peer sends is ever leaked, whatever it sends.
 */
#include "common/fdpass.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "common/cleanup.h"

/* Descriptors a control buffer takes in: more than the one allowed, so that a surplus is seen; the
 * kernel itself closes what does not fit (MSG_CTRUNC). */
#define FDS_SEEN 4

int fdpass_send(int sock, const void *data, size_t len, int fd, struct error *err)
{
    union {
        char space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    union {
        const void *in;
        void *out;
    } base = {.in = data}; /* sendmsg reads only, but iov_base is not const */
    struct iovec iov = {.iov_base = base.out, .iov_len = len};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t sent;

    if (len == 0) {
        /* it would read as end of file */
        errno = EINVAL;
        return error_set_errno(err, "an empty message cannot be sent");
    }
    if (fd >= 0) {
        struct cmsghdr *cmsg;

        memset(&control, 0, sizeof(control));
        msg.msg_control = control.space;
        msg.msg_controllen = sizeof(control.space);
        cmsg = CMSG_FIRSTHDR(&msg);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(cmsg), &fd, sizeof(int));
    }
    do {
        sent = sendmsg(sock, &msg, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent < 0)
        return error_set_errno(err, "cannot send a message");
    return 0;
}

/* Collects every descriptor of the message: the first into *fd, the rest closed. Returns how many
 * there were. */
static size_t take_fds(struct msghdr *msg, int *fd)
{
    size_t total = 0;

    for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(msg); cmsg; cmsg = CMSG_NXTHDR(msg, cmsg)) {
        size_t count;

        if (cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS)
            continue;
        count = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int one;

            memcpy(&one, CMSG_DATA(cmsg) + i * sizeof(int), sizeof(int));
            if (total++ == 0)
                *fd = one;
            else
                close(one);
        }
    }
    return total;
}

ssize_t fdpass_recv(int sock, void *data, size_t size, int *fd, struct error *err)
{
    union {
        char space[CMSG_SPACE(FDS_SEEN * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {.iov_base = data, .iov_len = size};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.space,
                         .msg_controllen = sizeof(control.space)};
    _cleanup_close_ int got = -1;
    size_t count;
    ssize_t len;

    *fd = -1;
    do {
        len = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
    } while (len < 0 && errno == EINTR);
    if (len < 0)
        return error_set_errno(err, "cannot receive a message");
    count = take_fds(&msg, &got);
    if (count > 1 || (msg.msg_flags & MSG_CTRUNC))
        return error_set(err, ERR_PROTOCOL, "a message with more than one descriptor");
    if (msg.msg_flags & MSG_TRUNC)
        return error_set(err, ERR_PROTOCOL, "a message of more than %zu bytes", size);
    if (len == 0 && count > 0)
        return error_set(err, ERR_PROTOCOL, "a descriptor without a message");
    *fd = steal_fd(&got);
    return len;
}

static int make_address(const char *path, struct sockaddr_un *addr, struct error *err)
{
    size_t len = strlen(path);

    memset(addr, 0, sizeof(*addr));
    addr->sun_family = AF_UNIX;
    if (len == 0 || len >= sizeof(addr->sun_path)) {
        errno = ENAMETOOLONG;
        return error_set_errno(err, "socket path of %zu bytes, not 1 to %zu", len,
                               sizeof(addr->sun_path) - 1);
    }
    memcpy(addr->sun_path, path, len + 1);
    return 0;
}

static int connect_to(const struct sockaddr_un *addr, int flags)
{
    _cleanup_close_ int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0);
    int rc;

    if (sock < 0)
        return -1;
    do {
        rc = connect(sock, (const struct sockaddr *)addr, sizeof(*addr));
    } while (rc < 0 && errno == EINTR);
    return rc < 0 ? -1 : steal_fd(&sock);
}

int fdpass_connect(const char *path, struct error *err)
{
    struct sockaddr_un addr;
    int sock;

    if (make_address(path, &addr, err) < 0)
        return -1;
    sock = connect_to(&addr, 0);
    if (sock < 0)
        return error_set_errno(err, "cannot connect to %s", path);
    return sock;
}

/* Removes a socket file nobody listens on. Anything else at the path stays, and is an error. */
static int remove_stale(const char *path, const struct sockaddr_un *addr, struct error *err)
{
    struct stat st;
    int probe;

    if (lstat(path, &st) < 0) {
        if (errno == ENOENT)
            return 0;
        return error_set_errno(err, "cannot look at %s", path);
    }
    if (!S_ISSOCK(st.st_mode)) {
        errno = EEXIST;
        return error_set_errno(err, "%s is not a socket", path);
    }
    probe = connect_to(addr, SOCK_NONBLOCK);
    if (probe >= 0) {
        close(probe);
        errno = EADDRINUSE;
    }
    if (probe >= 0 || errno != ECONNREFUSED)
        return error_set_errno(err, "%s is in use", path);
    if (unlink(path) < 0 && errno != ENOENT)
        return error_set_errno(err, "cannot remove the stale socket %s", path);
    return 0;
}

int fdpass_listen(const char *path, unsigned mode, int backlog, struct error *err)
{
    _cleanup_close_ int sock = -1;
    struct sockaddr_un addr;

    if (make_address(path, &addr, err) < 0 || remove_stale(path, &addr, err) < 0)
        return -1;
    sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (sock < 0)
        return error_set_errno(err, "cannot make a socket");
    if (bind(sock, (const struct sockaddr *)&addr, sizeof(addr)) < 0)
        return error_set_errno(err, "cannot bind %s", path);
    /* Nobody can connect before listen, so the mode never comes too late. */
    if (chmod(path, (mode_t)mode) < 0 || listen(sock, backlog) < 0) {
        error_set_errno(err, "cannot listen on %s", path);
        unlink(path);
        return -1;
    }
    return steal_fd(&sock);
}
