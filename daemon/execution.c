/*
 * An execution's life, called by sandbox.c:
 *
 *   CLAIMING   the claim is in flight
 *   LOOKING    it gave no row; the row is read to learn why
 *   WAITING    claimed; its sandbox's guest is being taken over from a former daemon
 *   FETCHING   it was found in such a guest, and takes stdin, which is read from its row again
 *   RUNNING    in the guest; its timer runs from the claim
 *   KILLING    its time is over or it was cancelled, KILL was sent; EXIT is awaited
 *   MEASURING  it failed; whether the kernel took its memory is asked for
 *   RECORDING  the result is on the way to the database, again and again until it is taken
 *
 * Must stay true: a result that the guest gave is never dropped while its sandbox lives, and an
 * outcome that is not known is recorded as lost, never as anything else.
 */
#include "daemon/execution.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/db.h"
#include "common/text.h"
#include "daemon/answer.h"
#include "daemon/capture.h"
#include "daemon/execution_result.h"
#include "daemon/execution_spec.h"
#include "daemon/node.h"

/* Beyond the grace period, for SIGKILL to work through a tree and the frames to arrive: a guest
 * that is starved of CPU was measured to take many seconds. */
#define KILL_SLACK_MS 10000
/* The keeper answers in less than a millisecond. */
#define MEASURE_MAX_MS 2000
#define RETRY_FIRST_MS 1000
#define RETRY_MAX_MS 30000
/* After so many refusals of a result the row is recorded as lost; after as many again it is left
 * to the sandbox's end. */
#define REFUSALS_MAX 3
/* Specs and stdin of one sandbox that wait for its guest to take them. */
#define OUTGOING_MAX ((size_t)128 * 1024 * 1024)

enum execution_phase {
    CLAIMING,
    LOOKING,
    WAITING,
    FETCHING,
    RUNNING,
    KILLING,
    MEASURING,
    RECORDING
};

struct execution {
    struct daemon *d;
    char id[ID_SIZE];
    char sandbox_id[ID_SIZE];
    const struct execution_handler *handler;
    void *arg;
    enum execution_phase phase;
    bool announced; /* again, while the claim was in flight */
    bool has_channel;
    bool ends_sandbox; /* onTimeout terminate */
    bool cancel_wanted;
    enum execution_stop stop;
    int64_t timeout_ms;         /* what is left of it when it begins; -1: none */
    struct execution_spec spec; /* until it is sent */
    struct loop_timer *timer; /* by phase: time-out, missing EXIT, no measure, next try to record */
    struct channel_stream *stream;
    struct capture out, err;
    struct execution_result result;
    struct capture_result out_kept, err_kept;
    int64_t retry_ms;
    unsigned refusals;
    int64_t claimed_ms; /* monotonic */
};

static const char unknown_to_guest[] = "the daemon was restarted, and its guest does not know it";

static void on_claim(const PGresult *res, const struct error *err, void *arg);
static void learn(struct execution *e, const PGresult *res, int row);
static void on_timer(void *arg);
static void record(struct execution *e);

static void done(struct execution *e)
{
    bool terminate =
        e->phase == RECORDING && e->ends_sandbox &&
        (e->result.state == EXECUTION_TIMED_OUT || e->result.state == EXECUTION_CANCELLED);

    e->handler->on_done(e->arg, e, terminate);
}

/* --- recording ----------------------------------------------------------------------------- */

static void kept_free(struct execution *e)
{
    free(e->out_kept.data);
    free(e->err_kept.data);
    e->out_kept = e->err_kept = (struct capture_result){.omitted_at = -1};
}

static void retry_later(struct execution *e)
{
    e->retry_ms = e->retry_ms ? e->retry_ms * 2 : RETRY_FIRST_MS;
    if (e->retry_ms > RETRY_MAX_MS)
        e->retry_ms = RETRY_MAX_MS;
    if (loop_timer_arm(e->timer, e->retry_ms) < 0)
        done(e); /* the sandbox's end records it as lost */
}

static void refused(struct execution *e, const struct error *err)
{
    log_error_value(&e->d->log, LOG_ERROR, "execution_not_recorded", err);
    if (err->code != ERR_DATABASE_UNAVAILABLE)
        e->refusals++;
    if (e->refusals == REFUSALS_MAX) {
        kept_free(e);
        execution_result_lost("the database refused its result", &e->result);
    }
    if (e->refusals >= 2 * REFUSALS_MAX)
        done(e);
    else
        retry_later(e);
}

