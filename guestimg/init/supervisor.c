/*
 * The process between PID 1 and one execution: makes the child that waits for a
 * spec and becomes the program, passes on signals, ends the tree when told,
 * reports. It is a subreaper, so whatever the execution forks stays below it;
 * when the main process ends by itself and leaves others, it exits, which gives
 * them to PID 1; if it leaves none, it waits for another execution. What must
 * stay true: it runs as user 0 and holds no descriptor of an execution that has
 * ended or of another one, and its death is seen by PID 1 as the end of the
 * control socket (and the other way round: then it kills its tree).
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "guestimg/init/init.h"

#define CONTROL_FD 3

struct supervisor {
    const struct init *init;
    int children_fd; /* signalfd */
    int null_fd;
    pid_t main_pid;
    bool main_alive;
    bool children_left;
    bool kill_asked;
    int64_t kill_at_ms;
    struct report end;
    /* Written by the child, before it executes. */
    bool abandoned; /* no spec came, or not all of it */
    uint8_t *spec;
    size_t spec_len;
    struct launch launch;
    struct launch_failure failure;
    char script_path[PATH_MAX]; /* "" if none */
};

static void take_stdio(int control_fd, const int stdio[3])
{
    /* All of these are above 2 in PID 1, whose 0 to 2 are taken, so none overwrites another
     * before its turn; the control socket comes last. */
    for (int fd = 0; fd < 3; fd++) {
        if (dup2(stdio[fd], fd) < 0)
            _exit(1);
    }
    if (control_fd != CONTROL_FD && dup2(control_fd, CONTROL_FD) < 0)
        _exit(1);
    /* INT_MAX rather than ~0U, which gVisor refuses. */
    if (fcntl(CONTROL_FD, F_SETFD, FD_CLOEXEC) < 0 || close_range(CONTROL_FD + 1, INT_MAX, 0) < 0)
        _exit(1);
}

static void send_report(const struct report *report)
{
    while (send(CONTROL_FD, report, sizeof(*report), MSG_NOSIGNAL) < 0 && errno == EINTR)
        ;
}

static ssize_t receive(void *data, size_t size)
{
    ssize_t got;
    do
        got = recv(CONTROL_FD, data, size, 0);
    while (got < 0 && errno == EINTR);
    return got;
}

/* Waits for the whole spec. False: the socket ended, or there is no memory. */
static bool receive_spec(struct supervisor *sup)
{
    struct {
        struct control head;
        uint8_t piece[CONTROL_PIECE_MAX];
    } message;
    size_t have = 0;
    do {
        ssize_t got = receive(&message, sizeof(message));
        if (got <= (ssize_t)sizeof(message.head) || message.head.kind != CONTROL_SPEC)
            return false;
        if (!sup->spec) {
            sup->spec_len = message.head.value;
            sup->spec = malloc(sup->spec_len);
            if (!sup->spec)
                return false;
        }
        size_t piece = (size_t)got - sizeof(message.head);
        if (piece > sup->spec_len - have)
            return false;
        memcpy(sup->spec + have, message.piece, piece);
        have += piece;
    } while (have < sup->spec_len);
    return true;
}

static uint64_t usage_cpu_us(const struct rusage *usage)
{
    return (uint64_t)(usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) * 1000000u +
           (uint64_t)(usage->ru_utime.tv_usec + usage->ru_stime.tv_usec);
}

static void record_end(struct supervisor *sup, int status, const struct rusage *usage)
{
    sup->main_alive = false;
    sup->end.kind = REPORT_ENDED;
    sup->end.exit_code = WIFEXITED(status) ? (uint8_t)WEXITSTATUS(status) : 0;
    sup->end.signal = WIFSIGNALED(status) ? (uint8_t)WTERMSIG(status) : 0;
    sup->end.killed = sup->kill_asked;
    sup->end.cpu_us = usage_cpu_us(usage);
    sup->end.rss_bytes = (uint64_t)usage->ru_maxrss * 1024u;
}

/* For tree_end. The process group that the main process leads has its number as long as that
 * process is not reaped; afterwards the number could become another's. */
static pid_t reap(void *arg)
{
    struct supervisor *sup = arg;
    for (;;) {
        int status;
        struct rusage usage;
        pid_t pid = wait4(-1, &status, WNOHANG, &usage);
        if (pid < 0 && errno == EINTR)
            continue;
        sup->children_left = pid == 0;
        if (pid < 0)
            return -1;
        if (pid == 0)
            return sup->main_alive ? sup->main_pid : 0;
        if (pid == sup->main_pid && sup->main_alive)
            record_end(sup, status, &usage);
    }
}

