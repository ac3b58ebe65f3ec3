/*
 * Rows of sandbox_view and execution_view as the JSON of the REST contract.
 * Called by handlers and by the daemon, so that a resource reads the same
 * whoever answers. What must stay true: a column that is missing or not what the
 * view promises gives no resource at all, never a wrong one; env has no way in.
 */
#include "common/resource.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "common/json.h"
#include "common/text.h"

/* A row being read and the object being filled; `bad` once anything failed. */
struct reader {
    const PGresult *res;
    int row;
    json_t *object; /* borrowed */
    bool bad;
};

/* The column's text; NULL for SQL null and, with `bad` set, for a missing column. */
static const char *column(struct reader *r, const char *name)
{
    int index = PQfnumber(r->res, name);

    if (index < 0) {
        r->bad = true;
        return NULL;
    }
    return PQgetisnull(r->res, r->row, index) ? NULL : PQgetvalue(r->res, r->row, index);
}

/* Takes value over. */
static void put(struct reader *r, const char *member, json_t *value)
{
    if (json_object_set_new(r->object, member, value) < 0)
        r->bad = true;
}

static void put_text(struct reader *r, const char *member, const char *name)
{
    const char *text = column(r, name);

    put(r, member, text ? json_string(text) : json_null());
}

/* Reads an integer column. False for null (or a fault). */
static bool read_int(struct reader *r, const char *name, int64_t *value)
{
    const char *text = column(r, name);

    if (!text)
        return false;
    if (text_parse_i64(text, INT64_MIN, INT64_MAX, value) < 0) {
        r->bad = true;
        return false;
    }
    return true;
}

static void put_int(struct reader *r, const char *member, const char *name)
{
    int64_t value;

    put(r, member, read_int(r, name, &value) ? json_integer(value) : json_null());
}

static void put_bool(struct reader *r, const char *member, const char *name)
{
    const char *text = column(r, name);

    if (!text || (strcmp(text, "t") != 0 && strcmp(text, "f") != 0)) {
        r->bad = true;
        return;
    }
    put(r, member, json_boolean(text[0] == 't'));
}

static void put_json(struct reader *r, const char *member, const char *name)
{
    const char *text = column(r, name);

    put(r, member, text ? json_loads(text, JSON_DECODE_ANY, NULL) : json_null());
}

/* Starts a nested object that is filled by the same reader. */
static json_t *enter(struct reader *r, const char *member)
{
    json_t *outer = r->object;
    json_t *inner = json_object();

    put(r, member, inner); /* owned by the outer object, or freed */
    if (!r->bad)
        r->object = inner;
    return outer;
}

static json_t *finish(const struct reader *r, json_t **object)
{
    return r->bad ? NULL : steal_ptr(*object);
}

json_t *resource_sandbox(const PGresult *res, int row)
{
    _cleanup_json_ json_t *object = json_object();
    struct reader r = {.res = res,
                       .row = row,
                       .object = object,
                       .bad = !object || row < 0 || row >= PQntuples(res)};
    json_t *outer;

    put_text(&r, "id", "id");
    put_text(&r, "state", "state");
    put_text(&r, "reason", "reason");
    put_text(&r, "template", "template");
    put_int(&r, "cpus", "cpus");
    put_int(&r, "memoryMb", "memory_mb");
    put_int(&r, "workspaceMb", "workspace_mb");
    put_int(&r, "pids", "pids");
    put_int(&r, "ttlSeconds", "ttl_seconds");
    put_int(&r, "idleSeconds", "idle_seconds");
    put_json(&r, "labels", "labels");
    put_json(&r, "egress", "egress");
    put_bool(&r, "exclusive", "exclusive");
    put_int(&r, "node", "node");
    put_text(&r, "createdAt", "created_at");
    put_text(&r, "readyAt", "ready_at");
    put_text(&r, "expiresAt", "expires_at");
    put_text(&r, "idleAt", "idle_at");
    put_text(&r, "endedAt", "ended_at");
    outer = enter(&r, "timings");
    put_int(&r, "queuedMs", "queued_ms");
    put_int(&r, "provisionMs", "provision_ms");
    put_int(&r, "totalMs", "total_ms");
    put(&r, "fromPool", json_false());
    r.object = outer;
    return finish(&r, &object);
}

