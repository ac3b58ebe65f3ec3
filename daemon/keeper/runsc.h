/*
 * gVisor's runsc as the keeper uses it: which build it is, the one command line
 * that starts a guest, and the files it leaves. `runsc list`, `create`, `start`
 * and `delete` are never used: a supervised `runsc run` is both quicker and
 * never out of date.
 */
#ifndef PADDOCK_KEEPER_RUNSC_H
#define PADDOCK_KEEPER_RUNSC_H

#include <stdbool.h>
#include <stddef.h>

#include "common/config.h"
#include "common/error.h"
#include "common/id.h"

#define RUNSC_PLATFORM "systrap"
#define RUNSC_PLATFORM_FLAG ("--platform=" RUNSC_PLATFORM)
#define RUNSC_VERSION_MAX 64
#define RUNSC_ARGS_MAX 20

/* The version in the first line of `runsc --version`. ERR_PREFLIGHT otherwise. */
int runsc_version(const char *path, char out[RUNSC_VERSION_MAX], struct error *err)
    __attribute__((warn_unused_result));
/* Is the version one of the space-separated known ones? */
bool runsc_version_is_known(const char *known, const char *version);
/* Does this kernel let our platform work? ERR_PREFLIGHT otherwise. */
int runsc_check_seccomp(struct error *err) __attribute__((warn_unused_result));
/* Does this build have our platform? ERR_PREFLIGHT otherwise. */
int runsc_check_platform(const char *path, const char *state_dir, struct error *err)
    __attribute__((warn_unused_result));

/* The places of a daemon.state_dir. Returns 0, or -1 when the path does not fit. */
int runsc_root(const char *state_dir, char *out, size_t size);
int runsc_bundle_dir(const char *state_dir, const char *id, char *out, size_t size);

/* `runsc … run …` for one guest; argv points into text. */
struct runsc_command {
    const char *argv[RUNSC_ARGS_MAX];
    char root[320];
    char log[320];
    char bundle[320];
    char id[ID_SIZE];
};
int runsc_command_run(struct runsc_command *cmd, const struct config *config, const char *id,
                      struct error *err) __attribute__((warn_unused_result));

/* Unlinks what runsc keeps of id in its root; what is not there is fine. */
void runsc_forget(const char *state_dir, const char *id);
/* What the end of the log in bundle_dir says, as one printable line that fits out; "" when there is
 * none. */
void runsc_log_tail(const char *bundle_dir, char *out, size_t size);

#endif
