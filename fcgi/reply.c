/*
 * Answers and hand-offs through libfcgi (see reply.h). Called by child.c. The
 * order of a hand-off is fixed: send the descriptor, detach, free, forget.
 * Messages are SOCK_SEQPACKET, so one is either sent whole or not at all.
 */
#include "fcgi/reply.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/fcgi_record.h"
#include "common/fdpass.h"

/* A daemon that does not take a message for so long is taken for hung: the handler answers from
 * the row instead, and tries it again only after the pause. */
#define SEND_TIMEOUT_MS 2000
#define HUNG_PAUSE_MS 2000
/* An empty socket takes so much without waiting (net.core.wmem_default is 208 KiB). */
#define SURELY_TAKEN ((size_t)32 * 1024)

void reply_link_init(struct reply_link *link, const char *path)
{
    *link = (struct reply_link){.path = path, .fd = -1};
}

void reply_link_close(struct reply_link *link)
{
    if (link->fd >= 0)
        close(link->fd);
    link->fd = -1;
}

/* The request is no longer ours: its memory goes, and our copy of its connection. */
static void let_go(FCGX_Request *request)
{
    FCGX_Detach(request);
    FCGX_Free(request, 1);
    request->ipcFd = -1;
    FCGX_Attach(request);
}

/* True when the connection was taken over, whatever became of the answer. */
static bool write_without_waiting(FCGX_Request *request, const struct buf *answer,
                                  struct pending *pending)
{
    _cleanup_buf_ struct buf records = BUF_INIT(0);
    uint16_t id = (uint16_t)request->requestId;
    if (fcgi_record_stdout(&records, id, answer->data, answer->len) < 0 ||
        fcgi_record_end(&records, id) < 0)
        return false;
    int fd = fcntl(request->ipcFd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return false;
    let_go(request);
    pending_send(pending, fd, &records, clock_mono_ms());
    return true;
}

void reply_write(FCGX_Request *request, const struct buf *answer, bool body_ended,
                 struct pending *pending)
{
    /* libfcgi waits until all is written, and a web server that does not keep what its client is
     * slow to take makes it wait. */
    if (body_ended && answer->len > SURELY_TAKEN && write_without_waiting(request, answer, pending))
        return;
    FCGX_PutStr(answer->data ? answer->data : "", (int)answer->len, request->out);
    /* A web server that asked to keep the connection would tie this process to it. */
    request->keepConnection = 0;
    FCGX_Finish_r(request);
}

static int link_connect(struct reply_link *link, struct error *err)
{
    if (link->fd >= 0)
        return 0;
    link->fd = fdpass_connect(link->path, err);
    if (link->fd < 0)
        return -1;
    const struct timeval timeout = {.tv_sec = SEND_TIMEOUT_MS / 1000};
    if (setsockopt(link->fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) < 0) {
        error_set_errno(err, "cannot bound sending to the daemon");
        reply_link_close(link);
        return -1;
    }
    return 0;
}

static bool daemon_is_hung(const struct error *err)
{
    return err->errno_value == EAGAIN;
}

static int link_send(struct reply_link *link, const char *data, size_t len, int fd,
                     struct error *err)
{
    if (link_connect(link, err) < 0)
        return -1;
    if (fdpass_send(link->fd, data, len, fd, err) == 0)
        return 0;
    reply_link_close(link);
    if (daemon_is_hung(err))
        link->not_before_ms = clock_mono_ms() + HUNG_PAUSE_MS;
    return -1;
}

/* A daemon that was restarted since the last message shows as a broken connection: one more try
 * reaches the new one. */
static int link_send_retry(struct reply_link *link, const char *data, size_t len, int fd,
                           struct error *err)
{
    if (clock_mono_ms() < link->not_before_ms)
        return error_set(err, ERR_DAEMON_UNAVAILABLE, "the daemon does not answer");
    bool was_connected = link->fd >= 0;
    struct error first = ERROR_INIT;
    if (link_send(link, data, len, fd, &first) == 0)
        return 0;
    if (was_connected && !daemon_is_hung(&first) && link_send(link, data, len, fd, &first) == 0)
        return 0;
    error_set(err, ERR_DAEMON_UNAVAILABLE, "the daemon cannot be reached: %s", first.detail);
    err->errno_value = first.errno_value;
    return -1;
}

int reply_hand_over(struct reply_link *link, FCGX_Request *request, struct handoff *msg,
                    struct error *err)
{
    char data[HANDOFF_MAX];
    msg->fcgi_request_id = (uint16_t)request->requestId;
    int len = handoff_encode(msg, data, sizeof(data), err);
    if (len < 0)
        return -1;
    if (link_send_retry(link, data, (size_t)len, request->ipcFd, err) < 0)
        return -1;
    let_go(request);
    return 0;
}
