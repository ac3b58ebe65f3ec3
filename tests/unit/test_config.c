/*
 * The configuration: what is taken, what is refused and with which place and
 * words, the environment over the file, checks across keys, and that a password
 * never comes out.
 */
#include "common/config.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void unset(const char *name)
{
    char upper[100];
    size_t i = 0;

    for (; name[i] && i + 1 < sizeof(upper); i++)
        upper[i] = (char)(name[i] >= 'a' && name[i] <= 'z' ? name[i] - 'a' + 'A' : name[i]);
    upper[i] = '\0';
    unsetenv(upper);
}

/* Nothing of the caller's environment may decide a test. */
static void setup(void)
{
#define CONFIG_KEY(section, key, type, def, min, max, help) unset("PADDOCK_" #section "_" #key);
#include "common/config_keys.def"
#undef CONFIG_KEY
}

static struct config *parse(const char *text, struct error *err)
{
    *err = (struct error)ERROR_INIT;
    return config_parse(text, strlen(text), "t.conf", err);
}

static struct config *good(const char *text)
{
    struct error err;
    struct config *cfg = parse(text, &err);

    ck_assert_msg(cfg != NULL, "refused: %s", err.detail);
    return cfg;
}

/* Refused, with `start` at the detail's beginning and `part` within. */
static void bad_bytes(const char *text, size_t len, const char *start, const char *part)
{
    struct error err = ERROR_INIT;
    _cleanup_config_ struct config *cfg = config_parse(text, len, "t.conf", &err);

    ck_assert_msg(cfg == NULL, "taken: %s", text);
    ck_assert_int_eq(err.code, ERR_CONFIG);
    ck_assert_msg(strncmp(err.detail, start, strlen(start)) == 0, "\"%s\" does not start with %s",
                  err.detail, start);
    ck_assert_msg(strstr(err.detail, part) != NULL, "\"%s\" lacks \"%s\"", err.detail, part);
}

static void bad(const char *text, const char *start, const char *part)
{
    bad_bytes(text, strlen(text), start, part);
}

static char *shown(const struct config *cfg, bool with_help)
{
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);

    ck_assert_ptr_nonnull(out);
    config_show(cfg, out, with_help);
    fclose(out);
    return text;
}

START_TEST(defaults_are_a_configuration)
{
    _cleanup_config_ struct config *cfg = good("");

    ck_assert_str_eq(cfg->database_dsn, "host=/run/postgresql dbname=paddock user=paddock");
    ck_assert_int_eq(cfg->database_connect_timeout, 5000);
    ck_assert_int_eq(cfg->web_body_max, 16 * 1024 * 1024);
    ck_assert_int_eq(cfg->limits_exec_timeout_max, 86400000);
    ck_assert_int_eq(cfg->limits_env_bytes, 32768);
    ck_assert(cfg->guest_smoke);
    ck_assert_str_eq(cfg->cgroup_cgroup_v1, "deny");
    ck_assert_uint_eq(config_socket_mode(cfg), 0660);
}
END_TEST

START_TEST(values_of_every_type)
{
    _cleanup_config_ struct config *cfg =
        good("# comment\n; comment\n   # indented comment\n\n"
             "[guest]\r\n  cpus=2\r\n\tmemory_mb = 2048\t \nsmoke = no\n"
             "runsc = /opt/a b/runsc=x\ntemplates =  base   node-24 \nkill_grace = 0s\n"
             "[ limits ]\noutput_bytes = 1M\ncode_bytes=4194304\nstdin_bytes = 0\nttl_max = 36h\n"
             "[cgroup]\ncgroup_v1 = allow\nparent = /a # not a comment\n"
             "[web]\nsocket_mode = 777\n"
             "[guest]\npids = 512"); /* a section may come again; no newline at the end */

    ck_assert_int_eq(cfg->guest_cpus, 2);
    ck_assert_int_eq(cfg->guest_memory_mb, 2048);
    ck_assert(!cfg->guest_smoke);
    ck_assert_str_eq(cfg->guest_runsc, "/opt/a b/runsc=x");
    ck_assert_str_eq(cfg->guest_templates, "base   node-24");
    ck_assert_int_eq(cfg->guest_kill_grace, 0);
    ck_assert_int_eq(cfg->limits_output_bytes, 1048576);
    ck_assert_int_eq(cfg->limits_code_bytes, 4194304);
    ck_assert_int_eq(cfg->limits_stdin_bytes, 0);
    ck_assert_int_eq(cfg->limits_ttl_max, INT64_C(36) * 3600000);
    ck_assert_str_eq(cfg->cgroup_cgroup_v1, "allow");
    ck_assert_str_eq(cfg->cgroup_parent, "/a # not a comment");
    ck_assert_uint_eq(config_socket_mode(cfg), 0777);
    ck_assert_int_eq(cfg->guest_pids, 512);
}
END_TEST

