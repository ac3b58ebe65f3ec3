/*
 * Executions in paddock-init: start and failure, the bytes of the streams under
 * credit, scripts, and what a process gets and does not get (ids, privileges,
 * descriptors, environment).
 */
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
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- tests: start and end ------------------------------------------------------------------- */

START_TEST(output_and_exit_code)
{
    _cleanup_outcome_ struct outcome o = run_shell("echo out; echo err >&2; exit 3");
    ck_assert(!o.failed);
    ck_assert_int_eq(o.exit_code, 3);
    ck_assert_int_eq(o.signal, 0);
    ck_assert_int_eq(o.killed, 0);
    ck_assert_uint_gt(o.rss_bytes, 0);
    ck_assert_str_eq(out_text(&o), "out\n");
    ck_assert_str_eq(buf_cstr(&o.out[WIRE_STDERR]), "err\n");
}
END_TEST

START_TEST(death_by_signal)
{
    _cleanup_outcome_ struct outcome o = run_shell("kill -KILL $$");
    ck_assert_int_eq(o.signal, SIGKILL);
    ck_assert_int_eq(o.killed, 0);
}
END_TEST

START_TEST(started_precedes_output_and_names_the_process)
{
    start_shell(5, "echo $$", PLENTY, false);
    expect(WIRE_STARTED);
    char text[16];
    snprintf(text, sizeof(text), "%u\n", wire_get_u32(guest.frame.payload));
    _cleanup_outcome_ struct outcome o = finish(5);
    ck_assert_str_eq(out_text(&o), text);
}
END_TEST

START_TEST(many_in_a_row)
{
    for (int i = 0; i < 50; i++) {
        _cleanup_outcome_ struct outcome o = run_shell("exit 7");
        ck_assert_int_eq(o.exit_code, 7);
    }
}
END_TEST

