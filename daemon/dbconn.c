/*
 * The life of one libpq connection in the event loop: waiting (for the backoff),
 * connecting, up. Called by dbq.c, which owns two of these.
 *
 * What must stay true: libpq may close its socket and open another in any call
 * of PQconnectPoll, so no watch exists during one; and a watch is always gone
 * before PQfinish closes the socket.
 */
#include "daemon/dbconn.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/cleanup.h"

/* The delays before a reconnect. */
#define BACKOFF_MIN_MS 50
#define BACKOFF_MAX_MS 2000
/* A database that stays away is logged at the first failed attempt and at every so many. */
#define LOG_EVERY 32
/* libpq 15 knows 40-odd connection options. */
#define OPTIONS_MAX 80

enum dbconn_state { DBCONN_IDLE, DBCONN_WAITING, DBCONN_CONNECTING, DBCONN_UP };

struct dbconn {
    struct loop *loop;
    const struct log *log;
    const char *name;
    const struct dbconn_target *target;
    const struct dbconn_handlers *handlers;
    void *arg;
    enum dbconn_state state;
    PGconn *pg;
    struct loop_io *io;
    struct loop_timer *timer; /* waiting: the backoff; connecting: the time limit */
    int64_t backoff_ms;
    unsigned failures; /* attempts in a row */
};

static void connect_begin(struct dbconn *conn);

static const char *target_value(const struct dbconn_target *target, const char *keyword)
{
    for (const PQconninfoOption *o = target->options; o->keyword; o++) {
        if (strcmp(o->keyword, keyword) == 0)
            return o->val && *o->val ? o->val : NULL;
    }
    return NULL;
}

int dbconn_target_init(struct dbconn_target *target, const char *conninfo, const struct log *log,
                       struct error *err)
{
    char *message = NULL;
    *target = (struct dbconn_target){.connect_timeout_ms = 5000, .statement_timeout_ms = 10000};
    target->options = PQconninfoParse(conninfo, &message);
    if (!target->options) {
        /* libpq's text may quote the conninfo, password included: it is not shown. */
        PQfreemem(message);
        return error_set_field(err, ERR_CONFIG, "database.dsn",
                               "database.dsn is not a libpq connection string");
    }
    const char *host = target_value(target, "host");
    unsigned char address[sizeof(struct in6_addr)];
    if (host && *host != '/' && *host != '@' && !target_value(target, "hostaddr") &&
        inet_pton(AF_INET, host, address) != 1 && inet_pton(AF_INET6, host, address) != 1) {
        struct error warning = ERROR_INIT;
        error_set_field(&warning, ERR_CONFIG, "database.dsn",
                        "looking up a host's name blocks the daemon: add hostaddr");
        log_error_value(log, LOG_WARN, "database_host_name", &warning);
    }
    return 0;
}

void dbconn_target_release(struct dbconn_target *target)
{
    PQconninfoFree(target->options);
    target->options = NULL;
}

/* Half of the delay is fixed, half is chance, so that many daemons do not return in step. */
static int64_t next_delay_ms(struct dbconn *conn)
{
    uint32_t chance = 0;
    if (getrandom(&chance, sizeof(chance), GRND_NONBLOCK) != (ssize_t)sizeof(chance))
        chance = 0;
    int64_t half = conn->backoff_ms / 2;
    int64_t delay = half + (int64_t)(chance % (uint32_t)(half + 1));
    conn->backoff_ms *= 2;
    if (conn->backoff_ms > BACKOFF_MAX_MS)
        conn->backoff_ms = BACKOFF_MAX_MS;
    return delay;
}

static void close_now(struct dbconn *conn)
{
    loop_io_free(conn->io);
    conn->io = NULL;
    PQfinish(conn->pg);
    conn->pg = NULL;
}

static void wait_and_retry(struct dbconn *conn)
{
    conn->state = DBCONN_WAITING;
    if (loop_timer_arm(conn->timer, next_delay_ms(conn)) < 0)
        log_fail(conn->log, "database_retry_failed", "connection=%s", conn->name);
}

/* libpq's messages end in a newline and may have several lines; the first says what happened. */
static void connect_failed(struct dbconn *conn, const char *why)
{
    if (conn->failures++ % LOG_EVERY == 0) {
        struct error err = ERROR_INIT;
        const char *text = why ? why : conn->pg ? PQerrorMessage(conn->pg) : "out of memory";
        error_set(&err, ERR_DATABASE_UNAVAILABLE, "%s: %.*s", conn->name, (int)strcspn(text, "\n"),
                  text);
        log_error_value(conn->log, LOG_WARN, "database_connect_failed", &err);
    }
    close_now(conn);
    wait_and_retry(conn);
}

static void io_ready(int fd, unsigned events, void *arg);

static int watch(struct dbconn *conn, unsigned events)
{
    if (conn->io)
        return loop_io_set(conn->io, events);
    int fd = PQsocket(conn->pg);
    conn->io = fd >= 0 ? loop_io_new(conn->loop, fd, events, io_ready, conn) : NULL;
    return conn->io ? 0 : -1;
}

static void connected(struct dbconn *conn)
{
    loop_timer_disarm(conn->timer);
    if (PQsetnonblocking(conn->pg, 1) != 0 || watch(conn, LOOP_READ) < 0) {
        connect_failed(conn, "the connection could not be watched");
        return;
    }
    conn->state = DBCONN_UP;
    conn->failures = 0;
    log_info(conn->log, "database_connected", "connection=%s backend=%d", conn->name,
             PQbackendPID(conn->pg));
    conn->handlers->on_up(conn->arg);
}

