/*
 * The guest's side of the protocol: session.c's own loop turns, driven step by
 * step, with executions whose supervisor is this file instead of a process
 * (idle.c, tree.c and privilege.c are replaced; nothing is forked or killed).
 * The host may send anything; supervisors, which are ours, only say what is well-
 * formed. However that goes: frames to the host are well-formed, output stays
 * within the credit, and a stream ends once, by FAILED or EXIT.
 */
#include "guestimg/init/session.c" /* NOLINT(bugprone-suspicious-include): its turn */

#include "tests/fuzz/fuzz.h"

#define STEPS_MAX 200u
#define SUPERVISORS_MAX 24u
#define STREAM_IDS 8u
#define TURNS 2
#define INIT_STREAM_BYTES 4096u

struct fake { /* a supervisor's ends; -1: closed */
    int control;
    int stdio[3];
};

struct bed {
    struct init init; /* first: idle_ensure finds the bed by it */
    int host;
    struct fake fakes[SUPERVISORS_MAX];
    unsigned fake_count;
    bool ready; /* between READY and the next HELLO streams are known to both */
    bool open[STREAM_IDS];
    uint64_t granted[STREAM_IDS][2];
    uint64_t output[STREAM_IDS][2];
    unsigned resyncs;                      /* not answered yet */
    uint64_t granted_since[STREAM_IDS][2]; /* the last RESYNC was sent */
    uint32_t uuids;
    uint8_t tx[WIRE_FRAME_MAX + 64];
    uint8_t rx[WIRE_FRAME_MAX];
};

/* --- in place of idle.c, tree.c, privilege.c, supervisor.c ---------------------------------- */

int idle_ensure(struct init *init)
{
    struct bed *bed = (struct bed *)init;
    struct fake *fake = &bed->fakes[bed->fake_count];
    int control[2];
    int pipes[3][2];

    if (init->idle.pid != 0)
        return 0;
    if (bed->fake_count == SUPERVISORS_MAX)
        return EAGAIN;
    MUST(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, control) == 0);
    for (size_t i = 0; i < 3; i++)
        MUST(pipe2(pipes[i], O_CLOEXEC | O_NONBLOCK) == 0);
    *fake = (struct fake){control[1], {pipes[0][0], pipes[1][1], pipes[2][1]}};
    bed->fake_count++;
    init->idle = (struct supervisor_link){
        .pid = (pid_t)(1000000 + bed->fake_count),
        .stdin_fd = pipes[0][1],
        .stdout_fd = pipes[1][0],
        .stderr_fd = pipes[2][0],
        .control = {.kind = WATCH_IDLE, .fd = control[0]},
    };
    init_watch(init, &init->idle.control, EPOLLIN);
    return 0;
}

void idle_keep(struct init *init, pid_t pid, int control_fd)
{
    (void)init;
    (void)pid;
    close(control_fd);
}

void idle_discard(struct init *init)
{
    if (init->idle.pid == 0)
        return;
    init_watch_close(init, &init->idle.control);
    close(init->idle.stdin_fd);
    close(init->idle.stdout_fd);
    close(init->idle.stderr_fd);
    init->idle.pid = 0;
}

void idle_on_event(struct init *init)
{
    idle_discard(init);
}

void tree_signal(pid_t root, int signal_number)
{
    (void)root;
    (void)signal_number;
}

void tree_kill_orphan(pid_t pid)
{
    (void)pid;
}

void tree_end(const struct init_options *options, pid_t (*reap)(void *arg), void *arg)
{
    (void)options;
    (void)reap;
    (void)arg;
}

int privilege_init(struct error *err)
{
    (void)err;
    return 0;
}

void privilege_borrow_user(const struct init_options *options)
{
    (void)options;
}

void privilege_return(void)
{
}

/* --- the host ------------------------------------------------------------------------------- */

/* What was granted before counts no more. */
static void hear_resynced(struct bed *bed)
{
    MUST(bed->resyncs > 0);
    if (--bed->resyncs > 0)
        return;
    for (size_t id = 0; id < STREAM_IDS; id++)
        for (size_t k = 0; k < 2; k++)
            bed->granted[id][k] = bed->output[id][k] + bed->granted_since[id][k];
}

static void hear_frame(struct bed *bed, const struct wire_frame *frame)
{
    uint32_t id = frame->stream;
    size_t which = frame->channel == WIRE_STDERR;

    if (frame->type == WIRE_HELLO) {
        bed->ready = false;
        memset(bed->open, 0, sizeof(bed->open));
    } else if (frame->type == WIRE_READY) {
        bed->ready = true;
    } else if (frame->type == WIRE_RESYNCED) {
        hear_resynced(bed);
    } else if (frame->type == WIRE_LIVE) {
        struct error err = ERROR_INIT;
        struct wire_live live;

        MUST(wire_live_get(frame, &live, &err) == 0);
    } else if (frame->type == WIRE_OVER) {
        struct error err = ERROR_INIT;
        struct wire_over over;

        MUST(wire_over_get(frame, &over, &err) == 0);
    }
    if (id == 0 || id >= STREAM_IDS || !bed->ready)
        return;
    if (frame->type == WIRE_DATA) {
        MUST(frame->channel != WIRE_STDIN && bed->open[id]);
        bed->output[id][which] += frame->payload_len;
        MUST(bed->output[id][which] <= bed->granted[id][which]);
    } else if (frame->type == WIRE_FAILED || frame->type == WIRE_EXIT) {
        MUST(bed->open[id]);
        bed->open[id] = false;
    }
}

