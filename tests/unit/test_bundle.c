/*
 * The OCI bundle: what a guest may and may not have stands in config.json, so
 * each of it is held here against the bytes that are written. No runsc needed.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/json.h"
#include "daemon/keeper/bundle.h"

static const struct bundle_spec spec = {
    .rootfs = "/srv/images/store/abc/rootfs",
    .cgroups_path = "/paddock/5f0c/guest",
    .cpus = 3,
    .memory_bytes = UINT64_C(5) << 30,
    .workspace_bytes = UINT64_C(6) << 30,
    .tmp_bytes = 64u << 20,
    .shm_bytes = 32u << 20,
    .host_pids = 968,
};

static const json_t *at(const json_t *json, const char *a, const char *b, const char *c)
{
    json = json_object_get(json, a);
    json = b ? json_object_get(json, b) : json;
    json = c ? json_object_get(json, c) : json;
    ck_assert_msg(json != NULL, "%s.%s.%s is missing", a, b ? b : "", c ? c : "");
    return json;
}

static bool has_string(const json_t *array, const char *text)
{
    for (size_t i = 0; i < json_array_size(array); i++)
        if (strcmp(json_string_value(json_array_get(array, i)), text) == 0)
            return true;
    return false;
}

static const json_t *mount_at(const json_t *config, const char *where)
{
    const json_t *mounts = at(config, "mounts", NULL, NULL);

    for (size_t i = 0; i < json_array_size(mounts); i++) {
        const json_t *mount = json_array_get(mounts, i);

        if (strcmp(json_string_value(json_object_get(mount, "destination")), where) == 0)
            return mount;
    }
    ck_abort_msg("no mount at %s", where);
    return NULL;
}

START_TEST(process_has_four_capabilities_and_nothing_to_gain)
{
    static const char *const given[] = {"bounding", "effective", "permitted"};
    static const char *const empty[] = {"inheritable", "ambient"};
    _cleanup_json_ json_t *config = bundle_config(&spec);
    const json_t *process = at(config, "process", NULL, NULL);

    for (unsigned i = 0; i < ARRAY_LEN(given); i++) {
        const json_t *caps = at(process, "capabilities", given[i], NULL);

        ck_assert_uint_eq(json_array_size(caps), 4);
        ck_assert(has_string(caps, "CAP_SETUID") && has_string(caps, "CAP_SETGID") &&
                  has_string(caps, "CAP_KILL") && has_string(caps, "CAP_NET_BIND_SERVICE"));
    }
    for (unsigned i = 0; i < ARRAY_LEN(empty); i++)
        ck_assert_uint_eq(json_array_size(at(process, "capabilities", empty[i], NULL)), 0);
    ck_assert(json_is_true(at(process, "noNewPrivileges", NULL, NULL)));
    ck_assert(json_is_false(at(process, "terminal", NULL, NULL)));
}
END_TEST

START_TEST(process_is_our_init_with_a_path_only)
{
    _cleanup_json_ json_t *config = bundle_config(&spec);
    const json_t *args = at(config, "process", "args", NULL);
    const json_t *env = at(config, "process", "env", NULL);

    ck_assert_uint_eq(json_array_size(args), 1);
    ck_assert_str_eq(json_string_value(json_array_get(args, 0)), "/sbin/paddock-init");
    ck_assert_uint_eq(json_array_size(env), 1);
    ck_assert_int_eq(strncmp(json_string_value(json_array_get(env, 0)), "PATH=", 5), 0);
    ck_assert_str_eq(json_string_value(at(config, "process", "cwd", NULL)), "/");
}
END_TEST

START_TEST(root_is_read_only_and_no_mount_is_of_the_host)
{
    static const char *const types[] = {"proc", "tmpfs", "sysfs", "cgroup"};
    _cleanup_json_ json_t *config = bundle_config(&spec);
    const json_t *mounts = at(config, "mounts", NULL, NULL);

    ck_assert_str_eq(json_string_value(at(config, "root", "path", NULL)), spec.rootfs);
    ck_assert(json_is_true(at(config, "root", "readonly", NULL)));
    for (size_t i = 0; i < json_array_size(mounts); i++) {
        const json_t *mount = json_array_get(mounts, i);
        const char *type = json_string_value(json_object_get(mount, "type"));
        bool known = false;

        for (unsigned k = 0; k < ARRAY_LEN(types); k++)
            known = known || strcmp(type, types[k]) == 0;
        ck_assert_msg(known, "a mount of type %s", type);
        ck_assert_str_eq(json_string_value(json_object_get(mount, "source")), type);
        ck_assert(!has_string(json_object_get(mount, "options"), "bind"));
    }
    ck_assert(has_string(json_object_get(mount_at(config, "/sys"), "options"), "ro"));
}
END_TEST

START_TEST(writable_places_have_size_owner_and_mode)
{
    static const struct {
        const char *where, *size, *mode, *uid;
    } want[] = {{"/workspace", "size=6442450944", "mode=0755", "uid=1000"},
                {"/tmp", "size=67108864", "mode=1777", "uid=0"},
                {"/dev/shm", "size=33554432", "mode=1777", "uid=0"}};
    _cleanup_json_ json_t *config = bundle_config(&spec);

    for (unsigned i = 0; i < ARRAY_LEN(want); i++) {
        const json_t *mount = mount_at(config, want[i].where);
        const json_t *options = json_object_get(mount, "options");

        ck_assert_str_eq(json_string_value(json_object_get(mount, "type")), "tmpfs");
        ck_assert(has_string(options, want[i].size) && has_string(options, want[i].mode) &&
                  has_string(options, want[i].uid));
        ck_assert(has_string(options, "nosuid") && has_string(options, "nodev"));
    }
}
END_TEST

START_TEST(resources_and_namespaces_are_complete)
{
    static const char *const namespaces[] = {"pid", "network", "ipc", "uts", "mount"};
    _cleanup_json_ json_t *config = bundle_config(&spec);
    const json_t *resources = at(config, "linux", "resources", NULL);
    const json_t *spaces = at(config, "linux", "namespaces", NULL);

    ck_assert_int_eq(json_integer_value(at(resources, "memory", "limit", NULL)), 5368709120);
    ck_assert_int_eq(json_integer_value(at(resources, "memory", "swap", NULL)), 5368709120);
    ck_assert_int_eq(json_integer_value(at(resources, "cpu", "quota", NULL)), 300000);
    ck_assert_int_eq(json_integer_value(at(resources, "cpu", "period", NULL)), 100000);
    ck_assert_int_eq(json_integer_value(at(resources, "pids", "limit", NULL)), 968);
    ck_assert_str_eq(json_string_value(at(config, "linux", "cgroupsPath", NULL)),
                     spec.cgroups_path);
    ck_assert_uint_eq(json_array_size(spaces), ARRAY_LEN(namespaces));
    for (unsigned i = 0; i < ARRAY_LEN(namespaces); i++) {
        const json_t *space = json_array_get(spaces, i);

        ck_assert_str_eq(json_string_value(json_object_get(space, "type")), namespaces[i]);
        ck_assert_ptr_null(json_object_get(space, "path")); /* a new one, never the host's */
    }
}
END_TEST

