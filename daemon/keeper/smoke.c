/*
 * Drives the smoke guest over its frames (common/wire.h), in a child of the
 * supervisor that has dropped every privilege: what the guest sends is hostile
 * here as anywhere. One poll loop with one deadline; whatever is not as it must
 * be ends it with a sentence that says what.
 */
#include "daemon/keeper/smoke.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/fdpass.h"
#include "common/wire.h"
#include "daemon/keeper/protocol.h"

#define BURNERS 2u
#define ECHOES 4u
#define QUICK 8u
#define STREAMS (BURNERS + ECHOES + QUICK)
#define ECHO_BYTES (4u << 20)
#define WINDOW (256u << 10)
#define CREDIT_MAX (1u << 30)
#define CHUNK (32u << 10)
#define LOAD_TIMEOUT_MS 60000
#define END_TIMEOUT_MS 20000
/* SIGKILL, which nothing that gVisor gets wrong ends in: its panics have codes of their own. */
#define KILLED (128 + 9)
/* runsc's own when its sandbox ends while it is being started, whatever of. */
#define NOT_STARTED 128

enum stream_kind { STREAM_BURN, STREAM_ECHO, STREAM_QUICK };

struct stream {
    enum stream_kind kind;
    struct buf spec;
    size_t spec_sent;
    bool opened; /* EXEC was sent */
    bool started;
    bool exited;
    uint64_t input_sent;
    uint64_t input_credit;
    bool input_eof;
    uint64_t output_seen;
    uint32_t output_allowed;
    uint32_t output_owed;
};

enum smoke_state { SMOKE_HELLO, SMOKE_SETUP, SMOKE_LOAD };

struct smoke {
    const struct config *config;
    int keeper_sock;
    int guest_sock; /* -1 until STARTED */
    char id[ID_SIZE];
    enum smoke_state state;
    bool ended; /* KEEPER_ENDED came */
    struct keeper_report end;
    unsigned next; /* whose turn it is to send: 0 … STREAMS - 1 */
    struct stream streams[STREAMS];
    uint8_t rx[WIRE_FRAME_MAX + 1];
};

