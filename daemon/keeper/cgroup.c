/*
 * The part of cgroup handling that is the same for both versions: paths, files,
 * making and removing a guest's cgroups, killing what is in them. Called by the
 * keeper, its preflight and the sweep. Nothing outside <parent> is ever removed
 * or killed, and below it only names that are ids or our scratch.
 */
#include "daemon/keeper/cgroup.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "common/id.h"
#include "common/text.h"
#include "daemon/keeper/cgroup_driver.h"

/* Followed by the pid, so that a check beside a running daemon has its own. */
#define SCRATCH_PREFIX "paddock-probe-"
/* gVisor makes nothing below `guest` on the host; one level more is tolerated, no deeper. */
#define REMOVE_DEPTH 4

/* --- files ------------------------------------------------------------------------------------ */

int cgroup_mkdir(const char *dir, bool exist_ok, struct error *err)
{
    if (mkdir(dir, 0755) == 0 || (exist_ok && errno == EEXIST))
        return 0;
    return error_set_errno(err, "cannot make cgroup %s", dir);
}

static int open_at(const char *dir, const char *file, int flags)
{
    char path[CGROUP_PATH_MAX + 64];
    int len = snprintf(path, sizeof(path), "%s/%s", dir, file);

    if (len < 0 || (size_t)len >= sizeof(path)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    return open(path, flags | O_CLOEXEC);
}

int cgroup_write(const char *dir, const char *file, const char *value, struct error *err)
{
    size_t len = strlen(value);
    _cleanup_close_ int fd = open_at(dir, file, O_WRONLY);

    if (fd < 0 || write(fd, value, len) != (ssize_t)len)
        return error_set_errno(err, "cannot write %s to %s/%s", value, dir, file);
    return 0;
}

int cgroup_read(const char *dir, const char *file, char *out, size_t size)
{
    _cleanup_close_ int fd = open_at(dir, file, O_RDONLY);
    size_t used = 0;

    if (fd < 0)
        return -1;
    for (;;) {
        ssize_t got = read(fd, out + used, size - used);

        if (got < 0)
            return -1;
        if (got == 0)
            break;
        used += (size_t)got;
        if (used == size)
            return -1;
    }
    if (used > 0 && out[used - 1] == '\n')
        used--;
    out[used] = '\0';
    return 0;
}

uint64_t cgroup_read_u64(const char *dir, const char *file)
{
    char text[64];

    if (cgroup_read(dir, file, text, sizeof(text)) < 0 || !isdigit((unsigned char)text[0]))
        return 0;
    return strtoull(text, NULL, 10);
}

uint64_t cgroup_read_keyed(const char *dir, const char *file, const char *key)
{
    char text[4096];
    size_t key_len = strlen(key);

    if (cgroup_read(dir, file, text, sizeof(text)) < 0)
        return 0;
    for (const char *line = text; line; line = strchr(line, '\n')) {
        if (*line == '\n')
            line++;
        if (strncmp(line, key, key_len) == 0 && line[key_len] == ' ' &&
            isdigit((unsigned char)line[key_len + 1]))
            return strtoull(line + key_len + 1, NULL, 10);
    }
    return 0;
}

bool cgroup_has_word(const char *text, const char *word)
{
    size_t len = strlen(word);

    for (const char *at = text; (at = strstr(at, word)) != NULL; at += len) {
        bool begins = at == text || at[-1] == ' ';
        bool ends = at[len] == '\0' || at[len] == ' ';

        if (begins && ends)
            return true;
    }
    return false;
}

/* --- places ----------------------------------------------------------------------------------- */

void cgroup_dir(const struct cgroup *cg, const char *hierarchy, const char *id,
                enum cgroup_part part, char out[CGROUP_PATH_MAX])
{
    static const char *const parts[] = {
        [CGROUP_ALL] = "", [CGROUP_GUEST] = "/guest", [CGROUP_RUN] = "/run"};

    /* root, hierarchy, parent and id are bounded well below CGROUP_PATH_MAX. */
    (void)snprintf(out, CGROUP_PATH_MAX, "%s%s%s%s%s%s%s", cg->root, hierarchy[0] ? "/" : "",
                   hierarchy, cg->parent, id ? "/" : "", id ? id : "", id ? parts[part] : "");
}

void cgroup_guest_path(const struct cgroup *cg, const char *id, char out[CGROUP_PATH_MAX])
{
    (void)snprintf(out, CGROUP_PATH_MAX, "%s/%s/guest", cg->parent, id);
}

/* Where a controller's files are: its hierarchy on version 1, the one hierarchy on version 2. */
static const char *controller_hierarchy(const struct cgroup *cg, const char *controller)
{
    return cg->driver->version == 1 ? controller : "";
}

int cgroup_detect(const char *root, struct error *err)
{
    struct statfs fs;
    struct stat st;
    char path[CGROUP_PATH_MAX];

    if (statfs(root, &fs) < 0) {
        (void)error_set_errno(err, "%s", root);
        return error_set(err, ERR_PREFLIGHT, "%s is missing: mount the cgroup file system there",
                         root);
    }
    if (fs.f_type == CGROUP2_SUPER_MAGIC)
        return 2;
    (void)snprintf(path, sizeof(path), "%s/memory/cgroup.procs", root);
    if (stat(path, &st) == 0)
        return 1;
    return error_set(err, ERR_PREFLIGHT,
                     "%s holds no cgroup hierarchy: mount cgroup2 there (systemd does)", root);
}

int cgroup_own_path(const char *proc_file, char *out, size_t size, struct error *err)
{
    _cleanup_close_ int fd = open(proc_file, O_RDONLY | O_CLOEXEC);
    char text[8192];
    ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

    if (got < 0)
        return error_set_errno(err, "cannot read %s", proc_file);
    text[got] = '\0';
    (void)snprintf(out, size, "/");
    for (char *save = NULL, *line = strtok_r(text, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save)) {
        if (strncmp(line, "0::/", 4) != 0)
            continue;
        if (strlen(line + 3) >= size)
            return error_set(err, ERR_PREFLIGHT, "this process's cgroup path is too long");
        (void)snprintf(out, size, "%s", line + 3);
    }
    return 0;
}

/* Every directory of root that is a hierarchy. Symbolic links (cpu -> cpu,cpuacct) are other names
 * of one that is found anyway. */
static int find_hierarchies(struct cgroup *cg, struct error *err)
{
    DIR *dir = opendir(cg->root);
    const struct dirent *entry;

    if (!dir)
        return error_set_errno(err, "cannot read %s", cg->root);
    while ((entry = readdir(dir)) != NULL) {
        char path[CGROUP_PATH_MAX + 300];
        struct stat st;
        size_t len = strlen(entry->d_name);

        if (entry->d_name[0] == '.' || len >= sizeof(cg->hierarchies[0]))
            continue;
        (void)snprintf(path, sizeof(path), "%s/%s", cg->root, entry->d_name);
        if (lstat(path, &st) < 0 || !S_ISDIR(st.st_mode))
            continue;
        (void)snprintf(path, sizeof(path), "%s/%s/cgroup.procs", cg->root, entry->d_name);
        if (stat(path, &st) < 0 || cg->hierarchy_count == CGROUP_HIERARCHIES_MAX)
            continue;
        memcpy(cg->hierarchies[cg->hierarchy_count++], entry->d_name, len + 1);
    }
    closedir(dir);
    return 0;
}

static int check_parent_setting(const char *parent, struct error *err)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789-_.@:\\/";

    if (strcmp(parent, "auto") == 0)
        return 0;
    if (parent[0] != '/' || strlen(parent) < 2 || parent[strlen(parent) - 1] == '/' ||
        strspn(parent, allowed) != strlen(parent) || strstr(parent, "//") || strstr(parent, "/."))
        return error_set_field(err, ERR_PREFLIGHT, "cgroup.parent",
                               "cgroup.parent must be auto or a plain absolute path below the "
                               "hierarchy's root, as /paddock");
    return 0;
}

