/*
 * The end of a process that is not a child of this one (see process.h). Called
 * by what finds traces of a former instance: the listener of paddock-fcgi and
 * the supervisor's lock. kill(pid, 0) would not do: it reaches a process that is
 * being killed, and one that is dead until its parent takes notice.
 */
#include "common/process.h"

#include <errno.h>
#include <poll.h>
#include <sys/pidfd.h>

#include "common/cleanup.h"

bool process_has_ended(pid_t pid, int wait_ms)
{
    _cleanup_close_ int fd = pidfd_open(pid, 0);
    struct pollfd ended = {.fd = fd, .events = POLLIN};

    if (fd < 0)
        return errno == ESRCH;
    return poll(&ended, 1, wait_ms) > 0;
}
