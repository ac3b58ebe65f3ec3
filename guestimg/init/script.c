/*
 * The file that holds an execution's script. Called by the supervisor; the file
 * is made and removed with the guest user's effective ids, so that nothing can
 * be written or unlinked that this user could not write or unlink itself,
 * whatever it has done to the workspace meanwhile.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "guestimg/init/init.h"

static int write_all(int fd, const uint8_t *data, size_t len)
{
    while (len > 0) {
        ssize_t written = write(fd, data, len);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return errno;
        data += (size_t)written;
        len -= (size_t)written;
    }
    return 0;
}

static int create_and_write(const char *path, const uint8_t *data, size_t len)
{
    _cleanup_close_ int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return errno;
    int failure = write_all(fd, data, len);
    if (failure != 0)
        (void)unlink(path);
    return failure;
}

int script_write(const struct init_options *options, const uint8_t *data, size_t len,
                 const char *suffix, char *path)
{
    uint64_t random;
    if (getrandom(&random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return errno;
    int n = snprintf(path, PATH_MAX, "%s/.paddock-%016llx%s", options->workspace,
                     (unsigned long long)random, suffix);
    if (n < 0 || n >= PATH_MAX) {
        path[0] = 0;
        return ENAMETOOLONG;
    }
    privilege_borrow_user(options);
    int failure = create_and_write(path, data, len);
    privilege_return();
    if (failure != 0)
        path[0] = 0;
    return failure;
}

void script_remove(const struct init_options *options, const char *path)
{
    if (path[0] == 0)
        return;
    privilege_borrow_user(options);
    (void)unlink(path); /* the script may have removed or moved itself */
    privilege_return();
}
