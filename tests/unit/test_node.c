/*
 * The node's row: registration, heartbeat, notifications, scans, a takeover. The
 * sandboxes are replaced by a recorder in this file.
 */
#include <check.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "common/id.h"
#include "daemon/node.h"
#include "daemon/run.h"
#include "daemon/sandbox.h"
#include "db_fixture.h"

/* Stands for the opaque struct of sandboxes.c. */
struct sandboxes {
    struct loop *loop;
    unsigned work;
    unsigned stop_at;
    char kind;
    char id[ID_SIZE];
    char sandbox_id[ID_SIZE];
    unsigned claimed, stop_at_claimed, reconciled, adopted;
    char claimed_kind;
    const char *held;
};

struct fixture {
    struct daemon d; /* first: on_registered gets it back as the fixture */
    struct config config;
    struct sandboxes sandboxes;
    struct db *db;
    struct loop_timer *guard;
    struct loop_timer *pause;
    bool timed_out;
    int registered;
    char project[ID_TEXT_SIZE];
};

static char templates[] = "base node";
static char state_dir[] = "/tmp";

void sandboxes_work(struct sandboxes *all, char kind, const char *id)
{
    all->work++;
    all->kind = kind;
    snprintf(all->id, sizeof(all->id), "%s", id);
    if (all->work == all->stop_at)
        loop_stop(all->loop);
}

void sandboxes_claimed(struct sandboxes *all, char kind, const char *id, const char *sandbox_id)
{
    all->claimed++;
    all->claimed_kind = kind;
    snprintf(all->id, sizeof(all->id), "%s", id);
    snprintf(all->sandbox_id, sizeof(all->sandbox_id), "%s", sandbox_id);
    if (all->claimed == all->stop_at_claimed)
        loop_stop(all->loop);
}

void sandboxes_reconcile_guests(struct sandboxes *all)
{
    all->reconciled++;
}

int sandboxes_list_held(const struct sandboxes *all, struct buf *out)
{
    return buf_append_str(out, all->held ? all->held : "{}");
}

void sandboxes_adopt_held(struct sandboxes *all)
{
    all->adopted++;
}

static void on_registered(struct daemon *d)
{
    struct fixture *f = (struct fixture *)d;
    f->registered++;
    loop_stop(d->loop);
}

static void stop_cb(void *arg)
{
    struct fixture *f = arg;
    loop_stop(f->d.loop);
}

static void guard_fired(void *arg)
{
    struct fixture *f = arg;
    f->timed_out = true;
    loop_stop(f->d.loop);
}

static void loop_guarded(struct fixture *f)
{
    loop_timer_arm(f->guard, 30000);
    loop_run(f->d.loop);
    ck_assert(!f->timed_out);
}

static void loop_until_idle(struct fixture *f)
{
    dbq_when_idle(f->d.db, stop_cb, f);
    loop_guarded(f);
}

static void loop_until_work(struct fixture *f, unsigned count)
{
    f->sandboxes.stop_at = count;
    if (f->sandboxes.work < count)
        loop_guarded(f);
}

static void setup(struct fixture *f)
{
    struct error err = ERROR_INIT;
    memset(f, 0, sizeof(*f));
    f->config.node_number = 1;
    f->config.node_max_sandboxes = 10;
    f->config.guest_templates = templates;
    f->config.daemon_state_dir = state_dir;
    f->config.daemon_lease = 30000;
    f->config.daemon_heartbeat = 3600000;
    f->config.daemon_scan = 3600000;
    f->d.config = &f->config;
    log_init(&f->d.log, "test_node");
    f->d.log.level = LOG_ERROR + 1;
    f->d.loop = loop_new(&err);
    f->sandboxes.loop = f->d.loop;
    f->d.sandboxes = &f->sandboxes;
    f->d.db = dbq_new(f->d.loop, &f->d.log, db_fixture_server()->conninfo, &err);
    ck_assert_msg(f->d.db != NULL, "%s", err.detail);
    f->d.node = node_new(&f->d, "{\"platform\": \"systrap\"}", &err);
    ck_assert_ptr_nonnull(f->d.node);
    f->guard = loop_timer_new(f->d.loop, guard_fired, f);
    f->pause = loop_timer_new(f->d.loop, stop_cb, f);
    f->db = db_fixture_open();
    make_project(f->db, "node", NULL, f->project);
}

static void teardown(struct fixture *f)
{
    node_free(f->d.node);
    dbq_free(f->d.db);
    loop_timer_free(f->guard);
    loop_timer_free(f->pause);
    loop_free(f->d.loop);
    db_free(f->db);
}

