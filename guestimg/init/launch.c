/*
 * From an execution's spec to a running program: takes the spec apart and turns
 * the calling process into the program. Called by supervisor.c only, in the
 * child that shares the supervisor's memory. What must stay true: the program
 * has the guest user's ids, no capabilities, its own session, an empty signal
 * mask and descriptors 0, 1 and 2 alone (those of the supervisor are
 * close-on-exec); what fails is told with its errno and its step.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "guestimg/init/init.h"

static int fail(struct launch_failure *failure, enum wire_step step, int errno_value)
{
    failure->step = step;
    failure->errno_value = errno_value;
    return -1;
}

void launch_free(struct launch *launch)
{
    free(launch->arena);
    free(launch->argv);
    free(launch->envp);
    memset(launch, 0, sizeof(*launch));
}

struct spec_totals {
    size_t args;
    size_t envs;
    size_t bytes; /* of both, with their NULs */
};

/* A first pass counts, so that the arrays are allocated once and what execve(2) would refuse is
 * refused before anything is sorted or copied. */
static int count_records(const uint8_t *spec, size_t spec_len, struct spec_totals *totals)
{
    struct error err = ERROR_INIT;
    struct wire_record record;
    size_t offset = 0;
    int rc;
    while ((rc = wire_spec_next(spec, spec_len, &offset, &record, &err)) > 0) {
        if (record.tag == WIRE_SPEC_ARG)
            totals->args++;
        if (record.tag == WIRE_SPEC_ENV)
            totals->envs++;
        if (record.tag == WIRE_SPEC_ARG || record.tag == WIRE_SPEC_ENV)
            totals->bytes += record.len + 1;
    }
    return rc;
}

static size_t count_strings(const struct buf *block)
{
    size_t count = 0;
    for (size_t at = 0; at < block->len; at += strlen(block->data + at) + 1)
        count++;
    return count;
}

/* Copies a record into the arena. It always fits: a record's head is longer than a NUL. */
static const char *keep_string(char **arena_end, const struct wire_record *record)
{
    char *text = *arena_end;
    if (record->len > 0)
        memcpy(text, record->data, record->len);
    text[record->len] = 0;
    *arena_end += record->len + 1;
    return text;
}

static bool is_plain_suffix(const struct wire_record *record)
{
    return record->len < WIRE_SUFFIX_MAX &&
           (record->len == 0 || !memchr(record->data, '/', record->len));
}

/* One record; returns false when it is not allowed here. */
static bool take_record(struct launch *launch, const struct wire_record *record, char **arena_end)
{
    switch (record->tag) {
    case WIRE_SPEC_ARG:
        launch->argv[launch->argc++] = keep_string(arena_end, record);
        return true;
    case WIRE_SPEC_ENV:
        launch->envp[launch->envc++] = keep_string(arena_end, record);
        return environ_is_assignment(launch->envp[launch->envc - 1], record->len);
    case WIRE_SPEC_CWD:
        if (launch->cwd)
            return false;
        launch->cwd = keep_string(arena_end, record);
        return launch->cwd[0] == '/';
    case WIRE_SPEC_SCRIPT:
        if (launch->script)
            return false;
        launch->script = record->data;
        launch->script_len = record->len;
        return true;
    case WIRE_SPEC_SUFFIX:
        if (launch->suffix || !is_plain_suffix(record))
            return false;
        launch->suffix = keep_string(arena_end, record);
        return true;
    case WIRE_SPEC_STDIN:
        if (launch->has_stdin)
            return false;
        launch->has_stdin = true;
        return record->len == 0;
    }
    return false;
}

static const char *path_of(const char *const *envp)
{
    for (; *envp; envp++) {
        if (strncmp(*envp, "PATH=", 5) == 0)
            return *envp + 5;
    }
    return "";
}

static int take_all(const struct init *init, const uint8_t *spec, size_t spec_len,
                    struct launch *launch)
{
    const struct buf *base = &init->environment;
    for (size_t at = 0; at < base->len; at += strlen(base->data + at) + 1)
        launch->envp[launch->envc++] = base->data + at;
    char *arena_end = launch->arena;
    struct error err = ERROR_INIT;
    struct wire_record record;
    size_t offset = 0;
    int rc;
    while ((rc = wire_spec_next(spec, spec_len, &offset, &record, &err)) > 0) {
        if (!take_record(launch, &record, &arena_end))
            return -1;
    }
    return rc;
}