START_TEST(lines_that_are_no_lines)
{
    bad("[nope]\n", "t.conf:1: ", "unknown section [nope]");
    bad("\n\n[guest\n", "t.conf:3: ", "']'");
    bad("[", "t.conf:1: ", "']'");
    bad("[]", "t.conf:1: ", "unknown section");
    bad("[guest] cpus = 1\n", "t.conf:1: ", "']'");
    bad("[Guest]\n", "t.conf:1: ", "unknown section");
    bad("[guest\033[31m]\n", "t.conf:1: ", "unknown section [?]");
    bad("cpus = 1\n", "t.conf:1: ", "before any [section]");
    bad("[guest]\nnope = 1\n", "t.conf:2: ", "unknown key nope in section [guest]");
    bad("[guest]\nCpus = 1\n", "t.conf:2: ", "unknown key Cpus");
    bad("[guest]\ndsn = x\n", "t.conf:2: ", "unknown key dsn in section [guest]");
    bad("[guest]\ncpus\n", "t.conf:2: ", "'=' is missing");
    bad("[guest]\n= 1\n", "t.conf:2: ", "is not a key");
    bad("[guest]\ncp us = 1\n", "t.conf:2: ", "is not a key");
    bad("[guest]\ncpus = 1\n\ncpus = 1\n",
        "t.conf:4: ", "duplicate key guest.cpus: line 2 sets it too");
    bad("\xef\xbb\xbf[guest]\n", "t.conf:1: ", "byte order mark");
    bad_bytes("[guest]\ncpus = 1\0\n", 18, "t.conf:2: ", "NUL");
    bad_bytes("\0", 1, "t.conf:1: ", "NUL");
}
END_TEST

START_TEST(long_lines_and_large_files)
{
    char line[4200];
    size_t size = (1 << 20) + 1;
    char *file = malloc(size);

    memset(line, '#', sizeof(line));
    line[4096] = '\n';
    struct error err = ERROR_INIT;
    _cleanup_config_ struct config *cfg = config_parse(line, 4097, "t.conf", &err);
    ck_assert_msg(cfg != NULL, "%s", err.detail);
    line[4096] = '#';
    bad_bytes(line, 4097, "t.conf:1: ", "longer than 4096 bytes");

    memset(file, '\n', size);
    bad_bytes(file, size, "t.conf: ", "larger than 1048576 bytes");
    free(file);
}
END_TEST

