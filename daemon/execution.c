/*
 * An execution's life, called by sandbox.c:
 *
 *   CLAIMING   the claim is in flight
 *   LOOKING    it gave no row; the row is read to learn why
 *   RUNNING    in the guest; its timer runs from the claim
 *   KILLING    the time is over, KILL was sent; EXIT is awaited
 *   RECORDING  the result is on the way to the database, again and again until it is taken
 *
 * Must stay true: a result that the guest gave is never dropped while its sandbox lives, and an
 * outcome that is not known is recorded as lost, never as anything else.
 */
#include "daemon/execution.h"

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
#define RETRY_FIRST_MS 1000
#define RETRY_MAX_MS 30000
/* After so many refusals of a result the row is recorded as lost; after as many again it is left
 * to the sandbox's end. */
#define REFUSALS_MAX 3
/* Specs and stdin of one sandbox that wait for its guest to take them. */
#define OUTGOING_MAX ((size_t)128 * 1024 * 1024)

enum execution_phase { CLAIMING, LOOKING, RUNNING, KILLING, RECORDING };

struct execution {
    struct daemon *d;
    char id[ID_SIZE];
    char sandbox_id[ID_SIZE];
    const struct execution_handler *handler;
    void *arg;
    enum execution_phase phase;
    bool announced; /* again, while the claim was in flight */
    bool has_channel;
    bool terminate_on_timeout;
    bool timed_out;
    struct loop_timer *timer; /* by phase: time-out, missing EXIT, next try to record */
    struct channel_stream *stream;
    struct capture out, err;
    struct execution_result result;
    struct capture_result out_kept, err_kept;
    int64_t retry_ms;
    unsigned refusals;
    int64_t claimed_ms; /* monotonic */
};

static void on_claim(const PGresult *res, const struct error *err, void *arg);
static void on_timer(void *arg);
static void record(struct execution *e);

static void done(struct execution *e)
{
    bool terminate =
        e->phase == RECORDING && e->result.state == EXECUTION_TIMED_OUT && e->terminate_on_timeout;

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
    snprintf(out, 24, "%lld", (long long)value);
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
        {.value = NULL}, /* reason: it ended by itself or by its own time */
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

    execution_result_exit(result, e->timed_out, &e->result);
    ended(e);
}

