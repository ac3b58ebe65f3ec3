/*
 * paddock-init: PID 1 of a guest. This header holds the one context struct and
 * what its files share; main.c fills in the options and calls init_run.
 *
 * Two kinds of process run this code: PID 1 (session.c, stream.c, outbox.c,
 * idle.c, takeover.c) and, below it, one supervisor an execution (supervisor.c, launch.c,
 * script.c). tree.c, environ.c and privilege.c serve both. What must stay true:
 * PID 1 waits in epoll and nowhere else, and nothing that runs as the guest's
 * user can signal, trace or block either kind.
 */
#ifndef PADDOCK_INIT_INIT_H
#define PADDOCK_INIT_INIT_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "common/buf.h"
#include "common/error.h"
#include "common/wire.h"

/* Specs that were announced and have not reached their supervisor yet, in all. */
#define INIT_SPECS_MAX_BYTES ((size_t)4 * WIRE_SPEC_MAX)
#define INIT_STDIN_WINDOW_BYTES (256u << 10)
#define INIT_LEFTOVERS_MAX 256u
/* Executions that were begun and are refused a second time; a power of two. */
#define INIT_SEEN_MAX 4096u
#define INIT_SEEN_BUCKETS 1024u
/* Of the pipes for stdout and stderr; a refusal by the kernel leaves its default. */
#define INIT_PIPE_BYTES (256 * 1024)

enum init_exit {
    INIT_EXIT_OK = 0,       /* the host closed the socket */
    INIT_EXIT_PROTOCOL = 1, /* the host broke the protocol */
    INIT_EXIT_INTERNAL = 3, /* no memory, no descriptor, a limit that cannot be applied; not 2,
                               which is how a crash of gVisor itself looks */
};

struct init_options {
    uid_t uid; /* of everything that is executed */
    gid_t gid;
    const char *workspace;        /* default working directory; scripts are written here */
    const char *pids_max_path;    /* cgroup file; may be missing */
    const char *environment_path; /* the image's NAME=value lines; may be missing */
};

/* --- the supervisor's control socket (SOCK_SEQPACKET, within this program) ---------------- */

enum control_kind {
    CONTROL_SPEC = 1,   /* value: size of the whole spec; a piece of it follows */
    CONTROL_SIGNAL = 2, /* value: signal number */
    CONTROL_KILL = 3,   /* value: grace in ms */
    CONTROL_AGAIN = 4,  /* another execution, with the descriptors 0, 1 and 2 for it */
};
struct control {
    uint32_t kind;
    uint32_t value;
};
#define CONTROL_PIECE_MAX 32768u

enum report_kind { REPORT_STARTED = 1, REPORT_FAILED = 2, REPORT_ENDED = 3 };
struct report {
    uint32_t kind;
    int32_t pid;         /* STARTED */
    int32_t errno_value; /* FAILED */
    uint32_t step;       /* FAILED: enum wire_step */
    uint8_t exit_code;   /* ENDED, like the rest */
    uint8_t signal;
    uint8_t killed;
    uint8_t free; /* the supervisor has no children left and waits for AGAIN */
    uint64_t cpu_us;
    uint64_t rss_bytes;
};

/* --- PID 1 ---------------------------------------------------------------------------------- */

struct execution;

/* Memory that an event of the current turn may still point to; freed when the turn ends. */
struct grave {
    struct grave *next;
};

enum watch_kind {
    WATCH_SOCKET,
    WATCH_CHILDREN,
    WATCH_IDLE,
    WATCH_CONTROL,
    WATCH_STDIN,
    WATCH_OUTPUT,
    WATCH_LEFTOVER,
};

/* A descriptor in the epoll set; events is 0 while it is not in it. */
struct watch {
    enum watch_kind kind;
    int fd; /* owned by whoever embeds the watch; -1 when closed */
    uint32_t events;
    void *owner; /* struct execution, struct output or struct leftover, by kind */
};

/* A forked supervisor and PID 1's ends of what joins them. */
struct supervisor_link {
    pid_t pid; /* 0: none */
    struct watch control;
    int stdin_fd; /* written by PID 1 */
    int stdout_fd;
    int stderr_fd;
};

