/*
 * The two health routes. /healthz tells anyone whether a request can be served
 * and nothing else; /api/v1/health tells a token's holder versions and nodes.
 */
#include <string.h>

#include "common/json.h"
#include "common/text.h"
#include "fcgi/handlers.h"

/* Asks the server, not the connection: a dead one may still look open. */
static int server_version(struct exchange *x, int64_t *version, struct error *err)
{
    _cleanup_pgresult_ PGresult *res = db_exec(x->app->db, STMT_SERVER_VERSION, NULL, err);
    if (!res)
        return -1;
    const char *text = PQntuples(res) == 1 ? db_column(res, 0, "version") : NULL;
    if (!text || text_parse_i64(text, 0, INT32_MAX, version) < 0)
        return error_set(err, ERR_INTERNAL, "the database does not tell its version");
    return 0;
}

int health_plain(struct exchange *x, struct error *err)
{
    int64_t version = 0;
    if (server_version(x, &version, err) < 0)
        return -1;
    _cleanup_json_ json_t *body = json_pack("{s:s}", "status", "ok");
    return exchange_answer(x, 200, body, NULL, false, err);
}

static json_t *column_bool(const PGresult *res, int row, const char *name)
{
    const char *value = db_column(res, row, name);
    return json_boolean(value && strcmp(value, "t") == 0);
}

static json_t *column_int(const PGresult *res, int row, const char *name)
{
    int64_t number = 0;
    const char *value = db_column(res, row, name);
    if (!value || text_parse_i64(value, INT64_MIN, INT64_MAX, &number) < 0)
        return json_null();
    return json_integer(number);
}

static json_t *column_text(const PGresult *res, int row, const char *name)
{
    const char *value = db_column(res, row, name);
    return value ? json_string(value) : json_null();
}

/* A jsonb or json column as it is. */
static json_t *column_json(const PGresult *res, int row, const char *name)
{
    const char *value = db_column(res, row, name);
    json_t *json = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    return json ? json : json_null();
}

/* A NULL value from any of the column functions (out of memory) makes json_pack fail as a whole. */
static json_t *node_from_row(const PGresult *res, int row)
{
    return json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "number",
        column_int(res, row, "number"), "live", column_bool(res, row, "live"), "accepting",
        column_bool(res, row, "accepting"), "heartbeatAt", column_text(res, row, "heartbeat_at"),
        "startedAt", column_text(res, row, "started_at"), "version",
        column_text(res, row, "version"), "maxSandboxes", column_int(res, row, "max_sandboxes"),
        "activeSandboxes", column_int(res, row, "active"), "templates",
        column_json(res, row, "templates"), "facts", column_json(res, row, "facts"));
}

static json_t *nodes_from_rows(const PGresult *res)
{
    _cleanup_json_ json_t *nodes = json_array();
    for (int i = 0; nodes && i < PQntuples(res); i++) {
        if (json_array_append_new(nodes, node_from_row(res, i)) < 0)
            return NULL;
    }
    return steal_ptr(nodes);
}

int health_full(struct exchange *x, struct error *err)
{
    int64_t number = 0;
    char version[32];
    if (server_version(x, &number, err) < 0)
        return -1;
    (void)snprintf(version, sizeof(version), "%d.%d", (int)(number / 10000), (int)(number % 10000));
    _cleanup_pgresult_ PGresult *res = db_exec(x->app->db, STMT_HEALTH_NODES, NULL, err);
    if (!res)
        return -1;
    _cleanup_json_ json_t *body =
        json_pack("{s:s, s:s, s:{s:s}, s:o}", "status", "ok", "version", PADDOCK_VERSION,
                  "database", "version", version, "nodes", nodes_from_rows(res));
    return exchange_answer(x, 200, body, NULL, false, err);
}
