/*
 * cgroup version 2: one hierarchy. A cgroup that hands controllers to its
 * children must hold no process itself, so with cgroup.parent = auto this
 * program moves into <own>/paddockd and guests live in <own>/guests beside it
 * (systemd: Delegate=yes). Counts are hierarchical, so <id> knows all.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/keeper/cgroup_driver.h"

#define OWN_NAME "paddockd"
#define V2_ROOT_PARENT "/paddock"
#define ENABLE_ALL "+cpu +memory +pids"

static const char *const controllers[] = {"cpu", "memory", "pids", NULL};

static int resolve(struct cgroup *cg, const char *parent, const char *own, struct error *err)
{
    static const char tail[] = "/" OWN_NAME;
    size_t len = strlen(own);
    bool moved = len >= sizeof(tail) - 1 && strcmp(own + len - (sizeof(tail) - 1), tail) == 0;

    if (strcmp(parent, "auto") != 0) {
        (void)snprintf(cg->parent, sizeof(cg->parent), "%s", parent);
        return 0;
    }
    if (moved)
        len -= sizeof(tail) - 1;
    if (len <= 1) { /* the root may hold processes and children at once */
        (void)snprintf(cg->parent, sizeof(cg->parent), "%s", V2_ROOT_PARENT);
        return 0;
    }
    if (own[0] != '/' || strstr(own, "/../") || len + sizeof(tail) > sizeof(cg->parent))
        return error_set(err, ERR_PREFLIGHT,
                         "this process's cgroup %s lies outside the visible hierarchy or is too "
                         "long: set cgroup.parent",
                         own);
    (void)snprintf(cg->parent, sizeof(cg->parent), "%.*s/guests", (int)len, own);
    if (!moved)
        (void)snprintf(cg->move_to, sizeof(cg->move_to),
                       "%s"
                       "/" OWN_NAME,
                       own);
    return 0;
}

/* The controllers that dir hands to its children; adds what is missing. */
static int enable_controllers(const char *dir, struct error *err)
{
    struct error cause = ERROR_INIT;
    char available[512];
    char enabled[512];
    bool complete = true;

    if (cgroup_read(dir, "cgroup.controllers", available, sizeof(available)) < 0 ||
        cgroup_read(dir, "cgroup.subtree_control", enabled, sizeof(enabled)) < 0)
        return error_set(err, ERR_PREFLIGHT, "%s is not a readable cgroup2 directory", dir);
    for (unsigned i = 0; controllers[i]; i++) {
        if (!cgroup_has_word(available, controllers[i]))
            return error_set(err, ERR_PREFLIGHT,
                             "cgroup controller %s is not available in %s: delegate it (systemd: "
                             "Delegate=yes) or enable it in the kernel",
                             controllers[i], dir);
        complete = complete && cgroup_has_word(enabled, controllers[i]);
    }
    if (complete || cgroup_write(dir, "cgroup.subtree_control", ENABLE_ALL, &cause) == 0)
        return 0;
    if (cause.errno_value == EBUSY)
        return error_set(err, ERR_PREFLIGHT,
                         "cgroup %s holds processes besides paddockd, so it cannot have "
                         "controlled children: run paddockd as a systemd unit with Delegate=yes, "
                         "or set cgroup.parent",
                         dir);
    return error_set(err, ERR_PREFLIGHT, "cgroup controllers cannot be enabled in %s (errno %d)",
                     dir, cause.errno_value);
}

static void place(const struct cgroup *cg, const char *path, char out[CGROUP_PATH_MAX])
{
    (void)snprintf(out, CGROUP_PATH_MAX, "%s%s", cg->root, path);
}

static int move_self(const struct cgroup *cg, struct error *err)
{
    struct error cause = ERROR_INIT;
    char dir[CGROUP_PATH_MAX];

    place(cg, cg->move_to, dir);
    if (cgroup_mkdir(dir, true, &cause) < 0 || cgroup_write(dir, "cgroup.procs", "0", &cause) < 0)
        return error_set(err, ERR_PREFLIGHT,
                         "%s: the cgroup is not delegated to paddockd (systemd: Delegate=yes); "
                         "or set cgroup.parent",
                         cause.detail);
    return 0;
}

/* Back where it came from, so that a failed start leaves no cgroup behind. */
static void move_back(const struct cgroup *cg)
{
    struct error ignored = ERROR_INIT;
    char dir[CGROUP_PATH_MAX];
    char own[CGROUP_PATH_MAX];

    place(cg, cg->move_to, own);
    place(cg, cg->move_to, dir);
    dir[strlen(dir) - strlen("/" OWN_NAME)] = '\0';
    if (cgroup_write(dir, "cgroup.procs", "0", &ignored) == 0)
        (void)rmdir(own);
}

