/*
 * A new daemon takes a guest of paddock-init over: RESYNC tells what runs and
 * what ended, takes back all credit, and what runs goes on. No execution is
 * begun twice, whoever asks.
 */
#include "tests/unit/init_fixture.h"

#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define NONCE UINT64_C(0x1122334455667788)

static void send_resync(uint64_t nonce)
{
    uint8_t payload[8];
    wire_put_u64(payload, nonce);
    send_frame(WIRE_RESYNC, 0, 0, payload, sizeof(payload));
}

/* Drops what was under way; returns how many frames follow. */
static uint32_t await_resynced(uint64_t nonce)
{
    do
        ck_assert(receive());
    while (guest.frame.type != WIRE_RESYNCED);
    ck_assert_uint_eq(wire_get_u64(guest.frame.payload), nonce);
    ck_assert_uint_eq(wire_get_u32(guest.frame.payload + 8), WIRE_VERSION);
    return wire_get_u32(guest.frame.payload + 12);
}

static uint32_t resync(void)
{
    send_resync(NONCE);
    return await_resynced(NONCE);
}

static struct wire_live expect_live(uint32_t stream, uint32_t uuid_number)
{
    struct error err = ERROR_INIT;
    struct wire_live live;
    uint8_t uuid[WIRE_UUID_SIZE];
    expect(WIRE_LIVE);
    ck_assert_uint_eq(guest.frame.stream, stream);
    ck_assert_msg(wire_live_get(&guest.frame, &live, &err) == 0, "%s", err.detail);
    uuid_of(uuid_number, uuid);
    ck_assert_mem_eq(live.uuid, uuid, sizeof(uuid));
    return live;
}

static struct wire_over expect_over(uint32_t uuid_number)
{
    struct error err = ERROR_INIT;
    struct wire_over over;
    uint8_t uuid[WIRE_UUID_SIZE];
    expect(WIRE_OVER);
    ck_assert_msg(wire_over_get(&guest.frame, &over, &err) == 0, "%s", err.detail);
    uuid_of(uuid_number, uuid);
    ck_assert_mem_eq(over.uuid, uuid, sizeof(uuid));
    return over;
}

/* Nothing was sent before the answer to what was sent last. */
static void expect_nothing(void)
{
    uint8_t nonce[8] = {1};
    send_frame(WIRE_PING, 0, 0, nonce, sizeof(nonce));
    expect(WIRE_PONG);
}

static void grant(uint8_t channel, uint32_t stream, uint32_t bytes)
{
    send_u32(WIRE_CREDIT, channel, stream, bytes);
}

START_TEST(what_runs_is_told_and_goes_on)
{
    uint32_t number = next_uuid;
    start_shell(7, "echo up; cat; echo end", PLENTY, true);
    _cleanup_outcome_ struct outcome o = {0};
    await_output(7, &o, "up\n");
    send_frame(WIRE_DATA, WIRE_STDIN, 7, "one\n", 4);
    await_output(7, &o, "one\n");
    ck_assert_uint_eq(resync(), 1);
    struct wire_live live = expect_live(7, number);
    ck_assert_int_eq(live.state, WIRE_LIVE_RUNNING);
    ck_assert_uint_eq(live.flags, WIRE_LIVE_STDIN);
    ck_assert_uint_ne(live.pid, 0);
    ck_assert_uint_eq(live.stdout_bytes, 7);
    ck_assert_uint_eq(live.stderr_bytes, 0);
    ck_assert_uint_eq(live.stdin_bytes, 4);
    expect(WIRE_CREDIT); /* the whole window, for what was sent before does not count */
    ck_assert_uint_eq(guest.frame.channel, WIRE_STDIN);
    ck_assert_uint_eq(wire_get_u32(guest.frame.payload), INIT_STDIN_WINDOW_BYTES);
    grant(WIRE_STDOUT, 7, PLENTY);
    grant(WIRE_STDERR, 7, PLENTY);
    send_frame(WIRE_DATA, WIRE_STDIN, 7, "two\n", 4);
    send_frame(WIRE_EOF, WIRE_STDIN, 7, NULL, 0);
    while (receive() && !take_frame(&o))
        ;
    ck_assert_int_eq(o.exit_code, 0);
    ck_assert_str_eq(out_text(&o), "up\none\ntwo\nend\n");
}
END_TEST

