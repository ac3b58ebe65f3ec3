/*
 * The cgroups of guests, on the keeper's side. Every guest has three:
 *
 *   <parent>/<id>        our limits: memory without swap, CPU quota, host-side pids
 *   <parent>/<id>/run    the `runsc run` process
 *   <parent>/<id>/guest  sandbox and gofer of gVisor (OCI linux.cgroupsPath)
 *
 * `guest` is made here, before runsc: runsc joins what exists and leaves it at its end, so that the
 * OOM kills counted there can still be read after the guest is gone. cgroup_v1.c and cgroup_v2.c
 * hold what differs (cgroup_driver.h); nothing above this header knows the version.
 */
#ifndef PADDOCK_KEEPER_CGROUP_H
#define PADDOCK_KEEPER_CGROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/cleanup.h"
#include "common/error.h"

#define CGROUP_ROOT "/sys/fs/cgroup"
#define CGROUP_PATH_MAX 640

struct cgroup; /* where ours live; opaque */

struct cgroup_limits {
    uint64_t memory_bytes; /* swap included: none beyond it */
    uint32_t cpus;
    uint64_t pids; /* host tasks */
};

struct cgroup_usage {
    uint64_t memory_bytes;
    uint64_t cpu_us;
    uint32_t tasks;
    uint32_t oom_kills;
};

enum cgroup_part { CGROUP_ALL, CGROUP_GUEST, CGROUP_RUN };

/* 2 when root is a cgroup2 mount, 1 when version 1 hierarchies are mounted below it (as runsc
 * decides it), -1 with ERR_PREFLIGHT when neither. */
int cgroup_detect(const char *root, struct error *err) __attribute__((warn_unused_result));

/* This process's cgroup2 path out of proc_file ("/proc/self/cgroup"); "/" when it names none. */
int cgroup_own_path(const char *proc_file, char *out, size_t size, struct error *err)
    __attribute__((warn_unused_result));

/* Resolves where ours shall live; touches nothing. parent: "auto" or an absolute path below the
 * hierarchy's root; own: cgroup_own_path (only version 2 reads it). Returns an object the caller
 * frees, or NULL with ERR_PREFLIGHT. */
struct cgroup *cgroup_new(const char *root, int version, const char *parent, const char *own,
                          struct error *err) __attribute__((warn_unused_result));
void cgroup_free(struct cgroup *cg);
static inline void cleanup_cgroup_p(struct cgroup **cg)
{
    if (*cg)
        cgroup_free(*cg);
}
#define _cleanup_cgroup_ _cleanup_(cleanup_cgroup_p)

int cgroup_version(const struct cgroup *cg);
/* The parent as seen from the hierarchy's root: "/paddock". */
const char *cgroup_parent(const struct cgroup *cg);
/* The i-th controller in force, NULL past the last. */
const char *cgroup_controller(const struct cgroup *cg, unsigned i);

/* Makes the parent and hands the controllers down to it. On version 2 with "auto" this process
 * moves into a child of its cgroup, since a cgroup with processes cannot have controlled children.
 * ERR_PREFLIGHT otherwise. */
int cgroup_prepare(const struct cgroup *cg, struct error *err) __attribute__((warn_unused_result));
/* Proves each limit in a scratch cgroup: set, read back, removed. ERR_PREFLIGHT names what fails
 * and its mend. */
int cgroup_prove(const struct cgroup *cg, struct error *err) __attribute__((warn_unused_result));

/* Makes the three cgroups of id with their limits. Nothing is left behind on failure. */
int cgroup_create(const struct cgroup *cg, const char *id, const struct cgroup_limits *limits,
                  struct error *err) __attribute__((warn_unused_result));
/* linux.cgroupsPath for the guest. */
void cgroup_guest_path(const struct cgroup *cg, const char *id, char out[CGROUP_PATH_MAX]);

/* How a new process gets into <id>/run: by clone3's CLONE_INTO_CGROUP when into_fd is not -1, and
 * by cgroup_enter in the child. */
#define CGROUP_ENTRY_MAX 8
struct cgroup_entry {
    int into_fd;
    int procs_fds[CGROUP_ENTRY_MAX];
    unsigned procs_count;
};
int cgroup_open_entry(const struct cgroup *cg, const char *id, struct cgroup_entry *entry,
                      struct error *err) __attribute__((warn_unused_result));
void cgroup_close_entry(struct cgroup_entry *entry);
/* In the child, before exec. Returns 0, or -1 with errno. */
int cgroup_enter(const struct cgroup_entry *entry);

/* One pass of SIGKILL over a part; new processes may appear until it is empty, so the caller
 * repeats it until cgroup_remove succeeds or the processes are reaped. */
void cgroup_kill(const struct cgroup *cg, const char *id, enum cgroup_part part);
/* What is missing reads as 0. */
void cgroup_read_usage(const struct cgroup *cg, const char *id, struct cgroup_usage *usage);
/* Removes everything of id in every hierarchy. 0: gone (or never there), 1: busy, try again,
 * -1: ERR_SYSTEM. */
int cgroup_remove(const struct cgroup *cg, const char *id, struct error *err)
    __attribute__((warn_unused_result));

/* Calls found for the name of every cgroup of ours below the parent (ids and scratch), in any
 * hierarchy, so a name may come more than once. Stops at and returns the first non-zero result. */
int cgroup_each(const struct cgroup *cg, int (*found)(const char *id, void *arg), void *arg);

#endif