static void on_recorded(const PGresult *res, const struct error *err, void *arg)
{
    struct execution *e = arg;

    if (!res) {
        refused(e, err);
        return;
    }
    if (PQntuples(res) > 0) {
        const char *state = db_column(res, 0, "state");

        log_info(&e->d->log, "execution_state", "id=%s sandbox=%s state=%s ms=%lld", e->id,
                 e->sandbox_id, state ? state : "?", (long long)(clock_mono_ms() - e->claimed_ms));
        answers_execution_row(e->d->answers, res, 0);
    }
    done(e);
}

/* A number as a text parameter; NULL for none. */
static const char *number(char out[24], int64_t value, int64_t none)
{
    if (value == none)
        return NULL;
    (void)snprintf(out, 24, "%lld", (long long)value);
    return out;
}

static struct dbq_param bytes(const struct capture_result *kept)
{
    return (struct dbq_param){
        .value = kept->data ? kept->data : "", .len = kept->len, .binary = true};
}

static void record(struct execution *e)
{
    const struct execution_result *r = &e->result;
    char code[24], sig[24], cpu[24], out_total[24], out_at[24], err_total[24], err_at[24];
    struct error err = ERROR_INIT;
    const struct dbq_param params[] = {
        {.value = e->id},
        {.value = node_number_text(e->d->node)},
        {.value = node_epoch_text(e->d->node)},
        {.value = execution_state_name(r->state)},
        {.value = r->reason},
        {.value = r->error[0] ? r->error : NULL},
        {.value = number(code, r->exit_code, -1)},
        {.value = number(sig, r->signal, 0)},
        bytes(&e->out_kept),
        {.value = number(out_total, (int64_t)e->out_kept.total, -1)},
        {.value = number(out_at, e->out_kept.omitted_at, -1)},
        bytes(&e->err_kept),
        {.value = number(err_total, (int64_t)e->err_kept.total, -1)},
        {.value = number(err_at, e->err_kept.omitted_at, -1)},
        {.value = number(cpu, r->cpu_us, -1)},
        {.value = r->oom_killed ? "true" : "false"},
    };

    if (dbq_send(e->d->db, STMT_EXECUTION_FINISH, params, on_recorded, e, &err) < 0)
        refused(e, &err);
}

/* The result is known. */
static void ended(struct execution *e)
{
    bool had_channel = e->has_channel;

    e->phase = RECORDING;
    e->stream = NULL;
    e->has_channel = false;
    loop_timer_disarm(e->timer);
    execution_spec_free(&e->spec);
    capture_finish(&e->out, &e->out_kept);
    capture_finish(&e->err, &e->err_kept);
    if (had_channel)
        e->handler->on_ended(e->arg, e);
    record(e);
}

/* It never got as far as the guest. */
static void refuse(struct execution *e, struct error *err)
{
    log_warn(&e->d->log, "execution_refused", "id=%s sandbox=%s code=%s", e->id, e->sandbox_id,
             error_code_name(err->code));
    error_prefix(err, "it was not given to the guest");
    execution_result_refused(err->detail, &e->result);
    ended(e);
}

/* --- the stream ---------------------------------------------------------------------------- */

static void on_started(void *arg)
{
    const struct execution *e = arg;

    log_debug(&e->d->log, "execution_started", "id=%s sandbox=%s ms=%lld", e->id, e->sandbox_id,
              (long long)(clock_mono_ms() - e->claimed_ms));
}

static void on_data(void *arg, enum wire_channel channel, const void *data, size_t len)
{
    struct execution *e = arg;

    capture_append(channel == WIRE_STDOUT ? &e->out : &e->err, data, len);
}

static void on_exit_result(void *arg, const struct channel_exit *result)
{
    struct execution *e = arg;

    execution_result_exit(result, e->stop, &e->result);
    e->stream = NULL;
    /* The kernel's OOM killer takes a process of gVisor's, and what the guest's process ends with
     * is a failure like any other. */
    if (e->result.state == EXECUTION_FAILED && !result->killed &&
        loop_timer_arm(e->timer, MEASURE_MAX_MS) == 0 && e->handler->on_failed(e->arg, e))
        e->phase = MEASURING;
    else
        ended(e);
}

void execution_measured(struct execution *execution, bool oom_killed)
{
    if (execution->phase != MEASURING)
        return;
    if (oom_killed)
        execution_result_oom_killed(&execution->result);
    ended(execution);
}