START_TEST(no_output_without_new_credit)
{
    uint32_t number = next_uuid;
    start_shell(1, "echo up; read line; echo \"$line\"; echo bad >&2", PLENTY, true);
    _cleanup_outcome_ struct outcome o = {0};
    await_output(1, &o, "up\n");
    ck_assert_uint_eq(resync(), 1);
    (void)expect_live(1, number);
    expect(WIRE_CREDIT);
    send_frame(WIRE_DATA, WIRE_STDIN, 1, "go\n", 3);
    send_frame(WIRE_EOF, WIRE_STDIN, 1, NULL, 0);
    /* It ends, and its last output waits: that much is told to whoever comes next. */
    struct wire_live live;
    do {
        ck_assert_uint_eq(resync(), 1);
        live = expect_live(1, number);
    } while (live.state != WIRE_LIVE_DRAINING);
    ck_assert_uint_eq(live.stdout_bytes, 3);
    ck_assert_uint_eq(live.stdin_bytes, 3);
    ck_assert_uint_eq(live.flags, 0);
    expect_nothing();
    grant(WIRE_STDOUT, 1, 100);
    expect(WIRE_DATA);
    ck_assert(!take_frame(&o));
    expect(WIRE_EOF);
    ck_assert(!take_frame(&o));
    ck_assert_uint_eq(resync(), 1);
    ck_assert_uint_eq(expect_live(1, number).flags, WIRE_LIVE_STDOUT_EOF);
    grant(WIRE_STDERR, 1, 100);
    while (receive() && !take_frame(&o))
        ;
    ck_assert_str_eq(out_text(&o), "up\ngo\n");
    ck_assert_int_eq(o.exit_code, 0);
}
END_TEST

START_TEST(what_ended_is_told_again)
{
    uint32_t number = next_uuid;
    _cleanup_outcome_ struct outcome o = run_shell("echo four; echo err >&2; exit 4");
    ck_assert_int_eq(o.exit_code, 4);
    struct buf spec = new_spec();
    put(&spec, WIRE_SPEC_ARG, "/nonexistent");
    start_spec(2, &spec, PLENTY);
    _cleanup_outcome_ struct outcome failed = finish(2);
    expect_failure(&failed, WIRE_STEP_EXEC, ENOENT);
    for (int i = 0; i < 2; i++) { /* as often as it is asked */
        ck_assert_uint_eq(resync(), 2);
        struct wire_over over = expect_over(number);
        ck_assert_int_eq(over.last.type, WIRE_EXIT);
        ck_assert_uint_eq(over.last.stream, 1);
        ck_assert_uint_eq(over.last.payload[0], 4);
        ck_assert_uint_eq(over.stdout_bytes, 5);
        ck_assert_uint_eq(over.stderr_bytes, 4);
        over = expect_over(number + 1);
        ck_assert_int_eq(over.last.type, WIRE_FAILED);
        ck_assert_uint_eq(wire_get_u32(over.last.payload), ENOENT);
    }
    expect_nothing();
}
END_TEST

START_TEST(a_kill_is_told)
{
    uint32_t number = next_uuid;
    start_shell(1, "trap '' TERM; echo up; while :; do sleep 0.01; done", PLENTY, false);
    _cleanup_outcome_ struct outcome o = {0};
    await_output(1, &o, "up\n");
    send_kill(1, PATIENCE_MS);
    ck_assert_uint_eq(resync(), 1);
    ck_assert_uint_eq(expect_live(1, number).flags, WIRE_LIVE_KILLED);
    send_kill(1, 0);
    grant(WIRE_STDOUT, 1, PLENTY);
    grant(WIRE_STDERR, 1, PLENTY);
    while (receive() && !take_frame(&o))
        ;
    ck_assert_int_eq(o.killed, 1);
}
END_TEST

START_TEST(an_unfinished_spec_is_forgotten_and_may_come_again)
{
    uint32_t number = next_uuid;
    send_exec(1, 100, PLENTY, PLENTY);
    send_frame(WIRE_SPEC, 0, 1, "begin", 5);
    ck_assert_uint_eq(resync(), 0);
    next_uuid = number;
    _cleanup_outcome_ struct outcome o = run_shell("echo once");
    ck_assert_str_eq(out_text(&o), "once\n");
}
END_TEST

START_TEST(nothing_is_begun_twice)
{
    char file[128];
    char command[256];
    uint32_t number = next_uuid;
    snprintf(file, sizeof(file), "%s/runs", guest.workspace);
    snprintf(command, sizeof(command), "echo run >> %s; echo up; read x", file);
    start_shell(1, command, PLENTY, true);
    _cleanup_outcome_ struct outcome o = {0};
    await_output(1, &o, "up\n");
    next_uuid = number;
    start_shell(2, command, PLENTY, true); /* while it runs */
    _cleanup_outcome_ struct outcome twice = finish(2);
    expect_failure(&twice, WIRE_STEP_SPEC, EEXIST);
    send_frame(WIRE_EOF, WIRE_STDIN, 1, NULL, 0);
    while (receive() && !take_frame(&o))
        ;
    next_uuid = number;
    start_shell(3, command, PLENTY, true); /* and afterwards */
    _cleanup_outcome_ struct outcome thrice = finish(3);
    expect_failure(&thrice, WIRE_STEP_SPEC, EEXIST);
    ck_assert_uint_eq(resync(), 1); /* how it ended is what it says first and last */
    ck_assert_int_eq(expect_over(number).last.type, WIRE_EXIT);
    _cleanup_outcome_ struct outcome lines = run_shell("wc -l < runs");
    ck_assert_int_eq(atoi(out_text(&lines)), 1);
}
END_TEST

