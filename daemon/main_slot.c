/*
 * One main process of the supervisor's. Called by supervisor.c.
 *
 * Must stay true: main is executed anew from the file, the first as any later
 * one, so that what works once works again; until it is loaded nothing depends
 * on it; and it has no descriptor but 0, 1, 2 and its socket.
 */
#include "daemon/main_slot.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/fdpass.h"
#include "daemon/keeper/protocol.h"
#include "daemon/main_protocol.h"

#define EXEC_FAILED 127

static _Noreturn void execute(const char *program, const char *config_path, int link, pid_t parent)
{
    const char *argv[] = {program, "--main", config_path ? "--config" : NULL, config_path, NULL};
    union {
        const char **in;
        char *const *out;
    } args = {.in = argv}; /* execv changes nothing */
    sigset_t none;

    (void)sigemptyset(&none);
    for (int sig = 1; sig < SIGRTMIN; sig++)
        (void)signal(sig, SIG_DFL);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    /* dup2 clears FD_CLOEXEC, unless it is the same already. */
    if ((link == MAIN_LINK_FD ? fcntl(link, F_SETFD, 0) : dup2(link, MAIN_LINK_FD)) < 0 ||
        close_range(MAIN_LINK_FD + 1, ~0U, CLOSE_RANGE_CLOEXEC) < 0 ||
        prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent)
        _exit(EXEC_FAILED);
    (void)execv(program, args.out);
    dprintf(2, "paddockd: cannot execute %s: %s\n", program, strerror(errno));
    _exit(EXEC_FAILED);
}

int main_slot_start(struct main_slot *slot, const char *program, const char *config_path,
                    int64_t silence_ms, struct error *err)
{
    pid_t parent = getpid();
    int fds[2];
    pid_t pid;

    *slot = (struct main_slot)MAIN_SLOT_INIT;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) < 0)
        return error_set_errno(err, "cannot make a socket pair");
    pid = fork();
    if (pid == 0)
        execute(program, config_path, fds[1], parent);
    close(fds[1]);
    if (pid < 0) {
        close(fds[0]);
        return error_set_errno(err, "cannot start the main process");
    }
    slot->pid = pid;
    slot->link = fds[0];
    slot->state = MAIN_LOADING;
    slot->due_ms = clock_mono_ms() + silence_ms;
    return 0;
}

static int send_order(const struct main_slot *slot, enum main_verb verb, const char *facts_json,
                      int fd, struct error *err)
{
    struct main_order *order = calloc(1, sizeof(*order));
    int result;

    if (!order)
        return error_set(err, ERR_SYSTEM, "no memory");
    order->verb = verb;
    if (strlen(facts_json) >= sizeof(order->facts)) {
        free(order);
        return error_set(err, ERR_SYSTEM, "the facts have %zu bytes", strlen(facts_json));
    }
    (void)snprintf(order->facts, sizeof(order->facts), "%s", facts_json);
    result = fdpass_send(slot->link, order, sizeof(*order), fd, err);
    free(order);
    return result;
}

int main_slot_give(struct main_slot *slot, int keeper_sock, const char *facts_json,
                   int64_t silence_ms, struct error *err)
{
    if (send_order(slot, MAIN_START, facts_json, keeper_sock, err) < 0)
        return -1;
    slot->state = MAIN_WORKING;
    slot->due_ms = clock_mono_ms() + silence_ms;
    return 0;
}

void main_slot_leave(struct main_slot *slot, int64_t leave_ms)
{
    struct error err = ERROR_INIT;

    slot->state = MAIN_LEAVING;
    slot->due_ms = clock_mono_ms() + leave_ms;
    if (send_order(slot, MAIN_LEAVE, "", -1, &err) < 0)
        slot->due_ms = 0; /* it does not listen */
}

void main_slot_signal(const struct main_slot *slot, int sig)
{
    if (slot->pid > 0)
        (void)kill(slot->pid, sig);
}

static void close_link(struct main_slot *slot)
{
    if (slot->link >= 0)
        close(slot->link);
    slot->link = -1;
}

static void take(struct main_slot *slot, const struct main_saying *said, int64_t silence_ms,
                 const struct log *log)
{
    if (slot->state == MAIN_LOADING && said->word == MAIN_LOADED) {
        if (said->link_version != MAIN_LINK_VERSION || said->keeper_protocol != KEEPER_PROTOCOL) {
            log_fail(log, "main_of_another_kind",
                     "link=%u keeper=%u mend=restart paddockd: this upgrade changes its other "
                     "parts, too",
                     (unsigned)said->link_version, (unsigned)said->keeper_protocol);
            slot->state = MAIN_GOING;
            slot->due_ms = 0;
            return;
        }
        slot->state = MAIN_IDLE;
        slot->due_ms = INT64_MAX;
    } else if (slot->state == MAIN_LEAVING && said->word == MAIN_LEFT) {
        slot->state = MAIN_GOING;
    } else if (slot->state == MAIN_WORKING && said->word != MAIN_LOADED) {
        slot->is_ready = slot->is_ready || said->word == MAIN_READY;
        slot->has_beaten = true;
        slot->due_ms = clock_mono_ms() + silence_ms;
    }
}

void main_slot_read(struct main_slot *slot, int64_t silence_ms, const struct log *log)
{
    while (slot->link >= 0) {
        struct main_saying said;
        ssize_t len = recv(slot->link, &said, sizeof(said), MSG_DONTWAIT | MSG_TRUNC);

        if (len < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (len != (ssize_t)sizeof(said)) {
            close_link(slot); /* its end, which waitpid tells; or nonsense, and silence follows */
            return;
        }
        take(slot, &said, silence_ms, log);
    }
}

void main_slot_check(struct main_slot *slot, int64_t now_ms, const struct log *log)
{
    if (slot->pid == 0 || now_ms < slot->due_ms)
        return;
    log_fail(log, "main_silent", "pid=%d state=%d", (int)slot->pid, (int)slot->state);
    slot->was_silent = true;
    slot->due_ms = INT64_MAX;
    main_slot_signal(slot, SIGKILL);
}

void main_slot_ended(struct main_slot *slot, int status)
{
    close_link(slot);
    slot->pid = 0;
    slot->state = MAIN_NONE;
    slot->due_ms = INT64_MAX;
    slot->status = status;
}

int main_slot_code(const struct main_slot *slot)
{
    if (WIFEXITED(slot->status))
        return WEXITSTATUS(slot->status);
    return 128 + (WIFSIGNALED(slot->status) ? WTERMSIG(slot->status) : 0);
}
