/*
 * The first steps of the main process, after exec and still as root: the user of
 * the configuration, then no privileges, then LOADED. Only with START does it
 * get a socket to the keeper, and begins. Called by main.c.
 */
#include "daemon/main_process.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/fdpass.h"
#include "daemon/keeper/protocol.h"
#include "daemon/main_protocol.h"
#include "daemon/run.h"

int main_process_drop(const struct config *config, const struct preflight *found, struct error *err)
{
    pid_t parent = getppid();

    if (initgroups(config->daemon_user, found->gid) < 0 ||
        setresgid(found->gid, found->gid, found->gid) < 0 ||
        setresuid(found->uid, found->uid, found->uid) < 0)
        return error_set_errno(err, "cannot become user %s", config->daemon_user);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
        return error_set_errno(err, "cannot give up privileges");
    if (setresuid(0, 0, 0) == 0)
        return error_set(err, ERR_SYSTEM, "root could be had again");
    /* After the change of user, which clears it. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
        return error_set_errno(err, "cannot tie this process to its supervisor");
    if (getppid() != parent)
        return error_set(err, ERR_SYSTEM, "the supervisor is gone");
    return 0;
}

static int set_up(struct error *err)
{
    int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int type = 0;
    socklen_t len = sizeof(type);

    if (getsockopt(MAIN_LINK_FD, SOL_SOCKET, SO_TYPE, &type, &len) < 0 || type != SOCK_SEQPACKET)
        return error_set(err, ERR_SYSTEM, "--main is for paddockd itself, which has a socket here");
    if (null_fd < 0 || dup2(null_fd, 0) < 0 || chdir("/") < 0 ||
        fcntl(MAIN_LINK_FD, F_SETFD, FD_CLOEXEC) < 0)
        return error_set_errno(err, "cannot set up a process");
    if (null_fd > 0)
        close(null_fd);
    (void)umask(027);
    (void)prctl(PR_SET_NAME, "paddockd-main"); /* for ps; nothing depends on it */
    return 0;
}

static int say_loaded(struct error *err)
{
    const struct main_saying said = {
        .word = MAIN_LOADED, .link_version = MAIN_LINK_VERSION, .keeper_protocol = KEEPER_PROTOCOL};

    return fdpass_send(MAIN_LINK_FD, &said, sizeof(said), -1, err);
}

/* Waits for START. Returns the socket to the keeper; -1 without err when there is none to be had,
 * for the supervisor is gone. */
static int await_start(struct main_order *order, struct error *err)
{
    int flags = fcntl(MAIN_LINK_FD, F_GETFL);
    int fd = -1;
    ssize_t len;

    if (flags < 0 || fcntl(MAIN_LINK_FD, F_SETFL, flags & ~O_NONBLOCK) < 0)
        return error_set_errno(err, "cannot set up a socket");
    len = fdpass_recv(MAIN_LINK_FD, order, sizeof(*order), &fd, err);
    if (len == 0)
        return -1;
    if (len == (ssize_t)sizeof(*order) && order->verb == MAIN_START && fd >= 0 &&
        memchr(order->facts, '\0', sizeof(order->facts)) &&
        fcntl(MAIN_LINK_FD, F_SETFL, flags | O_NONBLOCK) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return len < 0 ? -1 : error_set(err, ERR_PROTOCOL, "the supervisor says what it must not");
}

int main_process_run(const struct config *config, const struct log *log)
{
    struct main_order *order = calloc(1, sizeof(*order));
    struct preflight found;
    struct error err = ERROR_INIT;
    int code = DAEMON_EXIT_LOST;
    int keeper_sock = -1;

    memset(&found, 0, sizeof(found));
    if (!order)
        (void)error_set(&err, ERR_SYSTEM, "no memory");
    else if (set_up(&err) < 0)
        code = DAEMON_EXIT_CONFIG;
    else if (preflight_main(&found, config, log, &err) < 0 ||
             main_process_drop(config, &found, &err) < 0)
        /* The supervisor ends every guest after an error that another try would not mend. */
        code = err.code == ERR_SYSTEM ? DAEMON_EXIT_LOST : DAEMON_EXIT_CONFIG;
    else if (say_loaded(&err) == 0)
        keeper_sock = await_start(order, &err);
    preflight_clear(&found);
    if (keeper_sock >= 0)
        code = daemon_run(config, keeper_sock, MAIN_LINK_FD, order->facts, &err);
    if (error_is_set(&err))
        log_error_value(log, LOG_ERROR, "main_failed", &err);
    free(order);
    return code;
}
