/*
 * The smoke test against a keeper and guest that this test plays: it must pass a
 * good one and refuse each kind of bad one with its reason. (That it passes a
 * real guest is test_keeper's.)
 */
#include <check.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/fdpass.h"
#include "common/wire.h"
#include "daemon/keeper/protocol.h"
#include "daemon/keeper/smoke.h"

enum fault {
    FAULT_NONE,
    FAULT_REFUSED,
    FAULT_KEEPER_GONE,
    FAULT_ENDS,
    FAULT_KILLED,
    FAULT_VERSION,
    FAULT_GARBAGE,
    FAULT_BYTE,
    FAULT_SHORT,
    FAULT_SURPLUS,
    FAULT_EXIT_CODE,
    FAULT_BURNER_ENDS,
    FAULT_NO_PROGRAM,
    FAULT_COUNT
};

static const char *const reasons[FAULT_COUNT] = {
    [FAULT_NONE] = NULL,
    [FAULT_REFUSED] = "no room",
    [FAULT_KEEPER_GONE] = "the keeper is gone",
    [FAULT_ENDS] = "ended by itself with status 137, 2 OOM kills boom",
    [FAULT_KILLED] = "it was killed",
    [FAULT_VERSION] = "another protocol",
    [FAULT_GARBAGE] = "smoke guest failed",
    [FAULT_BYTE] = "byte 100000 of program 3 came back changed",
    [FAULT_SHORT] = "of 4194304 bytes",
    [FAULT_SURPLUS] = "came back changed",
    [FAULT_EXIT_CODE] = "ended with code 3",
    [FAULT_BURNER_ENDS] = "program 0 ended",
    [FAULT_NO_PROGRAM] = "could not be started (errno 2)",
};

#define STREAMS 14u
#define FIRST_ECHO 2u /* index of the first cat; programs before it burn, those after echo quit */
#define FIRST_QUICK 6u

struct fake {
    enum fault fault;
    int keeper_sock;
    int guest_sock;
    char id[ID_SIZE];
    uint32_t spec_left[STREAMS];
    uint64_t seen[STREAMS];
};

static _Noreturn void give_up(const char *why)
{
    (void)fprintf(stderr, "the fake guest: %s\n", why);
    _exit(3);
}

/* --- keeper --------------------------------------------------------------------------------- */

static void tell(const struct fake *fake, enum keeper_event event, const char *text, int fd)
{
    struct keeper_report report;
    struct error err = ERROR_INIT;

    memset(&report, 0, sizeof(report));
    report.event = event;
    memcpy(report.id, fake->id, ID_SIZE);
    (void)snprintf(report.text, sizeof(report.text), "%s", text);
    report.exit_status = 137;
    report.oom_kills = fake->fault == FAULT_KILLED ? 0 : 2;
    if (fdpass_send(fake->keeper_sock, &report, sizeof(report), fd, &err) < 0)
        give_up(err.detail);
}

static void expect_request(struct fake *fake, enum keeper_op op)
{
    struct keeper_request request;
    struct error err = ERROR_INIT;
    int fd = -1;

    if (fdpass_recv(fake->keeper_sock, &request, sizeof(request), &fd, &err) != sizeof(request) ||
        request.op != op)
        give_up("not the request that was due");
    memcpy(fake->id, request.id, ID_SIZE);
}

/* --- guest ---------------------------------------------------------------------------------- */

static void put(const struct fake *fake, enum wire_type type, uint8_t channel, uint32_t stream,
                const void *payload, size_t len)
{
    uint8_t frame[WIRE_FRAME_MAX];

    wire_header(frame, type, channel, stream);
    if (len > 0)
        memcpy(frame + WIRE_HEADER_SIZE, payload, len);
    (void)!send(fake->guest_sock, frame, WIRE_HEADER_SIZE + len, MSG_NOSIGNAL);
}

static void put_u32(const struct fake *fake, enum wire_type type, uint32_t stream, uint32_t value)
{
    uint8_t payload[4];

    wire_put_u32(payload, value);
    put(fake, type, 0, stream, payload, sizeof(payload));
}

static void put_exit(const struct fake *fake, uint32_t stream, uint8_t code)
{
    uint8_t payload[20] = {code};

    put(fake, WIRE_EXIT, 0, stream, payload, sizeof(payload));
}

static void on_spec_done(const struct fake *fake, uint32_t stream)
{
    unsigned index = stream - 1;

    if (fake->fault == FAULT_NO_PROGRAM) {
        uint8_t payload[5] = {0, 0, 0, ENOENT, WIRE_STEP_EXEC};

        put(fake, WIRE_FAILED, 0, stream, payload, sizeof(payload));
        return;
    }
    put_u32(fake, WIRE_STARTED, stream, 100 + stream);
    if (index >= FIRST_QUICK)
        put_exit(fake, stream, fake->fault == FAULT_EXIT_CODE ? 3 : 0);
    else if (index >= FIRST_ECHO)
        put_u32(fake, WIRE_CREDIT, stream, 65536);
    else if (fake->fault == FAULT_BURNER_ENDS)
        put_exit(fake, stream, 0);
}

/* A sender that keeps to the window it was granted is cat's part; this one answers at once, since
 * the smoke test grants as it reads. */
