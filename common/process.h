/* Whether another process, known by its number alone, still runs. */
#ifndef PADDOCK_COMMON_PROCESS_H
#define PADDOCK_COMMON_PROCESS_H

#include <stdbool.h>
#include <sys/types.h>

/* Has it ended, or does it within wait_ms? One that nobody waited for yet (a zombie) has ended; one
 * that cannot be looked at has not. The number may be another process's by now. */
bool process_has_ended(pid_t pid, int wait_ms);

#endif
