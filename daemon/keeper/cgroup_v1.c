/*
 * cgroup version 1: one hierarchy a controller. Used only where the operator
 * allowed it (cgroup.cgroup_v1 = allow). Memory and swap are one limit
 * (memsw); OOM kills are counted in the cgroup of the victim, not above it, so
 * each level is read.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/keeper/cgroup_driver.h"

#define V1_AUTO_PARENT "/paddock"

static const char *const controllers[] = {"cpu", "cpuacct", "memory", "pids", NULL};

static int resolve(struct cgroup *cg, const char *parent, const char *own, struct error *err)
{
    (void)own; /* auto is a fixed place: nobody delegates version 1 subtrees */
    for (unsigned i = 0; controllers[i]; i++) {
        char path[CGROUP_PATH_MAX];
        struct stat st;

        (void)snprintf(path, sizeof(path), "%s/%s/cgroup.procs", cg->root, controllers[i]);
        if (stat(path, &st) < 0)
            return error_set(err, ERR_PREFLIGHT,
                             "cgroup controller %s is not mounted at %s/%s: mount it, or boot "
                             "with cgroup v2 (systemd.unified_cgroup_hierarchy=1)",
                             controllers[i], cg->root, controllers[i]);
    }
    (void)snprintf(cg->parent, sizeof(cg->parent), "%s",
                   strcmp(parent, "auto") == 0 ? V1_AUTO_PARENT : parent);
    return 0;
}

/* mkdir -p of the parent in one hierarchy. */
static int make_parent(const struct cgroup *cg, const char *controller, struct error *err)
{
    char dir[CGROUP_PATH_MAX];
    char *at;

    cgroup_dir(cg, controller, NULL, CGROUP_ALL, dir);
    at = dir + strlen(cg->root) + 1 + strlen(controller) + 1;
    while ((at = strchr(at, '/')) != NULL) {
        *at = '\0';
        if (cgroup_mkdir(dir, true, err) < 0)
            return -1;
        *at++ = '/';
    }
    return cgroup_mkdir(dir, true, err);
}

static int prepare(const struct cgroup *cg, struct error *err)
{
    struct error cause = ERROR_INIT;
    char dir[CGROUP_PATH_MAX];

    for (unsigned i = 0; controllers[i]; i++)
        if (make_parent(cg, controllers[i], &cause) < 0)
            return error_set(err, ERR_PREFLIGHT,
                             "%s; run as root with a writable cgroup file system", cause.detail);
    /* Always on in kernels since 5.11; before, a child's pages must count for its parent. */
    cgroup_dir(cg, "memory", NULL, CGROUP_ALL, dir);
    if (cgroup_read_u64(dir, "memory.use_hierarchy") != 1 &&
        cgroup_write(dir, "memory.use_hierarchy", "1", &cause) < 0)
        return error_set(err, ERR_PREFLIGHT,
                         "memory.use_hierarchy cannot be set in %s: remove the cgroups below it",
                         dir);
    return 0;
}

static unsigned settings(const struct cgroup_limits *limits,
                         struct cgroup_setting out[CGROUP_SETTINGS_MAX])
{
    static const char boot_memory[] = "boot with cgroup_enable=memory";
    static const char boot_swap[] = "boot with swapaccount=1 (swap accounting)";
    static const char cfs[] = "use a kernel with CONFIG_CFS_BANDWIDTH";
    static const char pids[] = "use a kernel with CONFIG_CGROUP_PIDS";
    unsigned n = 0;

    out[n] = (struct cgroup_setting){"memory", "memory.limit_in_bytes", "", boot_memory};
    (void)snprintf(out[n++].value, sizeof(out[0].value), "%" PRIu64, limits->memory_bytes);
    /* After the memory limit: the kernel refuses memsw below it. */
    out[n] = (struct cgroup_setting){"memory", "memory.memsw.limit_in_bytes", "", boot_swap};
    (void)snprintf(out[n++].value, sizeof(out[0].value), "%" PRIu64, limits->memory_bytes);
    out[n] = (struct cgroup_setting){"cpu", "cpu.cfs_period_us", "", cfs};
    (void)snprintf(out[n++].value, sizeof(out[0].value), "%u", CGROUP_PERIOD_US);
    out[n] = (struct cgroup_setting){"cpu", "cpu.cfs_quota_us", "", cfs};
    (void)snprintf(out[n++].value, sizeof(out[0].value), "%" PRIu64,
                   (uint64_t)limits->cpus * CGROUP_PERIOD_US);
    out[n] = (struct cgroup_setting){"pids", "pids.max", "", pids};
    (void)snprintf(out[n++].value, sizeof(out[0].value), "%" PRIu64, limits->pids);
    return n;
}

static int open_children(const struct cgroup *cg, const char *id, struct error *err)
{
    (void)cg;
    (void)id;
    (void)err;
    return 0;
}

static int open_entry(const struct cgroup *cg, const char *id, struct cgroup_entry *entry,
                      struct error *err)
{
    for (unsigned i = 0; controllers[i]; i++) {
        char dir[CGROUP_PATH_MAX];
        char path[CGROUP_PATH_MAX + 64];
        int fd;

        cgroup_dir(cg, controllers[i], id, CGROUP_RUN, dir);
        (void)snprintf(path, sizeof(path), "%s/cgroup.procs", dir);
        fd = open(path, O_WRONLY | O_CLOEXEC);
        if (fd < 0)
            return error_set_errno(err, "cannot open %s", path);
        entry->procs_fds[entry->procs_count++] = fd;
    }
    return 0;
}

static bool kill_at_once(const char *dir)
{
    (void)dir;
    return false;
}

static void read_usage(const struct cgroup *cg, const char *id, struct cgroup_usage *usage)
{
    static const enum cgroup_part levels[] = {CGROUP_ALL, CGROUP_GUEST, CGROUP_RUN};
    char dir[CGROUP_PATH_MAX];

    for (unsigned i = 0; i < ARRAY_LEN(levels); i++) {
        cgroup_dir(cg, "memory", id, levels[i], dir);
        usage->oom_kills += (uint32_t)cgroup_read_keyed(dir, "memory.oom_control", "oom_kill");
    }
    cgroup_dir(cg, "memory", id, CGROUP_ALL, dir);
    usage->memory_bytes = cgroup_read_u64(dir, "memory.usage_in_bytes");
    cgroup_dir(cg, "cpuacct", id, CGROUP_ALL, dir);
    usage->cpu_us = cgroup_read_u64(dir, "cpuacct.usage") / 1000;
    cgroup_dir(cg, "pids", id, CGROUP_ALL, dir);
    usage->tasks = (uint32_t)cgroup_read_u64(dir, "pids.current");
}

const struct cgroup_driver cgroup_v1_driver = {
    .version = 1,
    .controllers = controllers,
    .resolve = resolve,
    .prepare = prepare,
    .settings = settings,
    .open_children = open_children,
    .open_entry = open_entry,
    .kill_at_once = kill_at_once,
    .read_usage = read_usage,
};