START_TEST(values_out_of_bounds_name_the_bounds)
{
    static const struct {
        const char *section;
        const char *line;
        const char *part;
    } cases[] = {
        {"guest", "cpus = 0", "guest.cpus must be from 1 to 64; it is 0"},
        {"guest", "cpus = 65", "from 1 to 64"},
        {"guest", "cpus = -1", "from 1 to 64"},
        {"guest", "cpus = +1", "must be an integer, from 1 to 64; it is \"+1\""},
        {"guest", "cpus = 01", "must be an integer"},
        {"guest", "cpus = 1K", "must be an integer"},
        {"guest", "cpus = 1.5", "must be an integer"},
        {"guest", "cpus = \"1\"", "must be an integer"},
        {"guest", "cpus =", "must be an integer"},
        {"guest", "cpus = 99999999999999999999999999999", "must be an integer"},
        {"guest", "cpus = 9223372036854775808", "must be an integer"},
        {"limits", "output_bytes = 1", "from 1K to 16M"},
        {"limits", "output_bytes = 1k", "integer with optional K, M or G, from 1K to 16M"},
        {"limits", "output_bytes = 64KB", "K, M or G"},
        {"limits", "output_bytes = 64 K", "K, M or G"},
        {"limits", "output_bytes = K", "K, M or G"},
        {"limits", "output_bytes = 9007199254740993G", "K, M or G"},
        {"limits", "output_bytes = 17179869185G", "K, M or G"}, /* 2^64 + 2^30 */
        {"limits", "output_bytes = 8589934591G", "from 1K to 16M"},
        {"database", "connect_timeout = 5", "an integer with ms, s, m, h or d, from 1s to 1m"},
        {"database", "connect_timeout = 999ms", "from 1s to 1m"},
        {"database", "connect_timeout = 2m", "from 1s to 1m; it is 2m"},
        {"database", "connect_timeout = 5 s", "ms, s, m, h or d"},
        {"database", "connect_timeout = 1m1s", "ms, s, m, h or d"},
        {"database", "connect_timeout = s", "ms, s, m, h or d"},
        {"guest", "kill_grace = -1s", "from 0s to 1m"},
        {"guest", "smoke = true", "must be yes or no; it is \"true\""},
        {"guest", "smoke = YES", "must be yes or no"},
        {"guest", "smoke =", "must be yes or no"},
        {"guest", "runsc = runsc", "guest.runsc must be an absolute path"},
        {"guest", "runsc =", "of 1 to 200 bytes; it has 0"},
        {"log", "level = verbose", "must be one of (debug|info|warn|error); it is \"verbose\""},
        {"log", "level = info|warn", "must be one of"},
        {"log", "level = inf", "must be one of"},
        {"log", "level =", "must be one of"},
        {"log", "level = )", "must be one of"},
        {"guest", "templates = base Node", "\"Node\", which is not a name"},
        {"guest", "templates = ../etc", "which is not a name"},
        {"guest", "templates = base node base", "names \"base\" twice"},
        {"guest", "runsc = /a\tb", "control character (0x09)"},
        {"guest", "runsc = /a\x7f", "control character (0x7f)"},
        {"guest", "runsc = /a\xc3", "not valid UTF-8"},
        {"web", "user = abcdefghijklmnopqrstuvwxyz0123456", "of 1 to 32 bytes; it has 33"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[300];
        snprintf(text, sizeof(text), "[%s]\n\n%s\n", cases[i].section, cases[i].line);
        bad(text, "t.conf:3: ", cases[i].part);
    }
}
END_TEST

START_TEST(long_names_among_templates)
{
    char text[400] = "[guest]\ntemplates = base ";

    for (int i = 0; i < 64; i++)
        strcat(text, "a");
    bad(text, "t.conf:2: ", "a name of over 63 bytes");
    text[strlen(text) - 1] = '\0';
    _cleanup_config_ struct config *cfg = good(text);
    ck_assert_uint_eq(strlen(cfg->guest_templates), 5 + 63);
}
END_TEST

START_TEST(an_error_names_the_key_as_field)
{
    struct error err;
    _cleanup_config_ struct config *cfg = parse("[guest]\ncpus = x\n", &err);

    ck_assert_ptr_null(cfg);
    ck_assert_str_eq(err.field, "guest.cpus");
    cfg = parse("[daemon]\nlease = 9s\n", &err);
    ck_assert_ptr_null(cfg);
    ck_assert_str_eq(err.field, "daemon.lease");
}
END_TEST

START_TEST(no_message_quotes_a_connection_string)
{
    static const char *const texts[] = {"[database]\ndsn = password=geheim \x01\n",
                                        "[database]\ndsn = password=geheim\xff\n",
                                        "[database]\ndsn password=geheim\n",
                                        "[database]\ndsn password geheim\n",
                                        "[database]\ndsn : geheim\n",
                                        "password=geheim\n"};
    char text[2000] = "[database]\ndsn = password=geheim ";

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct error err;
        _cleanup_config_ struct config *cfg = parse(texts[i], &err);
        ck_assert_ptr_null(cfg);
        ck_assert_msg(strstr(err.detail, "geheim") == NULL, "%s", err.detail);
    }
    memset(text + strlen(text), 'x', 1200);
    bad(text, "t.conf:2: ", "of 1 to 1024 bytes");
    setenv("PADDOCK_DATABASE_DSN", "geheim\x01", 1);
    struct error err;
    _cleanup_config_ struct config *cfg = parse("", &err);
    ck_assert_ptr_null(cfg);
    ck_assert_ptr_null(strstr(err.detail, "geheim"));
}
END_TEST