bool execution_is_measured(const struct execution *execution)
{
    return execution->phase == MEASURING;
}

/* Nobody will ever know. why: for people. */
static void lose(struct execution *e, const char *why)
{
    execution_result_lost(why, &e->result);
    e->result.reason = "daemon_restart";
    ended(e);
}

static void on_failed(void *arg, enum wire_step step, int errno_value)
{
    struct execution *e = arg;

    /* It was begun already, for a former daemon whose claim the database forgot. */
    if (step == WIRE_STEP_SPEC && errno_value == EEXIST) {
        lose(e, "it was begun before, and the database forgot its claim");
        return;
    }
    execution_result_failed(step, errno_value, &e->result);
    ended(e);
}

/* Its guest is gone. The row is ended as lost together with the sandbox's, with its reason. */
static void on_lost(void *arg)
{
    struct execution *e = arg;

    e->stream = NULL;
    e->has_channel = false;
    e->handler->on_ended(e->arg, e);
    done(e);
}

static const struct channel_stream_handler stream_handler = {
    .on_started = on_started,
    .on_data = on_data,
    .on_exit = on_exit_result,
    .on_failed = on_failed,
    .on_lost = on_lost,
};

/* The first to ask is the reason. */
static void end_tree(struct execution *e, enum execution_stop stop)
{
    int64_t grace_ms = e->d->config->guest_kill_grace;

    e->stop = stop;
    e->phase = KILLING;
    if (loop_timer_arm(e->timer, grace_ms + KILL_SLACK_MS) < 0)
        e->handler->on_stuck(e->arg, e);
    else
        channel_kill(e->stream, (uint32_t)grace_ms);
}

static void on_timer(void *arg)
{
    struct execution *e = arg;

    switch (e->phase) {
    case RUNNING:
        end_tree(e, EXECUTION_STOP_TIMEOUT);
        break;
    case KILLING:
        log_warn(&e->d->log, "execution_stuck", "id=%s sandbox=%s", e->id, e->sandbox_id);
        e->handler->on_stuck(e->arg, e);
        break;
    case MEASURING:
        execution_measured(e, false);
        break;
    case RECORDING:
        record(e);
        break;
    case CLAIMING:
    case LOOKING:
    case WAITING:
    case FETCHING:
        break;
    }
}

/* --- found in a guest that was taken over --------------------------------------------------- */

static void on_input(const PGresult *res, const struct error *err, void *arg);

/* Why a former daemon had it killed: a cancel is in its row, and else it was its time. */
static enum execution_stop killed_for(const struct execution *e)
{
    return e->cancel_wanted ? EXECUTION_STOP_CANCEL : EXECUTION_STOP_TIMEOUT;
}

/* How it ended while no daemon looked, or a daemon that did not record it. */
static void found_over(struct execution *e, const struct channel_found *found)
{
    if (found->failed) {
        on_failed(e, found->step, found->errno_value);
        return;
    }
    execution_result_exit(&found->exit, killed_for(e), &e->result);
    ended(e);
}

/* The guest goes on with it: from here as if this daemon had begun it, but for what it sent before,
 * which is not to be had any more. */
static void go_on(struct execution *e, const struct channel_found *found)
{
    int64_t wait_ms = e->timeout_ms;

    if (found->takes_input && found->stdin_bytes > e->spec.input.len) {
        log_warn(&e->d->log, "execution_stdin_lost", "id=%s sandbox=%s", e->id, e->sandbox_id);
        channel_abandon(found->stream);
        lose(e, "the daemon was restarted, and its stdin cannot be gone on with");
        return;
    }
    e->stream = found->stream;
    e->phase = RUNNING;
    if (found->killed) {
        e->stop = killed_for(e);
        e->phase = KILLING;
        wait_ms = e->d->config->guest_kill_grace + KILL_SLACK_MS;
    }
    channel_claim(found->stream, found->takes_input ? &e->spec.input : NULL, &stream_handler, e);
    execution_spec_free(&e->spec);
    if (wait_ms >= 0 && loop_timer_arm(e->timer, wait_ms) < 0)
        e->handler->on_stuck(e->arg, e);
    else if (e->cancel_wanted && e->phase == RUNNING)
        end_tree(e, EXECUTION_STOP_CANCEL);
}