struct output {
    struct watch watch;
    struct execution *execution;
    uint8_t channel;
    uint64_t credit;    /* DATA bytes that may be sent */
    uint64_t remaining; /* while draining: bytes that were in the pipe when the process ended */
    bool ended;         /* nothing more will be sent; EOF was */
    bool lean;          /* the last read emptied the pipe and got little */
    bool lingering;     /* not read for a moment, so that more gathers */
    uint64_t sent;      /* DATA bytes in all */
    int64_t pumped_us;  /* when it was read last */
};

struct input {
    struct watch watch;
    struct buf pending; /* received and not yet written to the process */
    uint32_t window;    /* bytes that the host may still send */
    uint32_t owed;      /* bytes consumed and not yet granted again */
    uint64_t received;  /* bytes in all */
    bool open;          /* the spec asked for stdin and the host sent no EOF */
};

enum execution_state {
    EXECUTION_SPEC,     /* its spec is arriving */
    EXECUTION_STARTING, /* handed to a supervisor */
    EXECUTION_RUNNING,  /* STARTED was sent */
    EXECUTION_DRAINING, /* the main process ended; its last output goes out */
    EXECUTION_DYING,    /* forgotten by RESET; its supervisor kills the tree */
};

struct execution {
    struct grave grave; /* first: the list of the dead casts back */
    struct execution *next_in_bucket;
    struct execution *prev, *next; /* init->executions */
    uint32_t stream;
    uint8_t uuid[WIRE_UUID_SIZE];
    enum execution_state state;
    size_t spec_size; /* 0 once all of it was handed over */
    size_t spec_sent;
    struct buf spec;
    pid_t supervisor_pid;
    pid_t main_pid;
    struct watch control;
    struct input input;
    struct output outputs[2];
    uint64_t signals_pending; /* bit n: signal n, not yet told to the supervisor */
    bool kill_pending;
    uint32_t kill_grace_ms;
    int64_t kill_overdue_ms; /* 0: no kill under way */
    struct report end;
};

struct leftover {
    struct grave grave; /* first */
    struct watch watch;
    struct leftover *prev, *next; /* oldest first */
};

/* An OVER frame's payload. As many are kept as a daemon may fail to record: it holds no more
 * executions of a guest at once than limits.executions_live, and begins none while the database is
 * away. */
struct over {
    uint32_t stream;
    uint8_t payload[WIRE_OVER_MAX];
    uint8_t len;
};

/* What outlives an execution for the daemon's sake (takeover.c). Rings; chains hold index + 1. */
struct past {
    uint8_t seen[INIT_SEEN_MAX][WIRE_UUID_SIZE];
    uint16_t seen_next[INIT_SEEN_MAX];
    uint16_t seen_buckets[INIT_SEEN_BUCKETS];
    size_t seen_count; /* in all */
    struct over overs[WIRE_OVERS_MAX];
    size_t overs_count; /* in all */
};

enum session_state { SESSION_NEW, SESSION_READY, SESSION_RESETTING };

#define INIT_BUCKETS 1024u

struct init {
    const struct init_options *options;
    int epoll_fd;
    struct watch socket;
    struct watch children; /* signalfd for SIGCHLD */
    enum session_state state;
    bool stopping;
    int exit_code;
    rlim_t nofile_soft; /* what executions get; PID 1 raised its own */
    mode_t umask;
    struct buf environment; /* of every execution: NAME=value NUL …, later ones win */
    struct buf outbox;      /* u32 length, frame; repeated */
    struct supervisor_link idle;
    bool idle_wanted; /* it was taken; make another ready once nothing else is to do */
    bool idle_due;    /* do that now */
    pid_t spare_pid;  /* a supervisor that can be taken again; 0: none */
    int spare_fd;     /* its control socket */
    struct execution *buckets[INIT_BUCKETS];
    struct execution *executions;
    size_t executions_count;
    size_t specs_bytes;
    size_t kills; /* executions with kill_overdue_ms set */
    int64_t kills_checked_ms;
    int64_t linger_until_us; /* 0: no output lingers */
    struct leftover *leftovers_first, *leftovers_last;
    size_t leftovers_count;
    struct past past;
    struct grave *graves;
    uint8_t frame_in[WIRE_FRAME_MAX + 1]; /* one more than allowed, to see what is too long */
    uint8_t frame_out[WIRE_FRAME_MAX];
};

