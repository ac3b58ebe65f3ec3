/*
 * The bytes of an execution: its stdin window, its output under the host's
 * credit, the order at its end (DATA, EOF, then EXIT), and the pipes that
 * background processes keep open afterwards. Called by session.c for frames and
 * events and by execution.c at start and end. What must stay true: no more than
 * the credit is read, no pipe is read while the outbox holds frames, and no
 * pipe end here ever blocks.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "guestimg/init/init.h"

/* Frames of one output before others get their turn. */
#define FRAMES_A_TURN 4u
/* Less than this in a frame, and less than this since the last one, is many small pieces. */
#define LEAN_BYTES 32768u
#define STEADY_US 3000
#define LINGER_US 1000
#define GRANT_BYTES (INIT_STDIN_WINDOW_BYTES / 4)

/* --- stdin ---------------------------------------------------------------------------------- */

static void grant(struct init *init, struct execution *execution)
{
    struct input *input = &execution->input;
    if (input->owed < GRANT_BYTES || !input->open || execution->state == EXECUTION_DRAINING)
        return;
    uint8_t payload[4];
    wire_put_u32(payload, input->owed);
    input->window += input->owed;
    input->owed = 0;
    outbox_send(init, WIRE_CREDIT, WIRE_STDIN, execution->stream, payload, sizeof(payload));
}

void stream_open_input(struct init *init, struct execution *execution)
{
    execution->input.open = true;
    execution->input.owed = INIT_STDIN_WINDOW_BYTES;
    execution->input.pending.max = INIT_STDIN_WINDOW_BYTES;
    grant(init, execution);
}

/* The process gets end of file, or has closed its end: what was not written is dropped. */
void stream_close_input(struct init *init, struct execution *execution)
{
    struct input *input = &execution->input;
    if (input->watch.fd >= 0)
        init_watch_close(init, &input->watch);
    input->owed += (uint32_t)input->pending.len;
    buf_free(&input->pending);
}

/* Returns what the pipe took. */
static size_t write_input(struct init *init, struct execution *execution, const void *data,
                          size_t len)
{
    const uint8_t *bytes = data;
    size_t done = 0;
    while (done < len) {
        ssize_t written = write(execution->input.watch.fd, bytes + done, len - done);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0 && errno == EAGAIN)
            break;
        if (written < 0) {
            stream_close_input(init, execution);
            return len;
        }
        done += (size_t)written;
    }
    return done;
}

void stream_on_data(struct init *init, struct execution *execution, const struct wire_frame *frame)
{
    struct input *input = &execution->input;
    size_t len = frame->payload_len;
    if (frame->channel != WIRE_STDIN || !input->open || len > input->window) {
        init_stop(init, INIT_EXIT_PROTOCOL, "DATA beyond the window");
        return;
    }
    input->window -= (uint32_t)len;
    input->received += len;
    size_t done = 0;
    if (input->watch.fd < 0)
        done = len;
    else if (input->pending.len == 0)
        done = write_input(init, execution, frame->payload, len);
    input->owed += (uint32_t)done;
    if (done < len) {
        if (buf_append(&input->pending, frame->payload + done, len - done) < 0) {
            init_stop(init, INIT_EXIT_INTERNAL, "no memory for stdin");
            return;
        }
        init_watch(init, &input->watch, EPOLLOUT);
    }
    grant(init, execution);
}

void stream_on_eof(struct init *init, struct execution *execution)
{
    struct input *input = &execution->input;
    if (!input->open) {
        init_stop(init, INIT_EXIT_PROTOCOL, "EOF on a channel that is not open");
        return;
    }
    input->open = false;
    if (input->pending.len == 0)
        stream_close_input(init, execution);
}

void stream_on_input_event(struct init *init, struct execution *execution)
{
    struct input *input = &execution->input;
    size_t done = write_input(init, execution, input->pending.data, input->pending.len);
    if (input->watch.fd >= 0) {
        buf_consume(&input->pending, done);
        input->owed += (uint32_t)done;
        if (input->pending.len == 0 && !input->open)
            stream_close_input(init, execution);
        else if (input->pending.len == 0)
            init_watch(init, &input->watch, 0);
    }
    grant(init, execution);
}

