/*
 * The daemon's channel under a hostile guest, over its real socket and loop.
 * The input is a row of steps: frames of the guest, well-formed or raw bytes,
 * and what the daemon does meanwhile (SETUP, executions, kills, pings; or, where
 * the first byte says so, a take-over and claims of what it found). However
 * that goes: one end, nothing after it; each stream ends once; no output beyond
 * the credit; every frame to the guest is well-formed and within its credit.
 */
#include "daemon/channel_internal.h" /* numbers of claimed streams */

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/fdpass.h"
#include "tests/fuzz/fuzz.h"

#define STREAMS_MAX 4u
#define STEPS_MAX 200u
#define EXECS_MAX 64u
/* Stdin's credit is followed on streams of a lower number. A stream's number is at most its turn
 * plus the places that others held each time, unless a guest that is taken over chose it. */
#define IDS_MAX 1024u
#define TAKE_OVER 0xffu
/* Loop turns after a step: one to read and answer, one for what that freed. */
#define TURNS 2

struct host_stream {
    struct channel_stream *stream; /* NULL when it has ended */
    uint32_t id;                   /* as the guest knows it; 0 before */
    struct bed *bed;
    bool started;
    bool has_input;
    /* stdout, stderr: what came, and what the guest heard that it may send */
    uint64_t output[2];
    uint64_t granted[2];
    uint64_t input; /* bytes that the guest heard */
};

struct bed {
    struct loop *loop;
    struct loop_timer *stop_timer;
    struct channel *channel;
    int guest;
    unsigned ends;
    unsigned hellos;
    struct host_stream streams[EXECS_MAX];
    unsigned execs;
    bool takes_over;
    bool resynced;
    uint64_t input_granted[IDS_MAX];
    uint8_t rx[WIRE_FRAME_MAX];
    uint8_t guest_rx[WIRE_FRAME_MAX];
    uint8_t guest_tx[WIRE_FRAME_MAX + 64];
};

/* --- the daemon ---------------------------------------------------------------------------- */

static void on_hello(void *arg, uint32_t version)
{
    struct bed *bed = arg;

    (void)version;
    MUST(bed->ends == 0 && bed->hellos++ == 0);
}

static void on_ready(void *arg)
{
    const struct bed *bed = arg;

    MUST(bed->ends == 0 && bed->hellos == 1);
}

static void on_pong(void *arg)
{
    const struct bed *bed = arg;

    MUST(bed->ends == 0 && (!bed->takes_over || bed->resynced));
}

static void on_end(void *arg, enum channel_end end, const struct error *err)
{
    struct bed *bed = arg;

    (void)end;
    MUST(bed->ends++ == 0 && error_is_set(err));
}

static void on_resynced(void *arg)
{
    struct bed *bed = arg;

    MUST(bed->ends == 0 && bed->takes_over && !bed->resynced);
    bed->resynced = true;
}

static const struct channel_handler handler = {.on_hello = on_hello,
                                               .on_ready = on_ready,
                                               .on_pong = on_pong,
                                               .on_resynced = on_resynced,
                                               .on_end = on_end};

static void on_started(void *arg)
{
    struct host_stream *s = arg;

    MUST(s->stream && s->bed->ends == 0 && !s->started);
    s->started = true;
}

static void hear_all(struct bed *bed);

/* Every grant that is in force was sent, so the guest can hear it now. */
static void on_data(void *arg, enum wire_channel channel, const void *data, size_t len)
{
    struct host_stream *s = arg;

    (void)data;
    hear_all(s->bed);
    MUST(s->stream && s->bed->ends == 0 && s->started && channel != WIRE_STDIN);
    s->output[channel == WIRE_STDERR] += len;
    MUST(s->output[channel == WIRE_STDERR] <= s->granted[channel == WIRE_STDERR]);
}

static void end_stream(struct host_stream *s)
{
    MUST(s->stream != NULL);
    s->stream = NULL;
}

static void on_exit_result(void *arg, const struct channel_exit *result)
{
    const struct host_stream *s = arg;

    MUST(s->bed->ends == 0 && s->started && result->signal <= 64);
    end_stream(arg);
}

static void on_failed(void *arg, enum wire_step step, int errno_value)
{
    const struct host_stream *s = arg;

    MUST(s->bed->ends == 0 && !s->started && errno_value > 0);
    MUST(step >= WIRE_STEP_SPEC && step <= WIRE_STEP_EXEC);
    end_stream(arg);
}

static void on_lost(void *arg)
{
    end_stream(arg);
}

static const struct channel_stream_handler stream_handler = {on_started, on_data, on_exit_result,
                                                             on_failed, on_lost};

static void stop(void *arg)
{
    loop_stop(arg);
}

static void turn(struct bed *bed)
{
    for (int i = 0; i < TURNS; i++) {
        MUST(loop_timer_arm(bed->stop_timer, 0) == 0);
        loop_run(bed->loop);
    }
}