START_TEST(environment_counts_more_than_the_file)
{
    setenv("PADDOCK_GUEST_CPUS", " 3 ", 1);
    setenv("PADDOCK_CGROUP_CGROUP_V1", "allow", 1);
    setenv("PADDOCK_GUEST_NO_SUCH_KEY", "x", 1);
    _cleanup_config_ struct config *cfg = good("[guest]\ncpus = 2\n");
    ck_assert_int_eq(cfg->guest_cpus, 3);
    ck_assert_str_eq(cfg->cgroup_cgroup_v1, "allow");
}
END_TEST

START_TEST(environment_errors_name_the_variable)
{
    char *value = malloc(5001);

    setenv("PADDOCK_GUEST_MEMORY_MB", "lots", 1);
    bad("", "PADDOCK_GUEST_MEMORY_MB: ", "guest.memory_mb must be an integer, from 128 to 1048576");
    setenv("PADDOCK_GUEST_MEMORY_MB", "", 1);
    bad("", "PADDOCK_GUEST_MEMORY_MB: ", "must be an integer");
    memset(value, '1', 5000);
    value[5000] = '\0';
    setenv("PADDOCK_GUEST_MEMORY_MB", value, 1);
    bad("", "PADDOCK_GUEST_MEMORY_MB: ", "longer than");
    free(value);
    unsetenv("PADDOCK_GUEST_MEMORY_MB");
    setenv("PADDOCK_GUEST_CPUS", "9", 1);
    bad("[guest]\ncpus = 1\n", "PADDOCK_GUEST_CPUS: ", "guest.cpus (9) is over guest.cpus_max (4)");
    /* The file must be right by itself. */
    setenv("PADDOCK_GUEST_CPUS", "1", 1);
    bad("[guest]\ncpus = x\n", "t.conf:2: ", "guest.cpus");
}
END_TEST

START_TEST(checks_across_keys)
{
    bad("[guest]\n\ncpus = 5\n", "t.conf:3: ", "guest.cpus (5) is over guest.cpus_max (4)");
    bad("[guest]\npids_max = 100\n", "t.conf:2: ", "guest.pids (256) is over guest.pids_max (100)");
    bad("[guest]\nmemory_mb = 9000\n",
        "t.conf:2: ", "guest.memory_mb (9000) is over guest.memory_mb_max (8192)");
    bad("[daemon]\nheartbeat = 5s\nlease = 10s\n",
        "t.conf:3: ", "daemon.lease (10000 ms) must be over twice daemon.heartbeat (5000 ms)");
    bad("[daemon]\nheartbeat = 15s\n", "t.conf:2: ", "must be over twice");
    bad("[guest]\nheartbeat_timeout = 5s\n",
        "t.conf:2: ", "guest.heartbeat_timeout (5000 ms) must be over guest.heartbeat (5000 ms)");
    bad("[web]\nsocket_mode = 680\n", "t.conf:2: ", "web.socket_mode (680) must be octal digits");
    bad("[web]\nsocket_mode = 668\n", "t.conf:2: ", "octal");

    _cleanup_config_ struct config *cfg = good("[daemon]\nlease = 10001ms\n");
    ck_assert_int_eq(cfg->daemon_lease, 10001);
}
END_TEST

