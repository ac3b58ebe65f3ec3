/*
 * The keeper with real guests: forked as the supervisor does, spoken to over its
 * socket pair as main does. Needs root, runsc, and a built image in
 * PADDOCK_IMAGES_DIR (default: .cache/images of the source). What a guest left
 * on the host is looked for after every end.
 */
#include <check.h>
#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/fdpass.h"
#include "common/wire.h"
#include "daemon/keeper/keeper.h"
#include "daemon/keeper/protocol.h"
#include "daemon/keeper/smoke.h"

#define WAIT_MS 30000
#define MIB (UINT64_C(1) << 20)

struct bench { /* all a test stands on */
    char dir[64];
    struct log log;
    struct config *config;
    struct cgroup *cgroup;
    struct templates templates;
    struct keeper_setup setup;
    pid_t keeper;
    int control; /* the supervisor's end */
    int sock;    /* main's */
};

static struct bench bench;
static pid_t suite_pid;

/* --- the bench ------------------------------------------------------------------------------ */

static const char *images_dir(void)
{
    const char *dir = getenv("PADDOCK_IMAGES_DIR");
    const char *source = getenv("srcdir");
    static char path[512];
    static char resolved[PATH_MAX];

    if (dir)
        return dir;
    (void)snprintf(path, sizeof(path), "%s/.cache/images", source ? source : ".");
    return realpath(path, resolved) ? resolved : path;
}

static void make_folder(const char *name)
{
    char path[128];

    (void)snprintf(path, sizeof(path), "%s%s", bench.dir, name);
    ck_assert_int_eq(mkdir(path, 0700), 0);
}

static void load_config(void)
{
    char text[2048];
    struct error err = ERROR_INIT;
    int len = snprintf(text, sizeof(text),
                       "[daemon]\nstate_dir = %s\nrun_dir = %s/run\n"
                       "[guest]\nimages_dir = %s\ntemplates = base\n"
                       "[cgroup]\nparent = /paddock-test-%d\ncgroup_v1 = allow\n",
                       bench.dir, bench.dir, images_dir(), (int)suite_pid);

    bench.config = config_parse(text, (size_t)len, "test", &err);
    ck_assert_msg(bench.config != NULL, "%s", err.detail);
}

