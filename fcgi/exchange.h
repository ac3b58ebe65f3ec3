/*
 * One request on its way through the stages: parse, route, authenticate, body,
 * handler, answer. Knows nothing of libfcgi: child.c lends it the CGI variables
 * and a reader for the body, and afterwards writes `out` or hands the connection
 * over with `handoff`. Every exchange ends with exactly one of the two.
 */
#ifndef PADDOCK_FCGI_EXCHANGE_H
#define PADDOCK_FCGI_EXCHANGE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/error.h"
#include "common/handoff.h"
#include "common/id.h"
#include "fcgi/app.h"
#include "fcgi/auth.h"
#include "fcgi/request.h"
#include "fcgi/route.h"

struct exchange {
    struct app *app; /* borrowed */
    struct request req;
    struct route_match match;
    struct auth auth;
    char request_id[ID_SIZE];
    const char *log_method; /* static */
    int64_t started_ms;
    bool body_ended; /* the body was read to its end: a hand-off is allowed */
    bool wants_handoff;
    struct handoff handoff; /* with wants_handoff */
    int status;             /* of the answer in out */
    struct buf out;         /* the answer, as CGI text */
};

/* Runs all stages. Always ends with an answer in x->out or with x->wants_handoff. */
void exchange_run(struct exchange *x, struct app *app, char *const *variables,
                  request_read_fn *read_fn, void *arg);
void exchange_free(struct exchange *x);

/* The daemon could not be reached: answers from the row as it is now. */
void exchange_answer_from_row(struct exchange *x);

/* One log record: method, route template, status, duration; never what a client wrote. */
void exchange_log(const struct exchange *x);

/* --- for handlers --------------------------------------------------------------------- */

/* A JSON answer. body: borrowed, NULL reads as out of memory. location may be NULL. */
int exchange_answer(struct exchange *x, int status, const json_t *body, const char *location,
                    bool replayed, struct error *err) __attribute__((warn_unused_result));

/* What a request waits for: x->handoff's wait, ids, statuses, wait_ms, replayed and location are
 * set by the caller. Answers at once when it is not to wait or the row shows nothing to wait for,
 * else marks the exchange for the daemon. row: the one row of the resource if the caller has it,
 * or NULL. */
int exchange_wait(struct exchange *x, const PGresult *row, struct error *err)
    __attribute__((warn_unused_result));

/* The path of a sandbox, or of an execution of it (execution not NULL), for Location. */
void exchange_location(const struct exchange *x, const char *sandbox, const char *execution,
                       char *out, size_t size);

/* Who asks, as the statements that write the audit take it: {token, address, request} as JSON.
 * malloc'd; NULL without memory, with the error set. */
char *exchange_who(const struct exchange *x, struct error *err) __attribute__((warn_unused_result));

/* Takes the result of an admission statement: 'created', 'updated' or 'replayed' -> 0 with the id
 * and *replayed; any other outcome is the name of an error, with advice when to try again. */
int exchange_admitted(const PGresult *res, const char *what, char id[ID_SIZE], bool *replayed,
                      struct error *err) __attribute__((warn_unused_result));

/* Waits until what was admitted is on disk, which an admission leaves to its caller so that the
 * daemon begins meanwhile (sandbox_admit). Nothing is told to a client before. */
int exchange_flush(const struct exchange *x, struct error *err) __attribute__((warn_unused_result));

#endif
