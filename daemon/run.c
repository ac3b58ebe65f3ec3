/*
 * paddockd's main process: builds every part around one struct daemon, runs the
 * loop, and ends in order. Called by main.c once privileges are gone.
 *
 * The end: a first SIGTERM or SIGINT closes the node and the door, ends the
 * guests, waits until what is known of them is committed, and leaves; a second
 * one, or DRAIN_MAX_MS, leaves at once (the keeper then ends what is left, and
 * the next registration ends the rows).
 */
#include "daemon/run.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/answer.h"
#include "daemon/context.h"
#include "daemon/door.h"
#include "daemon/keeper_link.h"
#include "daemon/node.h"
#include "daemon/sandbox.h"

/* Well below systemd's TimeoutStopSec of 90 s. */
#define DRAIN_MAX_MS 30000

struct run {
    struct daemon d; /* first: on_empty and the others get it back as struct run */
    struct loop_signal *sigterm;
    struct loop_signal *sigint;
    struct loop_signal *sighup;
    struct loop_timer *drain_limit;
    bool draining;
};

static struct run *run_of(struct daemon *d)
{
    return (struct run *)(void *)d;
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
    log_info(&d->log, "ready", "node=%s epoch=%s", node_number_text(d->node),
             node_epoch_text(d->node));
}

/* The order is that of dependence; destroy() goes backwards. */
static int build(struct run *run, int keeper_sock, const char *facts_json, struct error *err)
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
    run->drain_limit = loop_timer_new(d->loop, drain_limit_fired, run);
    run->sigterm = loop_signal_new(d->loop, SIGTERM, stop_signal, run);
    run->sigint = loop_signal_new(d->loop, SIGINT, stop_signal, run);
    run->sighup = loop_signal_new(d->loop, SIGHUP, hangup_signal, run);
    if (!run->drain_limit || !run->sigterm || !run->sigint || !run->sighup)
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
    door_free(d->door);
    if (d->sandboxes)
        sandboxes_free(d->sandboxes);
    answers_free(d->answers);
    node_free(d->node);
    dbq_free(d->db);
    keeper_link_free(d->keeper);
    loop_free(d->loop);
}

int daemon_run(const struct config *config, int keeper_sock, const char *facts_json,
               struct error *err)
{
    struct run run;
    memset(&run, 0, sizeof(run));
    run.d.config = config;
    run.d.exit_code = DAEMON_EXIT_DRAINED;
    log_init(&run.d.log, "paddockd");
    if (log_level_parse(config->log_level, &run.d.log.level) < 0)
        run.d.log.level = LOG_INFO;
    /* A peer that is gone shows as EPIPE; no write may end the daemon. */
    signal(SIGPIPE, SIG_IGN);

    int exit_code;
    if (build(&run, keeper_sock, facts_json, err) == 0) {
        node_start(run.d.node, registered);
        loop_run(run.d.loop);
        exit_code = run.d.exit_code;
    } else {
        exit_code = err->code == ERR_CONFIG ? DAEMON_EXIT_CONFIG : DAEMON_EXIT_LOST;
    }
    destroy(&run);
    return exit_code;
}