static void register_now(struct fixture *f)
{
    node_start(f->d.node, on_registered);
    loop_guarded(f);
    ck_assert_int_eq(f->registered, 1);
    loop_until_idle(f);
}

START_TEST(a_daemon_registers_its_node)
{
    struct fixture f;
    char epoch[32];
    setup(&f);
    make_node(f.db, "1", "5", epoch); /* a former daemon's */
    ck_assert(!node_is_registered(f.d.node));
    register_now(&f);
    ck_assert(node_is_registered(f.d.node));
    ck_assert_str_eq(node_number_text(f.d.node), "1");
    ck_assert_str_eq(node_epoch_text(f.d.node), "2");
    ck_assert_int_eq(raw_long(f.db, "SELECT epoch FROM nodes WHERE number = 1"), 2);
    assert_text(raw(f.db, "SELECT concat_ws(' ', templates, facts->>'platform', max_sandboxes,"
                          " lease_ms, version) FROM nodes WHERE number = 1"),
                "{base,node} systrap 10 30000 " PADDOCK_VERSION);
    teardown(&f);
}
END_TEST

START_TEST(work_that_waits_at_the_start_is_found)
{
    struct fixture f;
    char epoch[32];
    char sandbox[ID_TEXT_SIZE];
    setup(&f);
    make_node(f.db, "1", "5", epoch);
    make_sandbox(f.db, f.project, sandbox);
    register_now(&f);
    loop_until_work(&f, 1);
    ck_assert_int_eq(f.sandboxes.kind, 's');
    ck_assert_str_eq(f.sandboxes.id, sandbox);
    teardown(&f);
}
END_TEST

START_TEST(work_is_announced_by_notification)
{
    struct fixture f;
    char sandbox[ID_TEXT_SIZE];
    char execution[ID_TEXT_SIZE];
    setup(&f);
    register_now(&f);
    make_sandbox(f.db, f.project, sandbox);
    loop_until_work(&f, 1);
    ck_assert_int_eq(f.sandboxes.kind, 's');
    ck_assert_str_eq(f.sandboxes.id, sandbox);
    make_execution(f.db, f.project, sandbox, execution);
    loop_until_work(&f, 2);
    ck_assert_int_eq(f.sandboxes.kind, 'e');
    ck_assert_str_eq(f.sandboxes.id, execution);
    teardown(&f);
}
END_TEST

START_TEST(what_is_held_stays_and_is_adopted)
{
    struct fixture f;
    char epoch[32];
    char held[ID_TEXT_SIZE + 2];
    char sandboxes[2][ID_TEXT_SIZE];
    setup(&f);
    make_node(f.db, "1", "5", epoch);
    for (int i = 0; i < 2; i++) {
        make_sandbox(f.db, f.project, sandboxes[i]);
        start_sandbox(f.db, sandboxes[i], "1", epoch);
    }
    snprintf(held, sizeof(held), "{%s}", sandboxes[0]);
    f.sandboxes.held = held;
    f.sandboxes.stop_at_claimed = 1;
    node_start(f.d.node, on_registered);
    loop_guarded(&f);
    ck_assert_uint_eq(f.sandboxes.adopted, 1);
    assert_text(raw(f.db, "SELECT state FROM sandboxes WHERE id = '%s'", sandboxes[0]), "ready");
    assert_text(
        raw(f.db, "SELECT concat(state, ' ', reason) FROM sandboxes WHERE id = '%s'", sandboxes[1]),
        "failed daemon_restart");
    /* and the scan compares rows and guests */
    while (f.sandboxes.claimed == 0)
        loop_guarded(&f);
    ck_assert_int_eq(f.sandboxes.claimed_kind, 's');
    ck_assert_str_eq(f.sandboxes.id, sandboxes[0]);
    ck_assert_str_eq(f.sandboxes.sandbox_id, sandboxes[0]);
    ck_assert_uint_ge(f.sandboxes.reconciled, 1);
    teardown(&f);
}
END_TEST

START_TEST(a_malformed_notification_is_dropped)
{
    static const char *const payloads[] = {
        "",
        "s",
        "x0001aaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee",
        "s0001AAAA-bbbb-4ccc-8ddd-eeeeeeeeeeee",
        "s0001aaaa-bbbb-4ccc-8ddd-eeeeeeeeeeeee",
        "s0001aaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee'; DROP",
        "0001aaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee",
    };
    struct fixture f;
    setup(&f);
    register_now(&f);
    for (size_t i = 0; i < ARRAY_LEN(payloads); i++)
        free(raw(f.db, "SELECT pg_notify('paddock_1', $p$%s$p$)", payloads[i]));
    free(raw(f.db, "SELECT pg_notify('paddock_1', 'e0001aaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee')"));
    loop_until_work(&f, 1);
    ck_assert_int_eq(f.sandboxes.kind, 'e');
    ck_assert_uint_eq(f.sandboxes.work, 1);
    teardown(&f);
}
END_TEST

