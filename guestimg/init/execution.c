/*
 * An execution's life as PID 1 sees it: the spec arrives, a supervisor takes
 * it, reports come back, EXIT or FAILED ends it. Called by session.c for the
 * host's frames and the control sockets' events; its bytes are stream.c's. What
 * must stay true: every stream that EXEC opened ends with exactly one FAILED or
 * EXIT unless RESET came first (or RESYNC, before its spec was complete); no
 * execution's UUID is started twice; and frames for a stream that has ended are no
 * violation, since the host may have sent them before it knew.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "guestimg/init/init.h"

/* How long beyond its grace a kill may take before PID 1 lends a hand. */
#define KILL_OVERDUE_MS 10000
#define KILL_CHECK_MS 1000

static struct execution **bucket_of(struct init *init, uint32_t stream)
{
    return &init->buckets[stream % INIT_BUCKETS];
}

struct execution *execution_find(const struct init *init, uint32_t stream)
{
    struct execution *e = init->buckets[stream % INIT_BUCKETS];
    while (e && e->stream != stream)
        e = e->next_in_bucket;
    return e;
}

static void unlink_stream(struct init *init, struct execution *execution)
{
    struct execution **at = bucket_of(init, execution->stream);
    while (*at && *at != execution)
        at = &(*at)->next_in_bucket;
    if (*at)
        *at = execution->next_in_bucket;
}

static void release_spec(struct init *init, struct execution *execution)
{
    init->specs_bytes -= execution->spec_size;
    execution->spec_size = 0;
    buf_free(&execution->spec);
}

static void set_kill_overdue(struct init *init, struct execution *execution, int64_t at_ms)
{
    init->kills += execution->kill_overdue_ms == 0 && at_ms != 0;
    init->kills -= execution->kill_overdue_ms != 0 && at_ms == 0;
    execution->kill_overdue_ms = at_ms;
}

static void close_pipes(struct init *init, struct execution *execution)
{
    stream_close_input(init, execution);
    for (size_t i = 0; i < 2; i++) {
        if (execution->outputs[i].watch.fd >= 0)
            init_watch_close(init, &execution->outputs[i].watch);
    }
}

static void forget(struct init *init, struct execution *execution)
{
    unlink_stream(init, execution);
    close_pipes(init, execution);
    if (execution->control.fd >= 0)
        init_watch_close(init, &execution->control);
    release_spec(init, execution);
    set_kill_overdue(init, execution, 0);
    *(execution->prev ? &execution->prev->next : &init->executions) = execution->next;
    if (execution->next)
        execution->next->prev = execution->prev;
    init->executions_count--;
    init_bury(init, &execution->grave);
}

static void send_failed(struct init *init, uint32_t stream, const uint8_t uuid[WIRE_UUID_SIZE],
                        enum wire_step step, int errno_value)
{
    uint8_t payload[5];
    wire_put_u32(payload, (uint32_t)errno_value);
    payload[4] = (uint8_t)step;
    outbox_send(init, WIRE_FAILED, 0, stream, payload, sizeof(payload));
    if (errno_value == EEXIST && step == WIRE_STEP_SPEC)
        return; /* not how it ended */
    struct wire_over over = {.last = {.type = WIRE_FAILED,
                                      .stream = stream,
                                      .payload = payload,
                                      .payload_len = sizeof(payload)}};
    memcpy(over.uuid, uuid, WIRE_UUID_SIZE);
    takeover_remember_end(init, &over);
}

static void fail(struct init *init, struct execution *execution, enum wire_step step,
                 int errno_value)
{
    send_failed(init, execution->stream, execution->uuid, step, errno_value);
    forget(init, execution);
}

static struct execution *execution_new(struct init *init, uint32_t stream)
{
    struct execution *execution = calloc(1, sizeof(*execution));
    if (!execution)
        return NULL;
    execution->stream = stream;
    execution->control = (struct watch){.kind = WATCH_CONTROL, .fd = -1, .owner = execution};
    execution->input.watch = (struct watch){.kind = WATCH_STDIN, .fd = -1, .owner = execution};
    for (uint8_t i = 0; i < 2; i++) {
        struct output *output = &execution->outputs[i];
        output->watch = (struct watch){.kind = WATCH_OUTPUT, .fd = -1, .owner = output};
        output->execution = execution;
        output->channel = (uint8_t)(WIRE_STDOUT + i);
    }
    struct execution **bucket = bucket_of(init, stream);
    execution->next_in_bucket = *bucket;
    *bucket = execution;
    execution->next = init->executions;
    if (execution->next)
        execution->next->prev = execution;
    init->executions = execution;
    init->executions_count++;
    return execution;
}