static void take(struct execution *e, const struct channel_found *found)
{
    log_info(&e->d->log, "execution_found", "id=%s sandbox=%s is=%s stdout=%llu stderr=%llu", e->id,
             e->sandbox_id, found->stream ? "live" : "over",
             (unsigned long long)found->stdout_bytes, (unsigned long long)found->stderr_bytes);
    capture_skip(&e->out, found->stdout_bytes);
    capture_skip(&e->err, found->stderr_bytes);
    if (found->stream)
        go_on(e, found);
    else
        found_over(e, found);
}

static bool find_stream(const struct execution *e, const struct channel *channel,
                        struct channel_found *found)
{
    uint8_t uuid[WIRE_UUID_SIZE];

    id_to_bytes(e->id, uuid);
    return channel_find(channel, uuid, found);
}

/* Its stream waits meanwhile, without a byte of credit. */
static void fetch_input(struct execution *e)
{
    const struct dbq_param params[] = {{.value = e->id}};
    struct error err = ERROR_INIT;

    e->has_channel = false;
    e->handler->on_ended(e->arg, e);
    e->phase = FETCHING;
    if (dbq_send(e->d->db, STMT_EXECUTION_INPUT, params, on_input, e, &err) == 0)
        return;
    log_error_value(&e->d->log, LOG_WARN, "execution_not_read", &err);
    lose(e, "the daemon was restarted, and its stdin could not be read again");
}

/* False: the guest knows nothing of it. */
static bool take_found(struct execution *e, const struct channel *channel)
{
    struct channel_found found;

    if (!find_stream(e, channel, &found))
        return false;
    if (found.stream && found.takes_input && !e->spec.has_input)
        fetch_input(e);
    else
        take(e, &found);
    return true;
}

/* The channel of its sandbox; false when it has none, and the execution is seen to. */
static bool has_place(struct execution *e, struct channel **channel)
{
    switch (e->handler->on_claimed(e->arg, e, channel)) {
    case PLACE_READY:
        e->has_channel = true;
        return true;
    case PLACE_LATER:
        e->phase = WAITING;
        return false;
    case PLACE_ENDING:
        done(e);
        return false;
    case PLACE_NONE:
        break;
    }
    log_fail(&e->d->log, "execution_without_sandbox", "id=%s sandbox=%s", e->id, e->sandbox_id);
    execution_result_lost("its sandbox is not held by this daemon", &e->result);
    ended(e);
    return false;
}

static void on_input(const PGresult *res, const struct error *err, void *arg)
{
    struct execution *e = arg;
    const char *text = res && PQntuples(res) > 0 ? db_column(res, 0, "stdin") : NULL;
    struct channel *channel = NULL;
    struct channel_found found;

    if (!res)
        log_error_value(&e->d->log, LOG_WARN, "execution_not_read", err);
    if (text && buf_append(&e->spec.input, text, strlen(text)) == 0)
        e->spec.has_input = true;
    if (!has_place(e, &channel))
        return;
    if (find_stream(e, channel, &found))
        take(e, &found);
    else
        lose(e, unknown_to_guest);
}

/* --- the claim ----------------------------------------------------------------------------- */

static int read_row(struct execution *e, const PGresult *res, int row, struct error *err)
{
    const char *timeout = db_column(res, row, "timeout_ms");
    const char *on_timeout = db_column(res, row, "on_timeout");

    e->timeout_ms = -1;
    e->cancel_wanted = e->cancel_wanted || db_column(res, row, "cancel_requested_at") != NULL;
    e->ends_sandbox = on_timeout && strcmp(on_timeout, "terminate") == 0;
    if (timeout && text_parse_i64(timeout, 1, INT64_MAX / 2000, &e->timeout_ms) < 0)
        return error_set(err, ERR_INVALID_FIELD, "timeout_ms is out of range");
    return 0;
}

static int read_spec(struct execution *e, const PGresult *res, struct error *err)
{
    const char *json = db_column(res, 0, "spec");

    if (!json)
        return error_set(err, ERR_INVALID_FIELD, "there is no description");
    return execution_spec_parse(json, strlen(json), &e->spec, err);
}

/* Into the guest. */
static int start(struct execution *e, struct channel *channel, struct error *err)
{
    struct execution_spec *spec = &e->spec;
    uint8_t uuid[WIRE_UUID_SIZE];

    if (spec->wire.len + spec->input.len > OUTGOING_MAX - channel_outgoing_bytes(channel))
        return error_set(err, ERR_LIMIT_EXCEEDED,
                         "the guest has not taken %zu bytes of earlier input yet",
                         channel_outgoing_bytes(channel));
    if (e->timeout_ms >= 0 && loop_timer_arm(e->timer, e->timeout_ms) < 0)
        return error_set(err, ERR_SYSTEM, "no timer");
    e->phase = RUNNING;
    id_to_bytes(e->id, uuid);
    e->stream = channel_exec(channel, uuid, &spec->wire, spec->has_input ? &spec->input : NULL,
                             &stream_handler, e, err);
    execution_spec_free(spec);
    return e->stream ? 0 : -1;
}

