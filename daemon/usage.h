/* Samples of what the guests of this node use: each 10 s, in their rows each minute. */
#ifndef PADDOCK_DAEMON_USAGE_H
#define PADDOCK_DAEMON_USAGE_H

#include <stdint.h>

struct sandboxes;
struct usage;

/* NULL without memory. */
struct usage *usage_new(struct sandboxes *all);
void usage_free(struct usage *usage);

/* A sandbox's last sample; all zero at first. */
struct usage_sample {
    int64_t at_ms;     /* monotonic, like the next; 0: none */
    int64_t active_ms; /* when it was last seen to use a tenth of a core or more; 0: never */
    uint64_t cpu_us;
};
/* CPU time in all was measured. */
void usage_measured(struct usage_sample *sample, uint64_t cpu_us);

#endif
