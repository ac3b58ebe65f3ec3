/*
 * The node's row in the database: registration, heartbeat, LISTEN and scan.
 * run.c makes the one node; sandbox.c takes number and epoch from it.
 *
 * What must stay true: an epoch is taken once a process, at the first
 * connection; later connections go on with it, or find that another daemon took
 * a newer one, and then this process ends. A lost notification is made up for by
 * a scan: after registration, at every reconnect, and every daemon.scan. With
 * it go the rows that this node claimed and the guests that the keeper holds:
 * what nobody here knows of is ended. A node whose disk is full says so in its
 * row, or it would seem the least loaded and be given everything.
 */
#include "daemon/node.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/cleanup.h"
#include "common/db.h"
#include "common/id.h"
#include "common/text.h"
#include "daemon/keeper/preflight.h"
#include "daemon/run.h"
#include "daemon/sandbox.h"

#define NUMBER_SIZE 24 /* a 64-bit integer as text */
#define SCAN_SOON_MS 2000

struct node {
    struct daemon *d;
    char *facts;
    char *templates; /* as an array literal of Postgres */
    char number[NUMBER_SIZE];
    char epoch[NUMBER_SIZE];
    bool registered;
    bool registering; /* each: the statement is on its way */
    bool beating;
    bool scanning;
    bool scan_again; /* asked for while one was on its way */
    bool scan_is_soon;
    bool comparing;
    bool closed;
    bool is_full;      /* as its row says */
    bool becomes_full; /* as it is told to */
    bool telling;
    struct loop_timer *heartbeat;
    struct loop_timer *scan;
    void (*on_registered)(struct daemon *d);
};

static void heartbeat_fired(void *arg);
static void scan_fired(void *arg);
static void notified(const char *payload, void *arg);
static void database_ready(void *arg);

/* {"base","node"}; NULL without memory. */
static char *array_literal(const char *names)
{
    _cleanup_buf_ struct buf out = BUF_INIT(4096);
    char name[256];
    buf_append_str(&out, "{");
    for (unsigned i = 0; config_name_at(names, i, name, sizeof(name)); i++) {
        /* Names need no escapes: the configuration's check admits only text_is_name. */
        buf_printf(&out, "%s\"%s\"", i > 0 ? "," : "", name);
    }
    buf_append_str(&out, "}");
    const char *text = out.overflowed ? NULL : buf_cstr(&out);
    return text ? strdup(text) : NULL;
}

struct node *node_new(struct daemon *d, const char *facts_json, struct error *err)
{
    struct node *node = calloc(1, sizeof(*node));
    char channel[sizeof("paddock_") + NUMBER_SIZE];
    if (node) {
        node->d = d;
        node->facts = strdup(facts_json);
        node->templates = array_literal(d->config->guest_templates);
        node->heartbeat = loop_timer_new(d->loop, heartbeat_fired, node);
        node->scan = loop_timer_new(d->loop, scan_fired, node);
    }
    if (!node || !node->facts || !node->templates || !node->heartbeat || !node->scan) {
        node_free(node);
        error_set(err, ERR_SYSTEM, "out of memory");
        return NULL;
    }
    (void)snprintf(node->number, sizeof(node->number), "%" PRId64, d->config->node_number);
    (void)snprintf(channel, sizeof(channel), "paddock_%s", node->number);
    dbq_listen(d->db, channel, notified, database_ready, node);
    return node;
}

void node_free(struct node *node)
{
    if (!node)
        return;
    dbq_forget(node->d->db, node);
    loop_timer_free(node->heartbeat);
    loop_timer_free(node->scan);
    free(node->facts);
    free(node->templates);
    free(node);
}

const char *node_number_text(const struct node *node)
{
    return node->number;
}

const char *node_epoch_text(const struct node *node)
{
    return node->epoch;
}

bool node_is_registered(const struct node *node)
{
    return node->registered;
}

/* Queues a statement of the node's own. One that cannot even be queued is logged; the next timer
 * or reconnect asks again. */
static bool node_send(struct node *node, enum statement stmt, const struct dbq_param params[],
                      dbq_result_cb cb)
{
    struct error err = ERROR_INIT;
    if (dbq_send(node->d->db, stmt, params, cb, node, &err) == 0)
        return true;
    log_error_value(&node->d->log, LOG_WARN, "node_statement_refused", &err);
    return false;
}

/* Work ------------------------------------------------------------------------------- */