START_TEST(ping_is_answered)
{
    static const uint8_t nonce[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    send_frame(WIRE_PING, 0, 0, nonce, sizeof(nonce));
    expect(WIRE_PONG);
    ck_assert_mem_eq(guest.frame.payload, nonce, sizeof(nonce));
}
END_TEST

START_TEST(setup_sets_the_pids_limit)
{
    char text[16] = "";
    FILE *file = fopen(guest.pids_path, "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_ptr_nonnull(fgets(text, sizeof(text), file));
    fclose(file);
    ck_assert_str_eq(text, "77\n");
}
END_TEST

/* --- tests: what fails ---------------------------------------------------------------------- */

static struct outcome run_program(const char *program, const char *cwd, const char *env)
{
    struct buf spec = new_spec();
    put(&spec, WIRE_SPEC_ARG, program);
    if (cwd)
        put(&spec, WIRE_SPEC_CWD, cwd);
    if (env)
        put(&spec, WIRE_SPEC_ENV, env);
    start_spec(1, &spec, PLENTY);
    return finish(1);
}

START_TEST(missing_directory)
{
    struct outcome o = run_program("true", "/nowhere/at/all", NULL);
    expect_failure(&o, WIRE_STEP_CWD, ENOENT);
    char path[128];
    snprintf(path, sizeof(path), "%s/private", guest.workspace);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    o = run_program("true", path, NULL);
    expect_failure(&o, WIRE_STEP_CWD, EACCES);
}
END_TEST

START_TEST(missing_and_forbidden_programs)
{
    struct outcome o = run_program("no-such-program", NULL, NULL);
    expect_failure(&o, WIRE_STEP_EXEC, ENOENT);
    o = run_program("", NULL, NULL);
    expect_failure(&o, WIRE_STEP_EXEC, ENOENT);
    o = run_program("/etc/passwd", NULL, NULL);
    expect_failure(&o, WIRE_STEP_EXEC, EACCES);
    o = run_program("/etc/passwd/x", NULL, NULL);
    expect_failure(&o, WIRE_STEP_EXEC, ENOTDIR);
    /* The execution's own PATH counts. */
    o = run_program("sh", NULL, "PATH=/nowhere");
    expect_failure(&o, WIRE_STEP_EXEC, ENOENT);
    o = run_program("passwd", NULL, "PATH=/nowhere:/etc:/nowhere");
    expect_failure(&o, WIRE_STEP_EXEC, EACCES);
}
END_TEST

START_TEST(text_without_interpreter_is_not_run_by_a_shell)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/plain", guest.workspace);
    write_file(path, "exit 0\n");
    ck_assert_int_eq(chmod(path, 0755), 0);
    struct outcome o = run_program(path, NULL, NULL);
    expect_failure(&o, WIRE_STEP_EXEC, ENOEXEC);
}
END_TEST

START_TEST(malformed_specs_fail_and_the_guest_lives)
{
    static const struct {
        const char *bytes;
        size_t len;
    } specs[] = {
        {"\x01\x00\x00\x00\x09x", 6}, /* past the end */
        {"\x63\x00\x00\x00\x00", 5},  /* unknown tag */
        {"\x01\x00\x00", 3},          /* half a head */
        {"\x01\x00\x00\x00\x03"       /* NUL inside */
         "a\0b",
         8},
        {"\x02\x00\x00\x00\x03" /* no argument */
         "A=b",
         8},
        {"\x01\x00\x00\x00\x01" /* not NAME=value */
         "x\x02\x00\x00\x00\x03"
         "=ab",
         14},
        {"\x01\x00\x00\x00\x01" /* relative cwd */
         "x\x03\x00\x00\x00\x01"
         "y",
         12},
        {"\x01\x00\x00\x00\x01" /* suffix alone */
         "x\x05\x00\x00\x00\x01"
         ".",
         12},
    };
    for (size_t i = 0; i < ARRAY_LEN(specs); i++) {
        send_exec(9, specs[i].len, 0, 0);
        send_frame(WIRE_SPEC, 0, 9, specs[i].bytes, specs[i].len);
        struct outcome o = finish(9);
        ck_assert_msg(o.failed && o.step == WIRE_STEP_SPEC && o.errno_value == EINVAL, "spec %zu",
                      i);
    }
    send_exec(9, 0, 0, 0);
    struct outcome o = finish(9);
    expect_failure(&o, WIRE_STEP_SPEC, EINVAL);
    o = run_shell("exit 0");
    ck_assert(!o.failed);
}
END_TEST

START_TEST(arguments_over_the_limits)
{
    _cleanup_free_ char *text = malloc(WIRE_ARG_MAX + 1);
    ck_assert_ptr_nonnull(text);
    memset(text, 'x', WIRE_ARG_MAX);
    text[WIRE_ARG_MAX] = 0;
    struct outcome o = run_program(text, NULL, NULL);
    expect_failure(&o, WIRE_STEP_SPEC, EINVAL);
    /* Each is allowed, all of them are too much. */
    struct buf spec = new_spec();
    put(&spec, WIRE_SPEC_ARG, "true");
    text[WIRE_ARG_MAX - 1] = 0;
    for (int i = 0; i < 100; i++)
        put(&spec, WIRE_SPEC_ARG, text);
    start_spec(1, &spec, PLENTY);
    o = finish(1);
    expect_failure(&o, WIRE_STEP_EXEC, E2BIG);
    /* So are many empty ones. */
    spec = new_spec();
    for (int i = 0; i < 2000000; i++)
        put(&spec, WIRE_SPEC_ENV, "a=");
    put(&spec, WIRE_SPEC_ARG, "true");
    start_spec(1, &spec, PLENTY);
    o = finish(1);
    expect_failure(&o, WIRE_STEP_EXEC, E2BIG);
}
END_TEST

START_TEST(long_arguments_arrive_whole)
{
    _cleanup_free_ char *text = malloc(100001);
    ck_assert_ptr_nonnull(text);
    for (size_t i = 0; i < 100000; i++)
        text[i] = (char)('a' + i % 26);
    text[100000] = 0;
    struct buf spec = new_spec();
    put(&spec, WIRE_SPEC_ARG, "printf");
    put(&spec, WIRE_SPEC_ARG, "%s.%s.%s");
    put(&spec, WIRE_SPEC_ARG, text);
    put(&spec, WIRE_SPEC_ARG, "");
    put(&spec, WIRE_SPEC_ARG, text);
    start_spec(1, &spec, PLENTY);
    _cleanup_outcome_ struct outcome o = finish(1);
    ck_assert_int_eq(o.exit_code, 0);
    ck_assert_uint_eq(o.out[WIRE_STDOUT].len, 200002);
    ck_assert_mem_eq(o.out[WIRE_STDOUT].data, text, 100000);
    ck_assert_mem_eq(o.out[WIRE_STDOUT].data + 100002, text, 100000);
}
END_TEST

START_TEST(specs_beyond_the_memory_for_them_are_refused)
{
    uint32_t stream = 1;
    for (; stream <= INIT_SPECS_MAX_BYTES / WIRE_SPEC_MAX; stream++)
        send_exec(stream, WIRE_SPEC_MAX, 0, 0);
    send_exec(stream, 1, 0, 0);
    struct outcome o = finish(stream);
    expect_failure(&o, WIRE_STEP_SPEC, ENOMEM);
    send_kill(1, 0);
    o = finish(1);
    expect_failure(&o, WIRE_STEP_SPEC, ECANCELED);
    /* What the host sent before it knew is no violation. */
    send_frame(WIRE_SPEC, 0, 1, "late", 4);
    o = run_shell("exit 0");
    ck_assert(!o.failed);
}
END_TEST

/* --- tests: streams ------------------------------------------------------------------------- */

START_TEST(output_is_exact_under_small_credits)
{
    const size_t total = 10 * 1024 * 1024;
    size_t credit = 1000;
    size_t got = 0;
    size_t spent = 0;
    start_shell(1, "seq 100000000 | head -c 10485760", (uint32_t)credit, false);
    expect(WIRE_STARTED);
    /* seq's text, produced here too. */
    unsigned long number = 1;
    char line[24];
    size_t line_len = 0;
    size_t line_at = 0;
    unsigned wrong = 0;
    for (;;) {
        ck_assert(receive());
        if (guest.frame.type == WIRE_EXIT)
            break;
        if (guest.frame.type != WIRE_DATA)
            continue;
        ck_assert_uint_eq(guest.frame.channel, WIRE_STDOUT);
        ck_assert_uint_le(guest.frame.payload_len, credit);
        for (size_t i = 0; i < guest.frame.payload_len; i++) {
            if (line_at == line_len) {
                line_len = (size_t)snprintf(line, sizeof(line), "%lu\n", number++);
                line_at = 0;
            }
            wrong |= guest.frame.payload[i] ^ (unsigned)line[line_at++];
        }
        got += guest.frame.payload_len;
        credit -= guest.frame.payload_len;
        spent += guest.frame.payload_len;
        if (credit == 0) {
            credit = 1 + spent % 99991;
            spent = 0;
            send_u32(WIRE_CREDIT, WIRE_STDOUT, 1, (uint32_t)credit);
        }
    }
    ck_assert_uint_eq(got, total);
    ck_assert_uint_eq(wrong, 0);
    ck_assert_uint_eq(guest.frame.payload[0], 0);
}
END_TEST

START_TEST(stdin_round_trip)
{
    const size_t total = 1024 * 1024;
    _cleanup_free_ uint8_t *sent = malloc(total);
    ck_assert_ptr_nonnull(sent);
    for (size_t i = 0; i < total; i++)
        sent[i] = (uint8_t)(i * 2654435761u >> 13);
    start_shell(1, "cat", PLENTY, true);
    _cleanup_outcome_ struct outcome o = {0};
    size_t window = 0;
    size_t done = 0;
    bool ended = false;
    while (!ended) {
        size_t piece = total - done < window ? total - done : window;
        if (piece > WIRE_PAYLOAD_MAX)
            piece = WIRE_PAYLOAD_MAX;
        if (piece > 0) {
            send_frame(WIRE_DATA, WIRE_STDIN, 1, sent + done, piece);
            done += piece;
            window -= piece;
            if (done == total)
                send_frame(WIRE_EOF, WIRE_STDIN, 1, NULL, 0);
            continue;
        }
        ck_assert(receive());
        if (guest.frame.type == WIRE_CREDIT) {
            ck_assert_uint_eq(guest.frame.channel, WIRE_STDIN);
            window += wire_get_u32(guest.frame.payload);
            ck_assert_uint_le(window, INIT_STDIN_WINDOW_BYTES);
        }
        ended = take_frame(&o);
    }
    ck_assert_uint_eq(o.out[WIRE_STDOUT].len, total);
    ck_assert_mem_eq(o.out[WIRE_STDOUT].data, sent, total);
}
END_TEST

START_TEST(stdin_that_nobody_reads_is_dropped)
{
    static const uint8_t zeros[WIRE_PAYLOAD_MAX];
    start_shell(1, "exec <&-; echo closed; sleep 1000", PLENTY, true);
    _cleanup_outcome_ struct outcome o = {0};
    size_t window = 0;
    size_t done = 0;
    await_output(1, &o, "closed\n");
    window = INIT_STDIN_WINDOW_BYTES; /* granted before STARTED */
    while (done < (size_t)4 * INIT_STDIN_WINDOW_BYTES) {
        if (window >= sizeof(zeros)) {
            send_frame(WIRE_DATA, WIRE_STDIN, 1, zeros, sizeof(zeros));
            window -= sizeof(zeros);
            done += sizeof(zeros);
            continue;
        }
        expect(WIRE_CREDIT);
        window += wire_get_u32(guest.frame.payload);
    }
    send_kill(1, 0);
    while (receive() && !take_frame(&o))
        ;
    ck_assert_int_eq(o.killed, 1);
}
END_TEST

START_TEST(without_stdin_there_is_end_of_file)
{
    _cleanup_outcome_ struct outcome o = run_shell("cat; readlink /proc/self/fd/0");
    ck_assert_str_eq(out_text(&o), "/dev/null\n");
}
END_TEST

START_TEST(a_stalled_reader_stalls_only_its_stream)
{
    start_shell(1, "while :; do echo y; done", 100, false);
    expect(WIRE_STARTED);
    expect(WIRE_DATA);
    ck_assert_uint_le(guest.frame.payload_len, 100);
    size_t stalled = guest.frame.payload_len;
    start_shell(2, "head -c 3000000 /dev/zero", PLENTY, false);
    _cleanup_outcome_ struct outcome o = {0};
    for (;;) {
        ck_assert(receive());
        if (guest.frame.stream == 1) {
            ck_assert_int_eq(guest.frame.type, WIRE_DATA);
            stalled += guest.frame.payload_len;
        } else if (take_frame(&o)) {
            break;
        }
    }
    ck_assert_uint_eq(o.out[WIRE_STDOUT].len, 3000000);
    ck_assert_uint_le(stalled, 100);
    /* The rest of what is in its pipe counts as output: it goes out by credit, then EXIT. */
    send_u32(WIRE_CREDIT, WIRE_STDOUT, 1, PLENTY);
    send_kill(1, 0);
    _cleanup_outcome_ struct outcome first = finish(1);
    ck_assert_int_eq(first.killed, 1);
    ck_assert_int_eq(first.signal, SIGKILL);
}
END_TEST

START_TEST(output_waits_for_credit_after_the_end)
{
    start_shell(1, "echo hello", 0, false);
    expect(WIRE_STARTED);
    expect(WIRE_EOF); /* stderr's; stdout still holds bytes */
    ck_assert_uint_eq(guest.frame.channel, WIRE_STDERR);
    ck_assert(!frame_waits());
    send_u32(WIRE_CREDIT, WIRE_STDOUT, 1, 2);
    expect(WIRE_DATA);
    ck_assert_mem_eq(guest.frame.payload, "he", 2);
    send_u32(WIRE_CREDIT, WIRE_STDOUT, 1, 10);
    expect(WIRE_DATA);
    ck_assert_mem_eq(guest.frame.payload, "llo\n", 4);
    expect(WIRE_EOF);
    expect(WIRE_EXIT);
}
END_TEST

START_TEST(background_child_holds_stdout)
{
    char command[256];
    /* The child writes far more than a pipe holds, after the end of its execution. */
    snprintf(command, sizeof(command),
             "echo main; (trap '' HUP; while [ ! -e go ]; do sleep 0.01; done; "
             "head -c 2000000 /dev/zero; : %s; echo $? > done) & exit 4",
             guest.word);
    _cleanup_outcome_ struct outcome o = run_shell(command);
    ck_assert_int_eq(o.exit_code, 4);
    ck_assert_str_eq(out_text(&o), "main\n");
    _cleanup_outcome_ struct outcome go = run_shell("touch go; while [ ! -s done ]; do sleep 0.01; "
                                                    "done; cat done");
    ck_assert_str_eq(out_text(&go), "0\n");
}
END_TEST

START_TEST(leftover_pipes_are_bounded)
{
    char command[128];
    snprintf(command, sizeof(command), "sleep 1000 & : %s", guest.word);
    for (unsigned i = 0; i < INIT_LEFTOVERS_MAX / 2 + 10; i++) {
        _cleanup_outcome_ struct outcome o = run_shell(command);
        ck_assert(!o.failed);
    }
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)guest.pid);
    unsigned open_fds = 0;
    DIR *fds = opendir(path);
    ck_assert_ptr_nonnull(fds);
    while (readdir(fds))
        open_fds++;
    closedir(fds);
    ck_assert_uint_ge(open_fds, INIT_LEFTOVERS_MAX);
    ck_assert_uint_le(open_fds, INIT_LEFTOVERS_MAX + 30);
}
END_TEST