START_TEST(a_reconnect_keeps_the_epoch_and_scans)
{
    struct fixture f;
    char sandbox[ID_TEXT_SIZE];
    setup(&f);
    register_now(&f);
    make_sandbox(f.db, f.project, sandbox);
    loop_until_work(&f, 1);
    free(raw(f.db, "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity"
                   " WHERE application_name = 'paddockd'"));
    loop_until_work(&f, 2); /* still queued: found again */
    ck_assert_str_eq(f.sandboxes.id, sandbox);
    ck_assert_str_eq(node_epoch_text(f.d.node), "1");
    ck_assert_int_eq(raw_long(f.db, "SELECT epoch FROM nodes WHERE number = 1"), 1);
    ck_assert_int_eq(f.registered, 1);
    teardown(&f);
}
END_TEST

START_TEST(the_heartbeat_is_renewed)
{
    struct fixture f;
    setup(&f);
    f.config.daemon_heartbeat = 5;
    register_now(&f);
    free(raw(f.db, "UPDATE nodes SET heartbeat_at = '2000-01-01'"));
    for (int i = 0; raw_long(f.db, "SELECT (heartbeat_at < '2001-01-01')::int FROM nodes") == 1;
         i++) {
        ck_assert_int_lt(i, 5000);
        loop_timer_arm(f.pause, 1);
        loop_guarded(&f);
    }
    teardown(&f);
}
END_TEST

START_TEST(a_daemon_whose_node_was_taken_over_ends)
{
    struct fixture f;
    char epoch[32];
    setup(&f);
    f.config.daemon_heartbeat = 5;
    register_now(&f);
    ck_assert_int_eq(f.d.exit_code, 0);
    make_node(f.db, "1", "5", epoch);
    loop_guarded(&f);
    ck_assert_int_eq(f.d.exit_code, DAEMON_EXIT_CONFIG);
    teardown(&f);
}
END_TEST

START_TEST(a_takeover_is_noticed_at_a_reconnect)
{
    struct fixture f;
    char epoch[32];
    setup(&f);
    register_now(&f);
    make_node(f.db, "1", "5", epoch);
    free(raw(f.db, "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity"
                   " WHERE application_name = 'paddockd'"));
    loop_guarded(&f);
    ck_assert_int_eq(f.d.exit_code, DAEMON_EXIT_CONFIG);
    teardown(&f);
}
END_TEST

START_TEST(a_closed_node_takes_no_admissions)
{
    struct fixture f;
    setup(&f);
    register_now(&f);
    ck_assert_int_eq(raw_long(f.db, "SELECT accepting::int FROM nodes"), 1);
    node_close(f.d.node);
    loop_until_idle(&f);
    ck_assert_int_eq(raw_long(f.db, "SELECT accepting::int FROM nodes"), 0);
    teardown(&f);
}
END_TEST

/* Of the state folder alone: a mount that nobody else sees, and that ends with this test's process.
 */
static void mount_small(struct fixture *f)
{
    static char path[] = "/tmp/paddock-test-node-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(path));
    ck_assert_int_eq(unshare(CLONE_NEWNS), 0);
    ck_assert_int_eq(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
    ck_assert_int_eq(mount("none", path, "tmpfs", 0, "size=20m"), 0);
    f->config.daemon_state_dir = path;
}

static void teardown_small(struct fixture *f)
{
    teardown(f);
    ck_assert_int_eq(umount(f->config.daemon_state_dir), 0);
    ck_assert_int_eq(rmdir(f->config.daemon_state_dir), 0);
}

static void fill(const struct fixture *f, off_t bytes)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/ballast", f->config.daemon_state_dir);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, 0), 0);
    ck_assert_int_eq(bytes > 0 ? posix_fallocate(fd, 0, bytes) : 0, 0);
    close(fd);
}

static long accepting_now(struct fixture *f)
{
    loop_until_idle(f);
    return raw_long(f->db, "SELECT accepting::int FROM nodes");
}