static void hear_all(struct bed *bed)
{
    ssize_t len;

    while ((len = recv(bed->host, bed->rx, sizeof(bed->rx), MSG_DONTWAIT)) > 0) {
        struct error err = ERROR_INIT;
        struct wire_frame frame;

        MUST(wire_decode(bed->rx, (size_t)len, WIRE_TO_HOST, &frame, &err) == 0);
        hear_frame(bed, &frame);
    }
}

/* What the host itself knows of streams, when it speaks of them in well-formed frames. */
static void note(struct bed *bed, enum wire_type type, uint8_t channel, uint32_t id,
                 const uint8_t *payload)
{
    if (type == WIRE_RESYNC) {
        bed->resyncs++;
        memset(bed->granted_since, 0, sizeof(bed->granted_since));
    }
    if (id == 0 || id >= STREAM_IDS)
        return;
    if (type == WIRE_EXEC) {
        bed->open[id] = true;
        memset(bed->output[id], 0, sizeof(bed->output[id]));
        bed->granted[id][0] = wire_get_u32(payload + 4);
        bed->granted[id][1] = wire_get_u32(payload + 8);
        memcpy(bed->granted_since[id], bed->granted[id], sizeof(bed->granted[id]));
    } else if (type == WIRE_CREDIT && (channel == WIRE_STDOUT || channel == WIRE_STDERR)) {
        bed->granted[id][channel == WIRE_STDERR] += wire_get_u32(payload);
        bed->granted_since[id][channel == WIRE_STDERR] += wire_get_u32(payload);
    }
}

