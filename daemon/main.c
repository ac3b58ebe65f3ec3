/*
 * paddockd: options, configuration, and on to the supervisor. Nothing else: all
 * that does something sits in the library, where tests can link it.
 */
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/config.h"
#include "common/log.h"
#include "daemon/main_process.h"
#include "daemon/supervisor.h"

#define EXIT_USAGE 64

struct options {
    const char *config_path; /* NULL: the default place */
    bool check;
    bool report;
    bool main;
};

static void print_help(void)
{
    (void)puts(
        "Usage: paddockd [--config FILE] [--check | --report]\n"
        "Runs Paddock's sandboxes on this host. Started by root; its main process runs as\n"
        "daemon.user of the configuration.\n"
        "\n"
        "  --config FILE  configuration file (" CONFIG_DEFAULT_PATH ")\n"
        "  --check        check what guests need, start one, print the facts, and exit\n"
        "  --report       the same, to the end whatever fails, as JSON: for paddock doctor\n"
        "  --version      print the version\n"
        "  --help         this text\n"
        "\n"
        "SIGHUP replaces the main process by one of the program file as it is now, with the\n"
        "configuration as it is now; sandboxes and what runs in them go on.\n"
        "SIGTERM ends every sandbox and then paddockd; a second one ends it at once.\n"
        "Exit codes: 0 stopped or checked; 1 stopped before all was recorded, or it could not\n"
        "start for now; 64 wrong usage, configuration or host (the message names the mend).");
}

/* 0: go on; else exit with *code. */
static int parse_options(int argc, char **argv, struct options *options, int *code)
{
    enum { OPT_CONFIG = 1, OPT_CHECK, OPT_REPORT, OPT_MAIN, OPT_VERSION, OPT_HELP };
    static const struct option known[] = {{"config", required_argument, NULL, OPT_CONFIG},
                                          {"check", no_argument, NULL, OPT_CHECK},
                                          {"report", no_argument, NULL, OPT_REPORT},
                                          {"main", no_argument, NULL, OPT_MAIN},
                                          {"version", no_argument, NULL, OPT_VERSION},
                                          {"help", no_argument, NULL, OPT_HELP},
                                          {NULL, 0, NULL, 0}};
    int opt;

    *code = 0;
    while ((opt = getopt_long(argc, argv, "", known, NULL)) != -1) {
        switch (opt) {
        case OPT_CONFIG:
            options->config_path = optarg;
            break;
        case OPT_CHECK:
            options->check = true;
            break;
        case OPT_REPORT:
            options->report = true;
            break;
        case OPT_MAIN: /* of the supervisor's, which is why no help tells of it */
            options->main = true;
            break;
        case OPT_VERSION:
            (void)puts("paddockd " PADDOCK_VERSION);
            return -1;
        case OPT_HELP:
            print_help();
            return -1;
        default:
            *code = EXIT_USAGE;
            return -1;
        }
    }
    if (optind < argc) {
        (void)fprintf(stderr, "paddockd: unexpected argument %s\n", argv[optind]);
        *code = EXIT_USAGE;
        return -1;
    }
    return 0;
}

/* By the path it was started with, so that an upgrade is found there. */
static void find_program(const char *started_as, char out[PATH_MAX])
{
    char folder[PATH_MAX];
    ssize_t len;

    if (started_as[0] == '/' && strlen(started_as) < PATH_MAX) {
        memcpy(out, started_as, strlen(started_as) + 1);
        return;
    }
    if (strchr(started_as, '/') && getcwd(folder, sizeof(folder)) &&
        strlen(folder) + strlen(started_as) + 2 <= PATH_MAX) {
        (void)snprintf(out, PATH_MAX, "%s/", folder);
        (void)strcat(out, started_as);
        return;
    }
    len = readlink("/proc/self/exe", out, PATH_MAX - 1);
    out[len > 0 ? len : 0] = '\0';
}

int main(int argc, char **argv)
{
    struct options options = {0};
    struct supervisor_options how = {.config_path = NULL};
    char program[PATH_MAX];
    struct error err = ERROR_INIT;
    _cleanup_config_ struct config *config = NULL;
    struct log log;
    int code;

    log_init(&log, "paddockd");
    if (parse_options(argc, argv, &options, &code) < 0)
        return code;
    config = config_load(options.config_path, &err);
    if (!config) {
        log_error_value(&log, LOG_ERROR, "config_invalid", &err);
        return SUPERVISOR_EXIT_FATAL;
    }
    (void)log_level_parse(config->log_level, &log.level); /* the table allows known levels only */
    if (options.report) {
        log.level = LOG_ERROR; /* the report says it all */
        return supervisor_report(config, &log, stdout);
    }
    if (options.main)
        return main_process_run(config, &log);
    find_program(argv[0], program);
    how.program = program;
    how.config_path = options.config_path;
    code = options.check ? supervisor_check(config, &log, stdout, &err)
                         : supervisor_run(config, &how, &log, &err);
    if (error_is_set(&err))
        log_error_value(&log, LOG_ERROR, "start_failed", &err);
    return code;
}
