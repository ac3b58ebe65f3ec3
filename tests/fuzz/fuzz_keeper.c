/*
 * The keeper's own loop under a hostile main: messages (u8 flags, u8 length,
 * bytes) over its real socket, then the end of it and of the keeper. Its host offers one template
 * whose image is gone, so a request that passes every check is still refused,
 * and no guest is started. Every answer is about an id that was asked for.
 */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/fdpass.h"
#include "daemon/keeper/keeper.h"
#include "daemon/keeper/protocol.h"
#include "tests/fuzz/fuzz.h"

#define MESSAGES_MAX 32u
/* After a turn of this many requests the keeper sends its answers, which fit the socket's buffer;
 * only then does it see that main has gone. */
#define REQUESTS_IN_ALL 64u
/* A message's bytes stand for a request with this id and sizes that fit, exclusive-ored. */
#define FLAG_ON_VALID 1u
#define FLAG_WITH_DESCRIPTOR 2u

static const struct keeper_request valid = {
    .op = KEEPER_START,
    .id = "0001aaaa-0000-4000-8000-000000000001",
    .template_name = "base",
    .cpus = 1,
    .memory_bytes = 256u << 20,
    .workspace_bytes = 32u << 20,
    .tmp_bytes = 16u << 20,
    .shm_bytes = 8u << 20,
    .pids = 64,
};

/* Returns how many were sent. */
static unsigned send_all(struct fuzz_input *in, int sock)
{
    unsigned sent = 0;

    while (in->len > 0 && sent < MESSAGES_MAX) {
        uint8_t flags = fuzz_u8(in);
        size_t len = fuzz_u8(in);
        const uint8_t *bytes = fuzz_bytes(in, &len);
        uint8_t message[256] = {0};
        struct error err = ERROR_INIT;

        memcpy(message, bytes, len);
        if (flags & FLAG_ON_VALID) {
            uint8_t base[sizeof(valid)];

            memcpy(base, &valid, sizeof(base));
            for (size_t i = 0; i < sizeof(base); i++)
                message[i] = (uint8_t)(message[i] ^ base[i]);
            if (len < sizeof(valid))
                len = sizeof(valid);
        }
        if (len == 0) /* the keeper would take it for the end */
            continue;
        MUST(fdpass_send(sock, message, len, flags & FLAG_WITH_DESCRIPTOR ? sock : -1, &err) == 0);
        sent++;
    }
    return sent;
}

static void fill_up(int sock, unsigned sent)
{
    struct keeper_request stats = valid;
    struct error err = ERROR_INIT;

    stats.op = KEEPER_STATS;
    for (; sent < REQUESTS_IN_ALL; sent++)
        MUST(fdpass_send(sock, &stats, sizeof(stats), -1, &err) == 0);
}

/* Each but END and FORGET was answered, or none was, when one was no request. */
static void check_answers(int sock, unsigned sent)
{
    struct keeper_report report;
    unsigned count = 0;
    ssize_t len;

    while ((len = recv(sock, &report, sizeof(report), MSG_DONTWAIT)) > 0) {
        MUST(len == sizeof(report));
        if (report.event == KEEPER_ATTACHED) {
            MUST(count == 0);
            continue;
        }
        MUST(id_is_valid(report.id));
        MUST(report.event == KEEPER_REFUSED || report.event == KEEPER_USAGE ||
             report.event == KEEPER_LIST_END);
        MUST(memchr(report.text, '\0', sizeof(report.text)) != NULL);
        MUST(report.event != KEEPER_REFUSED || report.text[0] != '\0');
        count++;
    }
    MUST(count <= REQUESTS_IN_ALL && (count == 0 || count >= REQUESTS_IN_ALL - sent));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "[daemon]\nstate_dir = /nonexistent\n";
    struct fuzz_input in = {data, size};
    struct error err = ERROR_INIT;
    struct log log;
    char rootfs[] = "/nonexistent/rootfs";
    struct templates templates = {.count = 1, .items[0] = {.name = "base", .rootfs = rootfs}};
    _cleanup_config_ struct config *config = config_parse(text, sizeof(text) - 1, "fuzz", &err);
    _cleanup_cgroup_ struct cgroup *cgroup = cgroup_new("/nonexistent", 2, "/none", "/", &err);
    struct keeper_setup setup = {
        .config = config, .log = &log, .cgroup = cgroup, .templates = &templates};
    unsigned sent;
    int control[2];
    int fds[2];

    MUST(config != NULL && cgroup != NULL);
    log_init(&log, "fuzz");
    log.fd = -1;
    MUST(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
    sent = send_all(&in, fds[0]);
    fill_up(fds[0], sent);
    MUST(shutdown(fds[0], SHUT_WR) == 0);
    MUST(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, control) == 0);
    MUST(keeper_give_main(control[0], fds[1], &err) == 0);
    close(fds[1]);
    close(control[0]);
    MUST(keeper_run(&setup, control[1]) == 0);
    check_answers(fds[0], sent);
    close(fds[0]);
    close(control[1]);
    return 0;
}