/* --- tests: scripts ------------------------------------------------------------------------- */

static struct outcome run_script(const char *interpreter, const char *source, const char *suffix)
{
    struct buf spec = new_spec();
    put(&spec, WIRE_SPEC_ARG, interpreter);
    put(&spec, WIRE_SPEC_SCRIPT, source);
    put(&spec, WIRE_SPEC_SUFFIX, suffix);
    start_spec(1, &spec, PLENTY);
    return finish(1);
}

static unsigned count_scripts(void)
{
    unsigned count = 0;
    DIR *dir = opendir(guest.workspace);
    ck_assert_ptr_nonnull(dir);
    const struct dirent *entry;
    while ((entry = readdir(dir)))
        count += strncmp(entry->d_name, ".paddock-", 9) == 0;
    closedir(dir);
    return count;
}

START_TEST(scripts)
{
    _cleanup_outcome_ struct outcome o =
        run_script("sh", "echo \"$0\"; stat -c '%u %g %a' \"$0\"; exit 5", ".sh");
    ck_assert_int_eq(o.exit_code, 5);
    const char *text = out_text(&o);
    ck_assert_int_eq(strncmp(text, guest.workspace, strlen(guest.workspace)), 0);
    ck_assert_ptr_nonnull(strstr(text, ".sh\n54321 54321 600\n"));
    ck_assert_uint_eq(count_scripts(), 0);
    if (access("/usr/bin/python3", X_OK) == 0) {
        _cleanup_outcome_ struct outcome p =
            run_script("python3", "import sys\nprint(len(sys.argv), sys.argv[0][-3:])", ".py");
        ck_assert_str_eq(out_text(&p), "1 .py\n");
    }
    ck_assert_uint_eq(count_scripts(), 0);
}
END_TEST

