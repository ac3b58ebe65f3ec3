/*
 * Scope-bound ownership. A local declared with one of these attributes owns its
 * value; it is released when the scope ends, so a function has one way out.
 * `steal_*` hands the value on (to a caller or a longer-lived struct).
 */
#ifndef PADDOCK_COMMON_CLEANUP_H
#define PADDOCK_COMMON_CLEANUP_H

#include <stdlib.h>
#include <unistd.h>

static inline void cleanup_free_p(void *p)
{
    void **ptr = p;
    free(*ptr);
    *ptr = NULL;
}

static inline void cleanup_close_p(const int *fd)
{
    if (*fd >= 0)
        close(*fd);
}

#define _cleanup_(fn) __attribute__((cleanup(fn)))
/* char *, or any malloc'd pointer */
#define _cleanup_free_ _cleanup_(cleanup_free_p)
/* int descriptor; initialise with -1 */
#define _cleanup_close_ _cleanup_(cleanup_close_p)

/* Gives the descriptor away: returns it and leaves -1 behind. */
static inline int steal_fd(int *fd)
{
    int value = *fd;
    *fd = -1;
    return value;
}

/* Gives a pointer away: returns it and leaves NULL behind. */
#define steal_ptr(p)                                                                               \
    __extension__({                                                                                \
        __typeof__(p) stolen_ = (p);                                                               \
        (p) = NULL;                                                                                \
        stolen_;                                                                                   \
    })

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

#endif