/* From the root to the parent: made where missing, controllers handed down. */
static int enable_path(const struct cgroup *cg, struct error *err)
{
    char dir[CGROUP_PATH_MAX];
    char *at;

    place(cg, "", dir);
    if (enable_controllers(dir, err) < 0)
        return -1;
    place(cg, cg->parent, dir);
    at = dir + strlen(cg->root) + 1;
    for (bool last = false; !last;) {
        struct error cause = ERROR_INIT;

        at = strchr(at, '/');
        last = at == NULL;
        if (at)
            *at = '\0';
        if (cgroup_mkdir(dir, true, &cause) < 0)
            return error_set(err, ERR_PREFLIGHT, "%s: delegate the cgroup or set cgroup.parent",
                             cause.detail);
        if (enable_controllers(dir, err) < 0)
            return -1;
        if (at)
            *at++ = '/';
    }
    return 0;
}

static int prepare(const struct cgroup *cg, struct error *err)
{
    if (cg->move_to[0] && move_self(cg, err) < 0)
        return -1;
    if (enable_path(cg, err) == 0)
        return 0;
    if (cg->move_to[0])
        move_back(cg);
    return -1;
}

static unsigned settings(const struct cgroup_limits *limits,
                         struct cgroup_setting out[CGROUP_SETTINGS_MAX])
{
    static const char delegate[] = "delegate the controller to paddockd (systemd: Delegate=yes)";
    static const char swap[] = "boot with swapaccount=1 on a kernel with CONFIG_MEMCG and "
                               "CONFIG_SWAP";
    unsigned n = 0;

    out[n] = (struct cgroup_setting){"memory", "memory.max", "", delegate};
    (void)snprintf(out[n++].value, sizeof(out[0].value), "%" PRIu64, limits->memory_bytes);
    out[n++] = (struct cgroup_setting){"memory", "memory.swap.max", "0", swap};
    out[n] = (struct cgroup_setting){"cpu", "cpu.max", "", delegate};
    (void)snprintf(out[n++].value, sizeof(out[0].value), "%" PRIu64 " %u",
                   (uint64_t)limits->cpus * CGROUP_PERIOD_US, CGROUP_PERIOD_US);
    out[n] = (struct cgroup_setting){"pids", "pids.max", "", delegate};
    (void)snprintf(out[n++].value, sizeof(out[0].value), "%" PRIu64, limits->pids);
    return n;
}

static int open_children(const struct cgroup *cg, const char *id, struct error *err)
{
    char dir[CGROUP_PATH_MAX];

    cgroup_dir(cg, "", id, CGROUP_ALL, dir);
    return cgroup_write(dir, "cgroup.subtree_control", ENABLE_ALL, err);
}

static int open_entry(const struct cgroup *cg, const char *id, struct cgroup_entry *entry,
                      struct error *err)
{
    char dir[CGROUP_PATH_MAX];

    cgroup_dir(cg, "", id, CGROUP_RUN, dir);
    entry->into_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (entry->into_fd < 0)
        return error_set_errno(err, "cannot open %s", dir);
    return 0;
}

static bool kill_at_once(const char *dir)
{
    struct error ignored = ERROR_INIT;

    return cgroup_write(dir, "cgroup.kill", "1", &ignored) == 0; /* Linux 5.14 */
}

static void read_usage(const struct cgroup *cg, const char *id, struct cgroup_usage *usage)
{
    char dir[CGROUP_PATH_MAX];

    cgroup_dir(cg, "", id, CGROUP_ALL, dir);
    usage->memory_bytes = cgroup_read_u64(dir, "memory.current");
    usage->cpu_us = cgroup_read_keyed(dir, "cpu.stat", "usage_usec");
    usage->tasks = (uint32_t)cgroup_read_u64(dir, "pids.current");
    usage->oom_kills = (uint32_t)cgroup_read_keyed(dir, "memory.events", "oom_kill");
}

const struct cgroup_driver cgroup_v2_driver = {
    .version = 2,
    .controllers = controllers,
    .resolve = resolve,
    .prepare = prepare,
    .settings = settings,
    .open_children = open_children,
    .open_entry = open_entry,
    .kill_at_once = kill_at_once,
    .read_usage = read_usage,
};
