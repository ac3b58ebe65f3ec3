/*
 * The waiters: handed-over FastCGI connections whose answer depends on a row.
 * The door adds them, sandbox.c and execution.c report committed rows, and each
 * is answered exactly once or dropped when its client is gone.
 *
 * What must stay true: a waiter is in the indexes until its answer is composed
 * and in neither afterwards; nothing is answered but what was committed, and to
 * no token that does not count any more; memory is bounded by connections_max
 * and by the ceiling of one answer, and no token holds more than half of it.
 */
#include "daemon/answer.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>

#include "common/buf.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/db.h"
#include "common/fcgi_record.h"
#include "common/fdpass.h"
#include "common/resource.h"
#include "common/respond.h"
#include "common/states.h"

/* A reader that takes nothing for this long is dropped. */
#define WRITE_STALL_MS 60000
/* A revoked token's waits end within a second. */
#define TOKEN_CHECK_MS 500
/* After the end of the wait, the database has this long to say how the row is. */
#define LAST_LOOK_MS 10000
/* What a web server may still send on the connection (FCGI_ABORT_REQUEST has 8 bytes). */
#define PEER_BYTES_MAX 65536
/* What is left unwritten when the daemon ends. */
#define FLUSH_MS 1000
#define BUCKETS_MIN 64u
#define BUCKETS_MAX 16384u

/* A token for which somebody waits. Web servers may not notice that a client left (lighttpd does
 * not when the whole request was there at once), so a wait that nobody wants is held to its end:
 * that must not cost other tokens their room. */
struct bearer {
    LIST_ENTRY(bearer) entry;
    char token_id[TOKEN_ID_LEN + 1];
    unsigned count;
    LIST_HEAD(bearer_waiters, waiter) waiters;
};

LIST_HEAD(bearer_list, bearer);

struct waiter {
    LIST_ENTRY(waiter) all;
    LIST_ENTRY(waiter) by_bearer;
    struct bearer *bearer;
    LIST_ENTRY(waiter) by_id;
    LIST_ENTRY(waiter) by_sandbox; /* executions only */
    struct answers *answers;
    struct handoff msg;
    int fd;
    struct loop_io *io;
    struct loop_timer *timer; /* the end of the wait; then of the last look; then of a write */
    bool indexed;
    bool reading;    /* the row was asked for */
    bool read_again; /* … and may have changed since */
    bool wait_over;
    int64_t wait_ends_ms; /* monotonic */
    bool writing;
    size_t peer_bytes;
    struct buf out;
};

LIST_HEAD(waiter_list, waiter);

struct answers {
    struct daemon *d;
    unsigned count;
    bool full; /* connections_max was reached and said so */
    size_t answer_max;
    int64_t write_stall_ms;
    size_t buckets; /* a power of two */
    struct waiter_list all;
    struct waiter_list *by_id;
    struct waiter_list *by_sandbox;
    struct bearer_list *bearers; /* by token */
    struct loop_timer *token_timer;
    bool tokens_asked; /* about the bearers; the answer is on its way */
};

static void token_timer_fired(void *arg);

/* Life ------------------------------------------------------------------------------- */

static void destroy(struct answers *answers)
{
    if (!answers)
        return;
    loop_timer_free(answers->token_timer);
    free(answers->by_id);
    free(answers->by_sandbox);
    free(answers->bearers);
    free(answers);
}

struct answers *answers_new(struct daemon *d, struct error *err)
{
    struct answers *answers = calloc(1, sizeof(*answers));
    size_t buckets = BUCKETS_MIN;
    while (buckets < (size_t)d->config->daemon_connections_max && buckets < BUCKETS_MAX)
        buckets *= 2;
    if (answers) {
        answers->d = d;
        answers->buckets = buckets;
        answers->write_stall_ms = WRITE_STALL_MS;
        answers->by_id = calloc(buckets, sizeof(*answers->by_id));
        answers->by_sandbox = calloc(buckets, sizeof(*answers->by_sandbox));
        answers->bearers = calloc(buckets, sizeof(*answers->bearers));
        answers->token_timer = loop_timer_new(d->loop, token_timer_fired, answers);
        /* Two outputs, at worst six bytes each of theirs (\u0000); a request's own fields. */
        answers->answer_max = (size_t)d->config->limits_output_bytes * 12 +
                              (size_t)d->config->web_body_max * 4 + 65536;
    }
    if (!answers || !answers->by_id || !answers->by_sandbox || !answers->bearers ||
        !answers->token_timer) {
        destroy(answers);
        error_set(err, ERR_SYSTEM, "out of memory");
        return NULL;
    }
    return answers;
}