START_TEST(tmpfs_leaves_memory_free)
{
    /* 256 + 128 + 64 + 64 */
    _cleanup_config_ struct config *cfg = good("[guest]\nmemory_mb = 512\n");
    ck_assert_int_eq(cfg->guest_memory_mb, 512);
    bad("[guest]\nmemory_mb = 511\n", "t.conf:2: ",
        "guest.workspace_mb (256), guest.tmp_mb (128) and guest.shm_mb (64) are 448 MiB of tmpfs,"
        " whose content counts as the guest's memory; at least 64 MiB of guest.memory_mb (511)"
        " must stay free of it");
    bad("[guest]\ntmp_mb = 1000\n", "t.conf:2: ", "at least 64 MiB");
    bad("[guest]\nworkspace_mb = 1048576\ntmp_mb = 1048576\nshm_mb = 1048576\n",
        "t.conf:2: ", "are 3145728 MiB of tmpfs");
}
END_TEST

START_TEST(a_long_file_name_leaves_room_for_the_reason)
{
    char name[4000];
    struct error err = ERROR_INIT;

    for (size_t i = 0; i < sizeof(name); i++)
        name[i] = "é"[i % 2];
    memcpy(name + sizeof(name) - 9, "end.conf", 9);
    static const char text[] = "[guest]\ncpus = 77\n";
    _cleanup_config_ struct config *cfg = config_parse(text, strlen(text), name, &err);
    ck_assert_ptr_null(cfg);
    ck_assert_ptr_nonnull(strstr(err.detail, "end.conf:2: guest.cpus must be from 1 to 64"));
}
END_TEST

START_TEST(what_is_shown_loads_again)
{
    for (int with_help = 0; with_help < 2; with_help++) {
        _cleanup_config_ struct config *cfg =
            good("[guest]\ncpus = 3\nsmoke = no\nkill_grace = 0ms\nprovision_timeout = 90s\n"
                 "[limits]\noutput_bytes = 1025\nstdin_bytes = 0\nttl_max = 1500ms\n"
                 "[database]\ndsn = host=/tmp dbname='a b'\n[log]\nlevel = debug\n");
        char *first = shown(cfg, with_help);
        ck_assert_ptr_nonnull(strstr(first, "[guest]\n"));
        ck_assert_ptr_nonnull(strstr(first, "\ncpus = 3\n"));
        ck_assert_ptr_nonnull(strstr(first, "\noutput_bytes = 1025\n"));
        ck_assert_ptr_nonnull(strstr(first, "\nstdin_bytes = 0\n"));
        ck_assert_ptr_nonnull(strstr(first, "\nkill_grace = 0s\n"));
        ck_assert_ptr_nonnull(strstr(first, "\nprovision_timeout = 90s\n"));
        ck_assert_ptr_nonnull(strstr(first, "\nttl_max = 1500ms\n"));
        ck_assert_ptr_nonnull(strstr(first, "\ncode_bytes = 4M\n"));
        ck_assert_int_eq(strstr(first, "# Default: 1; from 1 to 64\ncpus") != NULL, with_help);
        ck_assert_int_eq(strstr(first, "PADDOCK_<SECTION>_<KEY>") != NULL, with_help);
        _cleanup_config_ struct config *again = good(first);
        char *second = shown(again, with_help);
        ck_assert_str_eq(first, second);
        ck_assert_int_eq(again->limits_output_bytes, 1025);
        ck_assert_int_eq(again->limits_ttl_max, 1500);
        ck_assert_str_eq(again->database_dsn, "host=/tmp dbname='a b'");
        free(first);
        free(second);
    }
}
END_TEST

