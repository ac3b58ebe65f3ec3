/*
 * The throwaway Postgres: initdb and pg_ctl as an unprivileged user, and a guard
 * process that holds the other end of a pipe. When the test program is gone (its
 * forked children too), the guard stops the server and removes the folder; so
 * neither a crash nor a kill leaves anything behind.
 */
#include "throwaway_pg.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <grp.h>
#include <libpq-fe.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define SERVER_USER "postgres"
#define WORDS_MAX 16
#define CLEAN_TRIES 100
#define CLEAN_PAUSE_MS 50
/* Durability is of no use here; the restart test needs no crash safety. */
#define SERVER_OPTIONS                                                                             \
    "-c listen_addresses= -c unix_socket_directories=%s -c fsync=off -c synchronous_commit=off "   \
    "-c full_page_writes=off -c max_connections=100 -c shared_buffers=16MB -c log_statement=none"

static bool fail(const char *what)
{
    fprintf(stderr, "throwaway postgres: %s: %s\n", what, strerror(errno));
    return false;
}

/* Root may not run Postgres. */
static void become_server_user(void)
{
    if (geteuid() != 0)
        return;
    const struct passwd *user = getpwnam(SERVER_USER);
    if (!user || setgroups(0, NULL) < 0 || setgid(user->pw_gid) < 0 || setuid(user->pw_uid) < 0)
        _exit(126);
}

/* The child holds no descriptor of the test; with keep_fd >= 0 that one stays open. */
static bool close_others(int keep_fd)
{
    if (keep_fd < 3)
        return close_range(3, ~0u, 0) == 0;
    return (keep_fd == 3 || close_range(3, (unsigned)keep_fd - 1, 0) == 0) &&
           close_range((unsigned)keep_fd + 1, ~0u, 0) == 0 && fcntl(keep_fd, F_SETFD, 0) == 0;
}

/* Runs a program of the server's as its user, output to DIR/tools.log. keep_fd: the guard's pipe,
 * for programs that must have ended before the guard clears up; -1 for those that leave the
 * server behind. */
static bool run(const struct throwaway_pg *pg, const char *const argv[], int keep_fd)
{
    char program[256];
    const char *words[WORDS_MAX] = {program}; /* initdb looks for postgres beside its argv[0] */
    char log[128];
    int status;
    pid_t pid;

    snprintf(program, sizeof(program), "%s/%s", pg->bin, argv[0]);
    snprintf(log, sizeof(log), "%s/tools.log", pg->dir);
    for (size_t i = 1; argv[i] && i + 1 < WORDS_MAX; i++)
        words[i] = argv[i];
    pid = fork();
    if (pid < 0)
        return fail("fork");
    if (pid == 0) {
        become_server_user();
        int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
        int null = open("/dev/null", O_RDONLY);
        if (chdir(pg->dir) < 0 || fd < 0 || null < 0 || dup2(null, 0) < 0 || dup2(fd, 1) < 0 ||
            dup2(fd, 2) < 0)
            _exit(126);
        if (!close_others(keep_fd))
            _exit(126);
        union {
            const char *const *in;
            char *const *out;
        } args = {.in = words};
        execv(program, args.out);
        _exit(127);
    }
    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR)
            return fail("waitpid");
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return true;
    fprintf(stderr, "throwaway postgres: %s failed (status 0x%x)\n", argv[0], (unsigned)status);
    return false;
}

static bool find_binaries(struct throwaway_pg *pg)
{
    glob_t found;
    bool ok = false;

    if (glob("/usr/lib/postgresql/*/bin/initdb", 0, NULL, &found) != 0)
        return false;
    if (found.gl_pathc > 0) {
        /* the last: the newest of those installed */
        const char *path = found.gl_pathv[found.gl_pathc - 1];
        size_t len = strlen(path) - strlen("/initdb");

        if (len < sizeof(pg->bin)) {
            memcpy(pg->bin, path, len);
            pg->bin[len] = '\0';
            ok = true;
        }
    }
    globfree(&found);
    return ok;
}

static bool make_dir(struct throwaway_pg *pg)
{
    strcpy(pg->dir, "/tmp/paddock-pg-XXXXXX");
    if (!mkdtemp(pg->dir))
        return fail("mkdtemp");
    if (geteuid() == 0) {
        const struct passwd *user = getpwnam(SERVER_USER);
        if (!user) {
            errno = ENOENT;
            return fail("user " SERVER_USER);
        }
        if (chown(pg->dir, user->pw_uid, user->pw_gid) < 0)
            return fail("chown");
    }
    return true;
}

