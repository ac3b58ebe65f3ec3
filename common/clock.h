/* Time for timers and durations. Wall-clock decisions that cross processes use the database. */
#ifndef PADDOCK_COMMON_CLOCK_H
#define PADDOCK_COMMON_CLOCK_H

#include <stdint.h>

/* CLOCK_MONOTONIC in milliseconds. */
int64_t clock_mono_ms(void);
/* CLOCK_MONOTONIC in microseconds. */
int64_t clock_mono_us(void);

#endif
