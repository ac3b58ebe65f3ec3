/*
 * The handlers of executions: run, list, one, cancel. As with sandboxes.c, each is one
 * statement, and the daemon waits for ends on handed-over connections.
 */
#include <inttypes.h>
#include <string.h>

#include "common/id.h"
#include "common/json.h"
#include "common/resource.h"
#include "fcgi/exec_request.h"
#include "fcgi/fingerprint.h"
#include "fcgi/handlers.h"
#include "fcgi/list.h"
#include "fcgi/options.h"

/* Output that one page of a list may hold in memory at worst. */
#define PAGE_OUTPUT_MAX (INT64_C(64) * 1024 * 1024)

/* Longer than the grace before a tree is killed (guest.kill_grace). */
#define CANCEL_WAIT_MS 30000

static void wait_for(struct exchange *x, const char *execution, int64_t wait_ms)
{
    x->handoff = (struct handoff){.wait = HANDOFF_EXECUTION_ENDED,
                                  .wait_ms = wait_ms,
                                  .status_done = 200,
                                  .status_pending = 200};
    memcpy(x->handoff.id, execution, ID_SIZE);
    memcpy(x->handoff.sandbox_id, x->match.sandbox, ID_SIZE);
}

static int check_sandbox_id(const struct exchange *x, struct error *err)
{
    if (!id_is_valid(x->match.sandbox))
        return error_set(err, ERR_NOT_FOUND, "no such sandbox");
    return 0;
}

static PGresult *admit(struct exchange *x, const json_t *request, const char *key,
                       struct error *err)
{
    char live_max[24];
    struct fingerprint print;
    _cleanup_free_ char *text = fingerprint_take(request, &print, err);
    if (!text)
        return NULL;
    (void)snprintf(live_max, sizeof(live_max), "%" PRId64, x->app->cfg->limits_executions_live);
    _cleanup_free_ char *who = exchange_who(x, err);
    if (!who)
        return NULL;
    const char *params[] = {x->auth.project, x->match.sandbox, who, key, print.hex, live_max, text};
    return db_exec(x->app->db, STMT_EXECUTION_ADMIT, params, err);
}

int executions_create(struct exchange *x, struct error *err)
{
    const char *key = NULL;
    if (check_sandbox_id(x, err) < 0 || options_idempotency_key(&x->req, &key, err) < 0)
        return -1;
    _cleanup_json_ json_t *body = request_json(&x->req, err);
    if (!body)
        return -1;
    _cleanup_json_ json_t *request = exec_request_from_body(body, x->app->cfg, err);
    if (!request)
        return -1;
    int64_t wait_ms = exec_request_default_wait_ms(request);
    if (options_wait(&x->req, &wait_ms, err) < 0)
        return -1;
    _cleanup_pgresult_ PGresult *res = admit(x, request, key, err);
    if (!res)
        return -1;
    char id[ID_SIZE];
    bool replayed = false;
    if (exchange_admitted(res, "sandbox", id, &replayed, err) < 0)
        return -1;
    /* With a key the admission waited for the disk by itself. */
    if (!key && exchange_flush(x, err) < 0)
        return -1;
    wait_for(x, id, wait_ms);
    x->handoff.replayed = replayed;
    if (!replayed) {
        x->handoff.status_done = 201;
        x->handoff.status_pending = 202;
    }
    exchange_location(x, x->match.sandbox, id, x->handoff.location, sizeof(x->handoff.location));
    return exchange_wait(x, NULL, err);
}

/* Rows of one page: fewer than asked for when kept output could fill memory; the cursor leads on.
 * Bytes come as hex text and leave as JSON at up to that again. */
static int64_t page_rows(const struct config *cfg, int64_t limit)
{
    int64_t rows = PAGE_OUTPUT_MAX / (4 * cfg->limits_output_bytes);
    if (rows < 1)
        rows = 1;
    return rows < limit ? rows : limit;
}

static int check_sandbox_exists(struct exchange *x, struct error *err)
{
    const char *params[] = {x->auth.project, x->match.sandbox};
    _cleanup_pgresult_ PGresult *res = db_exec(x->app->db, STMT_SANDBOX_GET, params, err);
    if (!res)
        return -1;
    if (PQntuples(res) != 1)
        return error_set(err, ERR_NOT_FOUND, "no such sandbox");
    return 0;
}

int executions_list(struct exchange *x, struct error *err)
{
    _cleanup_(list_query_free) struct list_query query = {0};
    if (check_sandbox_id(x, err) < 0 || list_query_parse(&x->req, LIST_EXECUTIONS, &query, err) < 0)
        return -1;
    int64_t rows = page_rows(x->app->cfg, query.limit);
    struct list_page_params page;
    list_page_params(&query, rows, &page);
    const char *params[] = {
        x->auth.project,      x->match.sandbox, query.state,    query.created_after,
        query.created_before, page.cursor_us,   page.cursor_id, page.rows};
    _cleanup_pgresult_ PGresult *res = db_exec(x->app->db, STMT_EXECUTION_LIST, params, err);
    if (!res)
        return -1;
    /* No row may also mean no sandbox. */
    if (PQntuples(res) == 0 && check_sandbox_exists(x, err) < 0)
        return -1;
    _cleanup_json_ json_t *body = list_page(res, rows, resource_execution);
    return exchange_answer(x, 200, body, NULL, false, err);
}

static int check_execution_id(const struct exchange *x, struct error *err)
{
    if (check_sandbox_id(x, err) < 0)
        return -1;
    if (!id_is_valid(x->match.execution))
        return error_set(err, ERR_NOT_FOUND, "no such execution");
    return 0;
}

int executions_cancel(struct exchange *x, struct error *err)
{
    int64_t wait_ms = CANCEL_WAIT_MS;
    if (check_execution_id(x, err) < 0 || options_wait(&x->req, &wait_ms, err) < 0)
        return -1;
    _cleanup_free_ char *who = exchange_who(x, err);
    if (!who)
        return -1;
    const char *params[] = {x->auth.project, x->match.sandbox, x->match.execution, who};
    _cleanup_pgresult_ PGresult *res =
        db_exec(x->app->db, STMT_EXECUTION_REQUEST_CANCEL, params, err);
    if (!res)
        return -1;
    if (PQntuples(res) != 1)
        return error_set(err, ERR_NOT_FOUND, "no such execution");
    if (exchange_flush(x, err) < 0)
        return -1;
    wait_for(x, x->match.execution, wait_ms);
    x->handoff.status_pending = 202;
    return exchange_wait(x, res, err);
}

int executions_get(struct exchange *x, struct error *err)
{
    int64_t wait_ms = 0;
    if (check_execution_id(x, err) < 0)
        return -1;
    if (options_wait(&x->req, &wait_ms, err) < 0)
        return -1;
    wait_for(x, x->match.execution, wait_ms);
    return exchange_wait(x, NULL, err);
}