/* After a fork the first touch of every page is slow (in gVisor about a millisecond in all), so
 * let it be now, while nobody waits. */
static void rehearse(const struct init *init)
{
    static const uint8_t spec[] = {WIRE_SPEC_ARG, 0,  0, 0, 1, 'x', WIRE_SPEC_ENV, 0, 0, 0, 2,
                                   'x',           '='};
    _cleanup_(launch_free) struct launch launch = {0};
    struct launch_failure failure = {0};
    uint8_t *copy = malloc(CONTROL_PIECE_MAX);
    if (copy)
        explicit_bzero(copy, CONTROL_PIECE_MAX); /* which no compiler leaves out */
    free(copy);
    (void)launch_parse(init, spec, sizeof(spec), &launch, &failure);
}

static int launch(struct supervisor *sup)
{
    struct launch *launch = &sup->launch;
    struct launch_failure *failure = &sup->failure;
    const struct init *init = sup->init;
    if (launch_parse(init, sup->spec, sup->spec_len, launch, failure) < 0)
        return -1;
    if (launch->script) {
        failure->step = WIRE_STEP_SCRIPT;
        failure->errno_value = script_write(init->options, launch->script, launch->script_len,
                                            launch->suffix, sup->script_path);
        if (failure->errno_value != 0)
            return -1;
        launch_add_argument(launch, sup->script_path);
    }
    /* Without a stdin channel the process reads from /dev/null. */
    if (!launch->has_stdin && dup2(sup->null_fd, 0) < 0) {
        *failure = (struct launch_failure){.errno_value = errno, .step = WIRE_STEP_FORK};
        return -1;
    }
    return launch_exec(init, launch, failure);
}

/* The child: waits for the spec, unless it is there, and becomes the program. What it leaves in
 * *sup tells the supervisor why it did not. */
static void child_main(struct supervisor *sup)
{
    sup->failure = (struct launch_failure){.step = WIRE_STEP_FORK};
    sup->failure.errno_value = launch_prepare(sup->init);
    if (!sup->spec && !receive_spec(sup))
        sup->abandoned = true;
    else if (sup->failure.errno_value == 0)
        (void)launch(sup);
}

/* The child shares our memory, and we stand still until it has executed or ended. It is made
 * before there is a spec: then a start costs the client no fork, not even this light one, and the
 * process that PID 1 wakes is the very one that becomes the program. */
static pid_t start_child(struct supervisor *sup)
{
    pid_t pid = vfork(); /* NOLINT(bugprone-unsafe-functions) */
    if (pid == 0) {
        child_main(sup);
        _exit(127);
    }
    return pid;
}

static _Noreturn void end_unstarted(struct supervisor *sup, const struct launch_failure *failure)
{
    script_remove(sup->init->options, sup->script_path);
    const struct report report = {.kind = REPORT_FAILED,
                                  .errno_value = failure->errno_value,
                                  .step = (uint32_t)failure->step};
    send_report(&report);
    _exit(0);
}

/* Starts the process; exits after FAILED when that does not work, and silently when PID 1 wants no
 * start any more. */
static void start(struct supervisor *sup)
{
    sup->main_pid = start_child(sup);
    if (sup->main_pid < 0) {
        /* The guest may be below its limit of processes again when the spec comes. */
        if (!receive_spec(sup))
            _exit(0);
        sup->main_pid = start_child(sup);
    }
    if (sup->main_pid < 0)
        sup->failure = (struct launch_failure){.errno_value = errno, .step = WIRE_STEP_FORK};
    if (sup->abandoned)
        _exit(0);
    if (sup->failure.errno_value != 0)
        end_unstarted(sup, &sup->failure);
    sup->main_alive = sup->children_left = true;
    const struct report report = {.kind = REPORT_STARTED, .pid = (int32_t)sup->main_pid};
    send_report(&report);
    /* Else the pipes would never end. */
    (void)close_range(0, 2, 0);
    launch_free(&sup->launch);
    free(sup->spec);
    sup->spec = NULL;
}

