/*
 * Writes and removes a guest's OCI bundle (OCI runtime spec 1.0.2). Called by
 * guest.c for each start and end and by the sweep. The guest's PID 1 is root
 * inside gVisor with four capabilities and nothing to gain more; the root file
 * system is read-only, there is no host mount, and every writable place is a
 * tmpfs of fixed size.
 */
#include "daemon/keeper/bundle.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/json.h"
#include "daemon/keeper/cgroup.h"

#define GUEST_PATH "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#define GUEST_UID 1000 /* who executions run as (guestimg/init/main.c) */
#define GUEST_NOFILE 65536
#define PERIOD_US 100000

static json_t *capabilities(void)
{
    json_t *all = json_object();

    static const char *const sets[] = {"bounding", "effective", "permitted"};
    for (unsigned i = 0; i < ARRAY_LEN(sets); i++)
        (void)json_object_set_new(
            all, sets[i],
            json_pack("[s,s,s,s]", "CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_NET_BIND_SERVICE"));
    (void)json_object_set_new(all, "inheritable", json_array());
    (void)json_object_set_new(all, "ambient", json_array());
    return all;
}

static json_t *rlimit(const char *type, int value)
{
    return json_pack("{s:s,s:i,s:i}", "type", type, "hard", value, "soft", value);
}

static json_t *process(void)
{
    return json_pack("{s:b,s:{s:i,s:i},s:[s],s:[s],s:s,s:o,s:[o,o],s:b}", "terminal", 0, "user",
                     "uid", 0, "gid", 0, "args", BUNDLE_INIT, "env", GUEST_PATH, "cwd", "/",
                     "capabilities", capabilities(), "rlimits",
                     rlimit("RLIMIT_NOFILE", GUEST_NOFILE), rlimit("RLIMIT_CORE", 0),
                     "noNewPrivileges", 1);
}

static json_t *plain_mount(const char *where, const char *type)
{
    return json_pack("{s:s,s:s,s:s}", "destination", where, "type", type, "source", type);
}

static json_t *tmpfs_mount(const char *where, const char *mode, int uid, uint64_t size_bytes)
{
    char size[40];
    char user[24];
    char group[24];

    (void)snprintf(size, sizeof(size), "size=%" PRIu64, size_bytes);
    (void)snprintf(user, sizeof(user), "uid=%d", uid);
    (void)snprintf(group, sizeof(group), "gid=%d", uid);
    return json_pack("{s:s,s:s,s:s,s:[s,s,s,s,s,s]}", "destination", where, "type", "tmpfs",
                     "source", "tmpfs", "options", "nosuid", "nodev", mode, user, group, size);
}

static json_t *mounts(const struct bundle_spec *spec)
{
    return json_pack(
        "[o,o,{s:s,s:s,s:s,s:[s,s,s,s]},o,o,o,o]", plain_mount("/proc", "proc"),
        plain_mount("/dev", "tmpfs"), "destination", "/sys", "type", "sysfs", "source", "sysfs",
        "options", "nosuid", "noexec", "nodev", "ro",
        /* gVisor's own, in the guest only: paddock-init sets the guest's pids limit there. */
        plain_mount("/sys/fs/cgroup", "cgroup"),
        tmpfs_mount("/workspace", "mode=0755", GUEST_UID, spec->workspace_bytes),
        tmpfs_mount("/tmp", "mode=1777", 0, spec->tmp_bytes),
        tmpfs_mount("/dev/shm", "mode=1777", 0, spec->shm_bytes));
}

/* runsc takes the guest's own meminfo and CPU count from here. */
static json_t *resources(const struct bundle_spec *spec)
{
    return json_pack("{s:{s:I,s:I},s:{s:I,s:i},s:{s:I}}", "memory", "limit",
                     (json_int_t)spec->memory_bytes, "swap", (json_int_t)spec->memory_bytes, "cpu",
                     "quota", (json_int_t)spec->cpus * PERIOD_US, "period", PERIOD_US, "pids",
                     "limit", (json_int_t)spec->host_pids);
}

json_t *bundle_config(const struct bundle_spec *spec)
{
    json_t *namespaces = json_pack("[{s:s},{s:s},{s:s},{s:s},{s:s}]", "type", "pid", "type",
                                   "network", "type", "ipc", "type", "uts", "type", "mount");

    return json_pack("{s:s,s:o,s:{s:s,s:b},s:s,s:o,s:{s:o,s:o,s:s}}", "ociVersion", "1.0.2",
                     "process", process(), "root", "path", spec->rootfs, "readonly", 1, "hostname",
                     "sandbox", "mounts", mounts(spec), "linux", "namespaces", namespaces,
                     "resources", resources(spec), "cgroupsPath", spec->cgroups_path);
}

static int write_file(int dir_fd, const char *name, const char *data, size_t len, struct error *err)
{
    _cleanup_close_ int fd =
        openat(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    size_t done = 0;

    if (fd < 0)
        return error_set_errno(err, "cannot make %s of a bundle", name);
    while (done < len) {
        ssize_t wrote = write(fd, data + done, len - done);

        if (wrote < 0)
            return error_set_errno(err, "cannot write %s of a bundle", name);
        done += (size_t)wrote;
    }
    return 0;
}

int bundle_write(const struct bundle_spec *spec, const char *dir, struct error *err)
{
    struct error ignored = ERROR_INIT;
    _cleanup_json_ json_t *config = bundle_config(spec);
    _cleanup_free_ char *text = config ? json_dumps(config, JSON_COMPACT) : NULL;
    _cleanup_close_ int dir_fd = -1;

    if (!text)
        return error_set(err, ERR_SYSTEM, "no memory for a bundle");
    if (mkdir(dir, 0700) < 0)
        return error_set_errno(err, "cannot make %s", dir);
    dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (dir_fd < 0) {
        (void)error_set_errno(err, "cannot open %s", dir);
    } else if (write_file(dir_fd, "config.json", text, strlen(text), err) == 0 &&
               write_file(dir_fd, BUNDLE_LOG, "", 0, err) == 0) {
        return 0;
    }
    (void)!bundle_remove(dir, &ignored);
    return -1;
}

int bundle_remove(const char *dir, struct error *err)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *stream = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *entry;

    if (!stream) {
        if (fd >= 0)
            close(fd);
        return fd < 0 && errno == ENOENT ? 0 : error_set_errno(err, "cannot open %s", dir);
    }
    while ((entry = readdir(stream)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            (void)unlinkat(dirfd(stream), entry->d_name, 0);
    closedir(stream);
    if (rmdir(dir) < 0 && errno != ENOENT)
        return error_set_errno(err, "cannot remove %s", dir);
    return 0;
}
