/*
 * paddockd's main process: builds every part around one struct daemon, runs the
 * loop, and ends in order. Called by main_process.c once privileges are gone.
 *
 * The end: a first SIGTERM or SIGINT closes the node and the door, ends the
 * guests, waits until what is known of them is committed, and leaves; a second
 * one, or DRAIN_MAX_MS, leaves at once (the keeper then ends what is left, and
 * the next registration ends the rows).
 *
 * Or the supervisor's LEAVE, for a newer main: no new work is taken, what is on
 * its way between guest and row comes to its end (LEAVE_MAX_MS at most), and then
 * everything is let go of as it stands. The guests, what runs in them and the
 * rows are the next main's; so are the clients that wait for an answer.
 */
#include "daemon/run.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/fdpass.h"
#include "daemon/answer.h"
#include "daemon/context.h"
#include "daemon/door.h"
#include "daemon/keeper_link.h"
#include "daemon/node.h"
#include "daemon/parent_link.h"
#include "daemon/sandbox.h"
#include "daemon/upkeep.h"

/* Below the supervisor's patience; statements take milliseconds, unless the database is away. */
#define LEAVE_MAX_MS 8000
#define LEAVE_LOOK_MS 10
/* Until the next main's door is open. */
#define HAND_OVER_MAX_MS 10000
#define HAND_OVER_RETRY_MS 10
/* Well below systemd's TimeoutStopSec of 90 s. */
#define DRAIN_MAX_MS 30000

struct run {
    struct daemon d; /* first: on_empty and the others get it back as struct run */
    struct loop_signal *sigterm;
    struct loop_signal *sigint;
    struct loop_signal *sighup;
    struct loop_timer *drain_limit;
    struct loop_timer *leave_look;
    struct parent_link *parent; /* NULL: none */
    bool draining;
    bool leaving;
    int64_t leave_by_ms;
};

static struct run *run_of(struct daemon *d)
{
    return (struct run *)d;
}

static void committed(void *arg)
{
    struct run *run = arg;
    log_info(&run->d.log, "drained", NULL);
    run->d.exit_code = DAEMON_EXIT_DRAINED;
    loop_stop(run->d.loop);
}

static void guests_ended(struct daemon *d)
{
    /* Who never had an epoch has nothing to record, and may wait for a database in vain. */
    if (node_is_registered(d->node))
        dbq_when_idle(d->db, committed, run_of(d));
    else
        committed(run_of(d));
}

static void leave_now(struct run *run, const char *why)
{
    log_warn(&run->d.log, "leaving_undrained", "why=%s sandboxes=%u", why,
             sandboxes_count(run->d.sandboxes));
    run->d.exit_code = DAEMON_EXIT_LOST;
    loop_stop(run->d.loop);
}

static void drain_limit_fired(void *arg)
{
    leave_now(arg, "time_limit");
}

static void stop_signal(void *arg)
{
    struct run *run = arg;
    if (run->draining) {
        leave_now(run, "second_signal");
        return;
    }
    run->draining = true;
    log_info(&run->d.log, "draining", "sandboxes=%u", sandboxes_count(run->d.sandboxes));
    if (loop_timer_arm(run->drain_limit, DRAIN_MAX_MS) < 0) {
        leave_now(run, "no_memory");
        return;
    }
    node_close(run->d.node);
    door_free(run->d.door);
    run->d.door = NULL;
    sandboxes_shutdown(run->d.sandboxes, guests_ended);
}

/* --- making way ---------------------------------------------------------------------------- */

static void leave(struct run *run, const char *why)
{
    log_info(&run->d.log, "left", "sandboxes=%u why=%s", sandboxes_count(run->d.sandboxes), why);
    run->d.exit_code = DAEMON_EXIT_LEFT;
    loop_stop(run->d.loop);
}

static void look_whether_settled(void *arg);

static void look_later(struct run *run)
{
    if (clock_mono_ms() >= run->leave_by_ms || loop_timer_arm(run->leave_look, LEAVE_LOOK_MS) < 0)
        leave(run, "time_limit");
}

static void statements_done(void *arg)
{
    struct run *run = arg;
    if (sandboxes_are_settled(run->d.sandboxes))
        leave(run, "settled");
}

static void look_whether_settled(void *arg)
{
    struct run *run = arg;
    dbq_when_idle(run->d.db, sandboxes_are_settled(run->d.sandboxes) ? statements_done : NULL, run);
    look_later(run);
}

static void leave_ordered(struct daemon *d)
{
    struct run *run = run_of(d);
    if (run->draining || run->leaving)
        return;
    run->leaving = true;
    run->leave_by_ms = clock_mono_ms() + LEAVE_MAX_MS;
    log_info(&d->log, "leaving", "sandboxes=%u", sandboxes_count(d->sandboxes));
    sandboxes_take_no_work(d->sandboxes);
    look_whether_settled(run);
}

static void supervisor_lost(struct daemon *d)
{
    leave_now(run_of(d), "supervisor_gone");
}

/* The next main's door takes them as it takes those of handlers. */
static void hand_over(const struct log *log, const char *door_path, struct answers_held *held)
{
    int64_t deadline_ms = clock_mono_ms() + HAND_OVER_MAX_MS;
    struct error err = ERROR_INIT;
    unsigned given = 0;
    int sock = -1;

    while (held->count > 0 && clock_mono_ms() < deadline_ms) {
        sock = fdpass_connect(door_path, &err);
        if (sock >= 0)
            break;
        poll(NULL, 0, HAND_OVER_RETRY_MS);
    }
    if (sock >= 0) {
        given = answers_held_send(held, sock);
        close(sock);
    }
    if (held->count > 0)
        log_info(log, "waiters_handed_over", "given=%u of=%u", given, held->count);
}