START_TEST(script_is_removed_when_it_cannot_start)
{
    struct outcome o = run_script("no-such-interpreter", "x", "");
    expect_failure(&o, WIRE_STEP_EXEC, ENOENT);
    ck_assert_uint_eq(count_scripts(), 0);
}
END_TEST

START_TEST(script_needs_a_workspace_its_user_may_write)
{
    ck_assert_int_eq(chmod(guest.workspace, 0755), 0);
    struct outcome o = run_script("sh", "exit 0", ".sh");
    expect_failure(&o, WIRE_STEP_SCRIPT, EACCES);
}
END_TEST

START_TEST(suffix_is_no_path)
{
    struct outcome o = run_script("sh", "exit 0", "/../../x");
    expect_failure(&o, WIRE_STEP_SPEC, EINVAL);
}
END_TEST

/* --- tests: what a process gets ------------------------------------------------------------- */

START_TEST(identity_without_privileges)
{
    _cleanup_outcome_ struct outcome o = run_shell("cat /proc/self/status; umask; pwd; "
                                                   "cut -d' ' -f1,6 /proc/$$/stat");
    const char *text = out_text(&o);
    expect_line(text, "Uid:\t54321\t54321\t54321\t54321\n");
    expect_line(text, "Gid:\t54321\t54321\t54321\t54321\n");
    expect_line(text, "Groups:\t \n");
    expect_line(text, "NoNewPrivs:\t1\n");
    expect_line(text, "CapInh:\t0000000000000000\n");
    expect_line(text, "CapPrm:\t0000000000000000\n");
    expect_line(text, "CapEff:\t0000000000000000\n");
    expect_line(text, "CapBnd:\t00000000000004e0\n");
    expect_line(text, "CapAmb:\t0000000000000000\n");
    expect_line(text, "SigBlk:\t0000000000000000\n");
    expect_line(text, "SigIgn:\t0000000000000000\n");
    expect_line(text, "\n0027\n");
    expect_line(text, guest.workspace);
    /* Its session is its own. */
    unsigned pid = 0;
    unsigned session = 1;
    const char *last = strstr(text, "\n0027\n");
    last = strchr(last + 6, '\n');
    ck_assert_int_eq(sscanf(last, "%u %u", &pid, &session), 2);
    ck_assert_uint_eq(pid, session);
}
END_TEST

