/*
 * Binding of the listening socket (see listener.h). Used by manager.c alone. A
 * socket is bound under a name of its own and renamed over the old one, so the
 * path never points at nothing; the lock decides between two instances that
 * start at once, the probe finds a living one that holds no lock of ours. What
 * children of a dead instance still hold, socket or lock, is no instance.
 */
#include "fcgi/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/process.h"

#define BACKLOG 1024
/* A child that was being forked when its manager was killed holds the lock until it runs. */
#define LOCK_WAIT_MS 2000
#define LOCK_RETRY_MS 20
/* The kernel lets go of the lock before it is done with the process that had it. */
#define DYING_MS 1000

int listener_mode(int64_t mode_digits, unsigned *mode, struct error *err)
{
    unsigned value = 0;
    int64_t left = mode_digits;
    for (unsigned shift = 0; shift < 9; shift += 3, left /= 10) {
        unsigned digit = (unsigned)(left % 10);
        if (digit > 7)
            return error_set_field(err, ERR_CONFIG, "web.socket_mode",
                                   "web.socket_mode: %" PRId64 " is not octal", mode_digits);
        value |= digit << shift;
    }
    *mode = value;
    return 0;
}

static int set_address(struct sockaddr_un *address, const char *path, struct error *err)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(address->sun_path))
        return error_set(err, ERR_CONFIG, "web.socket: the path is too long for a Unix socket");
    memcpy(address->sun_path, path, strlen(path) + 1);
    return 0;
}

static int refuse_second(const char *path, struct error *err)
{
    return error_set(err, ERR_PREFLIGHT,
                     "another process already serves %s; stop it first, or give this instance "
                     "another web.socket",
                     path);
}

static int take_lock(const char *path, struct error *err)
{
    char lock_path[256];
    (void)snprintf(lock_path, sizeof(lock_path), "%s.lock", path);
    _cleanup_close_ int fd = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return error_set_errno(err,
                               "cannot open %s (the folder of web.socket must be there and belong "
                               "to web.user)",
                               lock_path);
    int64_t deadline_ms = clock_mono_ms() + LOCK_WAIT_MS;
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return error_set_errno(err, "cannot lock %s", lock_path);
        if (clock_mono_ms() >= deadline_ms)
            return refuse_second(path, err);
        (void)poll(NULL, 0, LOCK_RETRY_MS);
    }
    return steal_fd(&fd);
}

/* Did the process that listens on the other end of this connection die? Its children may still
 * hold the socket, to end what they have in hand; they take nothing new. */
static bool listener_is_dead(int fd)
{
    struct ucred peer; /* of who called listen(2) */
    socklen_t size = sizeof(peer);
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.pid > 0 &&
           process_has_ended(peer.pid, DYING_MS);
}

/* Refuses a path that is not a socket or at which somebody answers. */
static int probe(const char *path, struct error *err)
{
    struct stat st;
    if (lstat(path, &st) < 0)
        return errno == ENOENT ? 0 : error_set_errno(err, "cannot look at %s", path);
    if (!S_ISSOCK(st.st_mode))
        return error_set(err, ERR_PREFLIGHT, "%s exists and is not a socket", path);
    struct sockaddr_un address;
    if (set_address(&address, path, err) < 0)
        return -1;
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return error_set_errno(err, "cannot make a socket");
    if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0)
        return listener_is_dead(fd) ? 0 : refuse_second(path, err);
    return errno == EAGAIN ? refuse_second(path, err) : 0;
}

static int bind_new(const char *path, unsigned mode, struct error *err)
{
    char fresh[256];
    struct sockaddr_un address;
    (void)snprintf(fresh, sizeof(fresh), "%s.new", path);
    if (set_address(&address, fresh, err) < 0)
        return -1;
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return error_set_errno(err, "cannot make a socket");
    /* Ours by the lock: a left-over of an instance that died right here. */
    unlink(fresh);
    mode_t mask = umask(0177);
    int rc = bind(fd, (const struct sockaddr *)&address, sizeof(address));
    umask(mask);
    if (rc < 0)
        return error_set_errno(err, "cannot bind %s", fresh);
    if (chmod(fresh, (mode_t)mode) < 0 || listen(fd, BACKLOG) < 0 || rename(fresh, path) < 0) {
        error_set_errno(err, "cannot listen on %s", path);
        unlink(fresh);
        return -1;
    }
    return steal_fd(&fd);
}

int listener_open(const char *path, unsigned mode, struct listener *listener, struct error *err)
{
    _cleanup_close_ int lock_fd = take_lock(path, err);
    if (lock_fd < 0 || probe(path, err) < 0)
        return -1;
    int fd = bind_new(path, mode, err);
    if (fd < 0)
        return -1;
    *listener = (struct listener){.fd = fd, .lock_fd = steal_fd(&lock_fd)};
    return 0;
}

int listener_adopt(int fd, int lock_fd, struct listener *listener, struct error *err)
{
    int listening = 0;
    socklen_t size = sizeof(listening);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) < 0 || !listening ||
        fcntl(lock_fd, F_GETFD) < 0)
        return error_set(err, ERR_PREFLIGHT, "the inherited listening socket is not one");
    *listener = (struct listener){.fd = fd, .lock_fd = lock_fd};
    return listener_inherit(listener, 0, err);
}

int listener_inherit(const struct listener *listener, int inherit, struct error *err)
{
    int flags = inherit ? 0 : FD_CLOEXEC;
    if (fcntl(listener->fd, F_SETFD, flags) < 0 || fcntl(listener->lock_fd, F_SETFD, flags) < 0)
        return error_set_errno(err, "cannot keep the listening socket");
    return 0;
}

void listener_refuse(const struct listener *listener)
{
    shutdown(listener->fd, SHUT_RD);
}

void listener_close(struct listener *listener)
{
    if (listener->fd >= 0)
        close(listener->fd);
    if (listener->lock_fd >= 0)
        close(listener->lock_fd);
    *listener = (struct listener){.fd = -1, .lock_fd = -1};
}
