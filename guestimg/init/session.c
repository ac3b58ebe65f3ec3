/*
 * PID 1's event loop and the frames that concern the whole guest: HELLO at the
 * start, SETUP and READY, PING and PONG, RESET, RESYNC. Called by main.c (and by tests
 * on a socketpair). What must stay true: epoll_wait is the only place where
 * PID 1 waits; a frame that breaks the protocol, or the socket's end, ends
 * every process of the guest.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "guestimg/init/init.h"

#define EVENTS_A_TURN 64
#define FRAMES_A_TURN 64u
#define REAPED_A_TURN 256u
#define TICK_MS 1000
/* A fork beside a starting process would slow both, so the next supervisor is forked when an
 * execution has ended, or after this long without any event. */
#define QUIET_MS 50

int64_t init_now_us(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int64_t init_now_ms(void)
{
    return init_now_us() / 1000;
}

void init_stop(struct init *init, enum init_exit code, const char *fmt, ...)
{
    if (init->stopping)
        return;
    init->stopping = true;
    init->exit_code = (int)code;
    if (code == INIT_EXIT_OK)
        return;
    va_list args;
    va_start(args, fmt);
    (void)!dprintf(2, "paddock-init: ");
    (void)!vdprintf(2, fmt, args);
    (void)!dprintf(2, "\n");
    va_end(args);
}

void init_watch(struct init *init, struct watch *watch, uint32_t events)
{
    if (watch->events == events)
        return;
    struct epoll_event event = {.events = events, .data = {.ptr = watch}};
    int op = events == 0 ? EPOLL_CTL_DEL : watch->events == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    if (epoll_ctl(init->epoll_fd, op, watch->fd, &event) < 0 && events != 0) {
        init_stop(init, INIT_EXIT_INTERNAL, "epoll_ctl: %s", strerror(errno));
        return;
    }
    watch->events = events;
}

void init_watch_close(struct init *init, struct watch *watch)
{
    init_watch(init, watch, 0);
    close(watch->fd);
    watch->fd = -1;
}

void init_bury(struct init *init, struct grave *grave)
{
    grave->next = init->graves;
    init->graves = grave;
}

static void free_graves(struct init *init)
{
    while (init->graves) {
        struct grave *grave = init->graves;
        init->graves = grave->next;
        free(grave);
    }
}

/* --- frames --------------------------------------------------------------------------------- */

static void send_hello(struct init *init)
{
    uint8_t payload[4];
    wire_put_u32(payload, WIRE_VERSION);
    init->state = SESSION_NEW;
    outbox_send(init, WIRE_HELLO, 0, 0, payload, sizeof(payload));
}

/* A guest without this controller has only the limit that the host sets from outside. */
static int limit_pids(const char *path, uint32_t limit, struct error *err)
{
    _cleanup_close_ int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return errno == ENOENT ? 0 : error_set_errno(err, "%s", path);
    char text[16];
    int len = snprintf(text, sizeof(text), "%u\n", limit);
    if (write(fd, text, (size_t)len) != len)
        return error_set_errno(err, "%s", path);
    return 0;
}

static void on_setup(struct init *init, const struct wire_frame *frame)
{
    struct error err = ERROR_INIT;
    uint32_t pids = wire_get_u32(frame->payload);
    uint32_t mask = wire_get_u32(frame->payload + 4);
    if (pids == 0 || mask > 0777) {
        init_stop(init, INIT_EXIT_PROTOCOL, "SETUP with a pids limit of 0 or a wrong umask");
        return;
    }
    if (environ_setup(init, frame->payload + 8, frame->payload_len - 8, &err) < 0 ||
        limit_pids(init->options->pids_max_path, pids, &err) < 0) {
        init_stop(init, err.code == ERR_PROTOCOL ? INIT_EXIT_PROTOCOL : INIT_EXIT_INTERNAL, "%s",
                  err.detail);
        return;
    }
    init->umask = (mode_t)mask;
    init->state = SESSION_READY;
    idle_discard(init);
    init->idle_wanted = init->idle_due = true;
    outbox_send(init, WIRE_READY, 0, 0, NULL, 0);
}

static void on_reset(struct init *init)
{
    init->state = SESSION_RESETTING;
    if (execution_reset_all(init))
        send_hello(init);
}

/* SETUP comes first; while a RESET is carried out the host waits for HELLO. */
static bool is_allowed(const struct init *init, enum wire_type type)
{
    if (type == WIRE_PING || type == WIRE_RESET)
        return true;
    if (type == WIRE_SETUP)
        return init->state == SESSION_NEW;
    return init->state == SESSION_READY;
}

static void on_stream_frame(struct init *init, const struct wire_frame *frame)
{
    if (frame->type == WIRE_EXEC) {
        execution_on_exec(init, frame);
        return;
    }
    if (frame->type == WIRE_SIGNAL && (frame->payload[0] == 0 || frame->payload[0] > 64)) {
        init_stop(init, INIT_EXIT_PROTOCOL, "SIGNAL %u", frame->payload[0]);
        return;
    }
    struct execution *execution = execution_find(init, frame->stream);
    if (!execution)
        return; /* it has ended meanwhile */
    if (frame->type == WIRE_SPEC)
        execution_on_spec(init, execution, frame);
    else if (frame->type == WIRE_DATA)
        stream_on_data(init, execution, frame);
    else if (frame->type == WIRE_EOF && frame->channel == WIRE_STDIN)
        stream_on_eof(init, execution);
    else if (frame->type == WIRE_CREDIT)
        stream_on_credit(init, execution, frame->channel, wire_get_u32(frame->payload));
    else if (frame->type == WIRE_SIGNAL)
        execution_signal(init, execution, frame->payload[0]);
    else if (frame->type == WIRE_KILL)
        execution_kill(init, execution, wire_get_u32(frame->payload));
    else
        init_stop(init, INIT_EXIT_PROTOCOL, "%s is not for a guest", wire_type_name(frame->type));
}

static void on_frame(struct init *init, const uint8_t *data, size_t len)
{
    struct error err = ERROR_INIT;
    struct wire_frame frame;
    if (wire_decode(data, len, WIRE_TO_GUEST, &frame, &err) < 0) {
        init_stop(init, INIT_EXIT_PROTOCOL, "%s", err.detail);
        return;
    }
    if (!is_allowed(init, frame.type))
        init_stop(init, INIT_EXIT_PROTOCOL, "%s is not due", wire_type_name(frame.type));
    else if (frame.type == WIRE_PING)
        outbox_send(init, WIRE_PONG, 0, 0, frame.payload, frame.payload_len);
    else if (frame.type == WIRE_SETUP)
        on_setup(init, &frame);
    else if (frame.type == WIRE_RESET)
        on_reset(init);
    else if (frame.type == WIRE_RESYNC)
        takeover_resync(init, wire_get_u64(frame.payload));
    else
        on_stream_frame(init, &frame);
}

static void read_frames(struct init *init)
{
    for (unsigned i = 0; i < FRAMES_A_TURN && !init->stopping && !outbox_is_crowded(init); i++) {
        ssize_t got = recv(init->socket.fd, init->frame_in, sizeof(init->frame_in), MSG_DONTWAIT);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return;
        if (got < 0 && errno != ECONNRESET) {
            init_stop(init, INIT_EXIT_INTERNAL, "recv: %s", strerror(errno));
            return;
        }
        if (got <= 0) {
            init_stop(init, INIT_EXIT_OK, "host is gone");
            return;
        }
        on_frame(init, init->frame_in, (size_t)got);
    }
}

/* --- the loop ------------------------------------------------------------------------------- */

/* All orphans of the guest come here; what they ended with is of no interest. */
static bool reap_some(unsigned most)
{
    for (unsigned i = 0; i < most; i++) {
        pid_t pid = waitpid(-1, NULL, WNOHANG);
        if (pid == 0 || (pid < 0 && errno != EINTR))
            return pid == 0;
    }
    return true;
}

static pid_t reap_all(void *arg)
{
    (void)arg;
    return reap_some(UINT_MAX) ? 0 : -1;
}

static void on_children(struct init *init)
{
    struct signalfd_siginfo info;
    (void)!read(init->children.fd, &info, sizeof(info));
    (void)reap_some(REAPED_A_TURN);
}

static void dispatch(struct init *init, struct watch *watch, uint32_t events)
{
    /* Taken out of the set, or its owner buried, by an earlier event of this turn. */
    if (watch->events == 0)
        return;
    switch (watch->kind) {
    case WATCH_SOCKET:
        if (events & EPOLLOUT)
            outbox_flush(init);
        if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
            read_frames(init);
        return;
    case WATCH_CHILDREN:
        on_children(init);
        return;
    case WATCH_IDLE:
        idle_on_event(init);
        return;
    case WATCH_CONTROL:
        execution_on_control(init, watch->owner, events);
        return;
    case WATCH_STDIN:
        stream_on_input_event(init, watch->owner);
        return;
    case WATCH_OUTPUT:
        stream_on_output_event(init, watch->owner);
        return;
    case WATCH_LEFTOVER:
        stream_on_leftover(init, watch->owner);
        return;
    }
}

static int wait_ms(const struct init *init)
{
    if (init->linger_until_us != 0)
        return 1;
    if (init->idle_wanted)
        return QUIET_MS;
    return init->kills > 0 ? TICK_MS : -1;
}

static void refill_idle(struct init *init, bool quiet)
{
    if (!init->idle_due && !(init->idle_wanted && quiet))
        return;
    init->idle_due = init->idle_wanted = false;
    (void)idle_ensure(init); /* tried again, and its failure told, when one is needed */
}

/* Waits for events and takes them. */
static void turn(struct init *init, int timeout)
{
    struct epoll_event events[EVENTS_A_TURN];
    int count = epoll_wait(init->epoll_fd, events, EVENTS_A_TURN, timeout);
    if (count < 0 && errno != EINTR)
        init_stop(init, INIT_EXIT_INTERNAL, "epoll_wait: %s", strerror(errno));
    for (int i = 0; i < count && !init->stopping; i++)
        dispatch(init, events[i].data.ptr, events[i].events);
    if (init->state == SESSION_RESETTING && !execution_any_dying(init))
        send_hello(init);
    execution_check_kills(init);
    stream_end_linger(init);
    free_graves(init);
    if (!init->stopping)
        refill_idle(init, count == 0 && timeout >= QUIET_MS);
}

static void run(struct init *init)
{
    while (!init->stopping)
        turn(init, wait_ms(init));
}

/* --- start and end -------------------------------------------------------------------------- */

static int raise_descriptor_limit(struct init *init, struct error *err)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) < 0)
        return error_set_errno(err, "getrlimit");
    init->nofile_soft = files.rlim_cur;
    files.rlim_cur = files.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &files) < 0)
        return error_set_errno(err, "setrlimit");
    return 0;
}