static void bench_setup(void)
{
    struct error err = ERROR_INIT;
    int version = cgroup_detect(CGROUP_ROOT, &err);

    memset(&bench, 0, sizeof(bench));
    bench.sock = bench.control = -1;
    (void)snprintf(bench.dir, sizeof(bench.dir), "/tmp/paddock-keeper-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(bench.dir));
    make_folder("/runsc");
    make_folder("/guests");
    log_init(&bench.log, "test_keeper");
    bench.log.level = LOG_WARN;
    load_config();
    ck_assert_msg(version > 0, "%s", err.detail);
    bench.cgroup = cgroup_new(CGROUP_ROOT, version, bench.config->cgroup_parent, "/", &err);
    ck_assert_msg(bench.cgroup != NULL && cgroup_prepare(bench.cgroup, &err) == 0, "%s",
                  err.detail);
    ck_assert_msg(templates_load(&bench.templates, bench.config, &err) == 0, "%s", err.detail);
    bench.setup = (struct keeper_setup){.config = bench.config,
                                        .log = &bench.log,
                                        .cgroup = bench.cgroup,
                                        .templates = &bench.templates};
}

static void expect_attached(void);

/* The next main; a former one's socket stays open unless it was closed. */
static void attach(void)
{
    struct error err = ERROR_INIT;
    int fds[2];

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    ck_assert_msg(keeper_give_main(bench.control, fds[1], &err) == 0, "%s", err.detail);
    close(fds[1]);
    bench.sock = fds[0];
}

static void start_keeper(void)
{
    struct error err = ERROR_INIT;
    int fds[2];

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    bench.control = fds[0];
    bench.keeper = keeper_spawn(&bench.setup, fds[1], -1, &err);
    ck_assert_msg(bench.keeper > 0, "%s", err.detail);
    close(fds[1]);
    attach();
    expect_attached();
}

static void close_end(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* Returns the wait status. */
static int wait_keeper(void)
{
    int status;

    ck_assert_int_eq(waitpid(bench.keeper, &status, 0), bench.keeper);
    bench.keeper = 0;
    return status;
}

static size_t count_paths(const char *pattern)
{
    glob_t found;
    size_t count;

    if (glob(pattern, 0, NULL, &found) != 0)
        return 0;
    count = found.gl_pathc;
    globfree(&found);
    return count;
}

/* Cgroups (either version's depth), bundles and runsc's files of id ("*": of any). */
static void assert_no_trace(const char *id)
{
    const char *parent = bench.config->cgroup_parent;
    char patterns[4][256];

    (void)snprintf(patterns[0], sizeof(patterns[0]), CGROUP_ROOT "/*%s/%s/", parent, id);
    (void)snprintf(patterns[1], sizeof(patterns[1]), CGROUP_ROOT "%s/%s/", parent, id);
    (void)snprintf(patterns[2], sizeof(patterns[2]), "%s/guests/%s", bench.dir, id);
    (void)snprintf(patterns[3], sizeof(patterns[3]), "%s/runsc/*%s*", bench.dir, id);
    for (unsigned i = 0; i < ARRAY_LEN(patterns); i++)
        ck_assert_msg(count_paths(patterns[i]) == 0, "%s is left", patterns[i]);
}

static void bench_teardown(void)
{
    struct error err = ERROR_INIT;
    char path[128];

    close_end(&bench.sock);
    close_end(&bench.control);
    if (bench.keeper > 0)
        (void)wait_keeper();
    ck_assert_msg(keeper_sweep(&bench.setup, &err) == 0, "%s", err.detail);
    (void)snprintf(path, sizeof(path), "%s/runsc", bench.dir);
    ck_assert_int_eq(rmdir(path), 0);
    (void)snprintf(path, sizeof(path), "%s/guests", bench.dir);
    ck_assert_int_eq(rmdir(path), 0);
    ck_assert_int_eq(rmdir(bench.dir), 0);
    templates_clear(&bench.templates);
    cgroup_free(bench.cgroup);
    config_free(bench.config);
}

static int remove_left(const char *id, void *arg)
{
    struct error ignored = ERROR_INIT;

    for (unsigned i = 0; i < 1000 && cgroup_remove(arg, id, &ignored) > 0; i++) {
        cgroup_kill(arg, id, CGROUP_ALL);
        (void)poll(NULL, 0, 5);
    }
    return 0;
}

/* In the process that runs the suite, so also after a test that failed half-way. */
static void suite_teardown(void)
{
    struct error err = ERROR_INIT;
    int version = cgroup_detect(CGROUP_ROOT, &err);
    _cleanup_cgroup_ struct cgroup *cg = NULL;
    char parent[64];

    (void)snprintf(parent, sizeof(parent), "/paddock-test-%d", (int)suite_pid);
    cg = version > 0 ? cgroup_new(CGROUP_ROOT, version, parent, "/", &err) : NULL;
    if (!cg)
        return;
    (void)cgroup_each(cg, remove_left, cg);
    for (unsigned i = 0; i < 2; i++) { /* version 1, version 2 */
        char pattern[128];
        glob_t found;

        (void)snprintf(pattern, sizeof(pattern), CGROUP_ROOT "%s%s", i == 0 ? "/*" : "", parent);
        if (glob(pattern, 0, NULL, &found) != 0)
            continue;
        for (size_t k = 0; k < found.gl_pathc; k++)
            (void)rmdir(found.gl_pathv[k]);
        globfree(&found);
    }
}

/* --- main's side ---------------------------------------------------------------------------- */

static struct keeper_request start_request(void)
{
    struct keeper_request request;

    memset(&request, 0, sizeof(request));
    request.op = KEEPER_START;
    id_new(request.id);
    memcpy(request.template_name, "base", 5);
    request.cpus = 1;
    request.memory_bytes = 256 * MIB;
    request.workspace_bytes = 32 * MIB;
    request.tmp_bytes = 16 * MIB;
    request.shm_bytes = 8 * MIB;
    request.pids = 64;
    return request;
}

static void send_request(const struct keeper_request *request)
{
    struct error err = ERROR_INIT;

    ck_assert_msg(fdpass_send(bench.sock, request, sizeof(*request), -1, &err) == 0, "%s",
                  err.detail);
}

static void ask(enum keeper_op op, const char *id)
{
    struct keeper_request request;

    memset(&request, 0, sizeof(request));
    request.op = op;
    memcpy(request.id, id, ID_SIZE);
    send_request(&request);
}

/* Longer where Check's own time-outs are, on a slow machine. */
static int wait_ms(void)
{
    const char *times = getenv("CK_TIMEOUT_MULTIPLIER");
    int factor = times ? atoi(times) : 1;

    return factor > 1 && factor <= 100 ? factor * WAIT_MS : WAIT_MS;
}

static void wait_readable(int fd)
{
    struct pollfd wait = {.fd = fd, .events = POLLIN};

    ck_assert_msg(poll(&wait, 1, wait_ms()) == 1, "nothing came in %d ms", wait_ms());
}

/* The next report, which must be this one. Returns the descriptor beside it or -1. */
static int expect(enum keeper_event event, const char *id, struct keeper_report *report)
{
    struct error err = ERROR_INIT;
    int fd = -1;

    wait_readable(bench.sock);
    ck_assert_msg(fdpass_recv(bench.sock, report, sizeof(*report), &fd, &err) == sizeof(*report),
                  "%s", err.detail);
    ck_assert_msg(report->event == event, "event %u: %s", report->event, report->text);
    ck_assert_str_eq(report->id, id);
    ck_assert_int_eq(fd >= 0, event == KEEPER_STARTED || (event == KEEPER_HELD && !report->ending));
    return fd;
}

static void expect_attached(void)
{
    struct keeper_report report;

    (void)expect(KEEPER_ATTACHED, "", &report);
}

static int start_guest(const struct keeper_request *request)
{
    struct keeper_report report;

    send_request(request);
    return expect(KEEPER_STARTED, request->id, &report);
}

static void expect_refusal(const struct keeper_request *request, const char *word)
{
    struct keeper_report report;

    send_request(request);
    (void)expect(KEEPER_REFUSED, request->id, &report);
    ck_assert_msg(strstr(report.text, word) != NULL, "%s", report.text);
}

static void end_guest(const char *id, struct keeper_report *ended)
{
    ask(KEEPER_END, id);
    (void)expect(KEEPER_ENDED, id, ended);
    ck_assert_uint_eq(ended->killed, 1);
    assert_no_trace(id);
}

/* --- the guest's frames --------------------------------------------------------------------- */

static uint8_t rx[WIRE_FRAME_MAX];

/* False at the end of file. */
static bool recv_frame(int fd, struct wire_frame *frame)
{
    struct error err = ERROR_INIT;
    ssize_t len;

    wait_readable(fd);
    len = recv(fd, rx, sizeof(rx), 0);
    if (len == 0 || (len < 0 && errno == ECONNRESET))
        return false;
    ck_assert_int_gt(len, 0);
    ck_assert_msg(wire_decode(rx, (size_t)len, WIRE_TO_HOST, frame, &err) == 0, "%s", err.detail);
    return true;
}

static void expect_frame(int fd, enum wire_type type)
{
    struct wire_frame frame;

    ck_assert(recv_frame(fd, &frame));
    ck_assert_str_eq(wire_type_name(frame.type), wire_type_name(type));
}

static void expect_end_of_file(int fd)
{
    struct wire_frame frame;

    while (recv_frame(fd, &frame))
        continue;
}

static void send_frame(int fd, enum wire_type type, uint32_t stream, const void *payload,
                       size_t len)
{
    uint8_t frame[4096];

    ck_assert_uint_le(len, sizeof(frame) - WIRE_HEADER_SIZE);
    wire_header(frame, type, 0, stream);
    memcpy(frame + WIRE_HEADER_SIZE, payload, len);
    ck_assert_int_eq(send(fd, frame, WIRE_HEADER_SIZE + len, MSG_NOSIGNAL),
                     (ssize_t)(WIRE_HEADER_SIZE + len));
}

static void make_ready(int fd, uint32_t pids)
{
    static const char env[] = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";
    uint8_t setup[8 + sizeof(env)];

    expect_frame(fd, WIRE_HELLO);
    wire_put_u32(setup, pids);
    wire_put_u32(setup + 4, 022);
    memcpy(setup + 8, env, sizeof(env));
    send_frame(fd, WIRE_SETUP, 0, setup, sizeof(setup));
    expect_frame(fd, WIRE_READY);
}

static void exec_shell(int fd, uint32_t stream, const char *script)
{
    struct buf spec = BUF_INIT(0);
    uint8_t exec[12 + WIRE_UUID_SIZE] = {0};

    ck_assert_int_eq(wire_spec_put(&spec, WIRE_SPEC_ARG, "/bin/sh", 7), 0);
    ck_assert_int_eq(wire_spec_put(&spec, WIRE_SPEC_ARG, "-c", 2), 0);
    ck_assert_int_eq(wire_spec_put(&spec, WIRE_SPEC_ARG, script, strlen(script)), 0);
    wire_put_u32(exec, (uint32_t)spec.len);
    wire_put_u32(exec + 4, 65536);
    wire_put_u32(exec + 8, 65536);
    wire_put_u32(exec + 12, stream);
    send_frame(fd, WIRE_EXEC, stream, exec, sizeof(exec));
    send_frame(fd, WIRE_SPEC, stream, spec.data, spec.len);
    buf_free(&spec);
}

/* Everything until the stream's EXIT; what it wrote (both channels) as text. Returns the exit
 * code, 128 + signal, or -1 when the guest ended first. */
static int collect(int fd, char *out, size_t size)
{
    struct wire_frame frame;
    size_t used = 0;

    out[0] = '\0';
    while (recv_frame(fd, &frame)) {
        ck_assert_msg(frame.type != WIRE_FAILED, "the program did not start");
        if (frame.type == WIRE_EXIT)
            return frame.payload[1] ? 128 + frame.payload[1] : frame.payload[0];
        if (frame.type == WIRE_DATA && frame.payload_len < size - used) {
            memcpy(out + used, frame.payload, frame.payload_len);
            used += frame.payload_len;
            out[used] = '\0';
        }
    }
    return -1;
}

/* --- life ----------------------------------------------------------------------------------- */

START_TEST(a_guest_starts_counts_and_ends_without_a_trace)
{
    struct keeper_request request = start_request();
    struct keeper_report report;
    int fd;

    start_keeper();
    fd = start_guest(&request);
    expect_frame(fd, WIRE_HELLO);
    ask(KEEPER_STATS, request.id);
    (void)expect(KEEPER_USAGE, request.id, &report);
    ck_assert_uint_gt(report.memory_bytes, MIB);
    ck_assert_uint_lt(report.memory_bytes, request.memory_bytes);
    ck_assert_uint_gt(report.cpu_us, 0);
    ck_assert_uint_gt(report.tasks, 3);
    ck_assert_uint_eq(report.oom_kills, 0);
    end_guest(request.id, &report);
    expect_end_of_file(fd);
    ck_assert_uint_eq(report.oom_kills, 0);
    ck_assert_uint_gt(report.cpu_us, 0);
    close(fd);
    ask(KEEPER_STATS, request.id); /* of one that is gone: zeros */
    (void)expect(KEEPER_USAGE, request.id, &report);
    ck_assert_uint_eq(report.memory_bytes + report.tasks + report.cpu_us, 0);
}
END_TEST

START_TEST(a_guest_that_ends_by_itself_is_told_once)
{
    struct keeper_request request = start_request();
    struct keeper_report report;
    int fd;

    start_keeper();
    fd = start_guest(&request);
    expect_frame(fd, WIRE_HELLO);
    ck_assert_int_eq(shutdown(fd, SHUT_RDWR), 0); /* end of file: paddock-init exits */
    close(fd);
    (void)expect(KEEPER_ENDED, request.id, &report);
    ck_assert_int_eq(report.exit_status, 0);
    ck_assert_uint_eq(report.killed, 0);
    assert_no_trace(request.id);
    ask(KEEPER_END, request.id); /* too late: nothing comes of it */
    ask(KEEPER_STATS, request.id);
    (void)expect(KEEPER_USAGE, request.id, &report);
}
END_TEST

START_TEST(a_guest_is_killed_while_it_starts)
{
    struct keeper_request request = start_request();
    struct keeper_report report;
    int fd;

    start_keeper();
    fd = start_guest(&request);
    ask(KEEPER_END, request.id);
    ask(KEEPER_END, request.id);
    (void)expect(KEEPER_ENDED, request.id, &report);
    ck_assert_uint_eq(report.killed, 1);
    expect_end_of_file(fd);
    assert_no_trace(request.id);
    close(fd);
}
END_TEST

/* Both as if the image had been changed under a running daemon. */
START_TEST(a_run_that_fails_tells_why)
{
    struct keeper_request request = start_request();
    struct keeper_report report;
    int fd;

    free(bench.templates.items[0].rootfs);
    bench.templates.items[0].rootfs = strdup(bench.dir); /* no init in there */
    start_keeper();
    fd = start_guest(&request);
    (void)expect(KEEPER_ENDED, request.id, &report);
    ck_assert_int_gt(report.exit_status, 0);
    ck_assert_msg(strstr(report.text, "/sbin/paddock-init") != NULL, "%s", report.text);
    assert_no_trace(request.id);
    close(fd);
}
END_TEST

START_TEST(an_image_that_is_gone_is_refused)
{
    struct keeper_request request = start_request();

    free(bench.templates.items[0].rootfs);
    bench.templates.items[0].rootfs = strdup("/nonexistent/rootfs");
    start_keeper();
    expect_refusal(&request, "image");
    assert_no_trace("*");
}
END_TEST

START_TEST(a_runsc_that_cannot_be_executed_tells_why)
{
    struct keeper_request request = start_request();
    struct keeper_report report;
    int fd;

    free(bench.config->guest_runsc);
    bench.config->guest_runsc = strdup("/nonexistent/runsc");
    start_keeper();
    fd = start_guest(&request);
    (void)expect(KEEPER_ENDED, request.id, &report);
    ck_assert_int_eq(report.exit_status, 127);
    ck_assert_msg(strstr(report.text, "cannot execute runsc") != NULL, "%s", report.text);
    assert_no_trace(request.id);
    close(fd);
}
END_TEST

START_TEST(the_supervisors_end_of_the_socket_ends_every_guest)
{
    struct keeper_request requests[2] = {start_request(), start_request()};
    int fds[2];
    int status;

    start_keeper();
    for (unsigned i = 0; i < 2; i++)
        fds[i] = start_guest(&requests[i]);
    expect_frame(fds[1], WIRE_HELLO); /* the first may still be starting */
    close_end(&bench.control);
    status = wait_keeper();
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 0);
    for (unsigned i = 0; i < 2; i++) {
        expect_end_of_file(fds[i]);
        close(fds[i]);
    }
    assert_no_trace("*");
}
END_TEST

static void expect_program(int fd, uint32_t stream, const char *script, const char *wanted)
{
    char out[4096];

    exec_shell(fd, stream, script);
    (void)collect(fd, out, sizeof(out));
    ck_assert_msg(strcmp(out, wanted) == 0, "%s: %s", script, out);
}

START_TEST(a_guest_outlives_its_main_and_is_given_to_the_next)
{
    struct keeper_request request = start_request();
    struct keeper_report report;
    int fd;

    start_keeper();
    fd = start_guest(&request);
    make_ready(fd, 64);
    expect_program(fd, 1, "echo kept > /workspace/file", "");
    for (uint32_t i = 0; i < 3; i++) {
        close(fd);
        if (i != 1) /* else the keeper itself lets the former one go */
            close_end(&bench.sock);
        attach();
        fd = expect(KEEPER_HELD, request.id, &report);
        ck_assert_uint_eq(report.ending, 0);
        ck_assert_str_eq(report.reason, "");
        expect_attached();
        expect_program(fd, 2 + i, "cat /workspace/file", "kept\n");
    }
    end_guest(request.id, &report);
    close(fd);
}
END_TEST

START_TEST(an_end_is_told_until_a_main_has_recorded_it)
{
    struct keeper_request requests[2] = {start_request(), start_request()};
    struct keeper_report report;
    char trace[128];

    start_keeper();
    for (unsigned i = 0; i < 2; i++)
        close(start_guest(&requests[i]));
    memcpy(requests[0].reason, "relay_lost", 11);
    requests[0].op = KEEPER_END;
    send_request(&requests[0]);
    close_end(&bench.sock); /* which hears nothing of the end */
    (void)snprintf(trace, sizeof(trace), "%s/guests/%s", bench.dir, requests[0].id);
    while (count_paths(trace) > 0)
        (void)poll(NULL, 0, 5);
    for (unsigned i = 0; i < 2; i++) {
        attach();
        close(expect(KEEPER_HELD, requests[1].id, &report));
        (void)expect(KEEPER_ENDED, requests[0].id, &report);
        ck_assert_uint_eq(report.killed, 1);
        ck_assert_str_eq(report.reason, "relay_lost");
        expect_attached();
        close_end(&bench.sock);
    }
    attach();
    ask(KEEPER_FORGET, requests[0].id);
    ask(KEEPER_FORGET, requests[0].id); /* again is harmless */
    close_end(&bench.sock);
    attach();
    close(expect(KEEPER_HELD, requests[1].id, &report));
    expect_attached();
    end_guest(requests[1].id, &report);
}
END_TEST

/* A guest on its way out has no socket to give any more. */
START_TEST(a_main_that_comes_while_a_guest_ends_hears_that)
{
    struct keeper_request request = start_request();
    struct keeper_report report;
    struct error err = ERROR_INIT;
    int fd = -1;

    start_keeper();
    close(start_guest(&request));
    request.op = KEEPER_END;
    memcpy(request.reason, "ttl", 4);
    send_request(&request);
    attach();
    /* HELD and then ENDED, or ENDED at once: never a socket. */
    do {
        wait_readable(bench.sock);
        ck_assert_int_eq(fdpass_recv(bench.sock, &report, sizeof(report), &fd, &err),
                         sizeof(report));
        ck_assert_int_eq(fd, -1);
        ck_assert(report.event == KEEPER_ATTACHED || strcmp(report.reason, "ttl") == 0);
        ck_assert(report.event != KEEPER_HELD || report.ending == 1);
    } while (report.event != KEEPER_ENDED);
}
END_TEST

START_TEST(without_a_main_guests_live_as_long_as_the_lease)
{
    struct keeper_request request = start_request();
    struct keeper_report report;
    int fd;

    bench.config->daemon_lease = 300;
    start_keeper();
    fd = start_guest(&request);
    make_ready(fd, 64);
    (void)poll(NULL, 0, 400); /* no harm while a main is there: it answers */
    expect_program(fd, 1, "echo alive", "alive\n");
    close_end(&bench.sock);
    expect_end_of_file(fd);
    close(fd);
    attach();
    do { /* HELD as ending first, where it is not all gone yet */
        wait_readable(bench.sock);
        struct error err = ERROR_INIT;
        ck_assert_int_eq(fdpass_recv(bench.sock, &report, sizeof(report), &fd, &err),
                         sizeof(report));
        ck_assert_int_eq(fd, -1);
    } while (report.event != KEEPER_ENDED);
    ck_assert_str_eq(report.id, request.id);
    ck_assert_str_eq(report.reason, "node_lost");
    ck_assert_uint_eq(report.killed, 1);
}
END_TEST

START_TEST(what_is_held_can_be_listed)
{
    struct keeper_request request = start_request();
    struct keeper_request other = start_request();
    struct keeper_report report;

    start_keeper();
    ask(KEEPER_LIST, other.id);
    (void)expect(KEEPER_LIST_END, other.id, &report);
    close(start_guest(&request));
    ask(KEEPER_LIST, other.id);
    (void)expect(KEEPER_LISTED, request.id, &report);
    ck_assert_uint_eq(report.ending, 0);
    (void)expect(KEEPER_LIST_END, other.id, &report);
    end_guest(request.id, &report);
}
END_TEST

static bool is_first(void *arg, const char *id)
{
    return strcmp(id, arg) == 0;
}

static void make_file(const char *name)
{
    char path[256];
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s%s", bench.dir, name);
    file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    (void)fclose(file);
}

START_TEST(strays_are_swept_and_guests_are_not)
{
    struct keeper_request request = start_request();
    struct keeper_report report;
    struct cgroup_limits limits = {.memory_bytes = 64 * MIB, .cpus = 1, .pids = 10};
    struct error err = ERROR_INIT;
    char stray[ID_SIZE];
    char name[128];
    int fd;

    start_keeper();
    fd = start_guest(&request);
    make_ready(fd, 64);
    id_new(stray);
    (void)snprintf(name, sizeof(name), "/guests/%s", stray);
    make_folder(name);
    (void)snprintf(name, sizeof(name), "/runsc/%s_sandbox:%s.state", stray, stray);
    make_file(name);
    (void)snprintf(name, sizeof(name), "/runsc/runsc-%s.sock", stray);
    make_file(name);
    ck_assert_msg(cgroup_create(bench.cgroup, stray, &limits, &err) == 0, "%s", err.detail);
    bench.log.level = LOG_ERROR;
    keeper_sweep_strays(&bench.setup, is_first, request.id);
    assert_no_trace(stray);
    expect_program(fd, 1, "echo alive", "alive\n");
    end_guest(request.id, &report);
    close(fd);
}
END_TEST

START_TEST(the_keepers_death_is_every_guests)
{
    struct keeper_request request = start_request();
    struct error err = ERROR_INIT;
    struct cgroup_usage usage;
    char bundle[128];
    int fd;

    start_keeper();
    fd = start_guest(&request);
    make_ready(fd, 64);
    ck_assert_int_eq(kill(bench.keeper, SIGKILL), 0);
    (void)wait_keeper();
    expect_end_of_file(fd); /* by the kernel: nobody was left to do it */
    close(fd);
    cgroup_read_usage(bench.cgroup, request.id, &usage);
    ck_assert_uint_eq(usage.tasks, 0);
    (void)snprintf(bundle, sizeof(bundle), "%s/guests/%s", bench.dir, request.id);
    ck_assert_uint_eq(count_paths(bundle), 1);
    ck_assert_msg(keeper_sweep(&bench.setup, &err) == 0, "%s", err.detail);
    assert_no_trace("*");
}
END_TEST

/* --- requests ------------------------------------------------------------------------------- */

START_TEST(what_this_host_does_not_offer_is_refused)
{
    struct keeper_request good = start_request();
    struct keeper_request bad;
    struct keeper_report report;
    int fd;

    start_keeper();
    bad = start_request();
    memcpy(bad.template_name, "other", 6);
    expect_refusal(&bad, "template");
    bad = start_request();
    bad.cpus = (uint32_t)bench.config->guest_cpus_max + 1;
    expect_refusal(&bad, "cpus_max");
    bad.cpus = 0;
    expect_refusal(&bad, "cpus_max");
    bad = start_request();
    bad.memory_bytes = ((uint64_t)bench.config->guest_memory_mb_max + 1) * MIB;
    expect_refusal(&bad, "memory_mb_max");
    bad.memory_bytes = 256 * MIB + 1;
    expect_refusal(&bad, "memory_mb_max");
    bad = start_request();
    bad.pids = UINT32_MAX;
    expect_refusal(&bad, "pids_max");
    bad = start_request();
    bad.workspace_bytes = UINT64_MAX;
    expect_refusal(&bad, "tmpfs");
    bad = start_request();
    bad.shm_bytes = 0;
    expect_refusal(&bad, "tmpfs");
    assert_no_trace("*");

    fd = start_guest(&good);
    expect_refusal(&good, "exists");
    expect_frame(fd, WIRE_HELLO); /* the refusal did it no harm */
    end_guest(good.id, &report);
    close(fd);
}
END_TEST

enum malformed {
    SHORT_MESSAGE,
    LONG_MESSAGE,
    UNKNOWN_OP,
    ID_WITHOUT_END,
    ID_AS_PATH,
    TEMPLATE_WITHOUT_END,
    TEMPLATE_AS_PATH,
    REASON_WITHOUT_END,
    REASON_AS_TEXT,
    WITH_DESCRIPTOR,
    MALFORMED_COUNT
};

START_TEST(a_message_that_is_no_request_costs_main_its_socket)
{
    struct {
        struct keeper_request request;
        char more[16];
    } bad = {.request = start_request()};
    struct keeper_request good = start_request();
    struct error err = ERROR_INIT;
    struct keeper_report report;
    size_t len = sizeof(bad.request);
    int fd;

    start_keeper();
    fd = start_guest(&good);
    switch ((enum malformed)_i) {
    case SHORT_MESSAGE:
        len--;
        break;
    case LONG_MESSAGE:
        len++;
        break;
    case UNKNOWN_OP:
        bad.request.op = 99;
        break;
    case ID_WITHOUT_END:
        memset(bad.request.id, 'a', sizeof(bad.request.id));
        break;
    case ID_AS_PATH:
        memcpy(bad.request.id, "../../../../../../../tmp/x0000000000", ID_SIZE);
        break;
    case TEMPLATE_WITHOUT_END:
        memset(bad.request.template_name, 'a', sizeof(bad.request.template_name));
        break;
    case TEMPLATE_AS_PATH:
        memcpy(bad.request.template_name, "../base", 8);
        break;
    case REASON_WITHOUT_END:
        bad.request.op = KEEPER_END;
        memset(bad.request.reason, 'a', sizeof(bad.request.reason));
        break;
    case REASON_AS_TEXT:
        bad.request.op = KEEPER_END;
        memcpy(bad.request.reason, "a b", 4);
        break;
    case WITH_DESCRIPTOR:
    case MALFORMED_COUNT:
        break;
    }
    ck_assert_int_eq(fdpass_send(bench.sock, &bad, len, _i == WITH_DESCRIPTOR ? fd : -1, &err), 0);
    close(fd);
    expect_end_of_file(bench.sock);
    close_end(&bench.sock);
    attach(); /* and the guest is the next one's */
    fd = expect(KEEPER_HELD, good.id, &report);
    expect_attached();
    expect_frame(fd, WIRE_HELLO);
    end_guest(good.id, &report);
    close(fd);
}
END_TEST

START_TEST(what_is_no_main_ends_the_keeper)
{
    struct keeper_control bad = {.op = _i == 0 ? 99 : KEEPER_CONTROL_MAIN};
    struct error err = ERROR_INIT;
    int status;

    start_keeper();
    ck_assert_int_eq(
        fdpass_send(bench.control, &bad, sizeof(bad), _i == 0 ? bench.control : -1, &err), 0);
    status = wait_keeper();
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 1);
}
END_TEST

