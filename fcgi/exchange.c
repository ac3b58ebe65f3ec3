/*
 * The stages of one request (see exchange.h), and the helpers with which the
 * handlers answer. What must stay true: a token is checked before a body is
 * kept in memory, a hand-off is only marked once the body was read to its end,
 * and no error leaves without being answered.
 */
#include "fcgi/exchange.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <string.h>

#include "common/clock.h"
#include "common/json.h"
#include "common/resource.h"
#include "common/respond.h"
#include "common/states.h"

/* A page of executions with their output is the largest answer (list.h bounds it). */
#define ANSWER_MAX ((size_t)256 * 1024 * 1024)

static void answer_problem(struct exchange *x, const struct error *err)
{
    x->wants_handoff = false;
    if (error_code_status(err->code) >= 500)
        log_error_value(&x->app->log, error_code_status(err->code) == 500 ? LOG_ERROR : LOG_WARN,
                        "request_failed", err);
    const struct answer_meta meta = {.request_id = x->request_id,
                                     .allow = x->match.allow[0] ? x->match.allow : NULL,
                                     .head_only = x->req.is_head};
    buf_free(&x->out);
    x->status = error_code_status(err->code);
    if (respond_problem(&x->out, err, &meta) < 0) {
        /* Out of memory: a few bytes may still be found; else the web server says 500 itself. */
        static const char plain[] = "Status: 500 Internal Server Error\r\n\r\n";
        buf_free(&x->out);
        x->status = 500;
        if (buf_append_str(&x->out, plain) < 0)
            log_fail(&x->app->log, "out_of_memory", NULL);
    }
}

/* The method as one of ours: a record never holds a client's bytes, nor memory of the request,
 * which is gone after a hand-off. */
static const char *method_for_log(const char *method)
{
    static const char *const known[] = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"};
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        if (strcmp(method, known[i]) == 0)
            return known[i];
    }
    return "other";
}

static int run_stages(struct exchange *x, char *const *variables, request_read_fn *read_fn,
                      void *arg, struct error *err)
{
    if (request_parse(&x->req, variables, err) < 0 || route_find(&x->req, &x->match, err) < 0)
        return -1;
    const struct route *route = x->match.route;
    if (route->access != ROUTE_ACCESS_NONE &&
        auth_check(x->app->db, &x->req, &x->match, &x->auth, err) < 0)
        return -1;
    if (request_query_only(&x->req, route->query, err) < 0)
        return -1;
    size_t limit = route_body_limit(route, x->app->cfg);
    int rc = request_read_body(&x->req, read_fn, arg, limit, err);
    if (rc < 0)
        return -1;
    x->body_ended = true;
    return route->handler(x, err);
}

void exchange_run(struct exchange *x, struct app *app, char *const *variables,
                  request_read_fn *read_fn, void *arg)
{
    *x = (struct exchange){.app = app, .started_ms = clock_mono_ms(), .out.max = ANSWER_MAX};
    id_new(x->request_id);
    (void)snprintf(app->log.request_id, sizeof(app->log.request_id), "%s", x->request_id);

    struct error err = ERROR_INIT;
    if (run_stages(x, variables, read_fn, arg, &err) < 0)
        answer_problem(x, &err);
    x->log_method = method_for_log(x->req.method);
    if (!x->body_ended)
        x->body_ended = request_drain(read_fn, arg);
}

void exchange_free(struct exchange *x)
{
    x->app->log.request_id[0] = '\0';
    request_free(&x->req);
    buf_free(&x->out);
}

void exchange_log(const struct exchange *x)
{
    const char *route = x->match.route ? x->match.route->template : "-";
    int64_t ms = clock_mono_ms() - x->started_ms;
    if (x->wants_handoff)
        log_info(&x->app->log, "handed_over", "method=%s route=%s ms=%" PRId64, x->log_method,
                 route, ms);
    else
        log_info(&x->app->log, "request", "method=%s route=%s status=%d ms=%" PRId64, x->log_method,
                 route, x->status, ms);
}

int exchange_answer(struct exchange *x, int status, const json_t *body, const char *location,
                    bool replayed, struct error *err)
{
    if (!body)
        return error_set(err, ERR_INTERNAL, "out of memory");
    const struct answer_meta meta = {.request_id = x->request_id,
                                     .location = location,
                                     .replayed = replayed,
                                     .head_only = x->req.is_head};
    buf_clear(&x->out);
    if (respond_json(&x->out, status, &meta, body) < 0)
        return error_set(err, ERR_INTERNAL, "the answer does not fit in memory");
    x->status = status;
    return 0;
}

/* Is what the message waits for true of the row? */
static bool wait_is_over(enum handoff_wait wait, const char *state)
{
    enum sandbox_state sandbox;
    enum execution_state execution;
    if (!state)
        return false;
    switch (wait) {
    case HANDOFF_SANDBOX_READY:
        return sandbox_state_parse(state, &sandbox) == 0 && sandbox != SANDBOX_QUEUED &&
               sandbox != SANDBOX_PROVISIONING;
    case HANDOFF_SANDBOX_ENDED:
        return sandbox_state_parse(state, &sandbox) == 0 && sandbox_state_is_terminal(sandbox);
    case HANDOFF_EXECUTION_ENDED:
        return execution_state_parse(state, &execution) == 0 &&
               execution_state_is_terminal(execution);
    }
    return false;
}

