/*
 * The accept loop of a handler process (see child.h). Forked and watched by
 * manager.c. Children wait for the listening socket with EPOLLEXCLUSIVE, so one
 * connection wakes one of them, and for SIGTERM through a signalfd, so that a
 * signal never interrupts a request. What must stay true: a child that was woken
 * for a connection takes it before it heeds the signal, else the wake-up would
 * be lost to the others.
 */
#include "fcgi/child.h"

#include <errno.h>
#include <fcgiapp.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/db.h"
#include "fcgi/app.h"
#include "fcgi/exchange.h"
#include "fcgi/pending.h"
#include "fcgi/reply.h"

#define PENDING_LOOK_MS 1000

struct child {
    struct app app;
    struct reply_link link;
    struct pending *pending;
    FCGX_Request request;
    int listen_fd;
    int epoll_fd;
    int signal_fd;
};

static ssize_t read_body(void *arg, void *data, size_t size)
{
    FCGX_Request *request = arg;
    int n = FCGX_GetStr(data, (int)size, request->in);
    if (n == 0 && FCGX_GetError(request->in) != 0)
        return -1;
    return n;
}

static void serve(struct child *child)
{
    FCGX_Request *request = &child->request;
    struct exchange x;
    exchange_run(&x, &child->app, request->envp, read_body, request);
    if (x.wants_handoff) {
        struct error err = ERROR_INIT;
        if (reply_hand_over(&child->link, request, &x.handoff, &err) < 0) {
            log_error_value(&child->app.log, LOG_WARN, "handoff_failed", &err);
            exchange_answer_from_row(&x);
        }
    }
    /* After a hand-off the web server's variables, which x.req borrows, are gone. */
    exchange_log(&x);
    if (!x.wants_handoff)
        reply_write(request, &x.out, x.body_ended, child->pending);
    exchange_free(&x);
}

enum accepted {
    ACCEPTED_REQUEST, /* one was served */
    ACCEPTED_NONE,    /* another child was quicker, or the peer is gone */
    ACCEPTED_CLOSED,  /* the manager closed the queue and it is empty */
    ACCEPTED_FAILED,  /* the listening socket failed; logged */
};

/* Takes one connection if there still is one. */
static enum accepted accept_one(struct child *child)
{
    errno = 0;
    int rc = FCGX_Accept_r(&child->request);
    if (rc == 0) {
        serve(child);
        return ACCEPTED_REQUEST;
    }
    if (rc == -EINVAL)
        return ACCEPTED_CLOSED;
    if (rc == -EAGAIN || rc == -ECONNABORTED || rc == -EINTR || rc == -EMFILE || rc == -ENFILE ||
        rc == -ENOBUFS || rc == -ENOMEM)
        return ACCEPTED_NONE;
    log_fail(&child->app.log, "accept_failed", "code=%d", rc);
    return ACCEPTED_FAILED;
}

static int watch(int epoll_fd, int fd, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.fd = fd};
    return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

static int child_open(struct child *child, struct error *err)
{
    const struct config *cfg = child->app.cfg;
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGTERM);
    sigaddset(&mask, SIGINT);
    if (sigprocmask(SIG_SETMASK, &mask, NULL) < 0)
        return error_set_errno(err, "cannot block signals");
    (void)signal(SIGHUP, SIG_IGN);
    (void)signal(SIGCHLD, SIG_DFL);
    child->signal_fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    child->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (child->signal_fd < 0 || child->epoll_fd < 0 ||
        watch(child->epoll_fd, child->signal_fd, EPOLLIN) < 0 ||
        watch(child->epoll_fd, child->listen_fd, EPOLLIN | EPOLLEXCLUSIVE) < 0)
        return error_set_errno(err, "cannot wait for connections");
    child->app.db =
        db_new(cfg->database_dsn, cfg->database_connect_timeout, cfg->database_statement_timeout);
    if (!child->app.db)
        return error_set(err, ERR_INTERNAL, "out of memory");
    child->pending = pending_new(err);
    if (!child->pending)
        return -1;
    if (watch(child->epoll_fd, pending_fd(child->pending), EPOLLIN) < 0)
        return error_set_errno(err, "cannot wait for slow clients");
    reply_link_init(&child->link, cfg->daemon_handoff_socket);
    int rc = FCGX_Init();
    /* libfcgi installs a handler of its own; a write to a closed connection must only fail. */
    (void)signal(SIGPIPE, SIG_IGN);
    if (rc != 0 || FCGX_InitRequest(&child->request, child->listen_fd, 0) != 0)
        return error_set(err, ERR_INTERNAL, "libfcgi cannot be set up");
    return 0;
}

