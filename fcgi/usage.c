/*
 * What a project used, by the day (UTC) on which its sandboxes were admitted:
 * the sum over the rows that are still there and what retention kept of others.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/json.h"
#include "common/resource.h"
#include "common/text.h"
#include "fcgi/handlers.h"

#define DAYS_MAX 366
#define DAYS_DEFAULT 31
#define DAY_S INT64_C(86400)
#define DAY_SIZE 11
#define FIRST_DAY_S INT64_C(-62135596800) /* 0001-01-01 */

/* YYYY-MM-DD to seconds since the epoch. */
static int parse_day(const struct exchange *x, const char *name, int64_t *at, struct error *err)
{
    const char *text = request_query(&x->req, name);
    char whole[sizeof("YYYY-MM-DDT00:00:00Z")];
    struct tm tm = {0};
    if (!text)
        return 0;
    (void)snprintf(whole, sizeof(whole), "%.10sT00:00:00Z", text);
    if (strlen(text) != DAY_SIZE - 1 || !text_is_time(whole) || !strptime(text, "%Y-%m-%d", &tm))
        return error_set_field(err, ERR_INVALID_FIELD, name,
                               "%s must be a day, as in 2026-01-02 (UTC)", name);
    *at = timegm(&tm);
    return 0;
}

/* Not by strftime, which writes the year 1 as 1; at: what parse_day admits, or FIRST_DAY_S. */
static void format_day(int64_t at, char out[DAY_SIZE])
{
    time_t seconds = (time_t)at;
    struct tm tm = {0};
    (void)gmtime_r(&seconds, &tm);
    (void)snprintf(out, DAY_SIZE, "%04u-%02u-%02u", (unsigned)(tm.tm_year + 1900) % 10000,
                   (unsigned)(tm.tm_mon + 1) % 100, (unsigned)tm.tm_mday % 100);
}

static json_t *days_json(const PGresult *res)
{
    _cleanup_json_ json_t *days = json_array();
    for (int row = 0; days && row < PQntuples(res); row++) {
        if (json_array_append_new(days, resource_usage_day(res, row)) < 0)
            return NULL;
    }
    return steal_ptr(days);
}

int usage_get(struct exchange *x, struct error *err)
{
    int64_t to = time(NULL) / DAY_S * DAY_S;
    if (parse_day(x, "to", &to, err) < 0)
        return -1;
    int64_t from = to - (DAYS_DEFAULT - 1) * DAY_S;
    if (from < FIRST_DAY_S)
        from = FIRST_DAY_S;
    if (parse_day(x, "from", &from, err) < 0)
        return -1;
    if (from > to)
        return error_set_field(err, ERR_INVALID_FIELD, "from", "from is after to");
    if (to - from >= DAYS_MAX * DAY_S)
        return error_set_field(err, ERR_LIMIT_EXCEEDED, "from", "at most %d days at once",
                               DAYS_MAX);
    char first[DAY_SIZE];
    char last[DAY_SIZE];
    format_day(from, first);
    format_day(to, last);
    const char *params[] = {x->auth.project, first, last};
    _cleanup_pgresult_ PGresult *res = db_exec(x->app->db, STMT_USAGE_BY_DAY, params, err);
    if (!res)
        return -1;
    _cleanup_json_ json_t *body =
        json_pack("{s:s, s:s, s:o}", "from", first, "to", last, "days", days_json(res));
    return exchange_answer(x, 200, body, NULL, false, err);
}
