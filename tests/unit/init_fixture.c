/* The guest that the tests of paddock-init share; see the header. */
#include "tests/unit/init_fixture.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

struct guest guest;
uid_t guest_uid = GUEST_UID;

/* --- frames --------------------------------------------------------------------------------- */

void send_bytes(const void *data, size_t len)
{
    struct pollfd polled = {.fd = guest.sock, .events = POLLOUT};
    ck_assert_int_eq(poll(&polled, 1, PATIENCE_MS), 1);
    ck_assert_int_eq(send(guest.sock, data, len, MSG_NOSIGNAL), (ssize_t)len);
}

void send_frame(enum wire_type type, uint8_t channel, uint32_t stream, const void *payload,
                size_t len)
{
    static uint8_t bytes[WIRE_FRAME_MAX];
    wire_header(bytes, type, channel, stream);
    if (len > 0)
        memcpy(bytes + WIRE_HEADER_SIZE, payload, len);
    send_bytes(bytes, WIRE_HEADER_SIZE + len);
}

void send_u32(enum wire_type type, uint8_t channel, uint32_t stream, uint32_t value)
{
    uint8_t payload[4];
    wire_put_u32(payload, value);
    send_frame(type, channel, stream, payload, sizeof(payload));
}

bool frame_waits(void)
{
    struct pollfd polled = {.fd = guest.sock, .events = POLLIN};
    return poll(&polled, 1, 0) == 1;
}

/* Receives a frame into guest.frame; false at the end of the socket. */
bool receive(void)
{
    struct pollfd polled = {.fd = guest.sock, .events = POLLIN};
    struct error err = ERROR_INIT;
    ck_assert_msg(poll(&polled, 1, PATIENCE_MS) == 1, "no frame came");
    ssize_t got = recv(guest.sock, guest.bytes, sizeof(guest.bytes), 0);
    if (got <= 0)
        return false;
    ck_assert_msg(wire_decode(guest.bytes, (size_t)got, WIRE_TO_HOST, &guest.frame, &err) == 0,
                  "%s", err.detail);
    return true;
}

void expect(enum wire_type type)
{
    ck_assert(receive());
    ck_assert_str_eq(wire_type_name(guest.frame.type), wire_type_name(type));
}

/* --- a guest -------------------------------------------------------------------------------- */

void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

/* As a careless parent does; 32 and 33 only by the system call. */
static void leave_signals_ignored(void)
{
    static const int numbers[] = {SIGHUP, SIGUSR1, SIGPIPE, 32, 33, 64};
    static const unsigned long ignore[8] = {1 /* SIG_IGN, no flags */};
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
        ck_assert_int_eq(syscall(SYS_rt_sigaction, numbers[i], ignore, NULL, 8), 0);
}