/* --- limits --------------------------------------------------------------------------------- */

START_TEST(the_guest_sees_its_limits_and_nothing_of_the_host)
{
    static const struct {
        const char *script, *out;
    } cases[] = {
        {"awk '/MemTotal/ { print $2 }' /proc/meminfo", "262144\n"},
        {"nproc", "2\n"},
        {"id -u", "1000\n"},
        {"stat -c '%u %a' /workspace /tmp /dev/shm", "1000 755\n0 1777\n0 1777\n"},
        {"stat -f -c %b,%S /workspace", "8192,4096\n"},
        {"touch /x /etc/x 2>/dev/null; echo $?", "1\n"},
        {"awk -F: 'NR > 2 { print $1 }' /proc/net/dev | tr -d ' '", "lo\n"},
        {"ls /proc/self/fd | wc -l", "4\n"}, /* 0, 1, 2 and ls's own */
        {"hostname", "sandbox\n"},
        {"sed -n 's/^Cap\\(Prm\\|Eff\\|Bnd\\):.//p' /proc/1/status",
         "00000000000004e0\n00000000000004e0\n00000000000004e0\n"},
        {"sed -n 's/^CapEff:.//p' /proc/self/status", "0000000000000000\n"},
    };
    struct keeper_request request = start_request();
    struct keeper_report report;
    char out[4096];
    int fd;

    start_keeper();
    fd = start_guest(&request);
    make_ready(fd, 64);
    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        exec_shell(fd, i + 1, cases[i].script);
        (void)collect(fd, out, sizeof(out));
        ck_assert_msg(strcmp(out, cases[i].out) == 0, "%s: %s", cases[i].script, out);
    }
    end_guest(request.id, &report);
    close(fd);
}
END_TEST