struct cgroup *cgroup_new(const char *root, int version, const char *parent, const char *own,
                          struct error *err)
{
    struct cgroup *cg = calloc(1, sizeof(*cg));

    if (!cg) {
        (void)error_set_errno(err, "no memory");
        return NULL;
    }
    cg->driver = version == 2 ? &cgroup_v2_driver : &cgroup_v1_driver;
    if (strlen(root) >= sizeof(cg->root)) {
        (void)error_set(err, ERR_PREFLIGHT, "the cgroup root's path is too long");
        goto fail;
    }
    memcpy(cg->root, root, strlen(root) + 1);
    if (version == 2)
        cg->hierarchy_count = 1; /* "" */
    else if (find_hierarchies(cg, err) < 0)
        goto fail;
    if (check_parent_setting(parent, err) < 0 || cg->driver->resolve(cg, parent, own, err) < 0)
        goto fail;
    return cg;
fail:
    free(cg);
    return NULL;
}

void cgroup_free(struct cgroup *cg)
{
    free(cg);
}

int cgroup_version(const struct cgroup *cg)
{
    return cg->driver->version;
}

const char *cgroup_parent(const struct cgroup *cg)
{
    return cg->parent;
}

const char *cgroup_controller(const struct cgroup *cg, unsigned i)
{
    for (unsigned k = 0; cg->driver->controllers[k]; k++)
        if (k == i)
            return cg->driver->controllers[k];
    return NULL;
}