static void begin_kill(struct supervisor *sup, uint32_t grace_ms)
{
    int64_t at = init_now_ms() + grace_ms;
    if (sup->kill_asked && at >= sup->kill_at_ms)
        return;
    bool first = !sup->kill_asked;
    sup->kill_asked = true;
    sup->kill_at_ms = at;
    if (!first || grace_ms == 0)
        return;
    tree_signal(getpid(), SIGTERM);
    tree_signal(getpid(), SIGCONT); /* a stopped one could not act on it */
}

/* Returns false when PID 1 has closed its end. */
static bool on_control(struct supervisor *sup)
{
    struct control control;
    ssize_t got = receive(&control, sizeof(control));
    if (got <= 0)
        return false;
    if (got != (ssize_t)sizeof(control))
        return true;
    if (control.kind == CONTROL_SIGNAL && sup->main_alive)
        (void)kill(sup->main_pid, (int)control.value);
    if (control.kind == CONTROL_KILL)
        begin_kill(sup, control.value);
    return true;
}

static int wait_ms(const struct supervisor *sup)
{
    if (!sup->kill_asked)
        return -1;
    int64_t left = sup->kill_at_ms - init_now_ms();
    if (left <= 0)
        return 0;
    return left > INT_MAX ? INT_MAX : (int)left;
}

/* Until the main process ended by itself, or the kill's grace is over or not needed. */
static void attend(struct supervisor *sup)
{
    while (sup->kill_asked ? sup->children_left : sup->main_alive) {
        int timeout = wait_ms(sup);
        if (timeout == 0)
            return;
        struct pollfd polled[2] = {{.fd = sup->children_fd, .events = POLLIN},
                                   {.fd = CONTROL_FD, .events = POLLIN}};
        int ready = poll(polled, 2, timeout);
        if (ready < 0 && errno != EINTR)
            _exit(1);
        if (ready <= 0)
            continue;
        if (polled[0].revents) {
            struct signalfd_siginfo info;
            (void)!read(sup->children_fd, &info, sizeof(info));
            (void)reap(sup);
        } else if (polled[1].revents && !on_control(sup)) {
            sup->kill_asked = true;
            return;
        }
    }
}

/* Waits until PID 1 gives it another execution; false when it does not. */
static bool take_next(void)
{
    for (;;) {
        struct control control = {0};
        int stdio[3];
        struct iovec part = {.iov_base = &control, .iov_len = sizeof(control)};
        union {
            struct cmsghdr align;
            char bytes[CMSG_SPACE(sizeof(stdio))];
        } room;
        struct msghdr message = {.msg_iov = &part,
                                 .msg_iovlen = 1,
                                 .msg_control = room.bytes,
                                 .msg_controllen = sizeof(room.bytes)};
        ssize_t got = recvmsg(CONTROL_FD, &message, 0);
        if (got < 0 && errno == EINTR)
            continue;
        /* For the last one, sent before PID 1 knew of its end. */
        if (got == (ssize_t)sizeof(control) &&
            (control.kind == CONTROL_SIGNAL || control.kind == CONTROL_KILL))
            continue;
        const struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        if (got != (ssize_t)sizeof(control) || control.kind != CONTROL_AGAIN || !head ||
            head->cmsg_type != SCM_RIGHTS || head->cmsg_len != CMSG_LEN(sizeof(stdio)))
            return false;
        /* They come as the lowest free numbers, which are those. */
        memcpy(stdio, CMSG_DATA(head), sizeof(stdio));
        return stdio[0] == 0 && stdio[1] == 1 && stdio[2] == 2;
    }
}

/* One execution, from the wait for its spec to the report of its end. */
static bool serve(const struct init *init, int children_fd, int null_fd)
{
    struct supervisor sup = {.init = init, .children_fd = children_fd, .null_fd = null_fd};
    start(&sup);
    attend(&sup);
    if (sup.kill_asked)
        tree_end(init->options, reap, &sup);
    script_remove(init->options, sup.script_path);
    sup.end.free = !sup.kill_asked && !sup.children_left;
    send_report(&sup.end);
    return sup.end.free;
}

_Noreturn void supervisor_main(const struct init *init, int control_fd, const int stdio[3])
{
    take_stdio(control_fd, stdio);
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = init->nofile_soft;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
        _exit(1);
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    int children_fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (children_fd < 0 || null_fd < 0)
        _exit(1);
    rehearse(init);
    while (serve(init, children_fd, null_fd) && take_next())
        ;
    _exit(0);
}