static PGresult *read_row(struct exchange *x, struct error *err)
{
    const struct handoff *msg = &x->handoff;
    bool is_execution = msg->wait == HANDOFF_EXECUTION_ENDED;
    const char *params[] = {x->auth.project, msg->sandbox_id, msg->id};
    PGresult *res =
        db_exec(x->app->db, is_execution ? STMT_EXECUTION_GET : STMT_SANDBOX_GET, params, err);
    if (res && PQntuples(res) != 1) {
        PQclear(res);
        res = NULL;
        error_set(err, ERR_NOT_FOUND, "no such %s", is_execution ? "execution" : "sandbox");
    }
    return res;
}

static int answer_row(struct exchange *x, const PGresult *row, bool over, struct error *err)
{
    const struct handoff *msg = &x->handoff;
    _cleanup_json_ json_t *body = msg->wait == HANDOFF_EXECUTION_ENDED ? resource_execution(row, 0)
                                                                       : resource_sandbox(row, 0);
    return exchange_answer(x, over ? msg->status_done : msg->status_pending, body, msg->location,
                           msg->replayed, err);
}

static void mark_handoff(struct exchange *x)
{
    struct handoff *msg = &x->handoff;
    (void)snprintf(msg->request_id, sizeof(msg->request_id), "%s", x->request_id);
    (void)snprintf(msg->token_id, sizeof(msg->token_id), "%s", x->auth.token_id);
    msg->head_only = x->req.is_head;
    x->wants_handoff = true;
}

int exchange_wait(struct exchange *x, const PGresult *row, struct error *err)
{
    const struct handoff *msg = &x->handoff;
    bool may_wait = msg->wait_ms > 0 && x->body_ended;
    /* What was admitted by this very request cannot be over yet: the row need not be read. */
    if (may_wait && !row && msg->status_done == 201) {
        mark_handoff(x);
        return 0;
    }
    _cleanup_pgresult_ PGresult *own = NULL;
    if (!row) {
        own = read_row(x, err);
        if (!own)
            return -1;
        row = own;
    }
    bool over = wait_is_over(msg->wait, db_column(row, 0, "state"));
    if (over || !may_wait)
        return answer_row(x, row, over, err);
    mark_handoff(x);
    return 0;
}

void exchange_answer_from_row(struct exchange *x)
{
    struct error err = ERROR_INIT;
    x->wants_handoff = false;
    x->handoff.wait_ms = 0;
    if (exchange_wait(x, NULL, &err) < 0)
        answer_problem(x, &err);
}

void exchange_location(const struct exchange *x, const char *sandbox, const char *execution,
                       char *out, size_t size)
{
    (void)snprintf(out, size, "/api/v1/projects/%s/sandboxes/%s%s%s", x->auth.project, sandbox,
                   execution ? "/executions/" : "", execution ? execution : "");
}

char *exchange_who(const struct exchange *x, struct error *err)
{
    struct in6_addr address;
    const char *from = x->req.remote_addr;
    bool is_address = from && (inet_pton(AF_INET, from, &address) == 1 ||
                               inet_pton(AF_INET6, from, &address) == 1);
    _cleanup_json_ json_t *who = json_pack("{s:s, s:s*, s:s}", "token", x->auth.token_id, "address",
                                           is_address ? from : NULL, "request", x->request_id);
    char *text = who ? json_dumps(who, JSON_COMPACT) : NULL;
    if (!text)
        error_set(err, ERR_INTERNAL, "out of memory");
    return text;
}

int exchange_flush(const struct exchange *x, struct error *err)
{
    _cleanup_pgresult_ PGresult *res = db_exec(x->app->db, STMT_FLUSH, NULL, err);
    return res ? 0 : -1;
}

static int64_t retry_after_ms(enum error_code code)
{
    if (code == ERR_NO_CAPACITY || code == ERR_PROJECT_LIMIT)
        return 1000;
    if (code == ERR_DAEMON_UNAVAILABLE)
        return 2000;
    if (code == ERR_BUSY)
        return 250;
    return 0;
}

static const char *default_detail(enum error_code code)
{
    if (code == ERR_IDEMPOTENCY_CONFLICT)
        return "the Idempotency-Key was used with other input";
    if (code == ERR_PROJECT_DISABLED)
        return "the project is disabled";
    return error_code_title(code);
}

int exchange_admitted(const PGresult *res, const char *what, char id[ID_SIZE], bool *replayed,
                      struct error *err)
{
    const char *outcome = PQntuples(res) == 1 ? db_column(res, 0, "outcome") : NULL;
    if (!outcome)
        return error_set(err, ERR_INTERNAL, "the admission had no outcome");
    *replayed = strcmp(outcome, "replayed") == 0;
    if (*replayed || strcmp(outcome, "created") == 0 || strcmp(outcome, "updated") == 0) {
        const char *value = db_column(res, 0, "id");
        if (!value || !id_is_valid(value))
            return error_set(err, ERR_INTERNAL, "the admission gave no id");
        memcpy(id, value, ID_SIZE);
        return 0;
    }
    enum error_code code = error_code_from_name(outcome);
    const char *detail = db_column(res, 0, "detail");
    if (code == ERR_NOT_FOUND)
        error_set(err, code, "no such %s", what);
    else
        error_set(err, code, "%s", detail ? detail : default_detail(code));
    err->retry_after_ms = retry_after_ms(code);
    return -1;
}