static int remove_entry(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

/* A server that was just starting may write once more: until nothing is left. */
static void clean_up(const struct throwaway_pg *pg)
{
    char data[128];
    char pid_file[160];

    snprintf(data, sizeof(data), "%s/data", pg->dir);
    snprintf(pid_file, sizeof(pid_file), "%s/postmaster.pid", data);
    const char *const stop[] = {"pg_ctl", "-D", data, "-w", "-m", "immediate", "stop", NULL};
    for (int i = 0; i < CLEAN_TRIES && access(pg->dir, F_OK) == 0; i++) {
        if (i > 0)
            poll(NULL, 0, CLEAN_PAUSE_MS);
        if (access(pid_file, F_OK) == 0)
            run(pg, stop, -1);
        nftw(pg->dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    }
}

/* Waits in a session of its own, out of reach of the terminal's signals, until the pipe closes. */
static bool start_guard(struct throwaway_pg *pg)
{
    int fds[2];
    char byte;

    if (pipe2(fds, O_CLOEXEC) < 0)
        return fail("pipe");
    pg->guard = fork();
    if (pg->guard < 0)
        return fail("fork");
    if (pg->guard == 0) {
        setsid();
        signal(SIGTERM, SIG_IGN);
        prctl(PR_SET_NAME, "pg-guard");
        close(fds[1]);
        while (read(fds[0], &byte, 1) < 0 && errno == EINTR)
            continue;
        clean_up(pg);
        _exit(0);
    }
    close(fds[0]);
    pg->guard_fd = fds[1];
    return true;
}

bool throwaway_pg_resume(const struct throwaway_pg *pg)
{
    char data[128];
    char log[128];
    char options[512];

    snprintf(data, sizeof(data), "%s/data", pg->dir);
    snprintf(log, sizeof(log), "%s/server.log", pg->dir);
    snprintf(options, sizeof(options), SERVER_OPTIONS, pg->dir);
    const char *const start[] = {"pg_ctl", "-D", data, "-w",    "-t",    "60",
                                 "-l",     log,  "-o", options, "start", NULL};
    return run(pg, start, -1);
}

bool throwaway_pg_halt(const struct throwaway_pg *pg)
{
    char data[128];

    snprintf(data, sizeof(data), "%s/data", pg->dir);
    const char *const stop[] = {"pg_ctl", "-D", data, "-w", "-m", "fast", "stop", NULL};
    return run(pg, stop, -1);
}

bool throwaway_pg_restart(const struct throwaway_pg *pg)
{
    return throwaway_pg_halt(pg) && throwaway_pg_resume(pg);
}

static bool sql(const char *conninfo, const char *text)
{
    PGconn *conn = PQconnectdb(conninfo);
    PGresult *res = PQexec(conn, text);
    bool ok = PQresultStatus(res) == PGRES_COMMAND_OK || PQresultStatus(res) == PGRES_TUPLES_OK;

    if (!ok)
        fprintf(stderr, "throwaway postgres: %s", PQerrorMessage(conn));
    PQclear(res);
    PQfinish(conn);
    return ok;
}

static bool make_database(struct throwaway_pg *pg)
{
    char admin[256];

    snprintf(admin, sizeof(admin), "host=%s dbname=postgres user=" SERVER_USER, pg->dir);
    snprintf(pg->conninfo, sizeof(pg->conninfo), "host=%s dbname=paddock user=paddock", pg->dir);
    return sql(admin, "CREATE ROLE paddock LOGIN") &&
           sql(admin, "CREATE DATABASE paddock OWNER paddock");
}

int throwaway_pg_start(struct throwaway_pg *pg)
{
    char data[128];

    memset(pg, 0, sizeof(*pg));
    pg->guard_fd = -1;
    if (!find_binaries(pg)) {
        fprintf(stderr, "no Postgres server is installed: apt-get install postgresql\n");
        return -1;
    }
    if (!make_dir(pg))
        return -1;
    snprintf(data, sizeof(data), "%s/data", pg->dir);
    const char *const init[] = {"initdb", "-D", data,   "-U",         SERVER_USER, "-A",
                                "trust",  "-E", "UTF8", "--locale=C", "--no-sync", NULL};
    if (start_guard(pg) && run(pg, init, pg->guard_fd) && throwaway_pg_resume(pg) &&
        make_database(pg))
        return 0;
    throwaway_pg_dump_log(pg);
    throwaway_pg_stop(pg);
    return -1;
}

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "re");
    char *text = NULL;
    size_t len = 0;

    if (!file) {
        fail(path);
        return NULL;
    }
    if (getdelim(&text, &len, '\0', file) < 0) {
        fail(path);
        free(text);
        text = NULL;
    }
    fclose(file);
    return text;
}

bool throwaway_pg_apply_schema(const struct throwaway_pg *pg)
{
    const char *srcdir = getenv("srcdir");
    char pattern[512];
    glob_t found;
    bool ok;

    /* glob sorts, as migrations are applied. */
    snprintf(pattern, sizeof(pattern), "%s/sql/[0-9]*.sql", srcdir ? srcdir : ".");
    if (glob(pattern, 0, NULL, &found) != 0) {
        fail(pattern);
        return false;
    }
    ok = sql(pg->conninfo, "CREATE TABLE schema_migrations (version integer PRIMARY KEY,"
                           " name text NOT NULL, sha256 text NOT NULL,"
                           " applied_at timestamptz NOT NULL DEFAULT now())");
    for (size_t i = 0; ok && i < found.gl_pathc; i++) {
        char *text = read_file(found.gl_pathv[i]);
        ok = text && sql(pg->conninfo, text);
        free(text);
    }
    globfree(&found);
    return ok;
}

void throwaway_pg_dump_log(const struct throwaway_pg *pg)
{
    static const char *const names[] = {"tools.log", "server.log"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char path[128];
        snprintf(path, sizeof(path), "%s/%s", pg->dir, names[i]);
        char *text = access(path, R_OK) == 0 ? read_file(path) : NULL;
        if (text)
            fprintf(stderr, "--- %s\n%s\n", names[i], text);
        free(text);
    }
}

void throwaway_pg_stop(struct throwaway_pg *pg)
{
    if (pg->guard_fd >= 0)
        close(pg->guard_fd);
    pg->guard_fd = -1;
    if (pg->guard > 0)
        waitpid(pg->guard, NULL, 0);
    pg->guard = 0;
}