int launch_parse(const struct init *init, const uint8_t *spec, size_t spec_len,
                 struct launch *launch, struct launch_failure *failure)
{
    struct spec_totals totals = {0};
    if (count_records(spec, spec_len, &totals) < 0 || totals.args == 0)
        return fail(failure, WIRE_STEP_SPEC, EINVAL);
    totals.envs += count_strings(&init->environment);
    totals.bytes += init->environment.len;
    /* The kernel counts the strings and a pointer to each (execve(2)). */
    long limit = sysconf(_SC_ARG_MAX);
    if (limit > 0 &&
        totals.bytes + (totals.args + totals.envs) * sizeof(char *) > (unsigned long)limit)
        return fail(failure, WIRE_STEP_EXEC, E2BIG);
    launch->arena = malloc(spec_len);
    launch->argv = calloc(totals.args + 2, sizeof(*launch->argv));
    launch->envp = calloc(totals.envs + 1, sizeof(*launch->envp));
    if (!launch->arena || !launch->argv || !launch->envp)
        return fail(failure, WIRE_STEP_SPEC, ENOMEM);
    if (take_all(init, spec, spec_len, launch) < 0 || (launch->suffix && !launch->script))
        return fail(failure, WIRE_STEP_SPEC, EINVAL);
    size_t kept = environ_unique(launch->envp, launch->envc);
    if (kept == 0)
        return fail(failure, WIRE_STEP_SPEC, ENOMEM);
    launch->envc = kept;
    launch->envp[kept] = NULL;
    launch->path = path_of(launch->envp);
    if (!launch->cwd)
        launch->cwd = init->options->workspace;
    if (!launch->suffix)
        launch->suffix = "";
    return 0;
}

void launch_add_argument(struct launch *launch, const char *argument)
{
    launch->argv[launch->argc++] = argument;
}

/* execve takes arrays of char * that it does not write to. */
static char *const *as_exec_strings(const char **strings)
{
    union {
        const char **from;
        char *const *to;
    } both = {.from = strings};
    return both.to;
}

/* One PATH directory; an empty one means the working directory (POSIX). Returns errno. */
static int exec_in(const struct launch *launch, const char *dir, size_t dir_len)
{
    const char *program = launch->argv[0];
    size_t program_len = strlen(program);
    char path[PATH_MAX];
    size_t slash = dir_len > 0 ? 1 : 0;
    if (dir_len + slash + program_len >= sizeof(path))
        return ENAMETOOLONG;
    memcpy(path, dir, dir_len);
    if (slash)
        path[dir_len] = '/';
    memcpy(path + dir_len + slash, program, program_len + 1);
    execve(path, as_exec_strings(launch->argv), as_exec_strings(launch->envp));
    return errno;
}

/* Looks along PATH as execvpe(3) does, but hands no ENOEXEC file to a shell. Returns errno. */
static int exec_along_path(const struct launch *launch)
{
    if (launch->argv[0][0] == 0)
        return ENOENT;
    if (strchr(launch->argv[0], '/')) {
        execve(launch->argv[0], as_exec_strings(launch->argv), as_exec_strings(launch->envp));
        return errno;
    }
    int result = ENOENT;
    const char *dir = launch->path;
    for (;;) {
        size_t dir_len = strcspn(dir, ":");
        int failure = exec_in(launch, dir, dir_len);
        if (failure == EACCES)
            result = EACCES; /* remembered: a later directory may have a usable one */
        else if (failure != ENOENT && failure != ENOTDIR && failure != ENAMETOOLONG)
            return failure;
        if (dir[dir_len] == 0)
            return result;
        dir += dir_len + 1;
    }
}

int launch_prepare(const struct init *init)
{
    sigset_t none;
    sigemptyset(&none);
    umask(init->umask);
    if (setsid() < 0 || sigprocmask(SIG_SETMASK, &none, NULL) < 0)
        return errno;
    return 0;
}

/* Ids change as late as possible, since from then on the guest's user may stop it. */
int launch_exec(const struct init *init, const struct launch *launch,
                struct launch_failure *failure)
{
    const struct init_options *options = init->options;
    if (setresgid(options->gid, options->gid, options->gid) < 0 ||
        setresuid(options->uid, options->uid, options->uid) < 0)
        return fail(failure, WIRE_STEP_FORK, errno);
    if (chdir(launch->cwd) < 0)
        return fail(failure, WIRE_STEP_CWD, errno);
    return fail(failure, WIRE_STEP_EXEC, exec_along_path(launch));
}
