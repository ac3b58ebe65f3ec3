/*
 * The checks before anything is started. Called by the supervisor. Folders that
 * exist are judged, not changed (a wrong run_dir must not take /tmp over); the
 * one exception is an empty run_dir of root's, as systemd or a package makes it.
 */
#include "daemon/keeper/preflight.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/json.h"

/* close_range(2) with CLOSE_RANGE_CLOEXEC is the newest of what paddockd cannot do without. */
#define KERNEL_MAJOR 5
#define KERNEL_MINOR 11
/* A guest's bundle, log and state take some 100 KiB there. */
#define STORE_FREE_MIN_MB 16

static void note(struct preflight *found, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void note(struct preflight *found, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(found->note, sizeof(found->note), fmt, args);
    va_end(args);
}

/* --- host ------------------------------------------------------------------------------------- */

static int find_user(struct preflight *found, const char *name, struct error *err)
{
    const struct passwd *user = getpwnam(name);

    if (!user)
        return error_set_field(err, ERR_PREFLIGHT, "daemon.user",
                               "user %s (daemon.user) does not exist: useradd --system %s", name,
                               name);
    found->uid = user->pw_uid;
    found->gid = user->pw_gid;
    return 0;
}

/* mkdir -p of what stands above path. */
static int make_parents(const char *path, struct error *err)
{
    char part[256];

    if (strlen(path) >= sizeof(part))
        return error_set(err, ERR_PREFLIGHT, "the path %s is too long", path);
    (void)snprintf(part, sizeof(part), "%s", path);
    for (char *at = strchr(part + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = '\0';
        if (mkdir(part, 0755) < 0 && errno != EEXIST)
            return error_set(err, ERR_PREFLIGHT, "%s cannot be made (%s): make it", part,
                             strerror(errno));
        *at = '/';
    }
    return 0;
}

static bool is_empty(int dir_fd)
{
    int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    unsigned entries = 0;

    if (!dir) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    while (readdir(dir))
        entries++;
    closedir(dir);
    return entries == 2; /* . and .. */
}

static int check_folder(const char *path, mode_t mode, uid_t uid, gid_t gid, struct error *err)
{
    bool made = mkdir(path, 0700) == 0;
    _cleanup_close_ int fd = -1;
    struct stat st;

    if (!made && errno != EEXIST)
        return error_set(err, ERR_PREFLIGHT, "%s cannot be made (%s): make it", path,
                         strerror(errno));
    fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return error_set(err, ERR_PREFLIGHT, "%s is not a plain folder: remove it", path);
    if (made || (st.st_uid == 0 && st.st_uid != uid && is_empty(fd))) {
        if (fchown(fd, uid, gid) < 0 || fchmod(fd, mode) < 0)
            return error_set(err, ERR_PREFLIGHT, "%s cannot be given to uid %u (%s)", path,
                             (unsigned)uid, strerror(errno));
        return 0;
    }
    if (st.st_uid != uid)
        return error_set(err, ERR_PREFLIGHT, "%s belongs to uid %u: chown it to uid %u", path,
                         (unsigned)st.st_uid, (unsigned)uid);
    if ((st.st_mode & 002) != 0 || (uid == 0 && (st.st_mode & 020) != 0))
        return error_set(err, ERR_PREFLIGHT, "%s can be written by others: chmod go-w %s", path,
                         path);
    return 0;
}

static int check_folders(const struct preflight *found, const struct config *config,
                         struct error *err)
{
    char path[320];
    const char *state_dir = config->daemon_state_dir;

    if (make_parents(config->daemon_run_dir, err) < 0 || make_parents(state_dir, err) < 0 ||
        check_folder(config->daemon_run_dir, 0750, found->uid, found->gid, err) < 0 ||
        /* 0711: images below it may be other users' to read; the rest is not. */
        check_folder(state_dir, 0711, 0, 0, err) < 0)
        return -1;
    if (runsc_root(state_dir, path, sizeof(path)) < 0)
        return error_set(err, ERR_PREFLIGHT, "daemon.state_dir is too long");
    if (check_folder(path, 0700, 0, 0, err) < 0)
        return -1;
    if (runsc_bundle_dir(state_dir, "", path, sizeof(path)) < 0)
        return error_set(err, ERR_PREFLIGHT, "daemon.state_dir is too long");
    return check_folder(path, 0700, 0, 0, err);
}

static int check_user(struct preflight *found, const struct config *config, const struct log *log,
                      struct error *err)
{
    (void)log;
    if (geteuid() != 0)
        return error_set(err, ERR_PREFLIGHT,
                         "paddockd must be started by root: it makes cgroups and namespaces, and "
                         "its main process drops to daemon.user");
    if (find_user(found, config->daemon_user, err) < 0)
        return -1;
    if (found->uid == 0)
        return error_set_field(err, ERR_PREFLIGHT, "daemon.user",
                               "daemon.user must not be root: useradd --system paddock");
    note(found, "%s, uid %u", config->daemon_user, (unsigned)found->uid);
    return 0;
}

int preflight_room(const char *state_dir, bool *has_room, uint64_t *free_mb)
{
    struct statvfs fs;

    if (statvfs(state_dir, &fs) < 0)
        return -1;
    /* A file system without bounds (ramfs) has no blocks. */
    *free_mb = fs.f_blocks == 0 ? UINT64_MAX : (uint64_t)fs.f_bavail * fs.f_frsize / (1024 * 1024);
    *has_room = *free_mb >= STORE_FREE_MIN_MB;
    return 0;
}

static int check_store(struct preflight *found, const struct config *config, const struct log *log,
                       struct error *err)
{
    const char *path = config->daemon_state_dir;
    bool has_room;
    uint64_t free_mb;

    (void)log;
    if (check_folders(found, config, err) < 0)
        return -1;
    if (preflight_room(path, &has_room, &free_mb) < 0)
        return error_set(err, ERR_PREFLIGHT, "%s cannot be looked at (%s)", path, strerror(errno));
    if (!has_room)
        return error_set(err, ERR_SYSTEM,
                         "%s has %ju MiB of free space, and guests need %d at least: make room, or "
                         "set daemon.state_dir",
                         path, (uintmax_t)free_mb, STORE_FREE_MIN_MB);
    if (free_mb == UINT64_MAX)
        note(found, "%s", path);
    else
        note(found, "%s, %ju MiB free", path, (uintmax_t)free_mb);
    return 0;
}

/* --- guests ----------------------------------------------------------------------------------- */

static int check_kernel(struct preflight *found, const struct config *config, const struct log *log,
                        struct error *err)
{
    struct utsname host;
    char *rest = NULL;
    long major;
    long minor;

    (void)config;
    (void)log;
    if (uname(&host) < 0)
        return error_set(err, ERR_PREFLIGHT, "the kernel does not tell its version (%s)",
                         strerror(errno));
    major = strtol(host.release, &rest, 10);
    minor = *rest == '.' ? strtol(rest + 1, NULL, 10) : 0;
    if (major < KERNEL_MAJOR || (major == KERNEL_MAJOR && minor < KERNEL_MINOR))
        return error_set(err, ERR_PREFLIGHT, "Linux %s is too old: boot %d.%d or newer",
                         host.release, KERNEL_MAJOR, KERNEL_MINOR);
    if (runsc_check_seccomp(err) < 0)
        return -1;
    note(found, "Linux %s on %s, with seccomp filters", host.release, host.machine);
    return 0;
}

static int check_runsc(struct preflight *found, const struct config *config, const struct log *log,
                       struct error *err)
{
    const char *version = found->runsc_version;

    (void)log;
    if (runsc_version(config->guest_runsc, found->runsc_version, err) < 0)
        return -1;
    if (!runsc_version_is_known(config->guest_runsc_versions, version))
        return error_set_field(err, ERR_PREFLIGHT, "guest.runsc_versions",
                               "runsc %s is not a build known good (%s): install one, or prove "
                               "this one and add it to guest.runsc_versions",
                               version, config->guest_runsc_versions);
    if (runsc_check_platform(config->guest_runsc, config->daemon_state_dir, err) < 0)
        return -1;
    note(found, "%s, %s, platform %s", config->guest_runsc, version, RUNSC_PLATFORM);
    return 0;
}

static int check_cgroups(struct preflight *found, const struct config *config,
                         const struct log *log, struct error *err)
{
    char own[256];
    int version = cgroup_detect(CGROUP_ROOT, err);

    if (version < 0)
        return -1;
    if (version == 1) {
        if (strcmp(config->cgroup_cgroup_v1, "allow") != 0)
            return error_set_field(err, ERR_PREFLIGHT, "cgroup.cgroup_v1",
                                   "this host has only cgroup v1 controllers: boot with cgroup v2 "
                                   "(systemd.unified_cgroup_hierarchy=1), or set cgroup.cgroup_v1 "
                                   "= allow");
        log_warn(log, "cgroup_v1",
                 "note=limits by cgroup v1, which cgroup.cgroup_v1 allows; "
                 "v2 is the rule");
    }
    if (cgroup_own_path("/proc/self/cgroup", own, sizeof(own), err) < 0)
        return -1;
    found->cgroup = cgroup_new(CGROUP_ROOT, version, config->cgroup_parent, own, err);
    if (!found->cgroup || cgroup_prepare(found->cgroup, err) < 0 ||
        cgroup_prove(found->cgroup, err) < 0)
        return -1;
    note(found, "version %d%s, below %s", version,
         version == 1 ? " (cgroup.cgroup_v1 = allow)" : "", cgroup_parent(found->cgroup));
    return 0;
}

static int check_images(struct preflight *found, const struct config *config, const struct log *log,
                        struct error *err)
{
    (void)log;
    if (templates_load(&found->templates, config, err) < 0)
        return -1;
    note(found, "%s, in %s", config->guest_templates, config->guest_images_dir);
    return 0;
}

static int make_facts(struct preflight *found, struct error *err)
{
    _cleanup_json_ json_t *facts = NULL;
    json_t *controllers = json_array();
    json_t *templates = json_object();
    struct utsname host;
    const char *name;

    for (unsigned i = 0; (name = cgroup_controller(found->cgroup, i)) != NULL; i++)
        (void)json_array_append_new(controllers, json_string(name));
    for (unsigned i = 0; i < found->templates.count; i++)
        (void)json_object_set_new(templates, found->templates.items[i].name,
                                  json_string(found->templates.items[i].key));
    facts = json_pack("{s:{s:s,s:s},s:{s:i,s:o},s:s,s:o}", "runsc", "version", found->runsc_version,
                      "platform", RUNSC_PLATFORM, "cgroup", "version",
                      cgroup_version(found->cgroup), "controllers", controllers, "kernel",
                      uname(&host) == 0 ? host.release : "unknown", "templates", templates);
    found->facts_json = facts ? json_dumps(facts, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    if (!found->facts_json)
        return error_set(err, ERR_SYSTEM, "no memory");
    return 0;
}

/* --- the checks in order ---------------------------------------------------------------------- */

static const struct {
    const char *name;
    enum preflight_check needs;
    int (*run)(struct preflight *found, const struct config *config, const struct log *log,
               struct error *err);
} checks[PREFLIGHT_COUNT] = {
    [PREFLIGHT_USER] = {"user", PREFLIGHT_COUNT, check_user},
    [PREFLIGHT_STORE] = {"store", PREFLIGHT_USER, check_store},
    [PREFLIGHT_KERNEL] = {"kernel", PREFLIGHT_COUNT, check_kernel},
    [PREFLIGHT_RUNSC] = {"runsc", PREFLIGHT_STORE, check_runsc}, /* its --root lies there */
    [PREFLIGHT_CGROUPS] = {"cgroups", PREFLIGHT_USER, check_cgroups},
    [PREFLIGHT_IMAGES] = {"images", PREFLIGHT_COUNT, check_images},
};

const char *preflight_name(enum preflight_check check)
{
    return checks[check].name;
}

enum preflight_check preflight_needs(enum preflight_check check)
{
    return checks[check].needs;
}

int preflight_run(enum preflight_check check, struct preflight *found, const struct config *config,
                  const struct log *log, struct error *err)
{
    return checks[check].run(found, config, log, err);
}

int preflight_host(struct preflight *found, const struct config *config, const struct log *log,
                   struct error *err)
{
    for (enum preflight_check check = PREFLIGHT_USER; check <= PREFLIGHT_STORE; check++)
        if (preflight_run(check, found, config, log, err) < 0)
            return -1;
    return 0;
}

int preflight_main(struct preflight *found, const struct config *config, const struct log *log,
                   struct error *err)
{
    if (preflight_run(PREFLIGHT_USER, found, config, log, err) < 0)
        return -1;
    return check_folders(found, config, err);
}

int preflight_guests(struct preflight *found, const struct config *config, const struct log *log,
                     struct error *err)
{
    for (enum preflight_check check = PREFLIGHT_KERNEL; check < PREFLIGHT_COUNT; check++)
        if (preflight_run(check, found, config, log, err) < 0)
            return -1;
    return make_facts(found, err);
}

void preflight_clear(struct preflight *found)
{
    if (found->cgroup)
        cgroup_free(found->cgroup);
    templates_clear(&found->templates);
    free(found->facts_json);
    memset(found, 0, sizeof(*found));
}