static void hangup_signal(void *arg)
{
    struct run *run = arg;
    log_info(&run->d.log, "signal_ignored", "signal=SIGHUP new_configuration_needs=restart");
}

static void keeper_lost(struct daemon *d)
{
    d->exit_code = DAEMON_EXIT_LOST;
    loop_stop(d->loop);
}

static void registered(struct daemon *d)
{
    const struct run *run = run_of(d);
    log_info(&d->log, "ready", "node=%s epoch=%s", node_number_text(d->node),
             node_epoch_text(d->node));
    if (run->parent)
        parent_link_say(run->parent, MAIN_READY);
    upkeep_start(d->upkeep);
}

/* The keeper has told what it holds; the registration says it to the database. */
static void attached(struct daemon *d)
{
    node_start(d->node, registered);
}

/* The order is that of dependence; destroy() goes backwards. */
static int build(struct run *run, int keeper_sock, int parent_sock, const char *facts_json,
                 struct error *err)
{
    struct daemon *d = &run->d;
    const struct config *config = d->config;
    d->loop = loop_new(err);
    if (d->loop)
        d->keeper = keeper_link_new(d, keeper_sock, sandboxes_keeper_report, keeper_lost, err);
    else
        close(keeper_sock);
    if (!d->keeper)
        return -1;
    if (parent_sock >= 0) {
        run->parent = parent_link_new(d, parent_sock, leave_ordered, supervisor_lost, err);
        if (!run->parent)
            return -1;
    }
    d->db = dbq_new(d->loop, &d->log, config->database_dsn, err);
    if (!d->db)
        return -1;
    dbq_set_timeouts(d->db, config->database_connect_timeout, config->database_statement_timeout);
    d->node = node_new(d, facts_json, err);
    if (!d->node)
        return -1;
    d->answers = answers_new(d, err);
    if (!d->answers)
        return -1;
    d->sandboxes = sandboxes_new(d, err);
    if (!d->sandboxes)
        return -1;
    d->door = door_new(d, err);
    if (!d->door)
        return -1;
    d->upkeep = upkeep_new(d, err);
    if (!d->upkeep)
        return -1;
    run->drain_limit = loop_timer_new(d->loop, drain_limit_fired, run);
    run->leave_look = loop_timer_new(d->loop, look_whether_settled, run);
    run->sigterm = loop_signal_new(d->loop, SIGTERM, stop_signal, run);
    run->sigint = loop_signal_new(d->loop, SIGINT, stop_signal, run);
    run->sighup = loop_signal_new(d->loop, SIGHUP, hangup_signal, run);
    if (!run->drain_limit || !run->leave_look || !run->sigterm || !run->sigint || !run->sighup)
        return error_set(err, ERR_SYSTEM, "out of memory");
    return 0;
}

static void destroy(struct run *run)
{
    struct daemon *d = &run->d;
    loop_signal_free(run->sigterm);
    loop_signal_free(run->sigint);
    loop_signal_free(run->sighup);
    loop_timer_free(run->drain_limit);
    loop_timer_free(run->leave_look);
    upkeep_free(d->upkeep);
    door_free(d->door);
    if (d->sandboxes)
        sandboxes_free(d->sandboxes);
    answers_free(d->answers);
    node_free(d->node);
    dbq_free(d->db);
    parent_link_free(run->parent);
    keeper_link_free(d->keeper);
    loop_free(d->loop);
}

/* Says that it is gone, and then sees to those who wait. */
static void say_left(const struct log *log, const struct config *config, int parent_sock,
                     struct answers_held *held)
{
    const struct main_saying said = {.word = MAIN_LEFT, .link_version = MAIN_LINK_VERSION};

    (void)!send(parent_sock, &said, sizeof(said), MSG_DONTWAIT | MSG_NOSIGNAL);
    hand_over(log, config->daemon_handoff_socket, held);
}

int daemon_run(const struct config *config, int keeper_sock, int parent_sock,
               const char *facts_json, struct error *err)
{
    struct answers_held held = {.count = 0};
    struct run run;
    memset(&run, 0, sizeof(run));
    run.d.config = config;
    run.d.exit_code = DAEMON_EXIT_DRAINED;
    log_init(&run.d.log, "paddockd");
    if (log_level_parse(config->log_level, &run.d.log.level) < 0)
        run.d.log.level = LOG_INFO;
    /* A peer that is gone shows as EPIPE; no write may end the daemon. */
    (void)signal(SIGPIPE, SIG_IGN);

    int exit_code;
    if (build(&run, keeper_sock, parent_sock, facts_json, err) == 0) {
        sandboxes_when_attached(run.d.sandboxes, attached);
        loop_run(run.d.loop);
        exit_code = run.d.exit_code;
        if (exit_code == DAEMON_EXIT_LEFT) {
            door_free(steal_ptr(run.d.door)); /* what came through it waits with the others */
            answers_take_held(run.d.answers, &held);
        }
    } else {
        exit_code = err->code == ERR_CONFIG ? DAEMON_EXIT_CONFIG : DAEMON_EXIT_LOST;
    }
    destroy(&run);
    if (exit_code == DAEMON_EXIT_LEFT)
        say_left(&run.d.log, config, parent_sock, &held);
    answers_held_free(&held);
    return exit_code;
}