/* The kernel takes the program or, when gVisor's own processes are larger, all of the guest. */
START_TEST(an_oom_kill_in_the_guest_is_counted)
{
    struct keeper_request request = start_request();
    struct keeper_report report;
    char out[4096];
    int fd;

    start_keeper();
    fd = start_guest(&request);
    make_ready(fd, 64);
    exec_shell(fd, 1, "python3 -c 'x = b\"x\" * (400 << 20)'");
    ck_assert_int_ne(collect(fd, out, sizeof(out)), 0);
    ask(KEEPER_END, request.id);
    (void)expect(KEEPER_ENDED, request.id, &report);
    ck_assert_uint_ge(report.oom_kills, 1);
    assert_no_trace(request.id);
    close(fd);
}
END_TEST

START_TEST(a_guest_that_dies_of_its_tmpfs_is_counted_as_oom)
{
    struct keeper_request request = start_request();
    struct keeper_report report;
    char out[4096];
    int fd;

    request.memory_bytes = 128 * MIB;
    request.workspace_bytes = 512 * MIB;
    start_keeper();
    fd = start_guest(&request);
    make_ready(fd, 64);
    exec_shell(fd, 1, "dd if=/dev/zero of=/workspace/x bs=1M count=500");
    ck_assert_int_eq(collect(fd, out, sizeof(out)), -1);
    (void)expect(KEEPER_ENDED, request.id, &report);
    ck_assert_uint_eq(report.killed, 0);
    ck_assert_int_ne(report.exit_status, 0);
    ck_assert_uint_ge(report.oom_kills, 1);
    assert_no_trace(request.id);
    close(fd);
}
END_TEST

