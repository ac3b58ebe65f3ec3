/*
 * The JSON form of a row: sandbox_view and execution_view (sql/) to the
 * resources of the REST contract. One home for handlers and daemon.
 */
#ifndef PADDOCK_COMMON_RESOURCE_H
#define PADDOCK_COMMON_RESOURCE_H

#include <jansson.h>
#include <libpq-fe.h>

/* New reference, NULL without memory or with a column missing. The result is in text format
 * and its columns are those of the view, by name. */
json_t *resource_sandbox(const PGresult *res, int row);
json_t *resource_execution(const PGresult *res, int row);
/* Of PROJECT_COLUMNS, USAGE_BY_DAY and AUDIT_LIST (sql/statements.def). */
json_t *resource_project(const PGresult *res, int row);
json_t *resource_usage_day(const PGresult *res, int row);
json_t *resource_audit(const PGresult *res, int row);

#endif