void answers_set_write_stall(struct answers *answers, int64_t stall_ms)
{
    answers->write_stall_ms = stall_ms;
}

unsigned answers_count(const struct answers *answers)
{
    return answers->count;
}

static size_t bucket_index(const struct answers *answers, const char *id)
{
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (const char *p = id; *p; p++)
        hash = (hash ^ (uint8_t)*p) * 16777619u;
    return (hash ^ hash >> 16) & (answers->buckets - 1);
}

static struct waiter_list *bucket(const struct answers *answers, struct waiter_list *table,
                                  const char *id)
{
    return &table[bucket_index(answers, id)];
}

static bool waits_for_execution(const struct waiter *w)
{
    return w->msg.wait == HANDOFF_EXECUTION_ENDED;
}

static void index_add(struct waiter *w)
{
    struct answers *answers = w->answers;
    LIST_INSERT_HEAD(bucket(answers, answers->by_id, w->msg.id), w, by_id);
    if (waits_for_execution(w))
        LIST_INSERT_HEAD(bucket(answers, answers->by_sandbox, w->msg.sandbox_id), w, by_sandbox);
    w->indexed = true;
}

static void index_remove(struct waiter *w)
{
    if (!w->indexed)
        return;
    LIST_REMOVE(w, by_id);
    if (waits_for_execution(w))
        LIST_REMOVE(w, by_sandbox);
    w->indexed = false;
}

static struct bearer *bearer_find(const struct answers *answers, const char *token_id)
{
    struct bearer *b;
    LIST_FOREACH(b, &answers->bearers[bucket_index(answers, token_id)], entry)
    {
        if (strcmp(b->token_id, token_id) == 0)
            return b; /* cppcheck-suppress uninitvar ; it was made by calloc */
    }
    return NULL;
}

/* NULL without memory. */
static struct bearer *bearer_get(struct answers *answers, const char *token_id)
{
    struct bearer *b = bearer_find(answers, token_id);
    if (b)
        return b;
    b = calloc(1, sizeof(*b));
    if (b) {
        memcpy(b->token_id, token_id, sizeof(b->token_id));
        LIST_INSERT_HEAD(&answers->bearers[bucket_index(answers, token_id)], b, entry);
    }
    return b;
}

static void bearer_leave(struct waiter *w)
{
    struct bearer *b = w->bearer;
    LIST_REMOVE(w, by_bearer);
    if (--b->count > 0)
        return;
    LIST_REMOVE(b, entry);
    free(b);
}

/* With bytes unread, closing a Unix socket would look to the peer like a reset, and it might drop
 * the answer. */
static void close_connection(int fd)
{
    char scratch[4096];
    for (int i = 0; i < PEER_BYTES_MAX / (int)sizeof(scratch); i++) {
        if (recv(fd, scratch, sizeof(scratch), MSG_DONTWAIT) <= 0)
            break;
    }
    close(fd);
}

static void waiter_free(struct waiter *w)
{
    struct answers *answers = w->answers;
    dbq_forget(answers->d->db, w);
    index_remove(w);
    bearer_leave(w);
    LIST_REMOVE(w, all);
    answers->count--;
    loop_io_free(w->io);
    loop_timer_free(w->timer);
    buf_free(&w->out);
    if (w->fd >= 0)
        close_connection(w->fd);
    free(w);
}

/* The log with the request's id in it. */
static struct log request_log(const struct answers *answers, const struct handoff *msg)
{
    struct log log = answers->d->log;
    memcpy(log.request_id, msg->request_id, sizeof(msg->request_id));
    return log;
}

