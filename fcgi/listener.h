/*
 * The listening socket of paddock-fcgi and the lock that goes with it. Bound
 * once, kept through reloads, and never closed or unlinked while the program
 * runs, so that no web server ever finds it missing.
 */
#ifndef PADDOCK_FCGI_LISTENER_H
#define PADDOCK_FCGI_LISTENER_H

#include <stdint.h>

#include "common/error.h"

struct listener {
    int fd;      /* non-blocking, CLOEXEC */
    int lock_fd; /* holds `path`.lock; CLOEXEC */
};

/* mode_digits: octal digits written as a decimal number (660). ERR_CONFIG for digits over 7. */
int listener_mode(int64_t mode_digits, unsigned *mode, struct error *err)
    __attribute__((warn_unused_result));

/* Takes the lock, then binds and listens. ERR_PREFLIGHT when another instance holds the path. */
int listener_open(const char *path, unsigned mode, struct listener *listener, struct error *err)
    __attribute__((warn_unused_result));

/* Takes over the descriptors that the program passed to itself. */
int listener_adopt(int fd, int lock_fd, struct listener *listener, struct error *err)
    __attribute__((warn_unused_result));

/* Lets the descriptors pass through exec, or not. */
int listener_inherit(const struct listener *listener, int inherit, struct error *err)
    __attribute__((warn_unused_result));

/* Refuses new connections from here on; those already queued can still be accepted, after which
 * accept fails with EINVAL. */
void listener_refuse(const struct listener *listener);

void listener_close(struct listener *listener);

#endif