static void connect_step(struct dbconn *conn)
{
    loop_io_free(conn->io);
    conn->io = NULL;
    unsigned events = 0;
    switch (PQconnectPoll(conn->pg)) {
    case PGRES_POLLING_OK:
        connected(conn);
        return;
    case PGRES_POLLING_READING:
        events = LOOP_READ;
        break;
    case PGRES_POLLING_WRITING:
        events = LOOP_WRITE;
        break;
    case PGRES_POLLING_FAILED:
    case PGRES_POLLING_ACTIVE:
    default:
        connect_failed(conn, NULL);
        return;
    }
    if (watch(conn, events) < 0)
        connect_failed(conn, "the connection could not be watched");
}

static void io_ready(int fd, unsigned events, void *arg)
{
    struct dbconn *conn = arg;
    (void)fd;
    if (conn->state == DBCONN_CONNECTING)
        connect_step(conn);
    else
        conn->handlers->on_event(events, conn->arg);
}

static void timer_fired(void *arg)
{
    struct dbconn *conn = arg;
    if (conn->state == DBCONN_WAITING)
        connect_begin(conn);
    else if (conn->state == DBCONN_CONNECTING)
        connect_failed(conn, "no connection within database.connect_timeout");
}

/* The conninfo's options, then ours where it says nothing. */
static PGconn *connect_start(const struct dbconn_target *target)
{
    static const struct {
        const char *keyword, *value;
    } defaults[] = {
        {"fallback_application_name", "paddockd"},
        {"client_encoding", "UTF8"},
        /* A peer that vanished without a word (TCP only). */
        {"keepalives_idle", "30"},
        {"keepalives_interval", "10"},
        {"keepalives_count", "3"},
    };
    const char *keywords[OPTIONS_MAX + ARRAY_LEN(defaults) + 2];
    const char *values[OPTIONS_MAX + ARRAY_LEN(defaults) + 2];
    char server_options[2048];
    size_t n = 0;
    for (const PQconninfoOption *o = target->options; o->keyword && n < OPTIONS_MAX; o++) {
        if (!o->val || !*o->val || strcmp(o->keyword, "options") == 0)
            continue;
        keywords[n] = o->keyword;
        values[n++] = o->val;
    }
    for (size_t i = 0; i < ARRAY_LEN(defaults); i++) {
        if (target_value(target, defaults[i].keyword))
            continue;
        keywords[n] = defaults[i].keyword;
        values[n++] = defaults[i].value;
    }
    const char *given = target_value(target, "options");
    (void)snprintf(server_options, sizeof(server_options), "%s -c statement_timeout=%lld",
                   given ? given : "", (long long)target->statement_timeout_ms);
    keywords[n] = "options";
    values[n++] = server_options;
    keywords[n] = values[n] = NULL;
    return PQconnectStartParams(keywords, values, 0);
}

static void notice(void *arg, const PGresult *res)
{
    const struct dbconn *conn = arg;
    conn->handlers->on_notice(res, conn->arg);
}

static void connect_begin(struct dbconn *conn)
{
    conn->state = DBCONN_CONNECTING;
    conn->pg = connect_start(conn->target);
    if (conn->pg)
        PQsetNoticeReceiver(conn->pg, notice, conn);
    if (!conn->pg || PQstatus(conn->pg) == CONNECTION_BAD) {
        connect_failed(conn, NULL);
        return;
    }
    /* libpq: behave as if PQconnectPoll had said PGRES_POLLING_WRITING. */
    if (loop_timer_arm(conn->timer, conn->target->connect_timeout_ms) < 0 ||
        watch(conn, LOOP_WRITE) < 0)
        connect_failed(conn, "the connection could not be watched");
}

struct dbconn *dbconn_new(struct loop *loop, const struct log *log, const char *name,
                          const struct dbconn_target *target,
                          const struct dbconn_handlers *handlers, void *arg, struct error *err)
{
    struct dbconn *conn = calloc(1, sizeof(*conn));
    if (!conn) {
        error_set(err, ERR_SYSTEM, "out of memory");
        return NULL;
    }
    *conn = (struct dbconn){.loop = loop,
                            .log = log,
                            .name = name,
                            .target = target,
                            .handlers = handlers,
                            .arg = arg,
                            .backoff_ms = BACKOFF_MIN_MS};
    conn->timer = loop_timer_new(loop, timer_fired, conn);
    if (!conn->timer) {
        free(conn);
        error_set(err, ERR_SYSTEM, "out of memory");
        return NULL;
    }
    return conn;
}

void dbconn_start(struct dbconn *conn)
{
    if (conn->state != DBCONN_IDLE)
        return;
    conn->state = DBCONN_WAITING;
    loop_timer_arm(conn->timer, 0);
}

void dbconn_free(struct dbconn *conn)
{
    if (!conn)
        return;
    close_now(conn);
    loop_timer_free(conn->timer);
    free(conn);
}

PGconn *dbconn_pg(const struct dbconn *conn)
{
    return conn->state == DBCONN_UP ? conn->pg : NULL;
}

int dbconn_flush(struct dbconn *conn)
{
    /* A write that failed shows as an error on reading (libpq keeps what the server said last). */
    return watch(conn, PQflush(conn->pg) == 1 ? LOOP_READ | LOOP_WRITE : LOOP_READ);
}

void dbconn_proven(struct dbconn *conn)
{
    conn->backoff_ms = BACKOFF_MIN_MS;
}

void dbconn_drop(struct dbconn *conn, const char *why)
{
    if (conn->state != DBCONN_UP)
        return;
    struct error err = ERROR_INIT;
    error_set(&err, ERR_DATABASE_UNAVAILABLE, "%s: %.*s", conn->name, (int)strcspn(why, "\n"), why);
    log_error_value(conn->log, LOG_WARN, "database_lost", &err);
    close_now(conn);
    wait_and_retry(conn);
    conn->handlers->on_down(conn->arg);
}
