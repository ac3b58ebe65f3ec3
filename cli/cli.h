/*
 * The command line's one context, and the contract of its verbs (commands.def).
 * A verb gets its own words, prints to stdout, and returns an exit status; an
 * error is left in cli->err and reported once by main.
 */
#ifndef PADDOCK_CLI_H
#define PADDOCK_CLI_H

#include <stdbool.h>

#include "common/config.h"
#include "common/db.h"
#include "common/error.h"

/* Exit statuses, as the man page documents them. exec exits with the command's own. */
enum cli_exit {
    CLI_OK = 0,
    CLI_FAILED = 1,
    CLI_USAGE = 2,
    CLI_CONFIG = 3,
    CLI_DENIED = 4,        /* 401, 403 */
    CLI_NOT_FOUND = 5,     /* 404, 410 */
    CLI_CONFLICT = 6,      /* 409 */
    CLI_UNAVAILABLE = 7,   /* 429, 503, no connection */
    CLI_EXEC_FAILED = 125, /* exec: the command could not be run to its end */
};

struct cli {
    const char *config_path; /* --config, or NULL */
    bool json;               /* --json */
    const char *url;         /* --url or PADDOCK_URL */
    const char *project;     /* --project or PADDOCK_PROJECT */
    const char *token;       /* PADDOCK_TOKEN; never an argument: ps shows those */
    const char *usage;       /* synopsis of the verb at hand */
    long answer_timeout_s;   /* of a REST request; 0: as long as the service may hold an answer */
    struct config *config;   /* owned; by cli_config */
    struct db *db;           /* owned; by cli_db */
    struct error err;
};

/* Loads the configuration on first use. NULL with cli->err set. Borrowed. */
const struct config *cli_config(struct cli *cli);
/* A database connection on first use, after cli_config. NULL with cli->err set. Borrowed. */
struct db *cli_db(struct cli *cli);
/* Who works here, for the audit: the operator's name as JSON. malloc'd; NULL with cli->err set. */
char *cli_who(struct cli *cli);
/* The exit status that an error code stands for. */
int cli_exit_status(const struct error *err);
/* Prints usage of the verb at hand and why; returns CLI_USAGE. */
int cli_usage(const struct cli *cli, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

typedef int (*cli_verb)(struct cli *cli, int argc, char **argv);

#define COMMAND(noun, verb, handler, synopsis, help)                                               \
    int handler(struct cli *cli, int argc, char **argv);
#include "cli/commands.def"
#undef COMMAND

#endif
