/*
 * A guest for the tests of paddock-init: its core in a forked process, driven
 * over a socketpair as the daemon drives it. It needs root, and drops to the
 * four capabilities by itself. Every wait is for a frame or a process's end.
 * "Nothing is left" is asserted by a word in the command lines of what a test
 * starts. Failed expectations end the test.
 */
#ifndef PADDOCK_TESTS_INIT_FIXTURE_H
#define PADDOCK_TESTS_INIT_FIXTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/buf.h"
#include "common/cleanup.h"
#include "guestimg/init/init.h"

/* Processes that what a test starts may have, of the guest's user. */
#define GUEST_PROCESSES_MAX 300

#define PATIENCE_MS 60000
#define PLENTY (1u << 30)
#define GUEST_UID 54321 /* nobody on this host */
/* Processes are counted a user, so tests that run at once take one each; GUEST_UID at first. */
extern uid_t guest_uid;

struct guest {
    pid_t pid;
    int sock;
    char workspace[64];
    char pids_path[96];
    char environment_path[96];
    char word[64]; /* marks the command lines of this test */
    struct init_options options;
    uint8_t bytes[WIRE_FRAME_MAX + 1];
    struct wire_frame frame;
};

extern struct guest guest;

/* What an execution came to. */
struct outcome {
    bool failed;
    int errno_value;
    int step;
    int exit_code;
    int signal;
    int killed;
    uint64_t rss_bytes;
    bool eof[3];
    struct buf out[3];
};

/* Frames to and from the guest. */
void send_bytes(const void *data, size_t len);
void send_frame(enum wire_type type, uint8_t channel, uint32_t stream, const void *payload,
                size_t len);
void send_u32(enum wire_type type, uint8_t channel, uint32_t stream, uint32_t value);
bool frame_waits(void);
/* Into guest.frame; false at the end of the socket. */
bool receive(void);
void expect(enum wire_type type);

/* Check fixtures: a guest that said HELLO, or one that is READY; and its end, with nothing left. */
void start_guest(void);
void setup(void);
void teardown(void);
void send_setup(uint32_t pids, uint32_t mask, const char *env, size_t env_len);
void write_file(const char *path, const char *text);
bool anything_left(void);
/* Waits for the guest's process. */
int guest_status(void);
/* The guest ends because of what was sent. */
void expect_violation(void);

/* Executions. */
struct buf new_spec(void);
void put(struct buf *spec, enum wire_spec_tag tag, const char *text);
/* Each execution has a UUID of its own, unless next_uuid is set first. */
extern uint32_t next_uuid;
void uuid_of(uint32_t number, uint8_t out[WIRE_UUID_SIZE]);
void send_exec(uint32_t stream, size_t spec_len, uint32_t out_credit, uint32_t err_credit);
/* Sends the spec and frees it. */
void start_spec(uint32_t stream, struct buf *spec, uint32_t out_credit);
void start_shell(uint32_t stream, const char *command, uint32_t out_credit, bool with_stdin);
/* Takes one frame of the stream; true when it was the last. */
bool take_frame(struct outcome *outcome);
/* Receives until the stream's end; no other stream may speak meanwhile. */
struct outcome finish(uint32_t stream);
struct outcome run_shell(const char *command);
void free_outcome(struct outcome *outcome);
#define _cleanup_outcome_ _cleanup_(free_outcome)
const char *out_text(struct outcome *outcome);
void expect_failure(const struct outcome *outcome, enum wire_step step, int errno_value);
/* Reads DATA until what came ends in `text`. */
void await_output(uint32_t stream, struct outcome *outcome, const char *text);
void send_kill(uint32_t stream, uint32_t grace_ms);
/* The line, or part of one, is in text. */
void expect_line(const char *text, const char *line);

#endif
