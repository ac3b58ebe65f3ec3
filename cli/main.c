/*
 * paddock: the command line. Global options, the look-up of a verb in
 * commands.def, and the one place where an error is reported.
 */
#include "cli/cli.h"

#include <curl/curl.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/json.h"

struct command {
    const char *noun;
    const char *verb;
    cli_verb handler;
    const char *synopsis;
    const char *help;
};

static const struct command commands[] = {
#define COMMAND(noun, verb, handler, synopsis, help) {noun, verb, handler, synopsis, help},
#include "cli/commands.def"
#undef COMMAND
};

const struct config *cli_config(struct cli *cli)
{
    if (cli->config == NULL)
        cli->config = config_load(cli->config_path, &cli->err);
    return cli->config;
}

/* The database admits the service's user, often by who it is (peer authentication): root connects
 * as that user, and so sees what the service would see. */
static int connect_as_service(struct cli *cli, const char *user)
{
    const struct passwd *entry = getpwnam(user);
    int status;

    if (entry == NULL)
        return error_set_field(&cli->err, ERR_CONFIG, "daemon.user",
                               "there is no user \"%s\" (systemd-sysusers makes it)", user);
    if (setegid(entry->pw_gid) < 0 || seteuid(entry->pw_uid) < 0)
        return error_set_errno(&cli->err, "cannot become user %s", user);
    status = db_ensure(cli->db, &cli->err);
    if (seteuid(0) < 0 || setegid(0) < 0)
        return error_set_errno(&cli->err, "cannot become root again");
    return status;
}

struct db *cli_db(struct cli *cli)
{
    const struct config *config = cli_config(cli);

    if (config == NULL)
        return NULL;
    if (cli->db == NULL) {
        cli->db = db_new(config->database_dsn, config->database_connect_timeout,
                         config->database_statement_timeout);
        if (cli->db == NULL) {
            error_set(&cli->err, ERR_INTERNAL, "no memory");
            return NULL;
        }
        if (geteuid() == 0 && connect_as_service(cli, config->daemon_user) < 0) {
            db_free(cli->db);
            cli->db = NULL;
        }
    }
    return cli->db;
}

char *cli_who(struct cli *cli)
{
    const struct passwd *entry = getpwuid(getuid());
    _cleanup_json_ json_t *who =
        json_pack("{s:s+}", "token", "operator:", entry != NULL ? entry->pw_name : "?");
    char *text = who != NULL ? json_dumps(who, JSON_COMPACT) : NULL;

    if (text == NULL)
        error_set(&cli->err, ERR_INTERNAL, "no memory");
    return text;
}

int cli_exit_status(const struct error *err)
{
    if (err->code == ERR_CONFIG)
        return CLI_CONFIG;
    switch (error_code_status(err->code)) {
    case 401:
    case 403:
        return CLI_DENIED;
    case 404:
    case 410:
        return CLI_NOT_FOUND;
    case 409:
        return CLI_CONFLICT;
    case 429:
    case 503:
        return CLI_UNAVAILABLE;
    default:
        return CLI_FAILED;
    }
}

int cli_usage(const struct cli *cli, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    (void)fputs("paddock: ", stderr);
    (void)vfprintf(stderr, fmt, args);
    va_end(args);
    (void)fprintf(stderr, "\nusage: paddock %s\n", cli->usage);
    return CLI_USAGE;
}

static void print_help(FILE *out)
{
    (void)fputs("usage: paddock [--config FILE] [--json] [--url URL] [--project P] COMMAND ...\n\n",
                out);
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        (void)fprintf(out, "  %s%s%s %s\n      %s\n", commands[i].noun,
                      commands[i].verb[0] ? " " : "", commands[i].verb, commands[i].synopsis,
                      commands[i].help);
    (void)fputs(
        "\nsandbox, exec, cancel and usage speak REST: PADDOCK_URL, PADDOCK_PROJECT and\n"
        "PADDOCK_TOKEN say where and who. db, project, token, audit and maintenance use the\n"
        "database that the configuration names (" CONFIG_DEFAULT_PATH ").\n"
        "\nExit status: 0 done, 1 failed, 2 usage, 3 configuration, 4 denied, 5 not found,\n"
        "6 conflict, 7 not available. exec: the command's own, or 125 when it was not run\n"
        "to its end.\n",
        out);
}