/* --- session.c ------------------------------------------------------------------------------ */
/* Speaks the protocol on sock until the host closes or breaks it, kills every process below, and
 * returns an enum init_exit. The caller's process must be expendable: it loses its capabilities
 * but four, and its signal dispositions. */
int init_run(int sock, const struct init_options *options);
/* Ends the loop after this event; the first reason wins. */
void init_stop(struct init *init, enum init_exit code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Puts a watch into the epoll set, changes or (events 0) removes it. */
void init_watch(struct init *init, struct watch *watch, uint32_t events);
/* Closes a watched descriptor. */
void init_watch_close(struct init *init, struct watch *watch);
void init_bury(struct init *init, struct grave *grave);
int64_t init_now_us(void);
int64_t init_now_ms(void);

/* --- outbox.c ------------------------------------------------------------------------------- */
/* Sends a frame or queues it behind others. Never blocks; memory failure stops the session. */
void outbox_send(struct init *init, enum wire_type type, uint8_t channel, uint32_t stream,
                 const void *payload, size_t payload_len);
/* The same for init->frame_out, whose payload is in place behind the header. */
void outbox_send_in_place(struct init *init, enum wire_type type, uint8_t channel, uint32_t stream,
                          size_t payload_len);
void outbox_flush(struct init *init);
/* Nothing is queued: output may be read from pipes. */
bool outbox_is_empty(const struct init *init);
/* So much is queued that no more of the host's frames should be read. */
bool outbox_is_crowded(const struct init *init);

/* --- idle.c --------------------------------------------------------------------------------- */
/* Makes an idle supervisor ready if there is none. Returns 0 or an errno. */
int idle_ensure(struct init *init);
/* Takes the control socket of a supervisor that reported to be free; one is kept for later. */
void idle_keep(struct init *init, pid_t pid, int control_fd);
/* Ends the idle one, and the one that was kept. */
void idle_discard(struct init *init);
void idle_on_event(struct init *init);

/* --- execution.c ---------------------------------------------------------------------------- */
struct execution *execution_find(const struct init *init, uint32_t stream);
void execution_on_exec(struct init *init, const struct wire_frame *frame);
void execution_on_spec(struct init *init, struct execution *execution,
                       const struct wire_frame *frame);
void execution_signal(struct init *init, struct execution *execution, unsigned signal_number);
void execution_kill(struct init *init, struct execution *execution, uint32_t grace_ms);
void execution_on_control(struct init *init, struct execution *execution, uint32_t events);
/* Sends EXIT and forgets the execution if it ended and all its output is out. */
void execution_finish_if_drained(struct init *init, struct execution *execution);
/* Forgets the streams that still wait for the rest of their spec. */
void execution_drop_unbegun(struct init *init);
/* Forgets every stream; returns true when no process of them is left to wait for. */
bool execution_reset_all(struct init *init);
bool execution_any_dying(const struct init *init);
void execution_free_all(struct init *init);
/* Kills beside the supervisor where a kill is long overdue. */
void execution_check_kills(struct init *init);

/* --- stream.c ------------------------------------------------------------------------------- */
void stream_on_data(struct init *init, struct execution *execution, const struct wire_frame *frame);
void stream_on_eof(struct init *init, struct execution *execution);
void stream_on_credit(struct init *init, struct execution *execution, uint8_t channel,
                      uint32_t bytes);
/* Opens the stdin window towards the host. */
void stream_open_input(struct init *init, struct execution *execution);
void stream_close_input(struct init *init, struct execution *execution);
void stream_on_input_event(struct init *init, struct execution *execution);
void stream_on_output_event(struct init *init, struct output *output);
/* State, credit or outbox changed: moves what may move, and waits for what may come. May be the
 * end of the execution. */
void stream_advance(struct init *init, struct execution *execution);
/* Ends the pause of outputs that gather small pieces, if it is over. */
void stream_end_linger(struct init *init);
/* All credit is 0 again, both ways; what stdin has room for is to be granted anew. */
void stream_withdraw_credit(struct init *init, struct execution *execution);
void stream_grant_input(struct init *init, struct execution *execution);
/* The main process ended: what is in the pipes now is the last of its output. */
void stream_start_draining(struct init *init, struct execution *execution);
/* Gives the pipes that somebody still holds to the leftovers, and closes the others. */
void stream_leave_outputs(struct init *init, struct execution *execution);
void stream_on_leftover(struct init *init, struct leftover *leftover);
void stream_close_leftovers(struct init *init);

/* --- takeover.c ----------------------------------------------------------------------------- */
/* An execution is about to be started. False: it was already, once. */
bool takeover_first_time(struct init *init, const uint8_t uuid[WIRE_UUID_SIZE]);
bool takeover_has_seen(const struct init *init, const uint8_t uuid[WIRE_UUID_SIZE]);
/* Remembers a stream's last frame, EXIT or FAILED; output counts its bytes sent. */
void takeover_remember_end(struct init *init, const struct wire_over *over);
/* RESYNC: tells what lives and what ended. */
void takeover_resync(struct init *init, uint64_t nonce);

/* --- environ.c ------------------------------------------------------------------------------ */
/* Rebuilds init->environment: the base, the image's file, then SETUP's. ERR_PROTOCOL when
 * SETUP's is malformed, ERR_SYSTEM otherwise. */
int environ_setup(struct init *init, const uint8_t *data, size_t len, struct error *err)
    __attribute__((warn_unused_result));
/* NAME=value with a name. */
bool environ_is_assignment(const char *text, size_t len);
/* Of `count` assignments keeps the last of each name; reorders; returns how many are left. */
size_t environ_unique(const char **entries, size_t count);

/* --- privilege.c ---------------------------------------------------------------------------- */
/* Once, in PID 1: signals blocked and at their defaults, no_new_privs, not dumpable, subreaper,
 * the four capabilities and no others, no supplementary groups. */
int privilege_init(struct error *err) __attribute__((warn_unused_result));
/* Effective ids of the guest's user and back, for files and pipes that it shall own. Real and
 * saved ids stay 0, so that user still cannot signal us. Failure ends the process. */
void privilege_borrow_user(const struct init_options *options);
void privilege_return(void);

/* --- supervisor.c, launch.c, script.c ------------------------------------------------------- */
/* What a supervisor has: descriptors 0, 1, 2 for the process to start, and its control socket.
 * All others are closed here. */
_Noreturn void supervisor_main(const struct init *init, int control_fd, const int stdio[3]);

struct launch_failure {
    int errno_value;
    enum wire_step step;
};
/* An execution's spec, taken apart. Strings live in arena. */
struct launch {
    char *arena;
    const char **argv;
    const char **envp;
    const char *cwd;
    const char *path;      /* value of PATH in envp; "" if none */
    const uint8_t *script; /* borrowed from the spec; NULL if none */
    size_t script_len;
    const char *suffix;
    bool has_stdin;
    size_t argc;
    size_t envc;
};
/* Returns 0, or -1 and why. argv has room for one more argument. */
int launch_parse(const struct init *init, const uint8_t *spec, size_t spec_len,
                 struct launch *launch, struct launch_failure *failure);
void launch_add_argument(struct launch *launch, const char *argument);
/* What can be done before the spec is known. Returns 0 or an errno. */
int launch_prepare(const struct init *init);
/* Becomes the program, on descriptors 0, 1, 2. Returns only when that failed: -1 and why. */
int launch_exec(const struct init *init, const struct launch *launch,
                struct launch_failure *failure);
void launch_free(struct launch *launch);

/* Writes the script as the guest's user; path is PATH_MAX bytes. Returns 0 or an errno. */
int script_write(const struct init_options *options, const uint8_t *data, size_t len,
                 const char *suffix, char *path);
void script_remove(const struct init_options *options, const char *path);

/* --- tree.c --------------------------------------------------------------------------------- */
/* Sends a signal to every descendant of root that one walk of /proc finds. */
void tree_signal(pid_t root, int signal_number);
/* Kills pid and its descendants if it is a child of the calling process. */
void tree_kill_orphan(pid_t pid);
/* Kills every descendant of the calling process, which must be a subreaper, until none is left.
 * If a fork bomb starves it, whatever else the guest's user runs is stopped meanwhile.
 * reap collects dead children without waiting and returns -1 once there is no child at all, else
 * a process group that holds descendants only, or 0. */
void tree_end(const struct init_options *options, pid_t (*reap)(void *arg), void *arg);

#endif