/* Fork bombs in many guests together must leave the host, and this daemon, process ids to work
 * with. An operator's lower limit (systemd: TasksMax) stays. */
static int limit_all_tasks(const struct cgroup *cg, struct error *err)
{
    uint64_t ids = cgroup_read_u64("/proc/sys/kernel", "pid_max");
    uint64_t tasks = cgroup_read_u64("/proc/sys/kernel", "threads-max");
    uint64_t most = (ids < tasks ? ids : tasks) / 4 * 3;
    char dir[CGROUP_PATH_MAX];
    char value[24];
    uint64_t now;

    cgroup_dir(cg, controller_hierarchy(cg, "pids"), NULL, CGROUP_ALL, dir);
    if (cgroup_read(dir, "pids.max", value, sizeof(value)) < 0 || most == 0)
        return 0; /* proc is not there, or the parent is a root, which has no limits */
    now = cgroup_read_u64(dir, "pids.max"); /* 0: "max" */
    if (now > 0 && now <= most)
        return 0;
    (void)snprintf(value, sizeof(value), "%" PRIu64, most);
    return cgroup_write(dir, "pids.max", value, err);
}

int cgroup_prepare(const struct cgroup *cg, struct error *err)
{
    if (cg->driver->prepare(cg, err) < 0)
        return -1;
    return limit_all_tasks(cg, err);
}

/* --- making ----------------------------------------------------------------------------------- */

static int write_settings(const struct cgroup *cg, const char *id, enum cgroup_part part,
                          const struct cgroup_limits *limits, struct error *err)
{
    struct cgroup_setting settings[CGROUP_SETTINGS_MAX];
    unsigned count = cg->driver->settings(limits, settings);
    char dir[CGROUP_PATH_MAX];

    for (unsigned i = 0; i < count; i++) {
        cgroup_dir(cg, controller_hierarchy(cg, settings[i].controller), id, part, dir);
        if (cgroup_write(dir, settings[i].file, settings[i].value, err) < 0)
            return -1;
    }
    return 0;
}

static int make_part(const struct cgroup *cg, const char *id, enum cgroup_part part,
                     struct error *err)
{
    char dir[CGROUP_PATH_MAX];

    if (cg->driver->version == 2) {
        cgroup_dir(cg, "", id, part, dir);
        return cgroup_mkdir(dir, false, err);
    }
    for (unsigned i = 0; cg->driver->controllers[i]; i++) {
        /* Controllers mounted together (cpu,cpuacct) share one directory. */
        cgroup_dir(cg, cg->driver->controllers[i], id, part, dir);
        if (cgroup_mkdir(dir, i > 0, err) < 0)
            return -1;
    }
    return 0;
}