static void on_failed(void *arg, enum wire_step step, int errno_value)
{
    struct execution *e = arg;

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

static void on_timer(void *arg)
{
    struct execution *e = arg;
    int64_t grace_ms = e->d->config->guest_kill_grace;

    switch (e->phase) {
    case RUNNING:
        e->timed_out = true;
        e->phase = KILLING;
        if (loop_timer_arm(e->timer, grace_ms + KILL_SLACK_MS) < 0)
            e->handler->on_stuck(e->arg, e);
        else
            channel_kill(e->stream, (uint32_t)grace_ms);
        break;
    case KILLING:
        log_warn(&e->d->log, "execution_stuck", "id=%s sandbox=%s", e->id, e->sandbox_id);
        e->handler->on_stuck(e->arg, e);
        break;
    case RECORDING:
        record(e);
        break;
    case CLAIMING:
    case LOOKING:
        break;
    }
}

/* --- the claim ----------------------------------------------------------------------------- */

static int start(struct execution *e, const PGresult *res, struct channel *channel,
                 struct error *err)
{
    _cleanup_execution_spec_ struct execution_spec spec = EXECUTION_SPEC_INIT;
    const char *json = db_column(res, 0, "spec");
    const char *timeout = db_column(res, 0, "timeout_ms");
    const char *on_timeout = db_column(res, 0, "on_timeout");
    int64_t timeout_ms = 0;

    if (timeout && text_parse_i64(timeout, 1, INT64_MAX / 2000, &timeout_ms) < 0)
        return error_set(err, ERR_INVALID_FIELD, "timeout_ms is out of range");
    e->terminate_on_timeout = on_timeout && strcmp(on_timeout, "terminate") == 0;
    if (!json)
        return error_set(err, ERR_INVALID_FIELD, "there is no description");
    if (execution_spec_parse(json, strlen(json), &spec, err) < 0)
        return -1;
    if (spec.wire.len + spec.input.len > OUTGOING_MAX - channel_outgoing_bytes(channel))
        return error_set(err, ERR_LIMIT_EXCEEDED,
                         "the guest has not taken %zu bytes of earlier input yet",
                         channel_outgoing_bytes(channel));
    if (timeout && loop_timer_arm(e->timer, timeout_ms) < 0)
        return error_set(err, ERR_SYSTEM, "no timer");
    e->phase = RUNNING;
    e->stream = channel_exec(channel, &spec.wire, spec.has_input ? &spec.input : NULL,
                             &stream_handler, e, err);
    return e->stream ? 0 : -1;
}

static void claimed(struct execution *e, const PGresult *res)
{
    const char *sandbox_id = db_column(res, 0, "sandbox_id");
    struct error err = ERROR_INIT;
    struct channel *channel;
    bool ending = false;

    e->claimed_ms = clock_mono_ms();
    if (sandbox_id && id_is_valid(sandbox_id))
        memcpy(e->sandbox_id, sandbox_id, ID_SIZE);
    channel = e->handler->on_claimed(e->arg, e, &ending);
    if (!channel && ending) {
        done(e);
        return;
    }
    if (!channel) {
        log_fail(&e->d->log, "execution_without_sandbox", "id=%s sandbox=%s", e->id, e->sandbox_id);
        execution_result_lost("its sandbox is not held by this daemon", &e->result);
        ended(e);
        return;
    }
    e->has_channel = true;
    if (start(e, res, channel, &err) < 0)
        refuse(e, &err);
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

/* The claim gave no row. The rule: not ready yet, taken, or ended, and nothing to do. But a claim
 * whose answer was lost with a connection was sent again: then the row runs and nobody runs it. */
static void on_looked(const PGresult *res, const struct error *err, void *arg)
{
    struct execution *e = arg;
    struct error send_err = ERROR_INIT;
    const char *state = res && PQntuples(res) > 0 ? db_column(res, 0, "state") : NULL;
    const char *sandbox_id = state ? db_column(res, 0, "sandbox_id") : NULL;

    if (!res)
        log_error_value(&e->d->log, LOG_WARN, "execution_not_read", err);
    if (state && strcmp(state, "running") == 0) {
        if (sandbox_id && id_is_valid(sandbox_id))
            memcpy(e->sandbox_id, sandbox_id, ID_SIZE);
        execution_result_lost("the database's answer to its claim was lost", &e->result);
        ended(e);
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

struct execution *execution_new(struct daemon *d, const char *id,
                                const struct execution_handler *handler, void *arg,
                                struct error *err)
{
    struct execution *e;

    if (!id_is_valid(id)) {
        error_set(err, ERR_PROTOCOL, "an execution's id is no UUID");
        return NULL;
    }
    e = calloc(1, sizeof(*e));
    if (!e) {
        error_set(err, ERR_SYSTEM, "no memory for an execution");
        return NULL;
    }
    e->d = d;
    e->handler = handler;
    e->arg = arg;
    memcpy(e->id, id, ID_SIZE);
    e->out_kept.omitted_at = e->err_kept.omitted_at = -1;
    capture_init(&e->out, (size_t)d->config->limits_output_bytes);
    capture_init(&e->err, (size_t)d->config->limits_output_bytes);
    e->timer = loop_timer_new(d->loop, on_timer, e);
    if (!e->timer) {
        error_set(err, ERR_SYSTEM, "no memory for an execution");
        free(e);
        return NULL;
    }
    if (send_claim(e, err) < 0) {
        loop_timer_free(e->timer);
        free(e);
        return NULL;
    }
    return e;
}

static void destroy(void *ptr)
{
    struct execution *e = ptr;

    capture_free(&e->out);
    capture_free(&e->err);
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