/* A guest that was taken over may know it: the database can have forgotten a former claim. */
static void begin(struct execution *e, struct channel *channel)
{
    struct error err = ERROR_INIT;

    if (take_found(e, channel))
        return;
    if (start(e, channel, &err) < 0)
        refuse(e, &err);
    else if (e->cancel_wanted)
        end_tree(e, EXECUTION_STOP_CANCEL);
}

static void claimed(struct execution *e, const PGresult *res)
{
    const char *sandbox_id = db_column(res, 0, "sandbox_id");
    struct error err = ERROR_INIT;
    struct channel *channel = NULL;

    e->claimed_ms = clock_mono_ms();
    if (sandbox_id && id_is_valid(sandbox_id))
        memcpy(e->sandbox_id, sandbox_id, ID_SIZE);
    if (read_row(e, res, 0, &err) < 0 || read_spec(e, res, &err) < 0) {
        refuse(e, &err);
        return;
    }
    if (has_place(e, &channel))
        begin(e, channel);
}

static int send_claim(struct execution *e, struct error *err)
{
    const struct dbq_param params[] = {{.value = e->id},
                                       {.value = node_number_text(e->d->node)},
                                       {.value = node_epoch_text(e->d->node)}};

    e->phase = CLAIMING;
    e->announced = false;
    return dbq_send(e->d->db, STMT_EXECUTION_CLAIM, params, on_claim, e, err);
}

/* Somebody claimed it, and it is in no table here: a former daemon, in a guest that is being taken
 * over; or this one, and the answer was lost with a connection. */
static void looked_running(struct execution *e, const PGresult *res)
{
    struct channel *channel = NULL;

    learn(e, res, 0);
    if (!has_place(e, &channel) || take_found(e, channel))
        return;
    execution_result_lost("the database's answer to its claim was lost", &e->result);
    ended(e);
}

/* The claim gave no row. The rule: not ready yet, taken, or ended, and nothing to do. But a claim
 * whose answer was lost with a connection was sent again: then the row runs and nobody runs it. */
static void on_looked(const PGresult *res, const struct error *err, void *arg)
{
    struct execution *e = arg;
    struct error send_err = ERROR_INIT;
    const char *state = res && PQntuples(res) > 0 ? db_column(res, 0, "state") : NULL;
    const char *sandbox_id = state ? db_column(res, 0, "sandbox_id") : NULL;
    enum execution_state known;

    if (!res) {
        log_error_value(&e->d->log, LOG_WARN, "execution_not_read", err);
        node_scan_soon(e->d->node);
    }
    /* It was cancelled before it began. */
    if (state && execution_state_parse(state, &known) == 0 && execution_state_is_terminal(known))
        answers_execution_row(e->d->answers, res, 0);
    if (state && strcmp(state, "running") == 0) {
        if (sandbox_id && id_is_valid(sandbox_id))
            memcpy(e->sandbox_id, sandbox_id, ID_SIZE);
        looked_running(e, res);
    } else if (!state || strcmp(state, "queued") != 0 || !e->announced ||
               send_claim(e, &send_err) < 0) {
        done(e);
    }
}

static void on_claim(const PGresult *res, const struct error *err, void *arg)
{
    struct execution *e = arg;
    const struct dbq_param params[] = {{.value = e->id}};
    struct error send_err = ERROR_INIT;

    if (!res) {
        log_error_value(&e->d->log, LOG_WARN, "execution_not_claimed", err);
        node_scan_soon(e->d->node);
        done(e);
    } else if (PQntuples(res) > 0) {
        claimed(e, res);
    } else {
        e->phase = LOOKING;
        if (dbq_send(e->d->db, STMT_EXECUTION_BY_ID, params, on_looked, e, &send_err) < 0)
            done(e);
    }
}

/* --- for the owner ------------------------------------------------------------------------- */

