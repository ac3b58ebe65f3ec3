/*
 * The socket to the keeper, main's end: requests go out in order, reports come
 * in and are checked before anyone sees them. Called by sandbox.c and run.c.
 *
 * What must stay true: one struct is one message, both ways; a descriptor that
 * comes with anything but KEEPER_STARTED and KEEPER_HELD is closed; the loss is told once.
 */
#include "daemon/keeper_link.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>

#include "common/cleanup.h"
#include "common/fdpass.h"

#define REPORTS_A_TURN 64
/* A few requests a sandbox, and 10,000 sandboxes at most (node.max_sandboxes). */
#define REQUESTS_MAX 65536

struct outgoing {
    STAILQ_ENTRY(outgoing) entry;
    struct keeper_request request;
};

STAILQ_HEAD(outgoing_queue, outgoing);

struct keeper_link {
    struct daemon *d;
    int sock;
    struct loop_io *io;
    struct loop_timer *soon; /* a loss found while sending is told in the next turn */
    keeper_report_cb on_report;
    void (*on_lost)(struct daemon *d);
    struct outgoing_queue queue;
    unsigned count;
    bool lost;
};

/* The keeper is gone or talks nonsense, which is as bad. */
static void lose(struct keeper_link *link, const char *why)
{
    struct error err = ERROR_INIT;
    if (link->lost)
        return;
    link->lost = true;
    loop_io_free(link->io);
    link->io = NULL;
    loop_timer_disarm(link->soon);
    error_set(&err, ERR_DAEMON_UNAVAILABLE, "%s", why);
    log_error_value(&link->d->log, LOG_ERROR, "keeper_lost", &err);
    link->on_lost(link->d);
}

static bool report_fits(struct keeper_report *report, ssize_t len, int fd)
{
    if (len != (ssize_t)sizeof(*report) || report->id[ID_SIZE - 1] != '\0' ||
        !memchr(report->text, '\0', sizeof(report->text)) ||
        !memchr(report->reason, '\0', sizeof(report->reason)))
        return false;
    if (report->event == KEEPER_ATTACHED)
        return fd < 0 && report->id[0] == '\0';
    if (!id_is_valid(report->id))
        return false;
    switch (report->event) {
    case KEEPER_STARTED:
        return fd >= 0;
    case KEEPER_HELD:
        return (fd >= 0) == (report->ending == 0);
    case KEEPER_REFUSED:
    case KEEPER_ENDED:
    case KEEPER_USAGE:
    case KEEPER_LISTED:
    case KEEPER_LIST_END:
        return fd < 0;
    default:
        return false;
    }
}

/* Returns false when there is no more to read now, or never. */
static bool read_one(struct keeper_link *link)
{
    struct keeper_report report;
    struct error err = ERROR_INIT;
    _cleanup_close_ int fd = -1;
    memset(&report, 0, sizeof(report));
    ssize_t len = fdpass_recv(link->sock, &report, sizeof(report), &fd, &err);
    if (len < 0 && err.code == ERR_SYSTEM && err.errno_value == EAGAIN)
        return false;
    if (len <= 0) {
        lose(link, len == 0 ? "the keeper closed its socket" : err.detail);
        return false;
    }
    if (!report_fits(&report, len, fd)) {
        lose(link, "the keeper sent a malformed report");
        return false;
    }
    link->on_report(link->d, &report, steal_fd(&fd));
    return true;
}

static void read_reports(struct keeper_link *link)
{
    for (int i = 0; i < REPORTS_A_TURN && read_one(link); i++)
        continue;
}

/* What the keeper reported before it went is worth hearing: what it wrote is read to the end. */
static void lost_on_sending(void *arg)
{
    struct keeper_link *link = arg;
    while (!link->lost && read_one(link))
        continue;
    lose(link, "the keeper takes no requests");
}

static void write_requests(struct keeper_link *link)
{
    struct outgoing *out;
    while ((out = STAILQ_FIRST(&link->queue))) {
        struct error err = ERROR_INIT;
        if (fdpass_send(link->sock, &out->request, sizeof(out->request), -1, &err) < 0) {
            if (err.errno_value != EAGAIN && err.errno_value != ENOBUFS)
                loop_timer_arm(link->soon, 0);
            break;
        }
        STAILQ_REMOVE_HEAD(&link->queue, entry);
        link->count--;
        free(out);
    }
    if (loop_io_set(link->io, out ? LOOP_READ | LOOP_WRITE : LOOP_READ) < 0)
        loop_timer_arm(link->soon, 0);
}

static void io_ready(int fd, unsigned events, void *arg)
{
    struct keeper_link *link = arg;
    (void)fd;
    if (events & LOOP_READ)
        read_reports(link);
    if (!link->lost && (events & LOOP_WRITE))
        write_requests(link);
}

struct keeper_link *keeper_link_new(struct daemon *d, int sock, keeper_report_cb on_report,
                                    void (*on_lost)(struct daemon *d), struct error *err)
{
    struct keeper_link *link = calloc(1, sizeof(*link));
    if (!link) {
        close(sock);
        error_set(err, ERR_SYSTEM, "out of memory");
        return NULL;
    }
    link->d = d;
    link->sock = sock;
    link->on_report = on_report;
    link->on_lost = on_lost;
    STAILQ_INIT(&link->queue);
    int flags = fcntl(sock, F_GETFL);
    if (flags >= 0 && fcntl(sock, F_SETFL, flags | O_NONBLOCK) == 0) {
        link->soon = loop_timer_new(d->loop, lost_on_sending, link);
        link->io = loop_io_new(d->loop, sock, LOOP_READ, io_ready, link);
    }
    if (!link->io || !link->soon) {
        error_set_errno(err, "cannot watch the keeper's socket");
        keeper_link_free(link);
        return NULL;
    }
    return link;
}

void keeper_link_free(struct keeper_link *link)
{
    struct outgoing *out;
    if (!link)
        return;
    while ((out = STAILQ_FIRST(&link->queue))) {
        STAILQ_REMOVE_HEAD(&link->queue, entry);
        free(out);
    }
    loop_io_free(link->io);
    loop_timer_free(link->soon);
    close(link->sock);
    free(link);
}

int keeper_link_send(struct keeper_link *link, const struct keeper_request *request,
                     struct error *err)
{
    if (link->lost)
        return error_set(err, ERR_DAEMON_UNAVAILABLE, "the keeper is gone");
    if (link->count >= REQUESTS_MAX)
        return error_set(err, ERR_DAEMON_UNAVAILABLE, "the keeper does not take requests");
    struct outgoing *out = malloc(sizeof(*out));
    if (!out)
        return error_set(err, ERR_DAEMON_UNAVAILABLE, "out of memory");
    out->request = *request;
    STAILQ_INSERT_TAIL(&link->queue, out, entry);
    link->count++;
    if (link->count == 1)
        write_requests(link);
    return 0;
}