static void exec(struct bed *bed, struct fuzz_input *in)
{
    struct host_stream *s = &bed->streams[bed->execs];
    struct buf spec = BUF_INIT(0);
    struct buf input = BUF_INIT(0);
    struct error err = ERROR_INIT;
    bool has_input = fuzz_u8(in) & 1;
    /* The rest tells the guest's side which execution an EXEC frame announces. */
    size_t spec_len = fuzz_u16(in) / EXECS_MAX * EXECS_MAX * 4u + bed->execs;
    size_t input_len = fuzz_u16(in) * sizeof(uint32_t);
    uint8_t uuid[WIRE_UUID_SIZE] = {(uint8_t)bed->execs};

    if (bed->execs == EXECS_MAX)
        return;
    MUST(buf_reserve(&spec, spec_len + 1) && buf_reserve(&input, input_len + 1));
    memset(spec.data, 's', spec_len);
    memset(input.data, 'i', input_len);
    spec.len = spec_len;
    input.len = input_len;
    *s = (struct host_stream){.bed = bed, .has_input = has_input};
    s->stream = channel_exec(bed->channel, uuid, &spec, has_input ? &input : NULL, &stream_handler,
                             s, &err);
    if (s->stream)
        bed->execs++;
    else
        MUST(error_is_set(&err));
    buf_free(&spec);
    buf_free(&input);
}

/* What the guest lists is found under uuids of one byte. */
static void claim(struct bed *bed, struct fuzz_input *in)
{
    struct host_stream *s = &bed->streams[bed->execs];
    uint8_t uuid[WIRE_UUID_SIZE] = {fuzz_u8(in)};
    struct buf input = BUF_INIT(0);
    struct channel_found found;
    size_t more = fuzz_u8(in);

    if (!bed->resynced || bed->ends > 0 || bed->execs == EXECS_MAX ||
        !channel_find(bed->channel, uuid, &found))
        return;
    if (!found.stream) {
        MUST(found.failed ? found.errno_value > 0 : found.exit.signal <= 64);
        return;
    }
    MUST(found.stdout_bytes <= INT64_MAX && found.stderr_bytes <= INT64_MAX);
    if (found.takes_input && found.stdin_bytes > 100000)
        return; /* as an execution whose stdin was not so long would */
    *s = (struct host_stream){.bed = bed, .has_input = found.takes_input, .stream = found.stream};
    s->id = found.stream->id;
    s->started = found.stream->state == STREAM_RUNNING;
    bed->execs++;
    if (found.takes_input) {
        size_t len = (size_t)found.stdin_bytes + more;

        MUST(buf_reserve(&input, len + 1));
        memset(input.data, 'i', len);
        input.len = len;
    }
    channel_claim(found.stream, found.takes_input ? &input : NULL, &stream_handler, s);
    buf_free(&input);
    MUST(!channel_find(bed->channel, uuid, &found) || found.stream != s->stream);
}

static bool is_known(void *arg, const uint8_t uuid[WIRE_UUID_SIZE])
{
    (void)arg;
    return uuid[0] == 1;
}

static void set_up(struct bed *bed, struct fuzz_input *in)
{
    struct buf env = BUF_INIT(0);
    struct error err = ERROR_INIT;
    size_t len = fuzz_u16(in);

    MUST(buf_reserve(&env, len + 1) != NULL);
    memset(env.data, 0, len);
    env.len = len;
    if (channel_setup(bed->channel, 64, 022, &env, &err) < 0)
        MUST(error_is_set(&err));
    buf_free(&env);
}

/* --- the guest ----------------------------------------------------------------------------- */