static struct execution *make(struct daemon *d, const char *id,
                              const struct execution_handler *handler, void *arg, struct error *err)
{
    struct execution *e;

    if (!id_is_valid(id)) {
        error_set(err, ERR_PROTOCOL, "an execution's id is no UUID");
        return NULL;
    }
    e = calloc(1, sizeof(*e));
    if (e)
        e->timer = loop_timer_new(d->loop, on_timer, e);
    if (!e || !e->timer) {
        free(e);
        error_set(err, ERR_SYSTEM, "no memory for an execution");
        return NULL;
    }
    e->d = d;
    e->handler = handler;
    e->arg = arg;
    e->timeout_ms = -1;
    e->claimed_ms = clock_mono_ms();
    memcpy(e->id, id, ID_SIZE);
    e->out_kept.omitted_at = e->err_kept.omitted_at = -1;
    capture_init(&e->out, (size_t)d->config->limits_output_bytes);
    capture_init(&e->err, (size_t)d->config->limits_output_bytes);
    return e;
}

struct execution *execution_new(struct daemon *d, const char *id,
                                const struct execution_handler *handler, void *arg,
                                struct error *err)
{
    struct execution *e = make(d, id, handler, arg, err);

    if (e && send_claim(e, err) < 0) {
        loop_timer_free(e->timer);
        free(e);
        return NULL;
    }
    return e;
}

/* What is left of its time, by the database's clock. */
static void count_time(struct execution *e, const PGresult *res, int row)
{
    const char *ran = db_column(res, row, "ran_ms");
    int64_t ran_ms = 0;

    if (e->timeout_ms < 0 || !ran || text_parse_i64(ran, 0, INT64_MAX, &ran_ms) < 0)
        return;
    e->timeout_ms = ran_ms < e->timeout_ms ? e->timeout_ms - ran_ms : 0;
}

/* Its limits, what is left of its time, and whether it was cancelled. */
static void learn(struct execution *e, const PGresult *res, int row)
{
    struct error err = ERROR_INIT;

    if (read_row(e, res, row, &err) < 0)
        log_error_value(&e->d->log, LOG_WARN, "execution_row", &err);
    count_time(e, res, row);
}

void execution_learn(struct execution *e, const char *sandbox_id, const PGresult *res, int row)
{
    memcpy(e->sandbox_id, sandbox_id, ID_SIZE);
    learn(e, res, row);
}

struct execution *execution_adopt(struct daemon *d, const char *sandbox_id, const PGresult *res,
                                  int row, const struct execution_handler *handler, void *arg,
                                  struct error *err)
{
    const char *id = db_column(res, row, "id");
    struct execution *e = make(d, id ? id : "", handler, arg, err);

    if (!e)
        return NULL;
    e->phase = WAITING;
    execution_learn(e, sandbox_id, res, row);
    return e;
}

bool execution_is_waiting(const struct execution *execution)
{
    return execution->phase == WAITING;
}

bool execution_is_another_ones(const struct execution *execution)
{
    return execution->phase == WAITING && execution->spec.wire.len == 0;
}

bool execution_is_unsettled(const struct execution *execution)
{
    return execution->phase == CLAIMING || execution->phase == LOOKING ||
           execution->phase == RECORDING;
}

void execution_resume(struct execution *execution)
{
    struct channel *channel = NULL;

    if (!has_place(execution, &channel))
        return;
    /* Only a claim of this daemon has its description; of any other, nobody may begin it again. */
    if (execution->spec.wire.len > 0)
        begin(execution, channel);
    else if (!take_found(execution, channel))
        lose(execution, unknown_to_guest);
}

void execution_drop(struct execution *execution)
{
    done(execution);
}

static void destroy(void *ptr)
{
    struct execution *e = ptr;

    capture_free(&e->out);
    capture_free(&e->err);
    execution_spec_free(&e->spec);
    kept_free(e);
    free(e);
}

void execution_free(struct execution *execution)
{
    if (!execution)
        return;
    dbq_forget(execution->d->db, execution);
    loop_timer_free(execution->timer);
    execution->timer = NULL;
    loop_defer_free(execution->d->loop, destroy, execution);
}

const char *execution_id(const struct execution *execution)
{
    return execution->id;
}

const char *execution_sandbox_id(const struct execution *execution)
{
    return execution->sandbox_id;
}

void execution_announced(struct execution *execution)
{
    execution->announced = true;
}

void execution_cancel(struct execution *execution)
{
    execution->cancel_wanted = true;
    if (execution->phase == RUNNING)
        end_tree(execution, EXECUTION_STOP_CANCEL);
}