/* Writing ---------------------------------------------------------------------------- */

/* The whole answer as FastCGI records: `body` with `status`, or the problem. */
static int compose(const struct answers *answers, const struct handoff *msg, int status,
                   const json_t *body, const struct error *problem, struct buf *out)
{
    const struct answer_meta meta = {.request_id = msg->request_id,
                                     .location = problem ? NULL : msg->location,
                                     .replayed = msg->replayed && !problem,
                                     .head_only = msg->head_only};
    _cleanup_buf_ struct buf text = BUF_INIT(answers->answer_max);
    int rc =
        problem ? respond_problem(&text, problem, &meta) : respond_json(&text, status, &meta, body);
    buf_clear(out);
    if (rc < 0 || fcgi_record_stdout(out, msg->fcgi_request_id, text.data, text.len) < 0)
        return -1;
    return fcgi_record_end(out, msg->fcgi_request_id);
}

enum write_outcome { WRITE_DONE, WRITE_MORE, WRITE_FAILED };

static enum write_outcome write_out(int fd, struct buf *out, bool *progress)
{
    *progress = false;
    size_t at = 0;
    enum write_outcome outcome = WRITE_DONE;
    while (at < out->len) {
        ssize_t n = send(fd, out->data + at, out->len - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            outcome = errno == EAGAIN ? WRITE_MORE : WRITE_FAILED;
            break;
        }
        at += (size_t)n;
        *progress = true;
    }
    buf_consume(out, at);
    return outcome;
}

/* May free the waiter. */
static void write_some(struct waiter *w)
{
    bool progress;
    enum write_outcome outcome = write_out(w->fd, &w->out, &progress);
    if (outcome != WRITE_MORE || loop_io_set(w->io, LOOP_WRITE) < 0 ||
        (progress && loop_timer_arm(w->timer, w->answers->write_stall_ms) < 0))
        waiter_free(w);
}

/* The answer stands in w->out. May free the waiter. */
static void begin_writing(struct waiter *w)
{
    dbq_forget(w->answers->d->db, w);
    index_remove(w);
    w->writing = true;
    if (loop_timer_arm(w->timer, w->answers->write_stall_ms) < 0)
        waiter_free(w);
    else
        write_some(w);
}

/* Frees the waiter, now or when all is written. */
static void reply_problem(struct waiter *w, const struct error *err)
{
    struct log log = request_log(w->answers, &w->msg);
    log_error_value(&log, LOG_INFO, "answer_problem", err);
    if (compose(w->answers, &w->msg, 0, NULL, err, &w->out) < 0)
        waiter_free(w);
    else
        begin_writing(w);
}

static void reply_code(struct waiter *w, enum error_code code, const char *detail)
{
    struct error err = ERROR_INIT;
    error_set(&err, code, "%s", detail);
    if (error_code_status(code) == 503)
        err.retry_after_ms = 1000;
    reply_problem(w, &err);
}

static void reply_row(struct waiter *w, const PGresult *res, int row, bool done)
{
    int status = done ? w->msg.status_done : w->msg.status_pending;
    json_t *body =
        waits_for_execution(w) ? resource_execution(res, row) : resource_sandbox(res, row);
    int rc = body ? compose(w->answers, &w->msg, status, body, NULL, &w->out) : -1;
    json_decref(body);
    if (rc < 0) {
        reply_code(w, ERR_INTERNAL, "the answer could not be made");
        return;
    }
    struct log log = request_log(w->answers, &w->msg);
    log_debug(&log, "answered", "id=%s status=%d fulfilled=%d", w->msg.id, status, done);
    begin_writing(w);
}

/* The row ---------------------------------------------------------------------------- */

static bool is_fulfilled(const struct waiter *w, const PGresult *res, int row)
{
    const char *state = db_column(res, row, "state");
    enum sandbox_state sandbox;
    enum execution_state execution;
    if (!state)
        return false;
    switch (w->msg.wait) {
    case HANDOFF_SANDBOX_READY:
        return sandbox_state_parse(state, &sandbox) == 0 && sandbox != SANDBOX_QUEUED &&
               sandbox != SANDBOX_PROVISIONING;
    case HANDOFF_SANDBOX_ENDED:
        return sandbox_state_parse(state, &sandbox) == 0 && sandbox_state_is_terminal(sandbox);
    case HANDOFF_EXECUTION_ENDED:
        return execution_state_parse(state, &execution) == 0 &&
               execution_state_is_terminal(execution);
    }
    return false;
}