START_TEST(written_for_root_only_and_removed_whole)
{
    char dir[] = "/tmp/paddock-bundle-XXXXXX";
    char bundle[64];
    char path[96];
    struct error err = ERROR_INIT;
    struct stat st;

    ck_assert_ptr_nonnull(mkdtemp(dir));
    (void)snprintf(bundle, sizeof(bundle), "%s/b", dir);
    ck_assert_int_eq(bundle_write(&spec, bundle, &err), 0);
    ck_assert_int_eq(stat(bundle, &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0700);
    (void)snprintf(path, sizeof(path), "%s/config.json", bundle);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0600);
    _cleanup_json_ json_t *read = json_load_file(path, JSON_REJECT_DUPLICATES, NULL);
    _cleanup_json_ json_t *made = bundle_config(&spec);
    ck_assert(json_equal(read, made));

    /* Never over an existing one, and what was there stays. */
    ck_assert_int_eq(bundle_write(&spec, bundle, &err), -1);
    ck_assert_int_eq(err.errno_value, EEXIST);
    ck_assert_int_eq(stat(path, &st), 0);

    err = (struct error)ERROR_INIT;
    ck_assert_int_eq(bundle_remove(bundle, &err), 0);
    ck_assert_int_eq(stat(bundle, &st), -1);
    ck_assert_int_eq(bundle_remove(bundle, &err), 0); /* again: fine */
    ck_assert_int_eq(rmdir(dir), 0);
}
END_TEST

START_TEST(remove_follows_no_link)
{
    char dir[] = "/tmp/paddock-bundle-XXXXXX";
    char link[64];
    char file[64];
    struct error err = ERROR_INIT;
    struct stat st;

    ck_assert_ptr_nonnull(mkdtemp(dir));
    (void)snprintf(file, sizeof(file), "%s/kept", dir);
    (void)snprintf(link, sizeof(link), "%s.link", dir);
    ck_assert_int_ge(close(open(file, O_CREAT | O_WRONLY, 0600)), 0);
    ck_assert_int_eq(symlink(dir, link), 0);
    ck_assert_int_eq(bundle_remove(link, &err), -1);
    ck_assert_int_eq(stat(file, &st), 0);
    (void)unlink(link);
    (void)unlink(file);
    (void)rmdir(dir);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bundle");
    TCase *tcase = tcase_create("bundle");
    SRunner *runner = srunner_create(suite);
    int failed;

    tcase_add_test(tcase, process_has_four_capabilities_and_nothing_to_gain);
    tcase_add_test(tcase, process_is_our_init_with_a_path_only);
    tcase_add_test(tcase, root_is_read_only_and_no_mount_is_of_the_host);
    tcase_add_test(tcase, writable_places_have_size_owner_and_mode);
    tcase_add_test(tcase, resources_and_namespaces_are_complete);
    tcase_add_test(tcase, written_for_root_only_and_removed_whole);
    tcase_add_test(tcase, remove_follows_no_link);
    suite_add_tcase(suite, tcase);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
