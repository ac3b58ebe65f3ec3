/*
 * One request to the handlers' socket by FastCGI. Called by `paddock doctor`, so
 * that a web server that cannot reach the handlers is told from handlers that do
 * not answer. What answers is not trusted: bytes, time and form are bounded.
 */
#include "cli/probe.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/fcgi_record.h"
#include "common/text.h"

#define ANSWER_MAX 65536
/* Longer than a handler waits for its database (database.connect_timeout, 5 s). */
#define ANSWER_TIMEOUT_MS 15000

static int refuse(const char *path, const char *why, struct error *err)
{
    return error_set(err, ERR_DAEMON_UNAVAILABLE, "%s: %s", path, why);
}

static int set_timeout(int sock, int64_t left_ms)
{
    const struct timeval limit = {.tv_sec = left_ms / 1000, .tv_usec = left_ms % 1000 * 1000 + 1};

    return setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) |
           setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

static int open_socket(const char *path, struct error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    _cleanup_close_ int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (strlen(path) >= sizeof(address.sun_path))
        return refuse(path, "too long for a socket's path", err);
    memcpy(address.sun_path, path, strlen(path) + 1);
    if (sock < 0 || set_timeout(sock, ANSWER_TIMEOUT_MS) != 0 ||
        connect(sock, (const struct sockaddr *)&address, sizeof(address)) < 0)
        return refuse(path, errno == EAGAIN ? "nobody takes the connection" : strerror(errno), err);
    return steal_fd(&sock);
}

static int send_request(int sock, const char *path, struct error *err)
{
    static const char *const params[][2] = {
        {"REQUEST_METHOD", "GET"}, {"REQUEST_URI", "/healthz"}, {"SERVER_PROTOCOL", "HTTP/1.1"}};
    _cleanup_buf_ struct buf request = BUF_INIT(0);

    if (fcgi_record_request(&request, 1, params, ARRAY_LEN(params)) < 0)
        return error_set(err, ERR_INTERNAL, "no memory");
    while (request.len > 0) {
        ssize_t sent = send(sock, request.data, request.len, MSG_NOSIGNAL);

        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            return refuse(path, strerror(errno), err);
        buf_consume(&request, (size_t)sent);
    }
    return 0;
}

/* Moves whole records from `in` to `text`. 1 at the answer's end, 0 when more is wanted, -1 when it
 * is not FastCGI. */
static int take_records(struct buf *in, struct buf *text)
{
    struct fcgi_record record;
    ssize_t size;

    while ((size = fcgi_record_read(in->data, in->len, &record)) > 0) {
        if (record.content && buf_append(text, record.content, record.content_len) < 0)
            return -1;
        if (record.is_end)
            return 1;
        buf_consume(in, (size_t)size);
    }
    return (int)size;
}

static int read_answer(int sock, const char *path, struct buf *text, struct error *err)
{
    _cleanup_buf_ struct buf in = BUF_INIT(2 * ANSWER_MAX);
    int64_t deadline = clock_mono_ms() + ANSWER_TIMEOUT_MS;
    int state = 0;

    while (state == 0) {
        int64_t left = deadline - clock_mono_ms();
        char piece[4096];
        ssize_t got;

        if (left <= 0 || set_timeout(sock, left) != 0)
            return refuse(path, "no answer in time", err);
        got = recv(sock, piece, sizeof(piece), 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return refuse(path, errno == EAGAIN ? "no answer in time" : strerror(errno), err);
        if (got == 0 || buf_append(&in, piece, (size_t)got) < 0)
            return refuse(path, "what answers there ends in the middle of an answer", err);
        state = take_records(&in, text);
    }
    return state > 0 ? 0 : refuse(path, "what answers there does not speak FastCGI", err);
}

int probe_handlers(const char *socket_path, struct error *err)
{
    static const char prefix[] = "Status: ";
    _cleanup_buf_ struct buf text = BUF_INIT(ANSWER_MAX);
    _cleanup_close_ int sock = open_socket(socket_path, err);
    char status[4] = "";
    int64_t number;

    if (sock < 0 || send_request(sock, socket_path, err) < 0 ||
        read_answer(sock, socket_path, &text, err) < 0)
        return -1;
    if (text.len >= sizeof(prefix) + 3 && memcmp(text.data, prefix, sizeof(prefix) - 1) == 0)
        memcpy(status, text.data + sizeof(prefix) - 1, 3);
    if (text_parse_i64(status, 100, 599, &number) < 0)
        return refuse(socket_path, "what answers there is not paddock-fcgi", err);
    return (int)number;
}
