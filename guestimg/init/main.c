/*
 * paddock-init's entry: the first process of a guest. It takes no arguments and
 * no environment; descriptor 0 is the socket to the host, descriptor 2 the log
 * of the runtime. Everything else is in session.c, so that tests can run it
 * with other ids and paths.
 */
#include "guestimg/init/init.h"

int main(void)
{
    static const struct init_options options = {
        .uid = 1000,
        .gid = 1000,
        .workspace = "/workspace",
        .pids_max_path = "/sys/fs/cgroup/pids/pids.max",
        .environment_path = "/etc/paddock/environment",
    };
    return init_run(0, &options);
}