void execution_on_exec(struct init *init, const struct wire_frame *frame)
{
    uint32_t spec_size = wire_get_u32(frame->payload);
    const uint8_t *uuid = frame->payload + 12;
    if (execution_find(init, frame->stream) || spec_size > WIRE_SPEC_MAX) {
        init_stop(init, INIT_EXIT_PROTOCOL, "EXEC of an open stream or with too long a spec");
        return;
    }
    if (takeover_has_seen(init, uuid)) {
        send_failed(init, frame->stream, uuid, WIRE_STEP_SPEC, EEXIST);
        return;
    }
    if (spec_size == 0) {
        send_failed(init, frame->stream, uuid, WIRE_STEP_SPEC, EINVAL);
        return;
    }
    if (init->executions_count >= WIRE_STREAMS_MAX) {
        send_failed(init, frame->stream, uuid, WIRE_STEP_FORK, EAGAIN);
        return;
    }
    struct execution *execution = NULL;
    if (init->specs_bytes + spec_size <= INIT_SPECS_MAX_BYTES)
        execution = execution_new(init, frame->stream);
    if (!execution) {
        send_failed(init, frame->stream, uuid, WIRE_STEP_SPEC, ENOMEM);
        return;
    }
    memcpy(execution->uuid, uuid, WIRE_UUID_SIZE);
    execution->spec_size = spec_size;
    execution->spec.max = spec_size;
    init->specs_bytes += spec_size;
    execution->outputs[0].credit = wire_get_u32(frame->payload + 4);
    execution->outputs[1].credit = wire_get_u32(frame->payload + 8);
}

/* Returns 1 when sent, 0 when the socket is full, -1 when the supervisor is gone (which its
 * socket's event will tell). */
static int send_control(const struct execution *execution, enum control_kind kind, uint32_t value,
                        void *piece, size_t piece_len)
{
    struct control control = {.kind = kind, .value = value};
    struct iovec parts[2] = {{.iov_base = &control, .iov_len = sizeof(control)},
                             {.iov_base = piece, .iov_len = piece_len}};
    const struct msghdr message = {.msg_iov = parts, .msg_iovlen = piece_len > 0 ? 2 : 1};
    ssize_t sent;
    do
        sent = sendmsg(execution->control.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent >= 0)
        return 1;
    return errno == EAGAIN || errno == ENOBUFS ? 0 : -1;
}

static int send_spec(struct init *init, struct execution *execution)
{
    while (execution->spec_size > 0 && execution->spec_sent < execution->spec_size) {
        size_t piece = execution->spec_size - execution->spec_sent;
        if (piece > CONTROL_PIECE_MAX)
            piece = CONTROL_PIECE_MAX;
        int sent = send_control(execution, CONTROL_SPEC, (uint32_t)execution->spec_size,
                                execution->spec.data + execution->spec_sent, piece);
        if (sent <= 0)
            return sent;
        execution->spec_sent += piece;
    }
    release_spec(init, execution);
    return 1;
}

static int send_signals(struct execution *execution)
{
    while (execution->signals_pending != 0) {
        unsigned number = (unsigned)__builtin_ctzll(execution->signals_pending);
        /* Signal 64 is kept in bit 0, which no signal has. */
        int sent = send_control(execution, CONTROL_SIGNAL, number == 0 ? 64 : number, NULL, 0);
        if (sent <= 0)
            return sent;
        execution->signals_pending &= execution->signals_pending - 1;
    }
    if (execution->kill_pending) {
        int sent = send_control(execution, CONTROL_KILL, execution->kill_grace_ms, NULL, 0);
        if (sent <= 0)
            return sent;
        execution->kill_pending = false;
    }
    return 1;
}

/* Tells the supervisor what it does not know yet. Signals that wait are one bit each, as in the
 * kernel, so this needs no queue. */
