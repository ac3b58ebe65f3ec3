/* One message with at most one descriptor over a SOCK_SEQPACKET Unix socket (SCM_RIGHTS). */
#ifndef PADDOCK_COMMON_FDPASS_H
#define PADDOCK_COMMON_FDPASS_H

#include <stddef.h>
#include <sys/types.h>

#include "common/error.h"

/* Sends data, and fd unless it is -1 (fd stays the caller's). Returns 0, or -1 with ERR_SYSTEM. */
int fdpass_send(int sock, const void *data, size_t len, int fd, struct error *err)
    __attribute__((warn_unused_result));

/* Receives one message. *fd is a new CLOEXEC descriptor the caller owns, or -1. Surplus
 * descriptors are closed and the message refused. Returns its length, 0 at end of file, -1 with
 * ERR_SYSTEM (errno_value EAGAIN when nothing is there) or ERR_PROTOCOL (cut message). */
ssize_t fdpass_recv(int sock, void *data, size_t size, int *fd, struct error *err)
    __attribute__((warn_unused_result));

/* A listening (server) or connected (client) SOCK_SEQPACKET socket at path, CLOEXEC. The server
 * form replaces a stale socket file and sets its mode. Returns the descriptor or -1. */
int fdpass_listen(const char *path, unsigned mode, int backlog, struct error *err)
    __attribute__((warn_unused_result));
int fdpass_connect(const char *path, struct error *err) __attribute__((warn_unused_result));

#endif