void start_guest(void)
{
    int pair[2];
    strcpy(guest.workspace, "/tmp/test-init-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(guest.workspace));
    ck_assert_int_eq(chmod(guest.workspace, 0777), 0);
    snprintf(guest.pids_path, sizeof(guest.pids_path), "%s/pids.max", guest.workspace);
    snprintf(guest.environment_path, sizeof(guest.environment_path), "%s/environment",
             guest.workspace);
    snprintf(guest.word, sizeof(guest.word), "word-%.6s",
             guest.workspace + strlen("/tmp/test-init-"));
    guest.options = (struct init_options){.uid = guest_uid,
                                          .gid = guest_uid,
                                          .workspace = guest.workspace,
                                          .pids_max_path = guest.pids_path,
                                          .environment_path = guest.environment_path};
    write_file(guest.pids_path, "max");
    write_file(guest.environment_path, "# of the image\n\nFROM_IMAGE=1\nnonsense\nOVER=image\n");
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    /* A descriptor and a variable that no execution may see. */
    ck_assert_int_ge(fcntl(pair[0], F_DUPFD, 40), 40);
    ck_assert_int_eq(setenv("SECRET_OF_HOST", "1", 1), 0);
    guest.pid = fork();
    ck_assert_int_ge(guest.pid, 0);
    if (guest.pid == 0) {
        /* Stands for the guest's pids limit; without it, a fork bomb would take the host. */
        const struct rlimit processes = {GUEST_PROCESSES_MAX, GUEST_PROCESSES_MAX};
        if (setrlimit(RLIMIT_NPROC, &processes) < 0)
            _exit(99);
        leave_signals_ignored();
        close(pair[0]);
        close(40);
        _exit(init_run(pair[1], &guest.options));
    }
    close(40);
    close(pair[1]);
    guest.sock = pair[0];
    expect(WIRE_HELLO);
    ck_assert_uint_eq(wire_get_u32(guest.frame.payload), WIRE_VERSION);
}

void send_setup(uint32_t pids, uint32_t mask, const char *env, size_t env_len)
{
    uint8_t payload[512];
    wire_put_u32(payload, pids);
    wire_put_u32(payload + 4, mask);
    memcpy(payload + 8, env, env_len);
    send_frame(WIRE_SETUP, 0, 0, payload, 8 + env_len);
}

void setup(void)
{
    static const char env[] = "FROM_SETUP=1\0OVER=setup";
    start_guest();
    send_setup(77, 027, env, sizeof(env));
    expect(WIRE_READY);
}

/* Is any process alive whose command line holds this test's word? */
bool anything_left(void)
{
    bool found = false;
    DIR *proc = opendir("/proc");
    ck_assert_ptr_nonnull(proc);
    const struct dirent *entry;
    while (!found && (entry = readdir(proc))) {
        char path[300];
        char text[4096];
        snprintf(path, sizeof(path), "/proc/%s/cmdline", entry->d_name);
        int fd = open(path, O_RDONLY);
        if (fd < 0)
            continue;
        ssize_t len = read(fd, text, sizeof(text));
        close(fd);
        found = len > 0 && memmem(text, (size_t)len, guest.word, strlen(guest.word));
    }
    closedir(proc);
    return found;
}

int guest_status(void)
{
    int status;
    ck_assert_int_eq(waitpid(guest.pid, &status, 0), guest.pid);
    guest.pid = 0;
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* The socket ends, and with it everything. */
void teardown(void)
{
    if (guest.pid != 0) {
        close(guest.sock);
        ck_assert_int_eq(guest_status(), INIT_EXIT_OK);
    }
    ck_assert(!anything_left());
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", guest.workspace);
    ck_assert_int_eq(system(command), 0);
}

/* The guest ends because of what was sent. */
void expect_violation(void)
{
    while (receive())
        ;
    close(guest.sock);
    ck_assert_int_eq(guest_status(), INIT_EXIT_PROTOCOL);
    ck_assert(!anything_left());
}

/* --- executions ----------------------------------------------------------------------------- */

struct buf new_spec(void)
{
    return (struct buf)BUF_INIT(WIRE_SPEC_MAX);
}

void put(struct buf *spec, enum wire_spec_tag tag, const char *text)
{
    ck_assert_int_eq(wire_spec_put(spec, tag, text, strlen(text)), 0);
}

uint32_t next_uuid = 1;

void uuid_of(uint32_t number, uint8_t out[WIRE_UUID_SIZE])
{
    memset(out, 0x5a, WIRE_UUID_SIZE);
    wire_put_u32(out, number * 2654435761u);
    wire_put_u32(out + 12, number);
}

void send_exec(uint32_t stream, size_t spec_len, uint32_t out_credit, uint32_t err_credit)
{
    uint8_t payload[12 + WIRE_UUID_SIZE];
    uuid_of(next_uuid++, payload + 12);
    wire_put_u32(payload, (uint32_t)spec_len);
    wire_put_u32(payload + 4, out_credit);
    wire_put_u32(payload + 8, err_credit);
    send_frame(WIRE_EXEC, 0, stream, payload, sizeof(payload));
}

/* Sends the spec and frees it. */
void start_spec(uint32_t stream, struct buf *spec, uint32_t out_credit)
{
    send_exec(stream, spec->len, out_credit, PLENTY);
    for (size_t at = 0; at < spec->len;) {
        size_t piece = spec->len - at < WIRE_PAYLOAD_MAX ? spec->len - at : WIRE_PAYLOAD_MAX;
        send_frame(WIRE_SPEC, 0, stream, spec->data + at, piece);
        at += piece;
    }
    buf_free(spec);
}

void start_shell(uint32_t stream, const char *command, uint32_t out_credit, bool with_stdin)
{
    struct buf spec = new_spec();
    put(&spec, WIRE_SPEC_ARG, "sh");
    put(&spec, WIRE_SPEC_ARG, "-c");
    put(&spec, WIRE_SPEC_ARG, command);
    put(&spec, WIRE_SPEC_ARG, guest.word);
    if (with_stdin)
        put(&spec, WIRE_SPEC_STDIN, "");
    start_spec(stream, &spec, out_credit);
}

/* Takes one frame of the stream; true when it was the last. */
bool take_frame(struct outcome *outcome)
{
    const struct wire_frame *frame = &guest.frame;
    const uint8_t *payload = frame->payload;
    if (frame->type == WIRE_DATA) {
        ck_assert(!outcome->eof[frame->channel]);
        ck_assert_int_eq(buf_append(&outcome->out[frame->channel], payload, frame->payload_len), 0);
    } else if (frame->type == WIRE_EOF) {
        ck_assert(!outcome->eof[frame->channel]);
        outcome->eof[frame->channel] = true;
    } else if (frame->type == WIRE_FAILED) {
        outcome->failed = true;
        outcome->errno_value = (int)wire_get_u32(payload);
        outcome->step = payload[4];
        return true;
    } else if (frame->type == WIRE_EXIT) {
        ck_assert(outcome->eof[WIRE_STDOUT] && outcome->eof[WIRE_STDERR]);
        outcome->exit_code = payload[0];
        outcome->signal = payload[1];
        outcome->killed = payload[2];
        outcome->rss_bytes = wire_get_u64(payload + 12);
        return true;
    }
    return false;
}

/* Receives until the stream's end; no other stream may speak meanwhile. */
struct outcome finish(uint32_t stream)
{
    struct outcome outcome = {0};
    do {
        ck_assert_msg(receive(), "the guest ended");
        ck_assert_uint_eq(guest.frame.stream, stream);
    } while (!take_frame(&outcome));
    return outcome;
}

void free_outcome(struct outcome *outcome)
{
    for (size_t i = 0; i < 3; i++)
        buf_free(&outcome->out[i]);
}

struct outcome run_shell(const char *command)
{
    start_shell(1, command, PLENTY, false);
    return finish(1);
}

const char *out_text(struct outcome *outcome)
{
    return buf_cstr(&outcome->out[WIRE_STDOUT]);
}

void expect_failure(const struct outcome *outcome, enum wire_step step, int errno_value)
{
    ck_assert(outcome->failed);
    ck_assert_int_eq(outcome->step, (int)step);
    ck_assert_int_eq(outcome->errno_value, errno_value);
}

/* Reads DATA until what came ends in `text`. */
void await_output(uint32_t stream, struct outcome *outcome, const char *text)
{
    struct buf *out = &outcome->out[WIRE_STDOUT];
    size_t len = strlen(text);
    while (out->len < len || memcmp(out->data + out->len - len, text, len) != 0) {
        ck_assert(receive());
        ck_assert_uint_eq(guest.frame.stream, stream);
        ck_assert(!take_frame(outcome));
    }
}

void send_kill(uint32_t stream, uint32_t grace_ms)
{
    send_u32(WIRE_KILL, 0, stream, grace_ms);
}

void expect_line(const char *text, const char *line)
{
    ck_assert_msg(strstr(text, line), "no '%s' in:\n%s", line, text);
}