static int make_all(const struct cgroup *cg, const char *id, const struct cgroup_limits *limits,
                    struct error *err)
{
    if (make_part(cg, id, CGROUP_ALL, err) < 0 ||
        write_settings(cg, id, CGROUP_ALL, limits, err) < 0 ||
        cg->driver->open_children(cg, id, err) < 0 || make_part(cg, id, CGROUP_RUN, err) < 0 ||
        make_part(cg, id, CGROUP_GUEST, err) < 0)
        return -1;
    return write_settings(cg, id, CGROUP_GUEST, limits, err);
}

int cgroup_create(const struct cgroup *cg, const char *id, const struct cgroup_limits *limits,
                  struct error *err)
{
    struct error ignored = ERROR_INIT;

    if (make_all(cg, id, limits, err) == 0)
        return 0;
    /* Never what another guest lives in: ids do not repeat, and EEXIST means a broken caller. */
    if (err->errno_value != EEXIST)
        (void)!cgroup_remove(cg, id, &ignored);
    return -1;
}

int cgroup_open_entry(const struct cgroup *cg, const char *id, struct cgroup_entry *entry,
                      struct error *err)
{
    entry->into_fd = -1;
    entry->procs_count = 0;
    if (cg->driver->open_entry(cg, id, entry, err) == 0)
        return 0;
    cgroup_close_entry(entry);
    return -1;
}

void cgroup_close_entry(struct cgroup_entry *entry)
{
    if (entry->into_fd >= 0)
        close(entry->into_fd);
    entry->into_fd = -1;
    while (entry->procs_count > 0)
        close(entry->procs_fds[--entry->procs_count]);
}

int cgroup_enter(const struct cgroup_entry *entry)
{
    for (unsigned i = 0; i < entry->procs_count; i++)
        if (write(entry->procs_fds[i], "0", 1) != 1)
            return -1;
    return 0;
}

/* --- proving ---------------------------------------------------------------------------------- */

static int prove_settings(const struct cgroup *cg, const char *scratch,
                          const struct cgroup_limits *limits, struct error *err)
{
    struct cgroup_setting settings[CGROUP_SETTINGS_MAX];
    unsigned count = cg->driver->settings(limits, settings);

    for (unsigned i = 0; i < count; i++) {
        const struct cgroup_setting *want = &settings[i];
        struct error cause = ERROR_INIT;
        char dir[CGROUP_PATH_MAX];
        char got[64];

        cgroup_dir(cg, controller_hierarchy(cg, want->controller), scratch, CGROUP_ALL, dir);
        if (cgroup_write(dir, want->file, want->value, &cause) < 0)
            return error_set(err, ERR_PREFLIGHT, "cgroup limit %s cannot be set (errno %d): %s",
                             want->file, cause.errno_value, want->mend);
        if (cgroup_read(dir, want->file, got, sizeof(got)) < 0 || strcmp(got, want->value) != 0)
            return error_set(err, ERR_PREFLIGHT, "cgroup limit %s does not keep its value: %s",
                             want->file, want->mend);
    }
    return 0;
}

int cgroup_prove(const struct cgroup *cg, struct error *err)
{
    const struct cgroup_limits limits = {.memory_bytes = 64u << 20, .cpus = 1, .pids = 64};
    struct error cause = ERROR_INIT;
    char scratch[48];
    int result;

    (void)snprintf(scratch, sizeof(scratch), SCRATCH_PREFIX "%d", (int)getpid());
    (void)!cgroup_remove(cg, scratch, &cause);
    cause = (struct error)ERROR_INIT;
    if (make_part(cg, scratch, CGROUP_ALL, &cause) < 0)
        return error_set(err, ERR_PREFLIGHT,
                         "no cgroup can be made below %s: %s; run as root with a writable cgroup "
                         "file system",
                         cg->parent, cause.detail);
    result = prove_settings(cg, scratch, &limits, err);
    if (cgroup_remove(cg, scratch, &cause) != 0 && result == 0)
        return error_set(err, ERR_PREFLIGHT, "the scratch cgroup %s/%s cannot be removed: rmdir it",
                         cg->parent, scratch);
    return result;
}

/* --- killing and removing --------------------------------------------------------------------- */