/* Descriptors made later must not be 0 to 2, or they would be taken for an execution's. */
static int occupy_stdio(struct error *err)
{
    int fd;
    do {
        fd = open("/dev/null", O_RDWR | O_CLOEXEC);
        if (fd < 0)
            return error_set_errno(err, "/dev/null");
    } while (fd <= 2);
    close(fd);
    return 0;
}

/* gVisor lets everyone look into /proc/1/fd: what the guest's user could open there (a log file
 * that all may read, say) is given up. */
static int hide_logs(const struct init_options *options, struct error *err)
{
    _cleanup_close_ int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null_fd < 0)
        return error_set_errno(err, "/dev/null");
    for (int fd = 1; fd <= 2; fd++) {
        char path[32];
        (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        privilege_borrow_user(options);
        int read_fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
        int write_fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
        privilege_return();
        cleanup_close_p(&read_fd);
        cleanup_close_p(&write_fd);
        if ((read_fd >= 0 || write_fd >= 0) && dup2(null_fd, fd) < 0)
            return error_set_errno(err, "dup2");
    }
    return 0;
}

static int start(struct init *init, struct error *err)
{
    int type = 0;
    socklen_t type_len = sizeof(type);
    if (getsockopt(init->socket.fd, SOL_SOCKET, SO_TYPE, &type, &type_len) < 0)
        return error_set_errno(err, "the host's socket");
    if (type != SOCK_SEQPACKET)
        return error_set(err, ERR_PREFLIGHT, "the host's socket is not SOCK_SEQPACKET");
    if (privilege_init(err) < 0 || occupy_stdio(err) < 0 || hide_logs(init->options, err) < 0 ||
        raise_descriptor_limit(init, err) < 0)
        return -1;
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    init->children.fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    if (init->children.fd < 0)
        return error_set_errno(err, "signalfd");
    init->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (init->epoll_fd < 0)
        return error_set_errno(err, "epoll_create1");
    init_watch(init, &init->socket, EPOLLIN);
    init_watch(init, &init->children, EPOLLIN);
    return 0;
}

