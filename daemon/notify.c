/*
 * sd_notify(3) without libsystemd: one datagram a message. Called by the
 * supervisor only. What must stay true: it never blocks and never fails; a
 * service manager that does not listen is none.
 */
#include "daemon/notify.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void notify_open(struct notify *notify)
{
    const char *path = getenv("NOTIFY_SOCKET");
    size_t len = path ? strlen(path) : 0;

    *notify = (struct notify){.fd = -1, .address = {.sun_family = AF_UNIX}};
    /* A path, or a name in the abstract space ("@…"). */
    if (len >= 2 && len < sizeof(notify->address.sun_path) && (path[0] == '/' || path[0] == '@')) {
        memcpy(notify->address.sun_path, path, len);
        if (path[0] == '@')
            notify->address.sun_path[0] = '\0';
        notify->address_len =
            (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + (path[0] == '/'));
        notify->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    }
    (void)unsetenv("NOTIFY_SOCKET");
    (void)unsetenv("WATCHDOG_PID");
    (void)unsetenv("WATCHDOG_USEC");
}

void notify_close(struct notify *notify)
{
    if (notify->fd >= 0)
        close(notify->fd);
    notify->fd = -1;
}

void notify_send(const struct notify *notify, const char *state)
{
    const struct sockaddr *address = (const struct sockaddr *)&notify->address;

    if (notify->fd >= 0)
        (void)!sendto(notify->fd, state, strlen(state), MSG_NOSIGNAL, address, notify->address_len);
}