static void on_input(struct fake *fake, const struct wire_frame *frame)
{
    unsigned index = frame->stream - 1;
    uint8_t data[WIRE_PAYLOAD_MAX];
    size_t len = frame->payload_len;

    memcpy(data, frame->payload, len);
    if (fake->fault == FAULT_BYTE && index == 3 && fake->seen[index] <= 100000 &&
        fake->seen[index] + len > 100000)
        data[100000 - fake->seen[index]] ^= 0x40;
    fake->seen[index] += len;
    put(fake, WIRE_DATA, WIRE_STDOUT, frame->stream, data, len);
    if (fake->fault == FAULT_SURPLUS)
        put(fake, WIRE_DATA, WIRE_STDOUT, frame->stream, data, len);
    put_u32(fake, WIRE_CREDIT, frame->stream, (uint32_t)len);
}

static void on_frame(struct fake *fake, const struct wire_frame *frame)
{
    unsigned index = frame->stream - 1;

    switch (frame->type) {
    case WIRE_SETUP:
        put(fake, WIRE_READY, 0, 0, NULL, 0);
        return;
    case WIRE_EXEC:
        fake->spec_left[index] = wire_get_u32(frame->payload);
        return;
    case WIRE_SPEC:
        fake->spec_left[index] -= (uint32_t)frame->payload_len;
        if (fake->spec_left[index] == 0)
            on_spec_done(fake, frame->stream);
        return;
    case WIRE_DATA:
        if (fake->fault == FAULT_SHORT) {
            put_exit(fake, frame->stream, 0);
            return;
        }
        on_input(fake, frame);
        return;
    case WIRE_EOF:
        put(fake, WIRE_EOF, WIRE_STDOUT, frame->stream, NULL, 0);
        put_exit(fake, frame->stream, 0);
        return;
    case WIRE_RESYNC:
    case WIRE_RESYNCED:
    case WIRE_LIVE:
    case WIRE_OVER:
    case WIRE_CREDIT:
    case WIRE_HELLO:
    case WIRE_READY:
    case WIRE_PING:
    case WIRE_PONG:
    case WIRE_STARTED:
    case WIRE_FAILED:
    case WIRE_SIGNAL:
    case WIRE_KILL:
    case WIRE_EXIT:
    case WIRE_RESET:
        return;
    }
}

/* Until the smoke test closes its end. */
static void play_guest(struct fake *fake)
{
    static uint8_t rx[WIRE_FRAME_MAX];
    ssize_t len;

    put_u32(fake, WIRE_HELLO, 0, WIRE_VERSION + (fake->fault == FAULT_VERSION));
    if (fake->fault == FAULT_GARBAGE)
        (void)!send(fake->guest_sock, "garbage?", 8, MSG_NOSIGNAL);
    while ((len = recv(fake->guest_sock, rx, sizeof(rx), 0)) > 0) {
        struct wire_frame frame;
        struct error err = ERROR_INIT;

        if (wire_decode(rx, (size_t)len, WIRE_TO_GUEST, &frame, &err) < 0)
            give_up(err.detail);
        on_frame(fake, &frame);
    }
}

static _Noreturn void play(struct fake *fake)
{
    int fds[2];

    expect_request(fake, KEEPER_START);
    if (fake->fault == FAULT_KEEPER_GONE)
        _exit(0);
    if (fake->fault == FAULT_REFUSED) {
        tell(fake, KEEPER_REFUSED, "no room", -1);
        _exit(0);
    }
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds) < 0)
        give_up("no socket pair");
    tell(fake, KEEPER_STARTED, "", fds[0]);
    close(fds[0]);
    fake->guest_sock = fds[1];
    if (fake->fault == FAULT_ENDS || fake->fault == FAULT_KILLED) {
        close(fds[1]);
        tell(fake, KEEPER_ENDED, "boom", -1);
        _exit(0);
    }
    play_guest(fake);
    if (fake->fault == FAULT_NONE) {
        expect_request(fake, KEEPER_END);
        tell(fake, KEEPER_ENDED, "", -1);
    }
    _exit(0);
}

/* --- tests ---------------------------------------------------------------------------------- */

START_TEST(a_good_guest_passes_and_each_fault_is_named)
{
    struct error err = ERROR_INIT;
    struct fake fake = {.fault = (enum fault)_i};
    _cleanup_config_ struct config *config = config_parse("", 0, "test", &err);
    int fds[2];
    int status;
    pid_t pid;
    int result;

    ck_assert_msg(config != NULL, "%s", err.detail);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds), 0);
    pid = fork();
    if (pid == 0) {
        config_free(steal_ptr(config)); /* memcheck looks at this process, too */
        close(fds[0]);
        fake.keeper_sock = fds[1];
        play(&fake);
    }
    close(fds[1]);
    result = smoke_run(config, fds[0], &err);
    close(fds[0]);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 0);
    if (!reasons[_i]) {
        ck_assert_msg(result == 0, "%s", err.detail);
        return;
    }
    ck_assert_int_eq(result, -1);
    /* Whoever kills a guest or the keeper tells nothing about runsc. */
    ck_assert_int_eq(err.code,
                     _i == FAULT_KILLED || _i == FAULT_KEEPER_GONE ? ERR_SYSTEM : ERR_PREFLIGHT);
    ck_assert_msg(strstr(err.detail, reasons[_i]) != NULL, "%s", err.detail);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("smoke");
    TCase *tcase = tcase_create("smoke");
    SRunner *runner = srunner_create(suite);
    int failed;

    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, a_good_guest_passes_and_each_fault_is_named, 0, FAULT_COUNT);
    suite_add_tcase(suite, tcase);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
