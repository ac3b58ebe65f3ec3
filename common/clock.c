/*
 * The monotonic clock in units that timers use. Called everywhere a duration is
 * measured; never for a time of day. CLOCK_MONOTONIC cannot fail on Linux with a
 * valid pointer, so there is no error to hand on.
 */
#include "common/clock.h"

#include <time.h>

int64_t clock_mono_us(void)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + (int64_t)now.tv_nsec / 1000;
}

int64_t clock_mono_ms(void)
{
    return clock_mono_us() / 1000;
}