/* Two descriptions of one execution at once: the first that is complete is begun. */
START_TEST(of_two_unfinished_specs_one_is_begun)
{
    struct buf spec = new_spec();
    uint32_t number = next_uuid;
    put(&spec, WIRE_SPEC_ARG, "true");
    send_exec(1, spec.len, PLENTY, PLENTY);
    next_uuid = number;
    send_exec(2, spec.len, PLENTY, PLENTY);
    send_frame(WIRE_SPEC, 0, 2, spec.data, spec.len);
    send_frame(WIRE_SPEC, 0, 1, spec.data, spec.len);
    buf_free(&spec);
    _cleanup_outcome_ struct outcome refused = {0};
    _cleanup_outcome_ struct outcome done = {0};
    for (int ended = 0; ended < 2;) {
        ck_assert(receive());
        ended += take_frame(guest.frame.stream == 1 ? &refused : &done);
    }
    expect_failure(&refused, WIRE_STEP_SPEC, EEXIST);
    ck_assert(!done.failed);
}
END_TEST

START_TEST(frames_of_the_former_daemon_change_nothing)
{
    uint32_t number = next_uuid;
    start_shell(1, "yes", 65536, false);
    _cleanup_outcome_ struct outcome o = {0};
    size_t got = 0;
    while (got < 65536) { /* all that it may send */
        ck_assert(receive());
        if (guest.frame.type == WIRE_DATA)
            got += guest.frame.payload_len;
    }
    grant(WIRE_STDOUT, 1, 1000); /* the last words of the former one */
    send_resync(1);
    send_resync(2); /* and one that did not live to hear the answer */
    ck_assert_uint_eq(await_resynced(1), 1);
    uint64_t sent = expect_live(1, number).stdout_bytes;
    ck_assert(sent == 65536 || sent == 65536 + 1000); /* it may not have come to using it */
    ck_assert_uint_eq(await_resynced(2), 1);
    ck_assert_uint_eq(expect_live(1, number).stdout_bytes, sent);
    expect_nothing();
    send_kill(1, 0);
    grant(WIRE_STDOUT, 1, PLENTY);
    grant(WIRE_STDERR, 1, PLENTY);
    while (receive() && !take_frame(&o))
        ;
    ck_assert_int_eq(o.killed, 1);
}
END_TEST

/* Only so many are remembered, and they are the last ones. */
START_TEST(memory_of_the_past_is_bounded)
{
    struct init *init = calloc(1, sizeof(*init));
    uint8_t uuid[WIRE_UUID_SIZE];
    ck_assert_ptr_nonnull(init);
    for (uint32_t i = 0; i < 3 * INIT_SEEN_MAX; i++) {
        uuid_of(i, uuid);
        ck_assert(takeover_first_time(init, uuid));
        ck_assert(!takeover_first_time(init, uuid));
    }
    for (uint32_t i = 0; i < 3 * INIT_SEEN_MAX; i++) {
        uuid_of(i, uuid);
        ck_assert_int_eq(takeover_has_seen(init, uuid), i >= 2 * INIT_SEEN_MAX);
    }
    free(init);
}
END_TEST

START_TEST(resync_before_setup_ends_the_guest)
{
    send_resync(1);
    expect_violation();
}
END_TEST

int main(void)
{
    if (geteuid() != 0)
        return 1; /* it gives up privileges, so it needs some */
    guest_uid = GUEST_UID + 2;
    Suite *suite = suite_create("init_takeover");
    TCase *ready = tcase_create("ready");
    tcase_add_checked_fixture(ready, setup, teardown);
    tcase_add_test(ready, what_runs_is_told_and_goes_on);
    tcase_add_test(ready, no_output_without_new_credit);
    tcase_add_test(ready, what_ended_is_told_again);
    tcase_add_test(ready, a_kill_is_told);
    tcase_add_test(ready, an_unfinished_spec_is_forgotten_and_may_come_again);
    tcase_add_test(ready, nothing_is_begun_twice);
    tcase_add_test(ready, of_two_unfinished_specs_one_is_begun);
    tcase_add_test(ready, frames_of_the_former_daemon_change_nothing);
    tcase_add_test(ready, memory_of_the_past_is_bounded);
    suite_add_tcase(suite, ready);
    TCase *fresh = tcase_create("fresh");
    tcase_add_checked_fixture(fresh, start_guest, teardown);
    tcase_add_test(fresh, resync_before_setup_ends_the_guest);
    suite_add_tcase(suite, fresh);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