/* "SIGKILL" from 9. */
static void put_signal(struct reader *r)
{
    int64_t number;
    const char *abbrev;
    char name[32];

    if (!read_int(r, "signal", &number)) {
        put(r, "signal", json_null());
        return;
    }
    abbrev = number > 0 && number < NSIG ? sigabbrev_np((int)number) : NULL;
    if (abbrev)
        (void)snprintf(name, sizeof(name), "SIG%s", abbrev);
    else if (number >= SIGRTMIN && number <= SIGRTMAX)
        (void)snprintf(name, sizeof(name), "SIGRTMIN+%jd", (intmax_t)(number - SIGRTMIN));
    else
        (void)snprintf(name, sizeof(name), "SIG%jd", (intmax_t)number);
    put(r, "signal", json_string(name));
}

/* One of stdout, stderr. */
struct output {
    const char *name;
    json_t *text; /* owned until put */
    const char *encoding;
    size_t kept;
    int64_t total;
    int64_t omitted_at; /* -1: nothing omitted */
};

static void read_output(struct reader *r, struct output *out)
{
    const char *escaped = column(r, out->name);
    unsigned char *bytes;
    char name[32];

    out->omitted_at = -1;
    out->encoding = "utf-8";
    if (!escaped || !(bytes = PQunescapeBytea((const unsigned char *)escaped, &out->kept))) {
        r->bad = true;
        return;
    }
    if (text_is_utf8(bytes, out->kept)) {
        out->text = json_stringn_nocheck((const char *)bytes, out->kept);
    } else {
        _cleanup_free_ char *base64 = text_base64(bytes, out->kept);
        out->encoding = "base64";
        out->text = base64 ? json_string_nocheck(base64) : NULL;
    }
    PQfreemem(bytes);

    (void)snprintf(name, sizeof(name), "%s_bytes", out->name);
    if (!read_int(r, name, &out->total) || out->total < (int64_t)out->kept)
        r->bad = true;
    (void)snprintf(name, sizeof(name), "%s_omitted_at", out->name);
    if (!read_int(r, name, &out->omitted_at))
        out->omitted_at = -1;
}

static json_t *omitted_json(const struct output *out)
{
    if (out->omitted_at < 0)
        return json_null();
    return json_pack("{s:I, s:I}", "at", (json_int_t)out->omitted_at, "bytes",
                     (json_int_t)(out->total - (int64_t)out->kept));
}

static void put_outputs(struct reader *r)
{
    struct output outputs[] = {{.name = "stdout"}, {.name = "stderr"}};
    const struct output *a = &outputs[0];
    const struct output *b = &outputs[1];

    read_output(r, &outputs[0]);
    read_output(r, &outputs[1]);
    put(r, "stdout", a->text);
    put(r, "stderr", b->text);
    if (r->bad)
        return;
    put(r, "encoding", json_pack("{s:s, s:s}", a->name, a->encoding, b->name, b->encoding));
    put(r, "truncated",
        json_pack("{s:b, s:b}", a->name, a->omitted_at >= 0, b->name, b->omitted_at >= 0));
    put(r, "bytes",
        json_pack("{s:I, s:I}", a->name, (json_int_t)a->total, b->name, (json_int_t)b->total));
    put(r, "omitted", json_pack("{s:o, s:o}", a->name, omitted_json(a), b->name, omitted_json(b)));
}

static void put_cpu(struct reader *r)
{
    int64_t cpu_us;

    put(r, "cpuMs", read_int(r, "cpu_us", &cpu_us) ? json_integer(cpu_us / 1000) : json_null());
}