static void finish(struct init *init)
{
    idle_discard(init);
    execution_free_all(init);
    stream_close_leftovers(init);
    free_graves(init);
    buf_free(&init->environment);
    buf_free(&init->outbox);
    if (init->epoll_fd >= 0)
        close(init->epoll_fd);
    if (init->children.fd >= 0)
        close(init->children.fd);
    /* At the end of the first process the kernel kills all others, at once. */
    if (getpid() != 1)
        tree_end(init->options, reap_all, NULL);
}

int init_run(int sock, const struct init_options *options)
{
    _cleanup_free_ struct init *init = calloc(1, sizeof(*init));
    if (!init)
        return INIT_EXIT_INTERNAL;
    struct error err = ERROR_INIT;
    init->options = options;
    init->epoll_fd = -1;
    init->socket = (struct watch){.kind = WATCH_SOCKET, .fd = sock};
    init->children = (struct watch){.kind = WATCH_CHILDREN, .fd = -1};
    init->idle.control = (struct watch){.kind = WATCH_IDLE, .fd = -1};
    if (start(init, &err) < 0) {
        init_stop(init, INIT_EXIT_INTERNAL, "%s", err.detail);
    } else {
        send_hello(init);
        run(init);
    }
    finish(init);
    return init->exit_code;
}
