/*
 * The handlers of a project itself: what it is and what it may. Policy is set
 * with a token of the installation only: a tenant does not lift its own limits.
 */
#include <string.h>

#include "common/json.h"
#include "common/policy.h"
#include "common/resource.h"
#include "fcgi/handlers.h"

static int answer_project(struct exchange *x, const PGresult *res, struct error *err)
{
    if (PQntuples(res) != 1)
        return error_set(err, ERR_NOT_FOUND, "no such project");
    _cleanup_json_ json_t *body = resource_project(res, 0);
    return exchange_answer(x, 200, body, NULL, false, err);
}

int projects_get(struct exchange *x, struct error *err)
{
    const char *params[] = {x->auth.project};
    _cleanup_pgresult_ PGresult *res = db_exec(x->app->db, STMT_PROJECT_GET, params, err);
    return res ? answer_project(x, res, err) : -1;
}

int projects_put(struct exchange *x, struct error *err)
{
    static const char *const fields[] = {"policy", NULL};
    _cleanup_json_ json_t *body = request_json(&x->req, err);
    if (!body || json_only_fields(body, fields, err) < 0)
        return -1;
    const json_t *given = json_object_get(body, "policy");
    if (!json_is_object(given))
        return error_set_field(err, ERR_INVALID_FIELD, "policy", "policy must be an object");
    _cleanup_json_ json_t *policy = policy_from_json(given, err);
    if (!policy)
        return error_prefix_field(err, "policy");
    _cleanup_free_ char *text = json_canonical(policy);
    if (!text)
        return error_set(err, ERR_INTERNAL, "out of memory");
    _cleanup_free_ char *who = exchange_who(x, err);
    if (!who)
        return -1;
    const char *params[] = {x->auth.project, text, who};
    _cleanup_pgresult_ PGresult *res = db_exec(x->app->db, STMT_PROJECT_SET_POLICY, params, err);
    return res ? answer_project(x, res, err) : -1;
}