/* --- stdout and stderr ---------------------------------------------------------------------- */

static void end_output(struct init *init, struct output *output)
{
    output->ended = true;
    init_watch(init, &output->watch, 0);
    outbox_send(init, WIRE_EOF, output->channel, output->execution->stream, NULL, 0);
}

enum fill { FILL_FULL, FILL_EMPTY_PIPE, FILL_END };

/* Reads until the frame is full or the pipe empty: small writes become large frames. */
static enum fill fill_frame(struct init *init, int fd, size_t want, size_t *got)
{
    *got = 0;
    while (*got < want) {
        ssize_t n = read(fd, init->frame_out + WIRE_HEADER_SIZE + *got, want - *got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return FILL_EMPTY_PIPE;
        if (n <= 0)
            return FILL_END;
        *got += (size_t)n;
    }
    return FILL_FULL;
}

/* Sends one frame of what the pipe holds. Returns false when there is no more to do now;
 * output->lean tells whether that was because the pipe gave little. */
static bool pump_frame(struct init *init, struct output *output)
{
    output->lean = false;
    const bool draining = output->execution->state == EXECUTION_DRAINING;
    if (output->ended || output->credit == 0 || !outbox_is_empty(init) || init->stopping)
        return false;
    uint64_t want = WIRE_PAYLOAD_MAX;
    if (want > output->credit)
        want = output->credit;
    if (draining && want > output->remaining)
        want = output->remaining;
    size_t got;
    enum fill fill = fill_frame(init, output->watch.fd, (size_t)want, &got);
    if (got > 0) {
        outbox_send_in_place(init, WIRE_DATA, output->channel, output->execution->stream, got);
        output->credit -= got;
        output->sent += got;
        output->remaining -= draining ? got : 0;
    }
    if (fill == FILL_END) {
        init_watch_close(init, &output->watch);
        end_output(init, output);
        return false;
    }
    /* A pipe that turns out empty while draining: a background process reads it too. */
    if (draining && (output->remaining == 0 || fill == FILL_EMPTY_PIPE)) {
        end_output(init, output);
        return false;
    }
    output->lean = fill == FILL_EMPTY_PIPE && got < LEAN_BYTES;
    return fill == FILL_FULL;
}

static void pump(struct init *init, struct output *output)
{
    for (unsigned i = 0; i < FRAMES_A_TURN && pump_frame(init, output); i++)
        ;
}

static void update_watch(struct init *init, struct output *output)
{
    bool wanted = output->watch.fd >= 0 && !output->ended && output->credit > 0 &&
                  !output->lingering && outbox_is_empty(init) &&
                  (output->execution->state == EXECUTION_RUNNING ||
                   output->execution->state == EXECUTION_DRAINING);
    init_watch(init, &output->watch, wanted ? EPOLLIN : 0);
}

void stream_advance(struct init *init, struct execution *execution)
{
    if (execution->state != EXECUTION_RUNNING && execution->state != EXECUTION_DRAINING)
        return;
    for (size_t i = 0; i < 2; i++) {
        struct output *output = &execution->outputs[i];
        /* No event may come for what a pipe held when the process ended, if others read it. */
        if (execution->state == EXECUTION_DRAINING)
            pump(init, output);
        update_watch(init, output);
    }
    execution_finish_if_drained(init, execution);
}

void stream_on_output_event(struct init *init, struct output *output)
{
    int64_t now = init_now_us();
    pump(init, output);
    /* A program that writes many small pieces: let some gather, else each costs a wake-up here
     * and one at the host. The first piece after a pause is never held up. */
    if (output->lean && now - output->pumped_us < STEADY_US) {
        output->lingering = true;
        if (init->linger_until_us == 0)
            init->linger_until_us = now + LINGER_US;
    }
    output->pumped_us = now;
    update_watch(init, output);
    execution_finish_if_drained(init, output->execution);
}

void stream_end_linger(struct init *init)
{
    if (init->linger_until_us == 0 || init_now_us() < init->linger_until_us)
        return;
    init->linger_until_us = 0;
    struct execution *next;
    for (struct execution *e = init->executions; e; e = next) {
        next = e->next;
        e->outputs[0].lingering = e->outputs[1].lingering = false;
        stream_advance(init, e);
    }
}

void stream_on_credit(struct init *init, struct execution *execution, uint8_t channel,
                      uint32_t bytes)
{
    if (channel != WIRE_STDOUT && channel != WIRE_STDERR) {
        init_stop(init, INIT_EXIT_PROTOCOL, "CREDIT for channel %u", channel);
        return;
    }
    struct output *output = &execution->outputs[channel - WIRE_STDOUT];
    output->credit += bytes;
    stream_advance(init, execution);
}

void stream_withdraw_credit(struct init *init, struct execution *execution)
{
    struct input *input = &execution->input;
    if (input->open) {
        input->window = 0;
        input->owed = INIT_STDIN_WINDOW_BYTES - (uint32_t)input->pending.len;
    }
    for (size_t i = 0; i < 2; i++) {
        execution->outputs[i].credit = 0;
        update_watch(init, &execution->outputs[i]);
    }
}

void stream_grant_input(struct init *init, struct execution *execution)
{
    grant(init, execution);
}

void stream_start_draining(struct init *init, struct execution *execution)
{
    execution->state = EXECUTION_DRAINING;
    stream_close_input(init, execution);
    for (size_t i = 0; i < 2; i++) {
        struct output *output = &execution->outputs[i];
        output->lingering = false;
        if (output->ended)
            continue;
        int bytes = 0;
        if (ioctl(output->watch.fd, FIONREAD, &bytes) < 0 || bytes < 0)
            bytes = INIT_PIPE_BYTES;
        output->remaining = (uint64_t)bytes;
        if (bytes == 0)
            end_output(init, output);
    }
    stream_advance(init, execution);
}

/* --- what background processes hold --------------------------------------------------------- */

static void leftover_close(struct init *init, struct leftover *leftover)
{
    init_watch_close(init, &leftover->watch);
    *(leftover->prev ? &leftover->prev->next : &init->leftovers_first) = leftover->next;
    *(leftover->next ? &leftover->next->prev : &init->leftovers_last) = leftover->prev;
    init->leftovers_count--;
    init_bury(init, &leftover->grave);
}

/* Takes fd. */
static void leftover_add(struct init *init, int fd)
{
    if (init->leftovers_count == INIT_LEFTOVERS_MAX)
        leftover_close(init, init->leftovers_first);
    struct leftover *leftover = calloc(1, sizeof(*leftover));
    if (!leftover) {
        close(fd);
        return;
    }
    leftover->watch = (struct watch){.kind = WATCH_LEFTOVER, .fd = fd, .owner = leftover};
    leftover->prev = init->leftovers_last;
    *(leftover->prev ? &leftover->prev->next : &init->leftovers_first) = leftover;
    init->leftovers_last = leftover;
    init->leftovers_count++;
    init_watch(init, &leftover->watch, EPOLLIN);
}

/* Drops what is there; returns false when the pipe has ended. */
static bool drop_bytes(struct init *init, int fd)
{
    size_t got;
    enum fill fill = FILL_FULL;
    for (unsigned i = 0; i < FRAMES_A_TURN && fill == FILL_FULL; i++)
        fill = fill_frame(init, fd, WIRE_PAYLOAD_MAX, &got);
    return fill != FILL_END;
}

void stream_leave_outputs(struct init *init, struct execution *execution)
{
    for (size_t i = 0; i < 2; i++) {
        struct watch *watch = &execution->outputs[i].watch;
        if (watch->fd < 0)
            continue;
        if (!drop_bytes(init, watch->fd)) {
            init_watch_close(init, watch);
            continue;
        }
        init_watch(init, watch, 0);
        leftover_add(init, watch->fd);
        watch->fd = -1;
    }
}

void stream_on_leftover(struct init *init, struct leftover *leftover)
{
    if (!drop_bytes(init, leftover->watch.fd))
        leftover_close(init, leftover);
}

void stream_close_leftovers(struct init *init)
{
    while (init->leftovers_first)
        leftover_close(init, init->leftovers_first);
}