/* Pids are read as this PID namespace sees them; those outside it read as 0 or are left out. */
static void kill_listed(const char *dir)
{
    char path[CGROUP_PATH_MAX + 64];
    char line[32];
    FILE *procs;
    int64_t pid;

    (void)snprintf(path, sizeof(path), "%s/cgroup.procs", dir);
    procs = fopen(path, "re");
    if (!procs)
        return;
    while (fgets(line, sizeof(line), procs)) {
        line[strcspn(line, "\n")] = '\0';
        if (text_parse_i64(line, 2, INT32_MAX, &pid) == 0 && pid != getpid())
            (void)kill((pid_t)pid, SIGKILL);
    }
    (void)fclose(procs);
}

static void kill_part(const struct cgroup *cg, const char *hierarchy, const char *id,
                      enum cgroup_part part)
{
    char dir[CGROUP_PATH_MAX];

    cgroup_dir(cg, hierarchy, id, part, dir);
    if (!cg->driver->kill_at_once(dir))
        kill_listed(dir);
}

void cgroup_kill(const struct cgroup *cg, const char *id, enum cgroup_part part)
{
    for (unsigned i = 0; i < cg->hierarchy_count; i++) {
        const char *hierarchy = cg->hierarchies[i];

        if (part != CGROUP_ALL) {
            kill_part(cg, hierarchy, id, part);
            continue;
        }
        kill_part(cg, hierarchy, id, CGROUP_GUEST);
        kill_part(cg, hierarchy, id, CGROUP_RUN);
        kill_part(cg, hierarchy, id, CGROUP_ALL);
    }
}

void cgroup_read_usage(const struct cgroup *cg, const char *id, struct cgroup_usage *usage)
{
    *usage = (struct cgroup_usage){0};
    cg->driver->read_usage(cg, id, usage);
}

/* 0 gone, 1 busy, -1 with errno. */
static int remove_tree(const char *dir, int depth)
{
    DIR *stream = depth > 0 ? opendir(dir) : NULL;
    const struct dirent *entry;

    while (stream && (entry = readdir(stream)) != NULL) {
        char child[CGROUP_PATH_MAX];
        int len;

        if (entry->d_name[0] == '.' || entry->d_type != DT_DIR)
            continue;
        len = snprintf(child, sizeof(child), "%s/%s", dir, entry->d_name);
        if (len > 0 && (size_t)len < sizeof(child))
            (void)remove_tree(child, depth - 1);
    }
    if (stream)
        closedir(stream);
    if (rmdir(dir) == 0 || errno == ENOENT)
        return 0;
    return errno == EBUSY || errno == ENOTEMPTY ? 1 : -1;
}

int cgroup_remove(const struct cgroup *cg, const char *id, struct error *err)
{
    int result = 0;

    for (unsigned i = 0; i < cg->hierarchy_count; i++) {
        char dir[CGROUP_PATH_MAX];
        int one;

        cgroup_dir(cg, cg->hierarchies[i], id, CGROUP_ALL, dir);
        one = remove_tree(dir, REMOVE_DEPTH);
        if (one < 0)
            return error_set_errno(err, "cannot remove cgroup %s", dir);
        if (one > 0)
            result = 1;
    }
    return result;
}

static bool is_scratch(const char *name)
{
    return strncmp(name, SCRATCH_PREFIX, strlen(SCRATCH_PREFIX)) == 0;
}

int cgroup_each(const struct cgroup *cg, int (*found)(const char *id, void *arg), void *arg)
{
    int result = 0;

    for (unsigned i = 0; i < cg->hierarchy_count && result == 0; i++) {
        char dir[CGROUP_PATH_MAX];
        const struct dirent *entry;
        DIR *stream;

        cgroup_dir(cg, cg->hierarchies[i], NULL, CGROUP_ALL, dir);
        stream = opendir(dir);
        while (stream && result == 0 && (entry = readdir(stream)) != NULL)
            if (id_is_valid(entry->d_name) || is_scratch(entry->d_name))
                result = found(entry->d_name, arg);
        if (stream)
            closedir(stream);
    }
    return result;
}