static int fail(struct error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int fail(struct error *err, const char *fmt, ...)
{
    char text[KEEPER_TEXT_MAX];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    return error_set(err, ERR_PREFLIGHT,
                     "the smoke guest failed: %s (install a runsc build known good, or see "
                     "guest.smoke)",
                     text);
}

/* What says nothing about this host's runsc: another try may tell. */
static int undecided(struct error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int undecided(struct error *err, const char *fmt, ...)
{
    char text[KEEPER_TEXT_MAX];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    return error_set(err, ERR_SYSTEM, "the smoke guest could not be judged: %s", text);
}

static int no_memory(struct error *err)
{
    return undecided(err, "no memory");
}

/* What byte stands at a position of an echo's data: no two chunks or streams look alike. */
static uint8_t pattern(unsigned stream, uint64_t position)
{
    uint64_t x = (position + 1) * UINT64_C(0x9E3779B97F4A7C15) + stream;

    return (uint8_t)(x >> 32 ^ x >> 17);
}

/* --- sending ---------------------------------------------------------------------------------- */

/* Of the errno of a send. Reading finds the same, and the keeper's report says why. */
static bool guest_is_gone(void)
{
    return errno == EPIPE || errno == ECONNRESET;
}

/* 1 sent, 0 the socket is full or nobody reads it any more, -1 error. */
static int send_frame(struct smoke *smoke, enum wire_type type, uint8_t channel, uint32_t id,
                      const void *payload, size_t len, struct error *err)
{
    uint8_t header[WIRE_HEADER_SIZE];
    union {
        const void *in;
        void *out;
    } base = {.in = payload}; /* sendmsg reads only */
    struct iovec iov[2] = {{.iov_base = header, .iov_len = sizeof(header)},
                           {.iov_base = base.out, .iov_len = len}};
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};

    wire_header(header, type, channel, id);
    if (sendmsg(smoke->guest_sock, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
        return 1;
    if (errno == EAGAIN || errno == EINTR || errno == ENOBUFS)
        return 0;
    if (guest_is_gone())
        return 0;
    return fail(err, "its socket broke (%s)", strerror(errno));
}

static int send_opening(struct smoke *smoke, unsigned index, struct error *err)
{
    struct stream *stream = &smoke->streams[index];
    uint8_t exec[12 + WIRE_UUID_SIZE] = {0};
    size_t len = stream->spec.len - stream->spec_sent;
    int sent;

    if (!stream->opened) {
        wire_put_u32(exec, (uint32_t)stream->spec.len);
        wire_put_u32(exec + 4, WINDOW);
        wire_put_u32(exec + 8, WINDOW);
        exec[12] = (uint8_t)(index + 1); /* unlike the others is all it must be */
        sent = send_frame(smoke, WIRE_EXEC, 0, index + 1, exec, sizeof(exec), err);
        stream->opened = sent > 0;
        return sent;
    }
    sent =
        send_frame(smoke, WIRE_SPEC, 0, index + 1, stream->spec.data + stream->spec_sent, len, err);
    if (sent > 0)
        stream->spec_sent += len;
    return sent;
}

static int send_input(struct smoke *smoke, unsigned index, struct error *err)
{
    struct stream *stream = &smoke->streams[index];
    uint8_t chunk[CHUNK];
    uint64_t len = ECHO_BYTES - stream->input_sent;
    int sent;

    if (len == 0) {
        sent = send_frame(smoke, WIRE_EOF, WIRE_STDIN, index + 1, NULL, 0, err);
        stream->input_eof = sent > 0;
        return sent;
    }
    if (len > stream->input_credit)
        len = stream->input_credit;
    if (len > sizeof(chunk))
        len = sizeof(chunk);
    for (size_t i = 0; i < len; i++)
        chunk[i] = pattern(index, stream->input_sent + i);
    sent = send_frame(smoke, WIRE_DATA, WIRE_STDIN, index + 1, chunk, (size_t)len, err);
    if (sent > 0) {
        stream->input_sent += len;
        stream->input_credit -= len;
    }
    return sent;
}

static int send_credit(struct smoke *smoke, unsigned index, struct error *err)
{
    struct stream *stream = &smoke->streams[index];
    uint8_t amount[4];
    int sent;

    wire_put_u32(amount, stream->output_owed);
    sent = send_frame(smoke, WIRE_CREDIT, WIRE_STDOUT, index + 1, amount, sizeof(amount), err);
    if (sent > 0) {
        stream->output_allowed += stream->output_owed;
        stream->output_owed = 0;
    }
    return sent;
}

/* One frame of one stream: 1 sent, 0 nothing to send, -1 error, 2 the socket is full. */
static int send_one(struct smoke *smoke, unsigned index, struct error *err)
{
    const struct stream *stream = &smoke->streams[index];
    bool input_due = stream->kind == STREAM_ECHO && stream->started && !stream->input_eof &&
                     (stream->input_credit > 0 || stream->input_sent == ECHO_BYTES);
    int sent;

    if (stream->exited)
        return 0;
    if (stream->spec_sent < stream->spec.len)
        sent = send_opening(smoke, index, err);
    else if (stream->output_owed >= WINDOW / 2)
        sent = send_credit(smoke, index, err);
    else if (input_due)
        sent = send_input(smoke, index, err);
    else
        return 0;
    return sent == 0 ? 2 : sent;
}

/* Sends what can be sent, in turns. *full: there is more, but the socket is full. */
static int send_some(struct smoke *smoke, bool *full, struct error *err)
{
    *full = false;
    if (smoke->state != SMOKE_LOAD)
        return 0;
    for (unsigned idle = 0; idle < STREAMS;) {
        int sent = send_one(smoke, smoke->next, err);

        if (sent < 0)
            return -1;
        if (sent == 2) {
            *full = true;
            return 0;
        }
        idle = sent == 0 ? idle + 1 : 0;
        smoke->next = (smoke->next + 1) % STREAMS;
    }
    return 0;
}

static int send_setup(struct smoke *smoke, struct error *err)
{
    static const char env[] = "PATH=/usr/local/bin:/usr/bin:/bin"; /* with its NUL */
    uint8_t setup[8 + sizeof(env)];
    int sent;

    wire_put_u32(setup, (uint32_t)smoke->config->guest_pids);
    wire_put_u32(setup + 4, 022);
    memcpy(setup + 8, env, sizeof(env));
    sent = send_frame(smoke, WIRE_SETUP, 0, 0, setup, sizeof(setup), err);
    if (sent == 0)
        return guest_is_gone() ? 0 : fail(err, "its socket takes no first frame");
    smoke->state = SMOKE_SETUP;
    return sent < 0 ? -1 : 0;
}

/* --- receiving -------------------------------------------------------------------------------- */

static int on_data(struct stream *stream, unsigned index, const struct wire_frame *frame,
                   struct error *err)
{
    if (stream->kind != STREAM_ECHO || frame->channel != WIRE_STDOUT)
        return fail(err, "unexpected output of program %u", index);
    if (frame->payload_len > stream->output_allowed ||
        frame->payload_len > stream->input_sent - stream->output_seen)
        return fail(err, "more output of program %u than there may be", index);
    for (size_t i = 0; i < frame->payload_len; i++)
        if (frame->payload[i] != pattern(index, stream->output_seen + i))
            return fail(err, "byte %" PRIu64 " of program %u came back changed",
                        stream->output_seen + i, index);
    stream->output_seen += frame->payload_len;
    stream->output_allowed -= (uint32_t)frame->payload_len;
    stream->output_owed += (uint32_t)frame->payload_len;
    return 0;
}

static int on_exit_frame(struct stream *stream, unsigned index, const struct wire_frame *frame,
                         struct error *err)
{
    if (stream->kind == STREAM_BURN || frame->payload[0] != 0 || frame->payload[1] != 0)
        return fail(err, "program %u ended with code %u, signal %u", index,
                    (unsigned)frame->payload[0], (unsigned)frame->payload[1]);
    if (stream->kind == STREAM_ECHO && stream->output_seen != ECHO_BYTES)
        return fail(err, "program %u gave back %" PRIu64 " of %u bytes", index, stream->output_seen,
                    ECHO_BYTES);
    stream->exited = true;
    return 0;
}

static int on_stream_frame(struct smoke *smoke, const struct wire_frame *frame, struct error *err)
{
    unsigned index = frame->stream - 1;
    struct stream *stream;

    if (frame->stream == 0 || frame->stream > STREAMS || smoke->state != SMOKE_LOAD)
        return fail(err, "frame %s in a wrong place", wire_type_name(frame->type));
    stream = &smoke->streams[index];
    if (stream->exited || stream->spec_sent < stream->spec.len)
        return fail(err, "frame %s of a program that does not run", wire_type_name(frame->type));
    if (frame->type == WIRE_STARTED) {
        stream->started = true;
        return 0;
    }
    if (frame->type == WIRE_FAILED)
        return fail(err, "program %u could not be started (errno %u)", index,
                    (unsigned)wire_get_u32(frame->payload));
    if (frame->type == WIRE_EXIT)
        return on_exit_frame(stream, index, frame, err);
    if (frame->type == WIRE_DATA)
        return on_data(stream, index, frame, err);
    if (frame->type == WIRE_CREDIT) {
        if (frame->channel != WIRE_STDIN || stream->input_credit > CREDIT_MAX)
            return fail(err, "credit in a wrong place");
        stream->input_credit += wire_get_u32(frame->payload);
        return 0;
    }
    return frame->type == WIRE_EOF
               ? 0
               : fail(err, "frame %s in a wrong place", wire_type_name(frame->type));
}

static int on_frame(struct smoke *smoke, const struct wire_frame *frame, struct error *err)
{
    if (frame->type == WIRE_HELLO) {
        if (smoke->state != SMOKE_HELLO || wire_get_u32(frame->payload) != WIRE_VERSION)
            return fail(err, "its paddock-init speaks another protocol: rebuild the image");
        return send_setup(smoke, err);
    }
    if (frame->type == WIRE_READY) {
        if (smoke->state != SMOKE_SETUP)
            return fail(err, "READY in a wrong place");
        smoke->state = SMOKE_LOAD;
        return 0;
    }
    return on_stream_frame(smoke, frame, err);
}

/* At most a turn's worth, so that sending is never starved. */
static int read_guest(struct smoke *smoke, struct error *err)
{
    for (unsigned i = 0; i < 32; i++) {
        ssize_t len = recv(smoke->guest_sock, smoke->rx, sizeof(smoke->rx), MSG_DONTWAIT);
        struct error cause = ERROR_INIT;
        struct wire_frame frame;

        if (len < 0 && (errno == EAGAIN || errno == EINTR))
            return 0;
        if (len <= 0) { /* the keeper's report says why */
            close(smoke->guest_sock);
            smoke->guest_sock = -1;
            return 0;
        }
        if (wire_decode(smoke->rx, (size_t)len, WIRE_TO_HOST, &frame, &cause) < 0)
            return fail(err, "%s", cause.detail);
        if (on_frame(smoke, &frame, err) < 0)
            return -1;
    }
    return 0;
}

static int read_keeper(struct smoke *smoke, struct error *err)
{
    struct error cause = ERROR_INIT;
    struct keeper_report report;
    int fd = -1;
    ssize_t len = fdpass_recv(smoke->keeper_sock, &report, sizeof(report), &fd, &cause);

    if (len < 0 && cause.errno_value == EAGAIN)
        return 0;
    if (len == sizeof(report) && report.event == KEEPER_ATTACHED && fd < 0)
        return 0;
    if (len != sizeof(report) || strcmp(report.id, smoke->id) != 0) {
        if (fd >= 0)
            close(fd);
        return undecided(err, "the keeper is gone");
    }
    report.text[sizeof(report.text) - 1] = '\0';
    switch (report.event) {
    case KEEPER_STARTED:
        smoke->guest_sock = fd;
        return 0;
    case KEEPER_REFUSED:
        return fail(err, "%.300s", report.text);
    case KEEPER_ENDED:
        smoke->ended = true;
        smoke->end = report;
        return 0;
    default:
        return 0;
    }
}

/* --- the run ---------------------------------------------------------------------------------- */

static int ask_keeper(const struct smoke *smoke, enum keeper_op op, struct error *err)
{
    const struct config *config = smoke->config;
    struct error cause = ERROR_INIT;
    struct keeper_request request;

    memset(&request, 0, sizeof(request));
    request.op = op;
    memcpy(request.id, smoke->id, ID_SIZE);
    if (op == KEEPER_START) {
        if (!config_name_at(config->guest_templates, 0, request.template_name,
                            sizeof(request.template_name)))
            return fail(err, "guest.templates names no template");
        request.cpus = (uint32_t)config->guest_cpus;
        request.memory_bytes = (uint64_t)config->guest_memory_mb << 20;
        request.workspace_bytes = (uint64_t)config->guest_workspace_mb << 20;
        request.tmp_bytes = (uint64_t)config->guest_tmp_mb << 20;
        request.shm_bytes = (uint64_t)config->guest_shm_mb << 20;
        request.pids = (uint32_t)config->guest_pids;
    }
    if (fdpass_send(smoke->keeper_sock, &request, sizeof(request), -1, &cause) < 0)
        return undecided(err, "the keeper is gone");
    return 0;
}

static int make_specs(struct smoke *smoke, struct error *err)
{
    static const char *const burn[] = {"/bin/sh", "-c", "while :; do :; done"};
    static const char *const echo[] = {"/bin/cat"};
    static const char *const quick[] = {"/bin/true"};

    for (unsigned i = 0; i < STREAMS; i++) {
        struct stream *stream = &smoke->streams[i];
        const char *const *args = i < BURNERS ? burn : i < BURNERS + ECHOES ? echo : quick;
        unsigned count = i < BURNERS ? 3 : 1;

        stream->kind = i < BURNERS            ? STREAM_BURN
                       : i < BURNERS + ECHOES ? STREAM_ECHO
                                              : STREAM_QUICK;
        stream->output_allowed = WINDOW;
        for (unsigned k = 0; k < count; k++)
            if (wire_spec_put(&stream->spec, WIRE_SPEC_ARG, args[k], strlen(args[k])) < 0)
                return no_memory(err);
        if (stream->kind == STREAM_ECHO &&
            wire_spec_put(&stream->spec, WIRE_SPEC_STDIN, NULL, 0) < 0)
            return no_memory(err);
    }
    return 0;
}

/* Every echo and every short program came to its end while the burners ran. */
static bool load_done(const struct smoke *smoke)
{
    for (unsigned i = 0; i < STREAMS; i++) {
        const struct stream *stream = &smoke->streams[i];

        if (stream->kind == STREAM_BURN ? !stream->started : !stream->exited)
            return false;
    }
    return smoke->state == SMOKE_LOAD;
}

static int describe_stall(const struct smoke *smoke, struct error *err)
{
    static const char *const states[] = {"HELLO", "READY"};
    uint64_t echoed = 0;
    unsigned exited = 0;

    if (smoke->state != SMOKE_LOAD)
        return fail(err, "no %s in time", states[smoke->state]);
    for (unsigned i = 0; i < STREAMS; i++) {
        echoed += smoke->streams[i].output_seen;
        exited += smoke->streams[i].exited;
    }
    return fail(err, "it stalled under load after %" PRIu64 " bytes and %u of %u programs", echoed,
                exited, ECHOES + QUICK);
}

/* One wait and what came. Returns 1 when the deadline is over. */
static int turn(struct smoke *smoke, int64_t deadline_ms, struct error *err)
{
    struct pollfd fds[2] = {{.fd = smoke->keeper_sock, .events = POLLIN},
                            {.fd = smoke->guest_sock, .events = POLLIN}};
    int64_t left = deadline_ms - clock_mono_ms();
    bool full;

    if (left <= 0)
        return 1;
    if (smoke->guest_sock >= 0 && send_some(smoke, &full, err) < 0)
        return -1;
    if (smoke->guest_sock >= 0 && full)
        fds[1].events |= POLLOUT;
    if (poll(fds, 2, (int)left) < 0 && errno != EINTR)
        return error_set_errno(err, "cannot wait for the smoke guest");
    if (fds[1].revents && read_guest(smoke, err) < 0)
        return -1;
    return fds[0].revents ? read_keeper(smoke, err) : 0;
}

static bool may_be_killed(const struct smoke *smoke)
{
    return smoke->end.oom_kills == 0 &&
           (smoke->end.exit_status == KILLED ||
            (smoke->end.exit_status == NOT_STARTED && smoke->state == SMOKE_HELLO));
}

static int run_load(struct smoke *smoke, struct error *err)
{
    int64_t deadline = clock_mono_ms() + smoke->config->guest_provision_timeout + LOAD_TIMEOUT_MS;

    while (!load_done(smoke)) {
        int rc = turn(smoke, deadline, err);

        if (rc < 0)
            return -1;
        if (rc > 0)
            return describe_stall(smoke, err);
        if (smoke->ended && may_be_killed(smoke))
            return undecided(err, "it was killed, or runsc could not start it: %.250s",
                             smoke->end.text);
        if (smoke->ended)
            return fail(err, "it ended by itself with status %d, %u OOM kills %.250s",
                        smoke->end.exit_status, smoke->end.oom_kills, smoke->end.text);
    }
    return 0;
}

static int end_guest(struct smoke *smoke, struct error *err)
{
    int64_t deadline = clock_mono_ms() + END_TIMEOUT_MS;
    struct error ignored = ERROR_INIT;

    if (ask_keeper(smoke, KEEPER_END, err) < 0)
        return -1;
    if (smoke->guest_sock >= 0)
        close(smoke->guest_sock);
    smoke->guest_sock = -1;
    while (!smoke->ended) {
        int rc = turn(smoke, deadline, err);

        if (rc != 0)
            return rc < 0 ? -1 : fail(err, "it cannot be killed");
    }
    (void)!ask_keeper(smoke, KEEPER_FORGET, &ignored); /* it is no main's affair */
    return 0;
}

int smoke_run(const struct config *config, int keeper_sock, struct error *err)
{
    struct smoke *smoke = calloc(1, sizeof(*smoke));
    int result = -1;

    if (!smoke)
        return no_memory(err);
    smoke->config = config;
    smoke->keeper_sock = keeper_sock;
    smoke->guest_sock = -1;
    id_new(smoke->id);
    if (make_specs(smoke, err) == 0 && ask_keeper(smoke, KEEPER_START, err) == 0 &&
        run_load(smoke, err) == 0)
        result = end_guest(smoke, err);
    if (smoke->guest_sock >= 0)
        close(smoke->guest_sock);
    for (unsigned i = 0; i < STREAMS; i++)
        buf_free(&smoke->streams[i].spec);
    free(smoke);
    return result;
}