static void look(struct waiter *w);

/* The row as it is, asked for by look(). */
static void row_read(const PGresult *res, const struct error *err, void *arg)
{
    struct waiter *w = arg;
    w->reading = false;
    if (!res) {
        if (err->code == ERR_INTERNAL)
            reply_code(w, ERR_INTERNAL, "the row could not be read");
        else
            reply_problem(w, err);
    } else if (PQntuples(res) == 0) {
        reply_code(w, ERR_NOT_FOUND,
                   waits_for_execution(w) ? "no such execution" : "no such sandbox");
    } else if (is_fulfilled(w, res, 0)) {
        reply_row(w, res, 0, true);
    } else if (w->read_again) {
        look(w);
    } else if (w->wait_over) {
        reply_row(w, res, 0, false);
    }
}

/* Asks for the row, or notes that what was asked for may be old. May free the waiter. */
static void look(struct waiter *w)
{
    struct error err = ERROR_INIT;
    const struct dbq_param params[] = {{.value = w->msg.id}};
    if (w->reading) {
        w->read_again = true;
        return;
    }
    w->read_again = false;
    w->reading = true;
    if (dbq_send(w->answers->d->db,
                 waits_for_execution(w) ? STMT_EXECUTION_BY_ID : STMT_SANDBOX_BY_ID, params,
                 row_read, w, &err) < 0)
        reply_problem(w, &err);
}

/* The client waited long enough: it gets the row as it is now, or hears why not. */
static void end_wait(struct waiter *w)
{
    w->wait_over = true;
    if (!dbq_is_connected(w->answers->d->db))
        reply_code(w, ERR_DATABASE_UNAVAILABLE, "the database is away");
    else if (loop_timer_arm(w->timer, LAST_LOOK_MS) < 0)
        waiter_free(w);
    else if (!w->reading)
        look(w);
}

static void timer_fired(void *arg)
{
    struct waiter *w = arg;
    if (w->writing) {
        struct log log = request_log(w->answers, &w->msg);
        log_info(&log, "slow_reader", "unwritten_bytes=%zu", w->out.len);
        waiter_free(w);
    } else if (!w->wait_over) {
        end_wait(w);
    } else {
        reply_code(w, ERR_DATABASE_UNAVAILABLE, "the database does not answer");
    }
}

static void io_ready(int fd, unsigned events, void *arg)
{
    struct waiter *w = arg;
    char scratch[4096];
    (void)events;
    if (w->writing) {
        write_some(w);
        return;
    }
    ssize_t n = recv(fd, scratch, sizeof(scratch), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n > 0) {
        w->peer_bytes += (size_t)n;
        if (w->peer_bytes <= PEER_BYTES_MAX)
            return;
    }
    struct log log = request_log(w->answers, &w->msg);
    log_debug(&log, n > 0 ? "web_server_talks" : "client_gone", "id=%s", w->msg.id);
    waiter_free(w);
}

/* Tokens ----------------------------------------------------------------------------- */

static void tokens_checked(const PGresult *res, const struct error *err, void *arg)
{
    struct answers *answers = arg;
    answers->tokens_asked = false;
    if (!res)
        log_error_value(&answers->d->log, LOG_WARN, "tokens_not_checked", err);
    for (int row = 0; res && row < PQntuples(res); row++) {
        const char *id = db_column(res, row, "id");
        struct bearer *b = id ? bearer_find(answers, id) : NULL;
        struct waiter *w = b ? LIST_FIRST(&b->waiters) : NULL;
        while (w) {
            /* The last one takes the bearer with it. */
            struct waiter *next = LIST_NEXT(w, by_bearer);
            if (!w->writing)
                reply_code(w, ERR_UNAUTHENTICATED, "the token was revoked or expired meanwhile");
            w = next;
        }
    }
}