START_TEST(descriptors_are_three)
{
    _cleanup_outcome_ struct outcome o = run_shell("ls /proc/$$/fd");
    ck_assert_str_eq(out_text(&o), "0\n1\n2\n");
}
END_TEST

START_TEST(own_pipes_can_be_opened_again)
{
    _cleanup_outcome_ struct outcome o = run_shell("echo a >/dev/stdout; echo b >/dev/stderr");
    ck_assert_str_eq(out_text(&o), "a\n");
    ck_assert_str_eq(buf_cstr(&o.out[WIRE_STDERR]), "b\n");
}
END_TEST

START_TEST(environment_in_layers)
{
    struct buf spec = new_spec();
    put(&spec, WIRE_SPEC_ARG, "env");
    put(&spec, WIRE_SPEC_ENV, "OWN=1");
    put(&spec, WIRE_SPEC_ENV, "USER=first");
    put(&spec, WIRE_SPEC_ENV, "USER=second");
    put(&spec, WIRE_SPEC_ENV, "USERX=x");
    start_spec(1, &spec, PLENTY);
    _cleanup_outcome_ struct outcome o = finish(1);
    const char *text = out_text(&o);
    expect_line(text, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n");
    expect_line(text, "FROM_IMAGE=1\n");
    expect_line(text, "FROM_SETUP=1\n");
    expect_line(text, "OVER=setup\n");
    expect_line(text, "OWN=1\n");
    expect_line(text, "USER=second\n");
    expect_line(text, "USERX=x\n");
    ck_assert_ptr_null(strstr(text, "OVER=image"));
    ck_assert_ptr_null(strstr(text, "USER=first"));
    ck_assert_ptr_null(strstr(text, "SECRET_OF_HOST"));
    ck_assert_ptr_null(strstr(text, "nonsense"));
    unsigned lines = 0;
    for (const char *at = text; (at = strchr(at, '\n')); at++)
        lines++;
    ck_assert_uint_eq(lines, 7 + 3 + 2); /* base with USER, three layers, OWN and USERX */
}
END_TEST

START_TEST(init_and_supervisor_are_out_of_reach)
{
    char command[512];
    snprintf(command, sizeof(command),
             "for p in %d $PPID; do kill -KILL $p; kill -STOP $p; kill -CONT $p; "
             "cat /proc/$p/mem; ls /proc/$p/fd/; cat /proc/$p/environ; done 2>/dev/null; echo end",
             (int)guest.pid);
    _cleanup_outcome_ struct outcome o = run_shell(command);
    ck_assert_str_eq(out_text(&o), "end\n");
    ck_assert_int_eq(o.exit_code, 0);
}
END_TEST

START_TEST(later_entries_win_whatever_their_order)
{
    const char *entries[] = {"B=1", "A=1", "AB=1", "A=2", "B=", "A=3=4"};
    size_t kept = environ_unique(entries, ARRAY_LEN(entries));
    ck_assert_uint_eq(kept, 3);
    ck_assert_str_eq(entries[0], "A=3=4");
    ck_assert_str_eq(entries[1], "AB=1");
    ck_assert_str_eq(entries[2], "B=");
}
END_TEST

/* --- the suite ------------------------------------------------------------------------------ */

static void add_ready_tests(Suite *suite)
{
    TCase *ready = tcase_create("ready");
    tcase_set_timeout(ready, 120);
    tcase_add_checked_fixture(ready, setup, teardown);
    const TTest *tests[] = {
        output_and_exit_code,
        death_by_signal,
        started_precedes_output_and_names_the_process,
        many_in_a_row,
        ping_is_answered,
        setup_sets_the_pids_limit,
        missing_directory,
        missing_and_forbidden_programs,
        text_without_interpreter_is_not_run_by_a_shell,
        malformed_specs_fail_and_the_guest_lives,
        arguments_over_the_limits,
        long_arguments_arrive_whole,
        specs_beyond_the_memory_for_them_are_refused,
        output_is_exact_under_small_credits,
        stdin_round_trip,
        stdin_that_nobody_reads_is_dropped,
        without_stdin_there_is_end_of_file,
        a_stalled_reader_stalls_only_its_stream,
        output_waits_for_credit_after_the_end,
        background_child_holds_stdout,
        scripts,
        script_is_removed_when_it_cannot_start,
        script_needs_a_workspace_its_user_may_write,
        suffix_is_no_path,
        identity_without_privileges,
        descriptors_are_three,
        own_pipes_can_be_opened_again,
        environment_in_layers,
        init_and_supervisor_are_out_of_reach,
    };
    for (size_t i = 0; i < ARRAY_LEN(tests); i++)
        tcase_add_test(ready, tests[i]);
    suite_add_tcase(suite, ready);
}

/* Hundreds of processes that live on; emulated machines leave it out (CK_EXCLUDE_TAGS). */
static void add_load_tests(Suite *suite)
{
    TCase *load = tcase_create("load");
    tcase_set_timeout(load, 120);
    tcase_set_tags(load, "load");
    tcase_add_checked_fixture(load, setup, teardown);
    tcase_add_test(load, leftover_pipes_are_bounded);
    suite_add_tcase(suite, load);
}

int main(void)
{
    if (geteuid() != 0)
        return 1; /* it gives up privileges, so it needs some */
    Suite *suite = suite_create("init");
    add_ready_tests(suite);
    add_load_tests(suite);
    TCase *pure = tcase_create("pure");
    tcase_add_test(pure, later_entries_win_whatever_their_order);
    suite_add_tcase(suite, pure);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