static void say(struct bed *bed, size_t len)
{
    struct error err = ERROR_INIT;
    struct wire_frame frame;

    if (send(bed->host, bed->tx, len, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        return;
    /* Both sides agree on streams only frame by frame. */
    if (wire_decode(bed->tx, len, WIRE_TO_GUEST, &frame, &err) == 0 && !bed->init.stopping)
        note(bed, frame.type, frame.channel, frame.stream, frame.payload);
}

static void say_raw(struct bed *bed, struct fuzz_input *in)
{
    size_t len = fuzz_u16(in);
    const uint8_t *bytes = fuzz_bytes(in, &len);

    if (len > sizeof(bed->tx))
        len = sizeof(bed->tx);
    memcpy(bed->tx, bytes, len);
    say(bed, len);
}

static void say_frame(struct bed *bed, struct fuzz_input *in)
{
    enum wire_type type = (enum wire_type)(fuzz_u8(in) % 21);
    uint8_t channel = fuzz_u8(in) % 4;
    uint32_t stream = fuzz_u8(in) % STREAM_IDS;
    size_t len = type == WIRE_DATA ? fuzz_u16(in) : fuzz_u8(in);
    size_t some = len < 64 ? len : 64;
    const uint8_t *bytes = fuzz_bytes(in, &some);

    wire_header(bed->tx, type, channel, stream);
    memset(bed->tx + WIRE_HEADER_SIZE, 0, len);
    memcpy(bed->tx + WIRE_HEADER_SIZE, bytes, some);
    say(bed, WIRE_HEADER_SIZE + len);
}

/* EXEC and its whole spec, in pieces. */
static void say_exec(struct bed *bed, struct fuzz_input *in)
{
    uint32_t stream = fuzz_u8(in) % STREAM_IDS;
    size_t pieces = 1u + fuzz_u8(in) % 3u;
    uint8_t flags = fuzz_u8(in);
    struct buf spec = BUF_INIT(0);

    MUST(wire_spec_put(&spec, WIRE_SPEC_ARG, "x", 1) == 0);
    if (flags & 1)
        MUST(wire_spec_put(&spec, WIRE_SPEC_STDIN, NULL, 0) == 0);
    wire_header(bed->tx, WIRE_EXEC, 0, stream);
    wire_put_u32(bed->tx + WIRE_HEADER_SIZE, (uint32_t)spec.len);
    wire_put_u32(bed->tx + WIRE_HEADER_SIZE + 4, fuzz_u16(in));
    wire_put_u32(bed->tx + WIRE_HEADER_SIZE + 8, fuzz_u16(in));
    memset(bed->tx + WIRE_HEADER_SIZE + 12, 0, WIRE_UUID_SIZE);
    wire_put_u32(bed->tx + WIRE_HEADER_SIZE + 12, flags & 2 ? 0 : ++bed->uuids);
    say(bed, WIRE_HEADER_SIZE + 12 + WIRE_UUID_SIZE);
    for (size_t at = 0, i = 0; i < pieces; i++) {
        size_t len = i + 1 == pieces ? spec.len - at : spec.len / pieces;

        wire_header(bed->tx, WIRE_SPEC, 0, stream);
        memcpy(bed->tx + WIRE_HEADER_SIZE, spec.data + at, len);
        at += len;
        say(bed, WIRE_HEADER_SIZE + len);
    }
    buf_free(&spec);
}

/* --- supervisors ---------------------------------------------------------------------------- */

static void close_end(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void report(struct fake *fake, struct fuzz_input *in)
{
    struct report report = {.kind = fuzz_u8(in) % 3u + 1};

    report.pid = 77;
    report.errno_value = 1 + fuzz_u8(in);
    report.step = WIRE_STEP_CWD + fuzz_u8(in) % 3u;
    report.exit_code = fuzz_u8(in);
    if (fake->control >= 0)
        (void)!send(fake->control, &report, sizeof(report), MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void supervisor_step(struct bed *bed, struct fuzz_input *in)
{
    static const uint8_t zeros[INIT_STREAM_BYTES];
    uint8_t sink[INIT_STREAM_BYTES];
    uint8_t what = fuzz_u8(in);
    unsigned which = fuzz_u8(in);
    struct fake *fake;

    if (bed->fake_count == 0)
        return;
    fake = &bed->fakes[which % bed->fake_count];
    switch (what % 8) {
    case 0:
    case 1:
        report(fake, in);
        break;
    case 2: /* the control messages; a full socket is a case, too, when this step never comes */
        while (fake->control >= 0 && recv(fake->control, sink, sizeof(sink), MSG_DONTWAIT) > 0)
            continue;
        break;
    case 3:
    case 4:
        if (fake->stdio[1 + what / 8 % 2] >= 0)
            (void)!write(fake->stdio[1 + what / 8 % 2], zeros, fuzz_u16(in) % sizeof(zeros));
        break;
    case 5:
        if (fake->stdio[0] >= 0)
            (void)!read(fake->stdio[0], sink, sizeof(sink));
        break;
    case 6:
        close_end(&fake->stdio[what / 8 % 3]);
        break;
    default:
        close_end(&fake->control);
        break;
    }
}

/* --- the steps ------------------------------------------------------------------------------ */

static void step(struct bed *bed, struct fuzz_input *in)
{
    switch (fuzz_u8(in) % 8) {
    case 0:
        say_raw(bed, in);
        break;
    case 1:
    case 2:
        say_frame(bed, in);
        break;
    case 3:
        say_exec(bed, in);
        break;
    case 4:
    case 5:
        supervisor_step(bed, in);
        break;
    case 6: /* READY was asked for; the host does not know that yet */
        wire_header(bed->tx, WIRE_SETUP, 0, 0);
        wire_put_u32(bed->tx + WIRE_HEADER_SIZE, 64);
        wire_put_u32(bed->tx + WIRE_HEADER_SIZE + 4, 022);
        say(bed, WIRE_HEADER_SIZE + 8);
        break;
    default:
        return; /* without a turn: the next steps come together */
    }
    for (int i = 0; i < TURNS && !bed->init.stopping; i++) {
        /* The same input shall do the same each time: the clock decides nothing. */
        if (bed->init.linger_until_us != 0)
            bed->init.linger_until_us = 1;
        turn(&bed->init, 0);
    }
}

static void begin(struct bed *bed, const struct init_options *options)
{
    int fds[2];

    (void)signal(SIGPIPE, SIG_IGN); /* privilege_init blocks all signals */
    MUST(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
    bed->host = fds[0];
    bed->init.options = options;
    bed->init.socket = (struct watch){.kind = WATCH_SOCKET, .fd = fds[1]};
    bed->init.children = (struct watch){.kind = WATCH_CHILDREN, .fd = -1};
    bed->init.idle.control = (struct watch){.kind = WATCH_IDLE, .fd = -1};
    bed->init.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    MUST(bed->init.epoll_fd >= 0);
    init_watch(&bed->init, &bed->init.socket, EPOLLIN);
    send_hello(&bed->init);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct init_options options = {.workspace = "/workspace",
                                                .pids_max_path = "/nonexistent/pids.max",
                                                .environment_path = "/nonexistent/environment"};
    struct bed *bed = calloc(1, sizeof(*bed));
    struct fuzz_input in = {data, size};
    bool listens =
        fuzz_u8(&in) % 4 != 0; /* else nothing of the host is checked, all stays queued */

    MUST(bed != NULL);
    begin(bed, &options);
    for (unsigned i = 0; i < STEPS_MAX && in.len > 0 && !bed->init.stopping; i++) {
        step(bed, &in);
        if (listens)
            hear_all(bed);
    }
    if (listens)
        hear_all(bed);
    finish(&bed->init);
    close(bed->init.socket.fd);
    close(bed->host);
    for (unsigned i = 0; i < bed->fake_count; i++) {
        close_end(&bed->fakes[i].control);
        for (size_t k = 0; k < 3; k++)
            close_end(&bed->fakes[i].stdio[k]);
    }
    free(bed);
    return 0;
}