START_TEST(the_smoke_guest_passes)
{
    struct error err = ERROR_INIT;

    start_keeper();
    ck_assert_msg(smoke_run(bench.config, bench.sock, &err) == 0, "%s", err.detail);
    assert_no_trace("*");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("keeper");
    TCase *tcase = tcase_create("keeper");
    TCase *load = tcase_create("load");
    SRunner *runner = srunner_create(suite);
    int failed;

    suite_pid = getpid();
    tcase_set_timeout(tcase, 120);
    tcase_add_unchecked_fixture(tcase, NULL, suite_teardown);
    tcase_add_checked_fixture(tcase, bench_setup, bench_teardown);
    tcase_add_test(tcase, a_guest_starts_counts_and_ends_without_a_trace);
    tcase_add_test(tcase, a_guest_that_ends_by_itself_is_told_once);
    tcase_add_test(tcase, a_guest_is_killed_while_it_starts);
    tcase_add_test(tcase, a_run_that_fails_tells_why);
    tcase_add_test(tcase, an_image_that_is_gone_is_refused);
    tcase_add_test(tcase, a_runsc_that_cannot_be_executed_tells_why);
    tcase_add_test(tcase, the_supervisors_end_of_the_socket_ends_every_guest);
    tcase_add_test(tcase, a_guest_outlives_its_main_and_is_given_to_the_next);
    tcase_add_test(tcase, an_end_is_told_until_a_main_has_recorded_it);
    tcase_add_test(tcase, a_main_that_comes_while_a_guest_ends_hears_that);
    tcase_add_test(tcase, without_a_main_guests_live_as_long_as_the_lease);
    tcase_add_test(tcase, what_is_held_can_be_listed);
    tcase_add_test(tcase, strays_are_swept_and_guests_are_not);
    tcase_add_loop_test(tcase, what_is_no_main_ends_the_keeper, 0, 2);
    tcase_add_test(tcase, the_keepers_death_is_every_guests);
    tcase_add_test(tcase, what_this_host_does_not_offer_is_refused);
    tcase_add_loop_test(tcase, a_message_that_is_no_request_costs_main_its_socket, 0,
                        MALFORMED_COUNT);
    tcase_add_test(tcase, the_guest_sees_its_limits_and_nothing_of_the_host);
    tcase_add_test(tcase, an_oom_kill_in_the_guest_is_counted);
    tcase_add_test(tcase, a_guest_that_dies_of_its_tmpfs_is_counted_as_oom);
    suite_add_tcase(suite, tcase);
    tcase_set_tags(load, "load"); /* too much for an emulated machine (tests/vm) */
    tcase_set_timeout(load, 120);
    tcase_add_unchecked_fixture(load, NULL, suite_teardown);
    tcase_add_checked_fixture(load, bench_setup, bench_teardown);
    tcase_add_test(load, the_smoke_guest_passes);
    suite_add_tcase(suite, load);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
