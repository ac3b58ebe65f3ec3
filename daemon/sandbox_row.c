/*
 * Reads a claimed row for sandbox.c. The handlers admitted it within the limits
 * of their configuration; here it is only held against what the parts behind
 * can take (the keeper checks its numbers against the host once more).
 */
#include "daemon/sandbox_row.h"

#include <string.h>

#include "common/db.h"
#include "common/text.h"
#include "common/wire.h"
#include "daemon/execution_spec.h"

#define MIB ((uint64_t)1024 * 1024)
/* A year and some: limits.ttl_max is at most 365 days. */
#define SECONDS_MAX ((int64_t)400 * 86400)

static int bad(struct error *err, const char *column)
{
    return error_set_field(err, ERR_INTERNAL, column, "the sandbox's row has no usable %s", column);
}

static int get(const PGresult *res, int index, const char *column, int64_t min, int64_t max,
               int64_t *value, struct error *err)
{
    const char *text = db_column(res, index, column);

    if (!text || text_parse_i64(text, min, max, value) < 0)
        return bad(err, column);
    return 0;
}

/* Leaves value as it is for null. */
static int get_nullable(const PGresult *res, int index, const char *column, int64_t min,
                        int64_t max, int64_t *value, struct error *err)
{
    return db_column(res, index, column) ? get(res, index, column, min, max, value, err) : 0;
}

static int get_name(const PGresult *res, int index, char out[KEEPER_TEMPLATE_MAX + 1],
                    struct error *err)
{
    const char *name = db_column(res, index, "template");

    if (!name || !text_is_name(name, KEEPER_TEMPLATE_MAX))
        return bad(err, "template");
    memcpy(out, name, strlen(name) + 1);
    return 0;
}

static int get_env(const PGresult *res, int index, struct buf *env, struct error *err)
{
    const char *text = db_column(res, index, "env");

    if (!text)
        return bad(err, "env");
    return execution_env_parse(text, strlen(text), env, err);
}

int sandbox_deadlines_read(const PGresult *res, int index, struct sandbox_deadlines *deadlines,
                           struct error *err)
{
    int64_t idle_seconds = 0;

    *deadlines = (struct sandbox_deadlines){
        .expires_in_ms = INT64_MAX, .idle_ms = INT64_MAX, .idle_in_ms = INT64_MAX};
    if (get_nullable(res, index, "expires_in_ms", INT64_MIN / 2, SECONDS_MAX * 1000,
                     &deadlines->expires_in_ms, err) < 0 ||
        get_nullable(res, index, "idle_in_ms", INT64_MIN / 2, SECONDS_MAX * 1000,
                     &deadlines->idle_in_ms, err) < 0 ||
        get_nullable(res, index, "idle_seconds", 1, SECONDS_MAX, &idle_seconds, err) < 0)
        return -1;
    if (idle_seconds > 0)
        deadlines->idle_ms = idle_seconds * 1000;
    return 0;
}

static int read_all(const PGresult *res, int index, const struct config *config,
                    struct sandbox_row *row, struct error *err)
{
    const char *id = db_column(res, index, "id");
    int64_t cpus, memory_mb, workspace_mb, pids;

    if (!id || !id_is_valid(id))
        return bad(err, "id");
    if (get_name(res, index, row->start.template_name, err) < 0 ||
        get(res, index, "cpus", 1, INT32_MAX, &cpus, err) < 0 ||
        get(res, index, "memory_mb", 1, INT32_MAX, &memory_mb, err) < 0 ||
        get(res, index, "workspace_mb", 1, INT32_MAX, &workspace_mb, err) < 0 ||
        get(res, index, "pids", 1, INT32_MAX, &pids, err) < 0 ||
        sandbox_deadlines_read(res, index, &row->deadlines, err) < 0 ||
        get_env(res, index, &row->env, err) < 0)
        return -1;
    row->start.op = KEEPER_START;
    memcpy(row->start.id, id, ID_SIZE);
    row->start.cpus = (uint32_t)cpus;
    row->start.memory_bytes = (uint64_t)memory_mb * MIB;
    row->start.workspace_bytes = (uint64_t)workspace_mb * MIB;
    row->start.tmp_bytes = (uint64_t)config->guest_tmp_mb * MIB;
    row->start.shm_bytes = (uint64_t)config->guest_shm_mb * MIB;
    row->start.pids = (uint32_t)pids;
    return 0;
}

int sandbox_row_read(const PGresult *res, int index, const struct config *config,
                     struct sandbox_row *row, struct error *err)
{
    *row = (struct sandbox_row){.env = BUF_INIT(WIRE_PAYLOAD_MAX - 8)};
    if (read_all(res, index, config, row, err) == 0)
        return 0;
    sandbox_row_free(row);
    return -1;
}

void sandbox_row_free(struct sandbox_row *row)
{
    buf_free(&row->env);
}