START_TEST(a_node_whose_disk_is_full_takes_no_admissions_until_there_is_room)
{
    struct fixture f;
    setup(&f);
    mount_small(&f);
    register_now(&f);
    ck_assert_int_eq(accepting_now(&f), 1);
    fill(&f, 19 << 20);
    node_check_room(f.d.node);
    ck_assert_int_eq(accepting_now(&f), 0);
    node_check_room(f.d.node);
    ck_assert_int_eq(accepting_now(&f), 0);
    fill(&f, 0);
    node_check_room(f.d.node);
    ck_assert_int_eq(accepting_now(&f), 1);
    /* One that is closed stays so. */
    node_close(f.d.node);
    fill(&f, 19 << 20);
    node_check_room(f.d.node);
    fill(&f, 0);
    node_check_room(f.d.node);
    ck_assert_int_eq(accepting_now(&f), 0);
    teardown_small(&f);
}
END_TEST

START_TEST(a_node_that_starts_on_a_full_disk_says_so)
{
    struct fixture f;
    setup(&f);
    mount_small(&f);
    fill(&f, 19 << 20);
    register_now(&f);
    ck_assert_int_eq(accepting_now(&f), 0);
    teardown_small(&f);
}
END_TEST

START_TEST(refused_work_is_looked_for_soon)
{
    struct fixture f;
    char sandbox[ID_TEXT_SIZE];
    setup(&f);
    register_now(&f);
    loop_until_idle(&f);
    make_sandbox(f.db, f.project, sandbox);
    loop_until_work(&f, 1); /* announced; should its claim be refused, it stays as it is */
    node_scan_soon(f.d.node);
    node_scan_soon(f.d.node);
    loop_until_work(&f, 2); /* though the next scan is an hour away */
    ck_assert_str_eq(f.sandboxes.id, sandbox);
    teardown(&f);
}
END_TEST

START_TEST(a_node_closed_while_it_registers_stays_closed)
{
    struct fixture f;
    setup(&f);
    node_start(f.d.node, on_registered);
    node_close(f.d.node);
    for (int i = 0; !node_is_registered(f.d.node); i++) {
        ck_assert_int_lt(i, 5000);
        loop_timer_arm(f.pause, 1);
        loop_guarded(&f);
    }
    loop_until_idle(&f);
    ck_assert_int_eq(f.registered, 0);
    ck_assert_int_eq(raw_long(f.db, "SELECT accepting::int FROM nodes"), 0);
    teardown(&f);
}
END_TEST

START_TEST(a_refused_registration_is_tried_again)
{
    struct fixture f;
    setup(&f);
    f.config.daemon_heartbeat = 5;
    free(raw(f.db, "ALTER TABLE nodes RENAME TO nodes_away"));
    node_start(f.d.node, on_registered);
    for (int i = 0; i < 20; i++) {
        loop_timer_arm(f.pause, 5);
        loop_guarded(&f);
    }
    ck_assert_int_eq(f.registered, 0);
    free(raw(f.db, "ALTER TABLE nodes_away RENAME TO nodes"));
    while (f.registered == 0)
        loop_guarded(&f);
    ck_assert_str_eq(node_epoch_text(f.d.node), "1");
    teardown(&f);
}
END_TEST

START_TEST(the_scan_finds_what_no_notification_announced)
{
    struct fixture f;
    char sandbox[ID_TEXT_SIZE];
    setup(&f);
    f.config.daemon_scan = 5;
    register_now(&f);
    make_sandbox(f.db, f.project, sandbox);
    loop_until_work(&f, 5); /* once by notification, then again and again */
    ck_assert_str_eq(f.sandboxes.id, sandbox);
    teardown(&f);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("node");
    TCase *tc = tcase_create("node");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, db_fixture_reset, NULL);
    tcase_add_test(tc, a_daemon_registers_its_node);
    tcase_add_test(tc, work_that_waits_at_the_start_is_found);
    tcase_add_test(tc, work_is_announced_by_notification);
    tcase_add_test(tc, what_is_held_stays_and_is_adopted);
    tcase_add_test(tc, a_malformed_notification_is_dropped);
    tcase_add_test(tc, a_reconnect_keeps_the_epoch_and_scans);
    tcase_add_test(tc, the_heartbeat_is_renewed);
    tcase_add_test(tc, a_daemon_whose_node_was_taken_over_ends);
    tcase_add_test(tc, a_takeover_is_noticed_at_a_reconnect);
    tcase_add_test(tc, a_closed_node_takes_no_admissions);
    tcase_add_test(tc, a_node_whose_disk_is_full_takes_no_admissions_until_there_is_room);
    tcase_add_test(tc, a_node_that_starts_on_a_full_disk_says_so);
    tcase_add_test(tc, refused_work_is_looked_for_soon);
    tcase_add_test(tc, a_node_closed_while_it_registers_stays_closed);
    tcase_add_test(tc, a_refused_registration_is_tried_again);
    tcase_add_test(tc, the_scan_finds_what_no_notification_announced);
    suite_add_tcase(suite, tc);
    return db_fixture_run(suite);
}