/* A full socket drops the frame: a guest may do as it likes. */
static void say(struct bed *bed, size_t len)
{
    (void)!send(bed->guest, bed->guest_tx, len, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void say_raw(struct bed *bed, struct fuzz_input *in)
{
    size_t len = fuzz_u8(in);
    const uint8_t *bytes = fuzz_bytes(in, &len);

    memcpy(bed->guest_tx, bytes, len);
    say(bed, len);
}

/* Type, channel, stream; the payload is taken from the input and repeated to its length. */
static void say_frame(struct bed *bed, struct fuzz_input *in)
{
    uint8_t type = fuzz_u8(in);
    uint8_t channel = fuzz_u8(in);
    uint32_t stream = fuzz_u8(in);
    size_t len = type == WIRE_DATA ? fuzz_u16(in) : fuzz_u8(in) % 64u;
    size_t some = type != WIRE_DATA || len < 24 ? len : 4;
    const uint8_t *bytes = fuzz_bytes(in, &some);

    wire_header(bed->guest_tx, (enum wire_type)(type % 21), channel, stream);
    memset(bed->guest_tx + WIRE_HEADER_SIZE, 0, len);
    memcpy(bed->guest_tx + WIRE_HEADER_SIZE, bytes, some);
    if (type % 21 == WIRE_CREDIT && len == 4 && channel == WIRE_STDIN)
        bed->input_granted[stream] += wire_get_u32(bed->guest_tx + WIRE_HEADER_SIZE);
    say(bed, WIRE_HEADER_SIZE + len);
}

static struct host_stream *find(struct bed *bed, uint32_t id)
{
    for (unsigned i = bed->execs; i-- > 0;)
        if (bed->streams[i].id == id)
            return &bed->streams[i];
    return NULL;
}

static void hear_frame(struct bed *bed, const struct wire_frame *frame)
{
    struct host_stream *s;

    if (frame->type == WIRE_EXEC) {
        s = &bed->streams[wire_get_u32(frame->payload) % EXECS_MAX];
        s->id = frame->stream;
        s->granted[0] = wire_get_u32(frame->payload + 4);
        s->granted[1] = wire_get_u32(frame->payload + 8);
    }
    if (frame->stream == 0)
        return;
    s = find(bed, frame->stream);
    /* Strays are killed without the daemon's knowing. */
    MUST(s || (bed->takes_over && (frame->type == WIRE_KILL || frame->type == WIRE_CREDIT)));
    if (!s)
        return;
    if (frame->type == WIRE_CREDIT) {
        MUST(frame->channel == WIRE_STDOUT || frame->channel == WIRE_STDERR);
        s->granted[frame->channel == WIRE_STDERR] += wire_get_u32(frame->payload);
    } else if (frame->type == WIRE_DATA) {
        MUST(frame->channel == WIRE_STDIN && s->has_input);
        s->input += frame->payload_len;
        MUST(frame->stream >= IDS_MAX || s->input <= bed->input_granted[frame->stream]);
    }
}

static void hear_all(struct bed *bed)
{
    ssize_t len;

    while ((len = recv(bed->guest, bed->guest_rx, sizeof(bed->guest_rx), MSG_DONTWAIT)) > 0) {
        struct error err = ERROR_INIT;
        struct wire_frame frame;

        MUST(wire_decode(bed->guest_rx, (size_t)len, WIRE_TO_GUEST, &frame, &err) == 0);
        hear_frame(bed, &frame);
    }
}

/* --- the steps ----------------------------------------------------------------------------- */

static void step(struct bed *bed, struct fuzz_input *in)
{
    struct error err = ERROR_INIT;
    unsigned which;

    switch (fuzz_u8(in) % 12) {
    case 0:
        say_raw(bed, in);
        break;
    case 1:
    case 2:
    case 3:
        say_frame(bed, in);
        return; /* more may follow within the same turn */
    case 4:
        exec(bed, in);
        break;
    case 5:
        which = fuzz_u8(in) % EXECS_MAX;
        if (bed->streams[which].stream)
            channel_kill(bed->streams[which].stream, fuzz_u16(in));
        break;
    case 6:
        (void)channel_ping(bed->channel);
        break;
    case 7:
        set_up(bed, in);
        break;
    case 8:
        if (fuzz_u8(in) == 'x')
            (void)!fdpass_send(bed->guest, "descriptor", 10, bed->guest, &err);
        else if (fuzz_u8(in) == 'x')
            (void)shutdown(bed->guest, SHUT_RDWR);
        break;
    case 10:
        claim(bed, in);
        break;
    case 11:
        if (bed->resynced && bed->ends == 0)
            (void)channel_kill_strays(bed->channel, is_known, NULL);
        break;
    default:
        break;
    }
    turn(bed);
    hear_all(bed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bed *bed = calloc(1, sizeof(*bed));
    struct fuzz_input in = {data, size};
    struct error err = ERROR_INIT;
    const int buffer_bytes = 1 << 20; /* as the keeper sets it: more than a window */
    int fds[2];

    MUST(bed && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
    for (unsigned i = 0; i < 2; i++)
        (void)setsockopt(fds[i], SOL_SOCKET, SO_SNDBUFFORCE, &buffer_bytes, sizeof(buffer_bytes));
    bed->guest = fds[1];
    bed->loop = loop_new(&err);
    MUST(bed->loop != NULL);
    bed->stop_timer = loop_timer_new(bed->loop, stop, bed->loop);
    bed->takes_over = in.len > 0 && in.data[0] == TAKE_OVER;
    if (bed->takes_over) {
        (void)fuzz_u8(&in);
        bed->channel =
            channel_take_over(bed->loop, fds[0], bed->rx, STREAMS_MAX, 1, &handler, bed, &err);
    } else {
        bed->channel = channel_new(bed->loop, fds[0], bed->rx, STREAMS_MAX, &handler, bed, &err);
    }
    MUST(bed->stop_timer && bed->channel);
    for (unsigned i = 0; i < STEPS_MAX && in.len > 0; i++)
        step(bed, &in);
    turn(bed);
    channel_free(bed->channel);
    for (unsigned i = 0; i < EXECS_MAX; i++)
        MUST(bed->streams[i].stream == NULL);
    turn(bed);
    loop_timer_free(bed->stop_timer);
    loop_free(bed->loop);
    close(bed->guest);
    free(bed);
    return 0;
}