static void flush_control(struct init *init, struct execution *execution)
{
    if (execution->control.fd < 0)
        return;
    int sent = send_spec(init, execution);
    if (sent > 0)
        sent = send_signals(execution);
    init_watch(init, &execution->control, sent == 0 ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

/* Returns 1 with stdin, 0 without, -1 when the spec is malformed. */
static int spec_asks_for_stdin(const struct buf *spec)
{
    struct error err = ERROR_INIT;
    struct wire_record record;
    size_t offset = 0;
    int found = 0;
    int rc;
    while ((rc = wire_spec_next(spec->data, spec->len, &offset, &record, &err)) > 0) {
        if (record.tag == WIRE_SPEC_STDIN)
            found = 1;
    }
    return rc < 0 ? -1 : found;
}

static void take_idle(struct init *init, struct execution *execution)
{
    struct supervisor_link *idle = &init->idle;
    execution->supervisor_pid = idle->pid;
    init_watch(init, &idle->control, 0);
    execution->control.fd = idle->control.fd;
    execution->input.watch.fd = idle->stdin_fd;
    execution->outputs[0].watch.fd = idle->stdout_fd;
    execution->outputs[1].watch.fd = idle->stderr_fd;
    *idle = (struct supervisor_link){.control = {.kind = WATCH_IDLE, .fd = -1}};
    init->idle_wanted = true;
}

static void begin(struct init *init, struct execution *execution)
{
    int with_stdin = spec_asks_for_stdin(&execution->spec);
    if (with_stdin < 0) {
        fail(init, execution, WIRE_STEP_SPEC, EINVAL);
        return;
    }
    if (!takeover_first_time(init, execution->uuid)) {
        fail(init, execution, WIRE_STEP_SPEC, EEXIST);
        return;
    }
    int failure = idle_ensure(init);
    if (failure != 0) {
        fail(init, execution, WIRE_STEP_FORK, failure);
        return;
    }
    take_idle(init, execution);
    execution->state = EXECUTION_STARTING;
    flush_control(init, execution);
    if (with_stdin)
        stream_open_input(init, execution);
    else
        stream_close_input(init, execution);
}

void execution_on_spec(struct init *init, struct execution *execution,
                       const struct wire_frame *frame)
{
    struct buf *spec = &execution->spec;
    if (execution->state != EXECUTION_SPEC ||
        frame->payload_len > execution->spec_size - spec->len) {
        init_stop(init, INIT_EXIT_PROTOCOL, "SPEC beyond its announced size");
        return;
    }
    if (buf_append(spec, frame->payload, frame->payload_len) < 0) {
        fail(init, execution, WIRE_STEP_SPEC, ENOMEM);
        return;
    }
    if (spec->len == execution->spec_size)
        begin(init, execution);
}

void execution_signal(struct init *init, struct execution *execution, unsigned signal_number)
{
    if (execution->state == EXECUTION_DRAINING || execution->state == EXECUTION_SPEC)
        return;
    execution->signals_pending |= UINT64_C(1) << (signal_number % 64);
    flush_control(init, execution);
}

void execution_kill(struct init *init, struct execution *execution, uint32_t grace_ms)
{
    if (execution->state == EXECUTION_SPEC) {
        fail(init, execution, WIRE_STEP_SPEC, ECANCELED);
        return;
    }
    if (execution->state == EXECUTION_DRAINING)
        return;
    execution->kill_pending = true;
    execution->kill_grace_ms = grace_ms;
    int64_t overdue = init_now_ms() + grace_ms + KILL_OVERDUE_MS;
    if (execution->kill_overdue_ms == 0 || overdue < execution->kill_overdue_ms)
        set_kill_overdue(init, execution, overdue);
    flush_control(init, execution);
}

void execution_check_kills(struct init *init)
{
    int64_t now = init_now_ms();
    if (init->kills == 0 || now - init->kills_checked_ms < KILL_CHECK_MS)
        return;
    init->kills_checked_ms = now;
    for (struct execution *e = init->executions; e; e = e->next) {
        if (e->kill_overdue_ms == 0 || now < e->kill_overdue_ms)
            continue;
        /* Say, a supervisor that waits for a child which was stopped before its exec. */
        tree_signal(e->supervisor_pid, SIGKILL);
    }
}

void execution_finish_if_drained(struct init *init, struct execution *execution)
{
    if (execution->state != EXECUTION_DRAINING || !execution->outputs[0].ended ||
        !execution->outputs[1].ended)
        return;
    const struct report *end = &execution->end;
    uint8_t payload[20] = {end->exit_code, end->signal, end->killed, 0};
    wire_put_u64(payload + 4, end->cpu_us);
    wire_put_u64(payload + 12, end->rss_bytes);
    outbox_send(init, WIRE_EXIT, 0, execution->stream, payload, sizeof(payload));
    struct wire_over over = {
        .stdout_bytes = execution->outputs[0].sent,
        .stderr_bytes = execution->outputs[1].sent,
        .last = {.type = WIRE_EXIT, .payload = payload, .payload_len = sizeof(payload)}};
    over.last.stream = execution->stream;
    memcpy(over.uuid, execution->uuid, WIRE_UUID_SIZE);
    takeover_remember_end(init, &over);
    stream_leave_outputs(init, execution);
    forget(init, execution);
    init->idle_due = init->idle_wanted;
}

static void end(struct init *init, struct execution *execution, const struct report *report)
{
    execution->end = *report;
    set_kill_overdue(init, execution, 0);
    init_watch(init, &execution->control, 0);
    if (report->free)
        idle_keep(init, execution->supervisor_pid, execution->control.fd);
    else
        close(execution->control.fd);
    execution->control.fd = -1;
    stream_start_draining(init, execution);
}

static void on_report(struct init *init, struct execution *execution, const struct report *report)
{
    uint8_t payload[4];
    switch ((enum report_kind)report->kind) {
    case REPORT_STARTED:
        execution->main_pid = (pid_t)report->pid;
        if (execution->state != EXECUTION_STARTING)
            return;
        execution->state = EXECUTION_RUNNING;
        wire_put_u32(payload, (uint32_t)report->pid);
        outbox_send(init, WIRE_STARTED, 0, execution->stream, payload, sizeof(payload));
        stream_advance(init, execution);
        return;
    case REPORT_FAILED:
        if (execution->state == EXECUTION_STARTING)
            fail(init, execution, (enum wire_step)report->step, report->errno_value);
        return;
    case REPORT_ENDED:
        if (execution->state == EXECUTION_RUNNING)
            end(init, execution, report);
        else if (execution->state == EXECUTION_DYING && report->free)
            forget(init, execution); /* it had ended before the kill came */
        return;
    }
}

/* The supervisor is gone without a last word: the guest ran out of memory, most likely. Its
 * children are ours now. */
static void on_supervisor_lost(struct init *init, struct execution *execution)
{
    if (execution->state == EXECUTION_DYING) {
        forget(init, execution);
        return;
    }
    if (execution->main_pid == 0) {
        fail(init, execution, WIRE_STEP_FORK, EIO);
        return;
    }
    tree_kill_orphan(execution->main_pid);
    /* It may have stopped others for the time of a kill. */
    if (execution->kill_overdue_ms != 0)
        tree_signal(getpid(), SIGCONT);
    const struct report report = {
        .kind = REPORT_ENDED, .signal = SIGKILL, .killed = execution->kill_overdue_ms != 0};
    end(init, execution, &report);
}

void execution_on_control(struct init *init, struct execution *execution, uint32_t events)
{
    if (events & EPOLLOUT)
        flush_control(init, execution);
    /* STARTED and ENDED often come together. The fd is gone after the last report. */
    while (execution->control.fd >= 0) {
        struct report report;
        ssize_t got = recv(execution->control.fd, &report, sizeof(report), MSG_DONTWAIT);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return;
        if (got != (ssize_t)sizeof(report)) {
            on_supervisor_lost(init, execution);
            return;
        }
        on_report(init, execution, &report);
    }
}

void execution_drop_unbegun(struct init *init)
{
    struct execution *next;
    for (struct execution *e = init->executions; e; e = next) {
        next = e->next;
        if (e->state == EXECUTION_SPEC)
            forget(init, e);
    }
}

bool execution_reset_all(struct init *init)
{
    struct execution *next;
    for (struct execution *e = init->executions; e; e = next) {
        next = e->next;
        if (e->state == EXECUTION_DYING)
            continue;
        if (e->state == EXECUTION_DRAINING)
            stream_leave_outputs(init, e);
        /* A supervisor that has not all of its spec exits at the end of the socket. */
        if (e->state == EXECUTION_DRAINING || e->state == EXECUTION_SPEC || e->spec_size > 0) {
            forget(init, e);
            continue;
        }
        close_pipes(init, e);
        unlink_stream(init, e);
        execution_kill(init, e, 0);
        e->state = EXECUTION_DYING;
    }
    return !execution_any_dying(init);
}

bool execution_any_dying(const struct init *init)
{
    /* RESET left no others in the list, and no EXEC is taken before all of them are gone. */
    return init->executions != NULL;
}

void execution_free_all(struct init *init)
{
    while (init->executions)
        forget(init, init->executions);
}