/* As an array literal; ids need no escapes (the hand-off's check). */
static void tokens_ask(struct answers *answers)
{
    _cleanup_buf_ struct buf ids = BUF_INIT(answers->count * (TOKEN_ID_LEN + 1) + 16);
    struct error err = ERROR_INIT;
    char separator = '{';
    for (size_t i = 0; i < answers->buckets; i++) {
        const struct bearer *b;
        LIST_FOREACH(b, &answers->bearers[i], entry)
        {
            buf_printf(&ids, "%c%s", separator, b->token_id);
            separator = ',';
        }
    }
    buf_append_str(&ids, "}");
    const struct dbq_param params[] = {{.value = ids.overflowed ? NULL : buf_cstr(&ids)}};
    if (!params[0].value)
        error_set(&err, ERR_INTERNAL, "out of memory");
    else if (dbq_send(answers->d->db, STMT_TOKENS_INVALID, params, tokens_checked, answers, &err) ==
             0)
        answers->tokens_asked = true;
    if (!answers->tokens_asked)
        log_error_value(&answers->d->log, LOG_WARN, "tokens_not_checked", &err);
}

/* Runs while somebody waits. */
static void token_timer_fired(void *arg)
{
    struct answers *answers = arg;
    if (answers->count == 0)
        return;
    if (!answers->tokens_asked)
        tokens_ask(answers);
    loop_timer_arm(answers->token_timer, TOKEN_CHECK_MS);
}

/* From outside ----------------------------------------------------------------------- */

/* An answer that needs no waiting: one try, which a fresh socket's buffer always has room for. */
static void refuse(const struct answers *answers, const struct handoff *msg, int fd,
                   const char *detail)
{
    _cleanup_buf_ struct buf out = BUF_INIT(65536);
    struct error err = ERROR_INIT;
    bool progress;
    error_set(&err, ERR_DAEMON_UNAVAILABLE, "%s", detail);
    err.retry_after_ms = 1000;
    if (compose(answers, msg, 0, NULL, &err, &out) == 0)
        write_out(fd, &out, &progress);
    close_connection(fd);
}

void answers_add(struct answers *answers, const struct handoff *msg, int fd)
{
    struct daemon *d = answers->d;
    if (answers->count >= (unsigned)d->config->daemon_connections_max) {
        if (!answers->full)
            log_warn(&d->log, "connections_max", "count=%u", answers->count);
        answers->full = true;
        refuse(answers, msg, fd, "too many requests wait for an answer");
        return;
    }
    answers->full = false;
    struct bearer *bearer = bearer_get(answers, msg->token_id);
    struct waiter *w = calloc(1, sizeof(*w));
    if (!w || !bearer) {
        if (bearer && bearer->count == 0) {
            LIST_REMOVE(bearer, entry);
            free(bearer);
        }
        free(w);
        refuse(answers, msg, fd, "out of memory");
        return;
    }
    if (answers->count == 0)
        loop_timer_arm(answers->token_timer, TOKEN_CHECK_MS);
    w->answers = answers;
    w->bearer = bearer;
    w->msg = *msg;
    w->fd = fd;
    /* A token that holds its share already gets the state as it is. */
    if (bearer->count >= ((unsigned)d->config->daemon_connections_max + 1) / 2)
        w->msg.wait_ms = 0;
    w->wait_ends_ms = clock_mono_ms() + w->msg.wait_ms;
    LIST_INSERT_HEAD(&bearer->waiters, w, by_bearer);
    bearer->count++;
    w->out.max = answers->answer_max + answers->answer_max / 64; /* the records' headers */
    LIST_INSERT_HEAD(&answers->all, w, all);
    answers->count++;
    index_add(w);
    w->io = loop_io_new(d->loop, fd, LOOP_READ, io_ready, w);
    w->timer = loop_timer_new(d->loop, timer_fired, w);
    if (!w->io || !w->timer || loop_timer_arm(w->timer, w->msg.wait_ms) < 0) {
        waiter_free(w);
        return;
    }
    look(w);
}

