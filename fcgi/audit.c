/*
 * The audit of a project, newest first. Its cursor is the number of the last
 * record of a page.
 */
#include <inttypes.h>
#include <string.h>

#include "common/audit.h"
#include "common/json.h"
#include "common/resource.h"
#include "common/text.h"
#include "fcgi/handlers.h"
#include "fcgi/list.h"

struct audit_query {
    int64_t limit;
    const char *action; /* borrowed from the request, like the rest; NULL: no filter */
    const char *after;
    const char *before;
    const char *cursor;
};

static int parse_query(const struct request *req, struct audit_query *query, struct error *err)
{
    int64_t number = 0;
    if (list_limit_parse(req, &query->limit, err) < 0 ||
        list_time_parse(req, "after", &query->after, err) < 0 ||
        list_time_parse(req, "before", &query->before, err) < 0)
        return -1;
    query->action = request_query(req, "action");
    if (query->action && !audit_action_is_known(query->action))
        return error_set_field(err, ERR_INVALID_FIELD, "action", "no such action");
    query->cursor = request_query(req, "cursor");
    if (query->cursor && text_parse_i64(query->cursor, 1, INT64_MAX, &number) < 0)
        return error_set_field(err, ERR_INVALID_FIELD, "cursor",
                               "the cursor is not one that a list gave");
    return 0;
}

int audit_list(struct exchange *x, struct error *err)
{
    struct audit_query query = {0};
    char rows[24];
    if (parse_query(&x->req, &query, err) < 0)
        return -1;
    (void)snprintf(rows, sizeof(rows), "%" PRId64, query.limit + 1);
    const char *params[] = {x->auth.project, query.action, query.after,
                            query.before,    query.cursor, rows};
    _cleanup_pgresult_ PGresult *res = db_exec(x->app->db, STMT_AUDIT_LIST, params, err);
    if (!res)
        return -1;
    _cleanup_json_ json_t *body = list_page(res, query.limit, resource_audit);
    return exchange_answer(x, 200, body, NULL, false, err);
}