static void notified(const char *payload, void *arg)
{
    struct node *node = arg;
    if (!payload[0] || !strchr("sec", payload[0]) || !id_is_valid(payload + 1)) {
        /* Whoever may connect to the database may NOTIFY. */
        log_warn(&node->d->log, "notification_malformed", "bytes=%zu", strlen(payload));
        return;
    }
    if (node->registered)
        sandboxes_work(node->d->sandboxes, payload[0], payload + 1);
}

static void scan(struct node *node);

void node_scan_soon(struct node *node)
{
    if (node->scan_is_soon || node->d->config->daemon_scan <= SCAN_SOON_MS)
        return;
    node->scan_is_soon = loop_timer_arm(node->scan, SCAN_SOON_MS) == 0;
}

static void compare_done(const PGresult *res, const struct error *err, void *arg)
{
    struct node *node = arg;
    node->comparing = false;
    if (!res)
        log_error_value(&node->d->log, LOG_WARN, "scan_failed", err);
    for (int row = 0; res && row < PQntuples(res); row++) {
        const char *kind = db_column(res, row, "kind");
        const char *id = db_column(res, row, "id");
        const char *sandbox = db_column(res, row, "sandbox");
        if (kind && id && sandbox && id_is_valid(id) && id_is_valid(sandbox))
            sandboxes_claimed(node->d->sandboxes, kind[0], id, sandbox);
    }
}

/* What the row says, what this daemon holds, what the keeper holds: made equal. */
static void compare(struct node *node)
{
    const struct dbq_param params[] = {{.value = node->number}};
    if (!node->comparing)
        node->comparing = node_send(node, STMT_NODE_CLAIMED, params, compare_done);
    sandboxes_reconcile_guests(node->d->sandboxes);
}

static void scan_done(const PGresult *res, const struct error *err, void *arg)
{
    struct node *node = arg;
    node->scanning = false;
    if (!res) {
        log_error_value(&node->d->log, LOG_WARN, "scan_failed", err);
        node_scan_soon(node);
    }
    for (int row = 0; res && row < PQntuples(res); row++) {
        const char *kind = db_column(res, row, "kind");
        const char *id = db_column(res, row, "id");
        if (kind && id && id_is_valid(id))
            sandboxes_work(node->d->sandboxes, kind[0], id);
    }
    if (node->scan_again)
        scan(node);
}

static void scan(struct node *node)
{
    const struct dbq_param params[] = {{.value = node->number}};
    if (!node->registered)
        return;
    if (node->scanning) {
        node->scan_again = true;
        return;
    }
    node->scan_again = false;
    compare(node);
    node->scanning = node_send(node, STMT_NODE_WORK, params, scan_done);
}

static void scan_fired(void *arg)
{
    struct node *node = arg;
    node->scan_is_soon = false;
    loop_timer_arm(node->scan, node->d->config->daemon_scan);
    /* While the database is away one waiting scan is enough. */
    if (!node->scanning)
        scan(node);
}

/* Registration ----------------------------------------------------------------------- */

static bool send_accepting(struct node *node, bool accepting, dbq_result_cb cb)
{
    const struct dbq_param params[] = {
        {.value = node->number}, {.value = node->epoch}, {.value = accepting ? "true" : "false"}};
    return node_send(node, STMT_NODE_SET_ACCEPTING, params, cb);
}

static void send_close(struct node *node)
{
    if (node->registered)
        send_accepting(node, false, NULL);
}

static void room_told(const PGresult *res, const struct error *err, void *arg)
{
    struct node *node = arg;
    node->telling = false;
    if (res)
        node->is_full = node->becomes_full;
    else
        log_error_value(&node->d->log, LOG_WARN, "room_not_told", err);
}

void node_check_room(struct node *node)
{
    bool has_room = true;
    uint64_t free_mb = 0;
    if (!node->registered || node->closed || node->telling ||
        preflight_room(node->d->config->daemon_state_dir, &has_room, &free_mb) < 0 ||
        has_room != node->is_full)
        return;
    if (has_room)
        log_info(&node->d->log, "node_has_room", "free_mb=%" PRIu64, free_mb);
    else
        log_fail(&node->d->log, "node_out_of_room", "free_mb=%" PRIu64 " mend=make room in %s",
                 free_mb, node->d->config->daemon_state_dir);
    node->becomes_full = !has_room;
    node->telling = send_accepting(node, has_room, room_told);
}

