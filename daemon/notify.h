/*
 * What systemd is told of the service (sd_notify(3)'s protocol: datagrams to the
 * socket that NOTIFY_SOCKET names). Without that variable nothing happens.
 */
#ifndef PADDOCK_DAEMON_NOTIFY_H
#define PADDOCK_DAEMON_NOTIFY_H

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>

struct notify {
    int fd; /* -1: nobody listens */
    struct sockaddr_un address;
    socklen_t address_len;
};

/* Takes NOTIFY_SOCKET out of the environment, so that no child speaks in our name. */
void notify_open(struct notify *notify);
void notify_close(struct notify *notify);
/* Lines like "READY=1"; never waits. */
void notify_send(const struct notify *notify, const char *state);

#endif
