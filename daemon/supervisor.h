/*
 * paddockd's first process: does the preflight, starts the keeper (root) and
 * main (no privileges), starts again what dies, and replaces main on SIGHUP.
 */
#ifndef PADDOCK_DAEMON_SUPERVISOR_H
#define PADDOCK_DAEMON_SUPERVISOR_H

#include "common/config.h"
#include "common/error.h"
#include "common/log.h"

/* Exit code that a restart cannot mend (DAEMON_EXIT_CONFIG; systemd: RestartPreventExitStatus). */
#define SUPERVISOR_EXIT_FATAL 64
/* Another try may do better: a full disk, a smoke guest that was killed. */
#define SUPERVISOR_EXIT_AGAIN 1

struct supervisor_options {
    const char *program;     /* executed as main, with --main; absolute */
    const char *config_path; /* for --config; NULL: none */
};

/* Runs until SIGTERM or SIGINT, or until main ends for good. Returns the exit code; err is set when
 * the start failed. */
int supervisor_run(const struct config *config, const struct supervisor_options *options,
                   const struct log *log, struct error *err);

/* The preflight alone: writes the facts to out. When a running paddockd holds the state folder the
 * smoke guest is left out. Returns the exit code; err is set when a check failed. */
int supervisor_check(const struct config *config, const struct log *log, FILE *out,
                     struct error *err);

/* Every check, whatever the others said, and the smoke guest: writes a JSON array of {check,
 * result: ok, failed or unchecked, detail} to out. Returns the exit code. For `paddock doctor`. */
int supervisor_report(const struct config *config, const struct log *log, FILE *out);

#endif