static void registration_done(const PGresult *res, const struct error *err, void *arg)
{
    struct node *node = arg;
    struct daemon *d = node->d;
    int64_t epoch = 0;
    node->registering = false;
    if (!res) {
        /* Tried again at the next heartbeat: the schema may still be on its way. */
        log_error_value(&d->log, LOG_ERROR, "registration_failed", err);
        return;
    }
    const char *text = PQntuples(res) == 1 ? db_column(res, 0, "epoch") : NULL;
    if (!text || text_parse_i64(text, 1, INT64_MAX, &epoch) < 0) {
        struct error no_epoch = ERROR_INIT;
        error_set(&no_epoch, ERR_INTERNAL, "no epoch came back");
        log_error_value(&d->log, LOG_ERROR, "registration_failed", &no_epoch);
        return;
    }
    (void)snprintf(node->epoch, sizeof(node->epoch), "%" PRId64, epoch);
    node->registered = true;
    log_info(&d->log, "node_registered", "node=%s epoch=%s", node->number, node->epoch);
    if (node->closed) {
        send_close(node);
        return;
    }
    sandboxes_adopt_held(d->sandboxes);
    if (node->on_registered)
        node->on_registered(d);
    node_check_room(node);
    scan(node);
}

static void register_node(struct node *node)
{
    char lease[NUMBER_SIZE];
    char sandboxes[NUMBER_SIZE];
    _cleanup_buf_ struct buf held = BUF_INIT(0);
    const struct config *config = node->d->config;
    if (node->registering)
        return;
    if (sandboxes_list_held(node->d->sandboxes, &held) < 0) {
        log_fail(&node->d->log, "no_memory", "for=registration");
        return; /* tried again at the next heartbeat */
    }
    (void)snprintf(lease, sizeof(lease), "%" PRId64, config->daemon_lease);
    (void)snprintf(sandboxes, sizeof(sandboxes), "%" PRId64, config->node_max_sandboxes);
    const struct dbq_param params[] = {{.value = node->number},    {.value = lease},
                                       {.value = PADDOCK_VERSION}, {.value = sandboxes},
                                       {.value = node->templates}, {.value = node->facts},
                                       {.value = buf_cstr(&held)}};
    node->registering = node_send(node, STMT_NODE_REGISTER, params, registration_done);
}

static void heartbeat_done(const PGresult *res, const struct error *err, void *arg)
{
    struct node *node = arg;
    struct daemon *d = node->d;
    node->beating = false;
    if (!res) {
        log_error_value(&d->log, LOG_WARN, "heartbeat_failed", err);
        return;
    }
    const char *verdict = PQntuples(res) > 0 ? db_column(res, 0, "verdict") : NULL;
    if (verdict && strcmp(verdict, "current") == 0)
        return;
    if (verdict && strcmp(verdict, "fenced") == 0) {
        /* Its sandboxes were given up while it was silent: begin anew, under a new epoch. */
        log_fail(&d->log, "node_fenced", "node=%s epoch=%s", node->number, node->epoch);
        d->exit_code = DAEMON_EXIT_LOST;
        loop_stop(d->loop);
        return;
    }
    log_fail(&d->log, "node_taken_over",
             "node=%s epoch=%s mend=give each host a node.number of its own", node->number,
             node->epoch);
    /* Restarted, the two would take it from each other for ever. */
    d->exit_code = DAEMON_EXIT_CONFIG;
    loop_stop(d->loop);
}

static void beat(struct node *node)
{
    const struct dbq_param params[] = {{.value = node->number}, {.value = node->epoch}};
    if (!node->beating)
        node->beating = node_send(node, STMT_NODE_HEARTBEAT, params, heartbeat_done);
}

static void heartbeat_fired(void *arg)
{
    struct node *node = arg;
    loop_timer_arm(node->heartbeat, node->d->config->daemon_heartbeat);
    node_check_room(node);
    if (node->registered)
        beat(node);
    else if (dbq_is_connected(node->d->db))
        register_node(node);
}

static void database_ready(void *arg)
{
    struct node *node = arg;
    if (!node->registered) {
        register_node(node);
        return;
    }
    beat(node);
    scan(node);
}

void node_start(struct node *node, void (*on_registered)(struct daemon *d))
{
    node->on_registered = on_registered;
    loop_timer_arm(node->heartbeat, node->d->config->daemon_heartbeat);
    loop_timer_arm(node->scan, node->d->config->daemon_scan);
    dbq_start(node->d->db);
}

void node_close(struct node *node)
{
    if (node->closed)
        return;
    node->closed = true;
    send_close(node);
}