START_TEST(no_password_is_shown)
{
    static const struct {
        const char *dsn;
        const char *wanted;
    } cases[] = {
        {"host=/tmp user=a", "host=/tmp user=a"},
        {"password=geheim host=h", "password=******** host=h"},
        {"host=h password = geheim", "host=h password = ********"},
        {"host=h password='ge\\'hei m' user=x", "host=h password=******** user=x"},
        {"host=h password=ge\\ heim user=x", "host=h password=******** user=x"},
        {"sslpassword=geheim sslkey=k", "sslpassword=******** sslkey=k"},
        {"PASSWORD=geheim", "PASSWORD=********"},
        {"passfile=/x/.pgpass", "passfile=/x/.pgpass"},
        {"password=", "password="},
        /* not a connection string: rather nothing */
        {"password='geheim", "********"},
        {"geheim", "********"},
        {"host=h geheim", "********"},
        {"=geheim", "********"},
        {"postgres://u:geheim@h:5432/db", "postgres://u:********@h:5432/db"},
        {"postgresql://u:geheim@h/db?sslmode=require",
         "postgresql://u:********@h/db?sslmode=require"},
        {"postgres://u@h:5432/db", "postgres://u@h:5432/db"},
        {"postgres:///db?host=/run&user=u", "postgres:///db?host=/run&user=u"},
        {"postgres://h/db?password=geheim&user=u", "postgres://h/db?password=********&user=u"},
        {"postgres://h/db?user=u&pass%77ord=geheim", "postgres://h/db?user=u&pass%77ord=********"},
        {"postgres://h/db?a=b&sslpassword=geheim", "postgres://h/db?a=b&sslpassword=********"},
        /* signs a password should have had escaped */
        {"postgres://u:ge@heim@h/db", "postgres://u:********@h/db"},
        {"postgres://u:ge/heim@h/db", "postgres://u:********@h/db"},
        {"postgres://u:ge?heim@h/db", "postgres://u:********@h/db"},
        {"postgres://u:ge:heim@h/db", "postgres://u:********@h/db"},
        {"postgres://h:5432/db?password=ge@heim&sslmode=x", "postgres://h:********&sslmode=x"},
        {"dbname=postgres://u:geheim@h/db user=x", "dbname=postgres://u:********@h/db user=x"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[300];
        snprintf(text, sizeof(text), "[database]\ndsn = %s\n", cases[i].dsn);
        _cleanup_config_ struct config *cfg = good(text);
        ck_assert_str_eq(cfg->database_dsn, cases[i].dsn);
        for (int with_help = 0; with_help < 2; with_help++) {
            char *out = shown(cfg, with_help);
            snprintf(text, sizeof(text), "\ndsn = %s\n", cases[i].wanted);
            ck_assert_msg(strstr(out, text) != NULL, "%s is shown as %s", cases[i].dsn, out);
            ck_assert_ptr_null(strstr(out, "geheim"));
            ck_assert_ptr_null(strstr(out, "heim"));
            free(out);
        }
    }
}
END_TEST

START_TEST(names_by_index)
{
    char name[8];

    ck_assert(config_name_at("base  node ", 0, name, sizeof(name)));
    ck_assert_str_eq(name, "base");
    ck_assert(config_name_at("base  node ", 1, name, sizeof(name)));
    ck_assert_str_eq(name, "node");
    ck_assert(!config_name_at("base  node ", 2, name, sizeof(name)));
    ck_assert(!config_name_at("base  node ", UINT32_MAX, name, sizeof(name)));
    ck_assert(!config_name_at("", 0, name, sizeof(name)));
    ck_assert(!config_name_at("   ", 0, name, sizeof(name)));
    ck_assert(config_name_at("1234567", 0, name, sizeof(name)));
    ck_assert(!config_name_at("12345678", 0, name, sizeof(name)));
    ck_assert(!config_name_at("a", 0, name, 0));
    ck_assert_str_eq(name, "1234567");
}
END_TEST

START_TEST(files)
{
    char path[] = "/tmp/test_config_XXXXXX";
    struct error err = ERROR_INIT;
    char wanted[100];

    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(dprintf(fd, "[guest]\ncpus = 2\n"), 17);
    struct config *cfg = config_load(path, &err);
    ck_assert_msg(cfg != NULL, "%s", err.detail);
    ck_assert_int_eq(cfg->guest_cpus, 2);
    config_free(cfg);
    ck_assert_int_eq(dprintf(fd, "nope = 2\n"), 9);
    ck_assert_ptr_null(config_load(path, &err));
    snprintf(wanted, sizeof(wanted), "%s:3: unknown key nope in section [guest]", path);
    ck_assert_str_eq(err.detail, wanted);
    ck_assert_int_eq(ftruncate(fd, 2 << 20), 0);
    ck_assert_ptr_null(config_load(path, &err));
    ck_assert_ptr_nonnull(strstr(err.detail, "larger than"));
    close(fd);
    unlink(path);

    ck_assert_ptr_null(config_load(path, &err));
    ck_assert_int_eq(err.code, ERR_CONFIG);
    ck_assert_int_eq(err.errno_value, ENOENT);
    ck_assert_ptr_nonnull(strstr(err.detail, path));
    ck_assert_ptr_null(config_load("/", &err));
    ck_assert_int_eq(err.code, ERR_CONFIG);
    ck_assert_ptr_nonnull(strstr(err.detail, "Is a directory"));
    config_free(NULL);
}
END_TEST

START_TEST(any_bytes_end_in_an_answer)
{
    /* Mutations of a good file: never a crash, and each refusal says where. */
    static const char seed[] = "[guest]\ncpus = 2\ntemplates = base node\n[limits]\n"
                               "output_bytes = 64K\n[database]\ndsn = postgres://a:b@c/d\n";
    unsigned state = 12345;

    for (int round = 0; round < 20000; round++) {
        char text[sizeof(seed)];
        memcpy(text, seed, sizeof(seed));
        for (int i = 0; i < 3; i++) {
            state = state * 1103515245U + 12345U;
            text[(state >> 8) % (sizeof(seed) - 1)] = (char)(unsigned char)(state >> 24);
        }
        struct error err = ERROR_INIT;
        struct config *cfg = config_parse(text, sizeof(seed) - 1, "t.conf", &err);
        if (cfg) {
            char *out = shown(cfg, false);
            free(out);
            config_free(cfg);
        } else {
            ck_assert_int_eq(err.code, ERR_CONFIG);
            ck_assert_int_eq(strncmp(err.detail, "t.conf:", 7), 0);
        }
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("config");
    TCase *tcase = tcase_create("config");
    SRunner *runner = srunner_create(suite);

    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, setup, NULL);
    tcase_add_test(tcase, defaults_are_a_configuration);
    tcase_add_test(tcase, values_of_every_type);
    tcase_add_test(tcase, lines_that_are_no_lines);
    tcase_add_test(tcase, long_lines_and_large_files);
    tcase_add_test(tcase, values_out_of_bounds_name_the_bounds);
    tcase_add_test(tcase, long_names_among_templates);
    tcase_add_test(tcase, an_error_names_the_key_as_field);
    tcase_add_test(tcase, no_message_quotes_a_connection_string);
    tcase_add_test(tcase, environment_counts_more_than_the_file);
    tcase_add_test(tcase, environment_errors_name_the_variable);
    tcase_add_test(tcase, checks_across_keys);
    tcase_add_test(tcase, tmpfs_leaves_memory_free);
    tcase_add_test(tcase, a_long_file_name_leaves_room_for_the_reason);
    tcase_add_test(tcase, what_is_shown_loads_again);
    tcase_add_test(tcase, no_password_is_shown);
    tcase_add_test(tcase, names_by_index);
    tcase_add_test(tcase, files);
    tcase_add_test(tcase, any_bytes_end_in_an_answer);
    suite_add_tcase(suite, tcase);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