static void child_close(struct child *child)
{
    pending_free(child->pending);
    reply_link_close(&child->link);
    if (child->app.db)
        db_free(child->app.db);
    if (child->epoll_fd >= 0)
        close(child->epoll_fd);
    if (child->signal_fd >= 0)
        close(child->signal_fd);
}

static void run_pending(struct child *child)
{
    unsigned dropped = pending_run(child->pending, clock_mono_ms());
    if (dropped > 0)
        log_warn(&child->app.log, "slow_answers_dropped", "count=%u held=%zu", dropped,
                 pending_count(child->pending));
}

/* Waits; tells whether a connection may be there and whether the child is to end. */
static int child_wait(struct child *child, bool *connection, bool *stop)
{
    struct epoll_event events[3];
    *connection = false;
    *stop = false;
    int timeout_ms = pending_count(child->pending) > 0 ? PENDING_LOOK_MS : -1;
    int n = epoll_wait(child->epoll_fd, events, ARRAY_LEN(events), timeout_ms);
    if (n < 0)
        return errno == EINTR ? 0 : -1;
    for (int i = 0; i < n; i++) {
        if (events[i].data.fd == child->listen_fd)
            *connection = true;
        else if (events[i].data.fd == child->signal_fd)
            *stop = true;
    }
    run_pending(child);
    return 0;
}

/* Before the end: what slow clients have not taken yet, for no longer than a request may last. */
static void finish_pending(struct child *child)
{
    int64_t deadline_ms = clock_mono_ms() + child->app.cfg->web_request_timeout;
    while (pending_count(child->pending) > 0 && clock_mono_ms() < deadline_ms) {
        struct pollfd poll_fd = {.fd = pending_fd(child->pending), .events = POLLIN};
        if (poll(&poll_fd, 1, PENDING_LOOK_MS) < 0 && errno != EINTR)
            return;
        run_pending(child);
    }
}

static enum accepted accept_in_slot(struct child *child, struct child_slot *slot)
{
    /* From the accept on: a peer that connects and sends nothing holds us as well. */
    atomic_store(&slot->busy_since_ms, clock_mono_ms());
    enum accepted accepted = accept_one(child);
    atomic_store(&slot->busy_since_ms, 0);
    return accepted;
}

/* True when the whole service ends: nobody else will take what is queued. */
static bool queue_is_closed(const struct child *child)
{
    struct pollfd poll_fd = {.fd = child->listen_fd, .events = POLLRDHUP};
    return poll(&poll_fd, 1, 0) > 0 && (poll_fd.revents & (POLLRDHUP | POLLHUP));
}

static bool has_served_its_share(const struct child *child, int64_t served)
{
    /* One that still holds answers serves on: its slot is not left empty for slow clients. */
    return served >= child->app.cfg->web_max_requests && pending_count(child->pending) == 0;
}

static int child_loop(struct child *child, struct child_slot *slot)
{
    enum accepted accepted = ACCEPTED_REQUEST;
    int64_t served = 0;
    bool stop = false;
    while (!stop && accepted != ACCEPTED_CLOSED && !has_served_its_share(child, served)) {
        bool connection;
        if (child_wait(child, &connection, &stop) < 0)
            return 1;
        if (!connection)
            continue;
        accepted = accept_in_slot(child, slot);
        if (accepted == ACCEPTED_FAILED)
            return 1;
        if (accepted == ACCEPTED_REQUEST)
            served++;
    }
    if (accepted != ACCEPTED_CLOSED)
        accepted = ACCEPTED_REQUEST;
    while (accepted == ACCEPTED_REQUEST && queue_is_closed(child))
        accepted = accept_in_slot(child, slot);
    finish_pending(child);
    return accepted == ACCEPTED_FAILED ? 1 : 0;
}

int child_run(const struct config *cfg, const struct log *log, int listen_fd,
              struct child_slot *slot)
{
    struct child child = {.app = {.cfg = cfg, .log = *log},
                          .link = {.fd = -1},
                          .listen_fd = listen_fd,
                          .epoll_fd = -1,
                          .signal_fd = -1};
    struct error err = ERROR_INIT;
    int status = 1;
    if (child_open(&child, &err) < 0)
        log_error_value(&child.app.log, LOG_ERROR, "child_failed", &err);
    else
        status = child_loop(&child, slot);
    child_close(&child);
    return status;
}