static void row_committed(struct answers *answers, const PGresult *res, int row, bool execution)
{
    const char *id = db_column(res, row, "id");
    if (!id)
        return;
    struct waiter *w = LIST_FIRST(bucket(answers, answers->by_id, id));
    while (w) {
        struct waiter *next = LIST_NEXT(w, by_id);
        if (waits_for_execution(w) == execution && strcmp(w->msg.id, id) == 0 &&
            is_fulfilled(w, res, row))
            reply_row(w, res, row, true);
        w = next;
    }
}

void answers_sandbox_row(struct answers *answers, const PGresult *res, int row)
{
    row_committed(answers, res, row, false);
}

void answers_execution_row(struct answers *answers, const PGresult *res, int row)
{
    row_committed(answers, res, row, true);
}

void answers_sandbox_ended(struct answers *answers, const char *sandbox_id)
{
    struct waiter *w = LIST_FIRST(bucket(answers, answers->by_sandbox, sandbox_id));
    while (w) {
        struct waiter *next = LIST_NEXT(w, by_sandbox);
        if (strcmp(w->msg.sandbox_id, sandbox_id) == 0)
            look(w);
        w = next;
    }
}

/* The loop runs no more: what a full socket did not take is waited for here, briefly. */
static void flush_all(struct answers *answers)
{
    int64_t deadline = clock_mono_ms() + FLUSH_MS;
    struct waiter *w = LIST_FIRST(&answers->all);
    while (w) {
        struct waiter *next = LIST_NEXT(w, all);
        enum write_outcome outcome = WRITE_MORE;
        int64_t left;
        while (outcome == WRITE_MORE && (left = deadline - clock_mono_ms()) > 0) {
            struct pollfd ready = {.fd = w->fd, .events = POLLOUT};
            bool progress;
            poll(&ready, 1, (int)left);
            outcome = write_out(w->fd, &w->out, &progress);
        }
        waiter_free(w);
        w = next;
    }
}

/* For another daemon ------------------------------------------------------------------ */

struct answers_held_one {
    struct handoff msg;
    int fd;
};

void answers_take_held(struct answers *answers, struct answers_held *held)
{
    int64_t now_ms = clock_mono_ms();
    struct waiter *next;
    held->count = 0;
    held->list = calloc(answers->count > 0 ? answers->count : 1, sizeof(*held->list));
    for (struct waiter *w = LIST_FIRST(&answers->all); w && held->list; w = next) {
        next = LIST_NEXT(w, all);
        if (w->writing)
            continue;
        struct answers_held_one *one = &held->list[held->count++];
        one->msg = w->msg;
        one->msg.wait_ms = w->wait_ends_ms > now_ms ? w->wait_ends_ms - now_ms : 0;
        one->fd = w->fd;
        w->fd = -1;
        waiter_free(w);
    }
}

unsigned answers_held_send(struct answers_held *held, int door_sock)
{
    unsigned given = 0;
    for (unsigned i = 0; i < held->count; i++) {
        struct answers_held_one *one = &held->list[i];
        struct error err = ERROR_INIT;
        char text[HANDOFF_MAX];
        int len = handoff_encode(&one->msg, text, sizeof(text), &err);
        if (len < 0 || fdpass_send(door_sock, text, (size_t)len, one->fd, &err) < 0)
            continue;
        close(one->fd); /* it is open at the other end */
        one->fd = -1;
        given++;
    }
    return given;
}

void answers_held_free(struct answers_held *held)
{
    for (unsigned i = 0; i < held->count; i++)
        if (held->list[i].fd >= 0)
            close_connection(held->list[i].fd);
    free(held->list);
    *held = (struct answers_held){.count = 0};
}

void answers_free(struct answers *answers)
{
    if (!answers)
        return;
    struct waiter *w = LIST_FIRST(&answers->all);
    while (w) {
        struct waiter *next = LIST_NEXT(w, all);
        if (!w->writing)
            reply_code(w, ERR_DAEMON_UNAVAILABLE, "the daemon is stopping");
        w = next;
    }
    flush_all(answers);
    dbq_forget(answers->d->db, answers);
    destroy(answers);
}