/* Consumes the global options; *index is left at the first word of the command. */
static int global_options(struct cli *cli, int argc, char **argv, int *index)
{
    for (; *index < argc && argv[*index][0] == '-'; *index += 1) {
        const char *option = argv[*index];
        const char **value = strcmp(option, "--config") == 0    ? &cli->config_path
                             : strcmp(option, "--url") == 0     ? &cli->url
                             : strcmp(option, "--project") == 0 ? &cli->project
                                                                : NULL;

        if (strcmp(option, "--json") == 0) {
            cli->json = true;
        } else if (strcmp(option, "--help") == 0 || strcmp(option, "-h") == 0) {
            print_help(stdout);
            return 1;
        } else if (strcmp(option, "--version") == 0) {
            puts("paddock " PADDOCK_VERSION);
            return 1;
        } else if (value == NULL) {
            return cli_usage(cli, "unknown option %s", option);
        } else if (*index + 1 >= argc) {
            return cli_usage(cli, "%s wants a value", option);
        } else {
            *value = argv[++*index];
        }
    }
    return 0;
}

static const struct command *find_command(int argc, char **argv, int index, int *words)
{
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        if (index >= argc || strcmp(argv[index], commands[i].noun) != 0)
            continue;
        *words = commands[i].verb[0] != '\0' ? 2 : 1;
        if (*words == 1 || (index + 1 < argc && strcmp(argv[index + 1], commands[i].verb) == 0))
            return &commands[i];
    }
    return NULL;
}

/* --json, --help and --project are also understood behind the verb, where people put them. */
static int strip_common(struct cli *cli, const struct command *command, int *argc, char **argv)
{
    int kept = 0;
    bool ended = false;

    for (int i = 0; i < *argc; i++) {
        if (strcmp(argv[i], "--") == 0)
            ended = true;
        if (!ended && strcmp(argv[i], "--json") == 0) {
            cli->json = true;
        } else if (!ended && strcmp(argv[i], "--help") == 0) {
            printf("usage: paddock %s\n\n%s\n", cli->usage, command->help);
            return 1;
        } else {
            argv[kept++] = argv[i];
        }
    }
    *argc = kept;
    return 0;
}

static int run(struct cli *cli, int argc, char **argv)
{
    const struct command *command;
    char usage[600];
    int index = 1;
    int words = 0;
    int status = global_options(cli, argc, argv, &index);

    if (status != 0)
        return status == 1 ? CLI_OK : status;
    command = find_command(argc, argv, index, &words);
    if (command == NULL) {
        if (index < argc)
            (void)fprintf(stderr, "paddock: no such command; these are known:\n\n");
        print_help(stderr);
        return CLI_USAGE;
    }
    (void)snprintf(usage, sizeof(usage), "%s%s%s %s", command->noun, command->verb[0] ? " " : "",
                   command->verb, command->synopsis);
    cli->usage = usage;
    argc -= index + words;
    argv += index + words;
    status = strip_common(cli, command, &argc, argv);
    if (status == 0)
        status = command->handler(cli, argc, argv);
    else
        status = CLI_OK;
    cli->usage = NULL;
    return status;
}

int main(int argc, char **argv)
{
    struct cli cli = {
        .url = getenv("PADDOCK_URL"),
        .project = getenv("PADDOCK_PROJECT"),
        .token = getenv("PADDOCK_TOKEN"),
        .usage = "[--config FILE] [--json] COMMAND ... (see paddock --help)",
        .err = ERROR_INIT,
    };
    int status;

    curl_global_init(CURL_GLOBAL_DEFAULT);
    status = run(&cli, argc, argv);
    if (error_is_set(&cli.err)) {
        (void)fprintf(stderr, "paddock: %s: %s%s%s\n", error_code_name(cli.err.code),
                      cli.err.detail, cli.err.field[0] ? "; field " : "", cli.err.field);
    }
    if (cli.db != NULL)
        db_free(cli.db);
    if (cli.config != NULL)
        config_free(cli.config);
    curl_global_cleanup();
    if (fflush(stdout) != 0 || ferror(stdout)) {
        (void)fputs("paddock: writing to standard output failed\n", stderr);
        return CLI_FAILED;
    }
    return status;
}
