/*
 * What the preflight judges without a guest: runsc's version and command line,
 * its log, and the images. Each missing piece must be named with its mend.
 * Needs root, as the preflight itself.
 */
#include <check.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/keeper/bundle.h"
#include "daemon/keeper/preflight.h"
#include "daemon/keeper/runsc.h"

#define ID "0001aaaa-0000-4000-8000-000000000001"

static char dir[64];
static struct log quiet;

static void dir_setup(void)
{
    log_init(&quiet, "test_preflight");
    quiet.level = LOG_ERROR;
    (void)snprintf(dir, sizeof(dir), "/tmp/paddock-preflight-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

static void dir_teardown(void)
{
    ck_assert_int_eq(nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

static const char *in_dir(const char *name)
{
    static char path[4][256];
    static unsigned next;
    char *out = path[next++ % 4];

    (void)snprintf(out, sizeof(path[0]), "%s/%s", dir, name);
    return out;
}

static void make(const char *name)
{
    ck_assert_int_eq(mkdir(in_dir(name), 0755), 0);
}

static void put(const char *name, const char *text, mode_t mode)
{
    int fd = open(in_dir(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    ck_assert_int_eq(fchmod(fd, mode), 0);
    close(fd);
}

static struct config *config_with(const char *section, const char *line)
{
    char text[1024];
    struct error err = ERROR_INIT;
    struct config *config;
    int len = snprintf(text, sizeof(text),
                       "[daemon]\nstate_dir = %s/state\nrun_dir = %s/run\nuser = nobody\n%s\n"
                       "[guest]\nimages_dir = %s/images\n%s\n",
                       dir, dir, strcmp(section, "daemon") == 0 ? line : "", dir,
                       strcmp(section, "guest") == 0 ? line : "");

    config = config_parse(text, (size_t)len, "test", &err);
    ck_assert_msg(config != NULL, "%s", err.detail);
    return config;
}

static void assert_says(const struct error *err, const char *word)
{
    ck_assert_int_eq(err->code, ERR_PREFLIGHT);
    ck_assert_msg(strstr(err->detail, word) != NULL, "%s", err->detail);
}

/* --- runsc ---------------------------------------------------------------------------------- */

START_TEST(a_version_is_known_as_a_whole_word)
{
    ck_assert(runsc_version_is_known("0.0~20240729.0", "0.0~20240729.0"));
    ck_assert(runsc_version_is_known("  a  0.0~20240729.0\tb ", "0.0~20240729.0"));
    ck_assert(runsc_version_is_known("a b", "b"));
    ck_assert(!runsc_version_is_known("0.0~20240729.0-7", "0.0~20240729.0"));
    ck_assert(!runsc_version_is_known("0.0~20240729.0", "0.0~20240729"));
    ck_assert(!runsc_version_is_known("", "a"));
    ck_assert(!runsc_version_is_known("a", ""));
}
END_TEST

START_TEST(the_version_is_the_third_word_of_the_first_line)
{
    static const struct {
        const char *output, *version;
    } cases[] = {
        {"#!/bin/sh\necho 'runsc version 1.2~3'\necho 'spec: 1.0'\n", "1.2~3"},
        {"#!/bin/sh\necho 'runc version 1.2'\n", NULL},
        {"#!/bin/sh\necho 'runsc version '\n", NULL},
        {"#!/bin/sh\necho 'runsc version 1.2'\nexit 3\n", NULL},
        {"#!/bin/sh\nprintf 'runsc version '; head -c 100000 /dev/zero | tr '\\0' 9\n", NULL},
        {"#!/bin/sh\n", NULL},
    };

    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        char version[RUNSC_VERSION_MAX];
        struct error err = ERROR_INIT;
        int rc;

        put("runsc", cases[i].output, 0755);
        rc = runsc_version(in_dir("runsc"), version, &err);
        ck_assert_int_eq(rc, cases[i].version ? 0 : -1);
        if (cases[i].version)
            ck_assert_str_eq(version, cases[i].version);
        else
            assert_says(&err, "guest.runsc");
    }
}
END_TEST

START_TEST(a_runsc_that_cannot_run_is_named)
{
    char version[RUNSC_VERSION_MAX];
    struct error err = ERROR_INIT;

    ck_assert_int_eq(runsc_version(in_dir("missing"), version, &err), -1);
    assert_says(&err, "missing");
    put("plain", "#!/bin/sh\n", 0644);
    ck_assert_int_eq(runsc_version(in_dir("plain"), version, &err), -1);
    assert_says(&err, "not executable");
    put("broken", "#!/nonexistent/interpreter\n", 0755);
    ck_assert_int_eq(runsc_version(in_dir("broken"), version, &err), -1);
    assert_says(&err, "cannot be started");
}
END_TEST

START_TEST(a_build_without_the_platform_is_refused)
{
    struct error err = ERROR_INIT;
    char long_dir[80];

    put("no", "#!/bin/sh\nexit 128\n", 0755);
    ck_assert_int_eq(runsc_check_platform(in_dir("no"), dir, &err), -1);
    assert_says(&err, "--platform=systrap");
    put("yes", "#!/bin/sh\n[ \"$2\" = --platform=systrap ]\n", 0755);
    err = (struct error)ERROR_INIT;
    ck_assert_msg(runsc_check_platform(in_dir("yes"), dir, &err) == 0, "%s", err.detail);
    memset(long_dir, 'x', sizeof(long_dir) - 1);
    long_dir[0] = '/';
    long_dir[sizeof(long_dir) - 1] = '\0';
    ck_assert_int_eq(runsc_check_platform(in_dir("yes"), long_dir, &err), -1);
    assert_says(&err, "daemon.state_dir");
}
END_TEST

START_TEST(the_command_line_isolates)
{
    static const char *const wanted[] = {"--platform=systrap",       "--network=none",
                                         "--overlay2=none",          "--file-access=exclusive",
                                         "--host-uds=none",          "--host-fifo=none",
                                         "--cpu-num-from-quota=true"};
    _cleanup_config_ struct config *config = config_with("", "");
    struct runsc_command cmd;
    struct error err = ERROR_INIT;
    unsigned count = 0;
    char text[256];

    ck_assert_int_eq(runsc_command_run(&cmd, config, ID, &err), 0);
    while (cmd.argv[count])
        count++;
    ck_assert_uint_ge(count, 4);
    ck_assert_str_eq(cmd.argv[0], config->guest_runsc);
    ck_assert_str_eq(cmd.argv[count - 1], ID);
    (void)snprintf(text, sizeof(text), "--bundle=%s/state/guests/" ID, dir);
    ck_assert_str_eq(cmd.argv[count - 2], text);
    ck_assert_str_eq(cmd.argv[count - 3], "run");
    for (unsigned i = 0; i < ARRAY_LEN(wanted); i++) {
        bool found = false;

        for (unsigned k = 1; k < count - 3; k++) /* flags of runsc itself stand before `run` */
            found = found || strcmp(cmd.argv[k], wanted[i]) == 0;
        ck_assert_msg(found, "%s is missing", wanted[i]);
    }
}
END_TEST

START_TEST(the_log_becomes_one_bounded_printable_line)
{
    static const struct {
        const char *log, *text;
    } cases[] = {
        {"", ""},
        {"plain\n", "plain"},
        {"one\ntwo\n\n\nthree", "one; two; three"},
        {"{\"msg\":\"a \\\"b\\\"\",\"level\":\"error\",\"time\":\"x\"}\n"
         "{\"msg\":\"c\",\"level\":\"error\"}\n",
         "a \\\"b\\\"; c"},
        {"{\"msg\":\"cut", "cut"},
        {"\x1b[31mred\x07\xff\n", "?[31mred??"},
    };
    char big[9000];
    char out[40];

    runsc_log_tail(in_dir("nowhere"), out, sizeof(out));
    ck_assert_str_eq(out, "");
    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        put(BUNDLE_LOG, cases[i].log, 0600);
        runsc_log_tail(dir, out, sizeof(out));
        ck_assert_str_eq(out, cases[i].text);
    }
    memset(big, 'y', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    put(BUNDLE_LOG, big, 0600);
    runsc_log_tail(dir, out, sizeof(out));
    ck_assert_uint_eq(strlen(out), sizeof(out) - 1);
}
END_TEST

/* --- images --------------------------------------------------------------------------------- */

static void make_image(void)
{
    make("images");
    make("images/store");
    make("images/store/rootfs");
    make("images/store/rootfs/usr");
    make("images/store/rootfs/usr/sbin");
    ck_assert_int_eq(symlink("usr/sbin", in_dir("images/store/rootfs/sbin")), 0);
    put("images/store/rootfs/usr/sbin/paddock-init", "x", 0755);
    put("images/store/manifest.json", "{\"template\":\"base\",\"key\":\"abc\"}", 0644);
    ck_assert_int_eq(symlink("store", in_dir("images/base")), 0);
}

static void assert_images(const char *names, const char *word)
{
    char line[128];
    struct templates all;
    struct error err = ERROR_INIT;
    int rc;

    (void)snprintf(line, sizeof(line), "templates = %s", names);
    _cleanup_config_ struct config *config = config_with("guest", line);
    rc = templates_load(&all, config, &err);
    ck_assert_int_eq(rc, word ? -1 : 0);
    if (word)
        assert_says(&err, word);
    templates_clear(&all);
}

START_TEST(a_complete_image_is_found_by_its_real_path)
{
    _cleanup_config_ struct config *config = config_with("guest", "templates = base");
    struct templates all;
    struct error err = ERROR_INIT;

    make_image();
    ck_assert_msg(templates_load(&all, config, &err) == 0, "%s", err.detail);
    ck_assert_uint_eq(all.count, 1);
    ck_assert_str_eq(templates_find(&all, "base")->rootfs, in_dir("images/store/rootfs"));
    ck_assert_str_eq(templates_find(&all, "base")->key, "abc");
    ck_assert_ptr_null(templates_find(&all, "bas"));
    templates_clear(&all);
}
END_TEST

START_TEST(what_an_image_lacks_is_named)
{
    make_image();
    assert_images("base", NULL);
    assert_images("base node", "template node: no image");
    put("images/store/manifest.json", "{\"template\":\"other\",\"key\":\"abc\"}", 0644);
    assert_images("base", "another template's");
    put("images/store/manifest.json", "{\"template\":\"base\",\"key\":\"\"}", 0644);
    assert_images("base", "no key");
    put("images/store/manifest.json", "{\"template\":\"base\"", 0644);
    assert_images("base", "not valid JSON");
    ck_assert_int_eq(unlink(in_dir("images/store/manifest.json")), 0);
    assert_images("base", "manifest.json is missing");
}
END_TEST

START_TEST(an_init_outside_the_image_does_not_count)
{
    make_image();
    ck_assert_int_eq(unlink(in_dir("images/store/rootfs/sbin")), 0);
    ck_assert_int_eq(symlink("/sbin", in_dir("images/store/rootfs/sbin")), 0);
    assert_images("base", "no executable /sbin/paddock-init");
    ck_assert_int_eq(unlink(in_dir("images/store/rootfs/sbin")), 0);
    ck_assert_int_eq(symlink("/usr/sbin", in_dir("images/store/rootfs/sbin")), 0);
    assert_images("base", NULL); /* the image's own, as the guest reads the link */
    ck_assert_int_eq(chmod(in_dir("images/store/rootfs/usr/sbin/paddock-init"), 0644), 0);
    assert_images("base", "no executable /sbin/paddock-init");
}
END_TEST

START_TEST(an_image_that_others_can_change_is_refused)
{
    make_image();
    ck_assert_int_eq(chmod(in_dir("images/store/rootfs"), 0777), 0);
    assert_images("base", "root's alone");
    ck_assert_int_eq(chmod(in_dir("images/store/rootfs"), 0755), 0);
    ck_assert_int_eq(chown(in_dir("images/store/rootfs"), 1000, 1000), 0);
    assert_images("base", "root's alone");
}
END_TEST

/* --- host ----------------------------------------------------------------------------------- */

static int host(const struct config *config, struct error *err)
{
    struct preflight found;
    int rc;

    memset(&found, 0, sizeof(found));
    *err = (struct error)ERROR_INIT;
    rc = preflight_host(&found, config, &quiet, err);
    preflight_clear(&found);
    return rc;
}

static void assert_folder(const char *name, mode_t mode, bool roots)
{
    struct stat st;

    ck_assert_int_eq(lstat(in_dir(name), &st), 0);
    ck_assert(S_ISDIR(st.st_mode));
    ck_assert_uint_eq(st.st_mode & 07777, mode);
    ck_assert_int_eq(st.st_uid == 0, roots);
}

START_TEST(folders_are_made_with_owner_and_mode)
{
    _cleanup_config_ struct config *config = config_with("", "");
    struct error err;

    ck_assert_msg(host(config, &err) == 0, "%s", err.detail);
    assert_folder("run", 0750, false);
    assert_folder("state", 0711, true);
    assert_folder("state/runsc", 0700, true);
    assert_folder("state/guests", 0700, true);
    ck_assert_msg(host(config, &err) == 0, "%s", err.detail); /* again: as they are */
}
END_TEST

START_TEST(folders_of_others_are_left_alone)
{
    _cleanup_config_ struct config *config = config_with("", "");
    struct error err;

    make("run"); /* root's, with something in it: not ours to take over */
    put("run/other", "", 0644);
    ck_assert_int_eq(host(config, &err), -1);
    assert_says(&err, "chown");
    assert_folder("run", 0755, true);
    ck_assert_int_eq(unlink(in_dir("run/other")), 0);
    ck_assert_msg(host(config, &err) == 0, "%s", err.detail); /* empty: a package made it */
    assert_folder("run", 0750, false);

    ck_assert_int_eq(chmod(in_dir("state"), 0777), 0);
    ck_assert_int_eq(host(config, &err), -1);
    assert_says(&err, "chmod go-w");
    ck_assert_int_eq(chmod(in_dir("state"), 0711), 0);
    ck_assert_int_eq(rmdir(in_dir("state/guests")), 0);
    ck_assert_int_eq(symlink("/tmp", in_dir("state/guests")), 0);
    ck_assert_int_eq(host(config, &err), -1);
    assert_says(&err, "not a plain folder");
}
END_TEST

START_TEST(the_user_must_exist_and_not_be_root)
{
    char text[256];
    struct error err = ERROR_INIT;
    int len = snprintf(text, sizeof(text), "[daemon]\nuser = no-such-user-here\n");
    struct config *config = config_parse(text, (size_t)len, "test", &err);

    ck_assert_ptr_nonnull(config);
    ck_assert_int_eq(host(config, &err), -1);
    assert_says(&err, "useradd --system no-such-user-here");
    config_free(config);
    len = snprintf(text, sizeof(text), "[daemon]\nuser = root\n");
    config = config_parse(text, (size_t)len, "test", &err);
    ck_assert_ptr_nonnull(config);
    ck_assert_int_eq(host(config, &err), -1);
    assert_says(&err, "must not be root");
    config_free(config);
}
END_TEST

START_TEST(a_kernel_that_is_too_old_is_named)
{
    _cleanup_config_ struct config *config = config_with("", "");
    struct preflight found = {0};
    struct error err = ERROR_INIT;

    ck_assert_msg(preflight_run(PREFLIGHT_KERNEL, &found, config, &quiet, &err) == 0, "%s",
                  err.detail);
    ck_assert_ptr_nonnull(strstr(found.note, "Linux "));
    /* This process is told of a Linux 2.6 from here on (personality(2)). */
    ck_assert_int_ge(personality(PER_LINUX | UNAME26), 0);
    ck_assert_int_eq(preflight_run(PREFLIGHT_KERNEL, &found, config, &quiet, &err), -1);
    assert_says(&err, "Linux 2.6.");
    assert_says(&err, "too old: boot 5.11");
}
END_TEST

START_TEST(a_check_needs_an_earlier_one_or_none)
{
    for (enum preflight_check check = 0; check < PREFLIGHT_COUNT; check++) {
        enum preflight_check needs = preflight_needs(check);

        ck_assert(needs < check || needs == PREFLIGHT_COUNT);
        ck_assert_str_ne(preflight_name(check), "");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("preflight");
    TCase *tcase = tcase_create("preflight");
    SRunner *runner = srunner_create(suite);
    int failed;

    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, dir_setup, dir_teardown);
    tcase_add_test(tcase, a_version_is_known_as_a_whole_word);
    tcase_add_test(tcase, the_version_is_the_third_word_of_the_first_line);
    tcase_add_test(tcase, a_runsc_that_cannot_run_is_named);
    tcase_add_test(tcase, a_build_without_the_platform_is_refused);
    tcase_add_test(tcase, the_command_line_isolates);
    tcase_add_test(tcase, the_log_becomes_one_bounded_printable_line);
    tcase_add_test(tcase, a_complete_image_is_found_by_its_real_path);
    tcase_add_test(tcase, what_an_image_lacks_is_named);
    tcase_add_test(tcase, an_init_outside_the_image_does_not_count);
    tcase_add_test(tcase, an_image_that_others_can_change_is_refused);
    tcase_add_test(tcase, folders_are_made_with_owner_and_mode);
    tcase_add_test(tcase, folders_of_others_are_left_alone);
    tcase_add_test(tcase, the_user_must_exist_and_not_be_root);
    tcase_add_test(tcase, a_kernel_that_is_too_old_is_named);
    tcase_add_test(tcase, a_check_needs_an_earlier_one_or_none);
    suite_add_tcase(suite, tcase);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
