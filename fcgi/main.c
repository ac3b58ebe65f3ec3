/*
 * paddock-fcgi: the REST front of Paddock behind a web server. This file reads
 * options and configuration, gives root away, and runs the manager; everything
 * else is in the library, so that tests link it.
 */
#include <errno.h>
#include <getopt.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/config.h"
#include "common/log.h"
#include "fcgi/manager.h"
#include "fcgi/route.h"

#define EXIT_USAGE 2

static void print_help(FILE *out)
{
    (void)fputs("usage: paddock-fcgi [--config FILE]\n"
                "Serves Paddock's REST interface by FastCGI on a Unix socket (web.socket).\n\n"
                "  --config FILE  configuration (default " CONFIG_DEFAULT_PATH ")\n"
                "  --help         this text\n"
                "  --version      the version\n\n"
                "Signals: SIGTERM finishes the requests in hand and ends; SIGHUP reloads the\n"
                "configuration and the program without losing a request.\n"
                "Exit status: 0 ended as told, 1 could not start, 2 wrong usage.\n\n"
                "Routes:\n",
                out);
    route_print(out);
}

/* Returns -1 to go on, else the exit status. */
static int parse_options(int argc, char **argv, const char **config_path)
{
    static const struct option options[] = {{"config", required_argument, NULL, 'c'},
                                            {"help", no_argument, NULL, 'h'},
                                            {"version", no_argument, NULL, 'v'},
                                            {NULL, 0, NULL, 0}};
    int option;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'c') {
            *config_path = optarg;
        } else if (option == 'h') {
            print_help(stdout);
            return 0;
        } else if (option == 'v') {
            puts("paddock-fcgi " PADDOCK_VERSION);
            return 0;
        } else {
            (void)fputs("paddock-fcgi: see --help\n", stderr);
            return EXIT_USAGE;
        }
    }
    if (optind < argc) {
        (void)fprintf(stderr, "paddock-fcgi: unexpected argument \"%s\"; see --help\n",
                      argv[optind]);
        return EXIT_USAGE;
    }
    return -1;
}

static int drop_root(const char *user, struct error *err)
{
    if (geteuid() != 0)
        return 0;
    errno = 0;
    const struct passwd *entry = getpwnam(user);
    if (!entry)
        return error_set_field(err, ERR_CONFIG, "web.user",
                               "web.user: there is no user \"%s\": useradd --system %s", user,
                               user);
    if (entry->pw_uid == 0)
        return error_set_field(err, ERR_CONFIG, "web.user", "web.user must not be root");
    if (initgroups(user, entry->pw_gid) < 0 || setgid(entry->pw_gid) < 0 ||
        setuid(entry->pw_uid) < 0)
        return error_set_errno(err, "cannot become user %s", user);
    if (setuid(0) == 0)
        return error_set(err, ERR_SYSTEM, "root could be regained after becoming %s", user);
    return 0;
}

static int run(const char *config_path, char **argv, struct log *log, struct error *err)
{
    _cleanup_config_ struct config *cfg = config_load(config_path, err);
    if (!cfg)
        return -1;
    if (log_level_parse(cfg->log_level, &log->level) < 0)
        return error_set(err, ERR_CONFIG, "log.level is not a level");
    if (drop_root(cfg->web_user, err) < 0)
        return -1;
    const struct manager_options options = {
        .cfg = cfg, .config_path = config_path, .log = log, .argv = argv};
    return manager_run(&options, err);
}

int main(int argc, char **argv)
{
    const char *config_path = NULL;
    int status = parse_options(argc, argv, &config_path);
    if (status >= 0)
        return status;
    struct log log;
    struct error err = ERROR_INIT;
    log_init(&log, "paddock-fcgi");
    if (run(config_path, argv, &log, &err) < 0) {
        log_error_value(&log, LOG_ERROR, "start_failed", &err);
        return 1;
    }
    return 0;
}
