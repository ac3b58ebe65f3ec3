/*
 * The handlers of sandboxes: create, list, one, change, terminate. Each is one
 * statement; admission and the end are decided in the database, and whatever
 * takes time is waited for by the daemon on the handed-over connection.
 */
#include <string.h>

#include "common/id.h"
#include "common/json.h"
#include "common/resource.h"
#include "common/states.h"
#include "fcgi/fingerprint.h"
#include "fcgi/handlers.h"
#include "fcgi/list.h"
#include "fcgi/options.h"
#include "fcgi/sandbox_request.h"

#define CREATE_WAIT_MS 30000
#define DELETE_WAIT_MS 30000

/* What the daemon is to wait for on a sandbox; the ids are checked by the caller. */
static void wait_for(struct exchange *x, enum handoff_wait wait, const char *id, int64_t wait_ms)
{
    x->handoff = (struct handoff){
        .wait = wait, .wait_ms = wait_ms, .status_done = 200, .status_pending = 200};
    memcpy(x->handoff.id, id, ID_SIZE);
    memcpy(x->handoff.sandbox_id, id, ID_SIZE);
}

static int check_id(const struct exchange *x, struct error *err)
{
    if (!id_is_valid(x->match.sandbox))
        return error_set(err, ERR_NOT_FOUND, "no such sandbox");
    return 0;
}

/* A lifetime that is left to the project's policy and one that is null are the same request. */
static char *take_fingerprint(const json_t *request, struct fingerprint *print, struct error *err)
{
    static const char *const lifetimes[] = {"ttlSeconds", "idleSeconds"};
    _cleanup_json_ json_t *full = json_copy((json_t *)(uintptr_t)request);
    for (size_t i = 0; i < ARRAY_LEN(lifetimes); i++) {
        if (!json_object_get(full, lifetimes[i]))
            json_object_set_new(full, lifetimes[i], json_null());
    }
    _cleanup_free_ char *hashed = fingerprint_take(full, print, err);
    char *text = hashed ? json_canonical(request) : NULL;
    if (hashed && !text)
        error_set(err, ERR_INTERNAL, "out of memory");
    return text;
}

int sandboxes_create(struct exchange *x, struct error *err)
{
    const char *key = NULL;
    int64_t wait_ms = CREATE_WAIT_MS;
    if (options_idempotency_key(&x->req, &key, err) < 0 || options_wait(&x->req, &wait_ms, err) < 0)
        return -1;
    _cleanup_json_ json_t *body = request_json(&x->req, err);
    if (!body)
        return -1;
    _cleanup_json_ json_t *request = sandbox_request_from_body(body, x->app->cfg, err);
    if (!request)
        return -1;
    struct fingerprint print;
    _cleanup_free_ char *text = take_fingerprint(request, &print, err);
    if (!text)
        return -1;

    _cleanup_free_ char *who = exchange_who(x, err);
    if (!who)
        return -1;
    const char *params[] = {x->auth.project, who, key, print.hex, text};
    _cleanup_pgresult_ PGresult *res = db_exec(x->app->db, STMT_SANDBOX_ADMIT, params, err);
    if (!res)
        return -1;
    char id[ID_SIZE];
    bool replayed = false;
    /* A replay, too, may come before the first answer. */
    if (exchange_admitted(res, "project", id, &replayed, err) < 0 || exchange_flush(x, err) < 0)
        return -1;
    wait_for(x, HANDOFF_SANDBOX_READY, id, wait_ms);
    x->handoff.replayed = replayed;
    if (!replayed) {
        x->handoff.status_done = 201;
        x->handoff.status_pending = 202;
    }
    exchange_location(x, id, NULL, x->handoff.location, sizeof(x->handoff.location));
    return exchange_wait(x, NULL, err);
}

int sandboxes_list(struct exchange *x, struct error *err)
{
    _cleanup_(list_query_free) struct list_query query = {0};
    if (list_query_parse(&x->req, LIST_SANDBOXES, &query, err) < 0)
        return -1;
    struct list_page_params page;
    list_page_params(&query, query.limit, &page);
    const char *params[] = {x->auth.project, query.state,         query.template,
                            query.labels,    query.created_after, query.created_before,
                            page.cursor_us,  page.cursor_id,      page.rows};
    _cleanup_pgresult_ PGresult *res = db_exec(x->app->db, STMT_SANDBOX_LIST, params, err);
    if (!res)
        return -1;
    _cleanup_json_ json_t *body = list_page(res, query.limit, resource_sandbox);
    return exchange_answer(x, 200, body, NULL, false, err);
}

int sandboxes_get(struct exchange *x, struct error *err)
{
    int64_t wait_ms = 0;
    if (check_id(x, err) < 0 || options_wait(&x->req, &wait_ms, err) < 0)
        return -1;
    wait_for(x, HANDOFF_SANDBOX_READY, x->match.sandbox, wait_ms);
    return exchange_wait(x, NULL, err);
}

int sandboxes_update(struct exchange *x, struct error *err)
{
    if (check_id(x, err) < 0)
        return -1;
    _cleanup_json_ json_t *body = request_json(&x->req, err);
    if (!body)
        return -1;
    _cleanup_json_ json_t *request = sandbox_update_from_body(body, x->app->cfg, err);
    if (!request)
        return -1;
    _cleanup_free_ char *text = json_canonical(request);
    _cleanup_free_ char *who = exchange_who(x, err);
    if (!text)
        return error_set(err, ERR_INTERNAL, "out of memory");
    if (!who)
        return -1;
    const char *params[] = {x->auth.project, x->match.sandbox, who, text};
    _cleanup_pgresult_ PGresult *res = db_exec(x->app->db, STMT_SANDBOX_UPDATE, params, err);
    char id[ID_SIZE];
    bool replayed = false;
    if (!res || exchange_admitted(res, "sandbox", id, &replayed, err) < 0 ||
        exchange_flush(x, err) < 0)
        return -1;
    wait_for(x, HANDOFF_SANDBOX_READY, id, 0);
    return exchange_wait(x, NULL, err);
}

int sandboxes_delete(struct exchange *x, struct error *err)
{
    int64_t wait_ms = DELETE_WAIT_MS;
    if (check_id(x, err) < 0 || options_wait(&x->req, &wait_ms, err) < 0)
        return -1;
    _cleanup_free_ char *who = exchange_who(x, err);
    if (!who)
        return -1;
    const char *params[] = {x->auth.project, x->match.sandbox, who};
    _cleanup_pgresult_ PGresult *res = db_exec(x->app->db, STMT_SANDBOX_REQUEST_STOP, params, err);
    if (!res)
        return -1;
    if (PQntuples(res) != 1)
        return error_set(err, ERR_NOT_FOUND, "no such sandbox");
    wait_for(x, HANDOFF_SANDBOX_ENDED, x->match.sandbox, wait_ms);
    x->handoff.status_pending = 202;
    return exchange_wait(x, res, err);
}