json_t *resource_execution(const PGresult *res, int row)
{
    _cleanup_json_ json_t *object = json_object();
    struct reader r = {.res = res,
                       .row = row,
                       .object = object,
                       .bad = !object || row < 0 || row >= PQntuples(res)};
    const char *state;

    put_text(&r, "id", "id");
    put_text(&r, "sandboxId", "sandbox_id");
    put_text(&r, "state", "state");
    put_text(&r, "reason", "reason");
    put_text(&r, "error", "error");
    put_int(&r, "exitCode", "exit_code");
    put_signal(&r);
    state = column(&r, "state");
    put(&r, "timedOut", json_boolean(state && strcmp(state, "timed_out") == 0));
    put_bool(&r, "oomKilled", "oom_killed");
    put_outputs(&r);
    put_int(&r, "timeoutMs", "timeout_ms");
    put_text(&r, "onTimeout", "on_timeout");
    put_bool(&r, "background", "background");
    put_text(&r, "tag", "tag");
    put_bool(&r, "outputExpired", "output_expired");
    put_cpu(&r);
    put_text(&r, "createdAt", "created_at");
    put_text(&r, "startedAt", "started_at");
    put_text(&r, "cancelRequestedAt", "cancel_requested_at");
    put_text(&r, "endedAt", "ended_at");
    put_int(&r, "durationMs", "duration_ms");
    return finish(&r, &object);
}

json_t *resource_project(const PGresult *res, int row)
{
    static const char *const limits[] = {
#define POLICY_LIMIT(name, min, max, help) #name,
#define POLICY_LIST(name, help) #name,
#include "common/policy.def"
    };
    _cleanup_json_ json_t *object = json_object();
    struct reader r = {.res = res,
                       .row = row,
                       .object = object,
                       .bad = !object || row < 0 || row >= PQntuples(res)};
    json_t *policy;

    put_text(&r, "id", "id");
    put_text(&r, "name", "name");
    put_json(&r, "policy", "policy");
    put_int(&r, "liveSandboxes", "live");
    put_text(&r, "createdAt", "created_at");
    put_text(&r, "disabledAt", "disabled_at");
    /* Only limits that are set are stored. */
    policy = json_object_get(object, "policy");
    for (unsigned i = 0; i < ARRAY_LEN(limits); i++)
        if (!json_object_get(policy, limits[i]) &&
            json_object_set_new(policy, limits[i], json_null()) < 0)
            r.bad = true;
    return finish(&r, &object);
}

json_t *resource_usage_day(const PGresult *res, int row)
{
    _cleanup_json_ json_t *object = json_object();
    struct reader r = {.res = res,
                       .row = row,
                       .object = object,
                       .bad = !object || row < 0 || row >= PQntuples(res)};

    put_text(&r, "day", "day");
    put_int(&r, "sandboxes", "sandboxes");
    put_int(&r, "executions", "executions");
    put_int(&r, "runtimeMs", "runtime_ms");
    put_int(&r, "pausedMs", "paused_ms");
    put_cpu(&r);
    put_int(&r, "memoryMbSeconds", "memory_mb_seconds");
    put_int(&r, "exportedBytes", "exported_bytes");
    put_int(&r, "networkBytes", "network_bytes");
    return finish(&r, &object);
}

json_t *resource_audit(const PGresult *res, int row)
{
    _cleanup_json_ json_t *object = json_object();
    struct reader r = {.res = res,
                       .row = row,
                       .object = object,
                       .bad = !object || row < 0 || row >= PQntuples(res)};

    put_int(&r, "id", "id");
    put_text(&r, "at", "at");
    put_text(&r, "action", "action");
    put_text(&r, "tokenId", "token_id");
    put_text(&r, "address", "address");
    put_text(&r, "requestId", "request_id");
    put_text(&r, "sandboxId", "sandbox_id");
    put_text(&r, "executionId", "execution_id");
    put_json(&r, "detail", "detail");
    return finish(&r, &object);
}
