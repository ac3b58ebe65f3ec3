/*
 * Everything below a process, found by the parent links in /proc, and its end.
 * Called by supervisors for their execution, and by PID 1 when the guest ends.
 * No pidfd here (gVisor has none): a process that dies between the walk and the
 * signal could in theory hand its number to another process of the same guest.
 *
 * Why tree_end converges against a fork bomb: it first stops everyone it finds
 * until a walk finds nobody new. The stopped keep their place under the pids
 * limit, so sooner or later no fork succeeds; only then all of them are killed.
 * Under a bomb each system call here may wait long for its turn, so the process
 * group is stopped by one call, and the others as soon as a walk meets them; if
 * that is still slow, everything the guest's user runs stands still until the
 * tree is gone.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "guestimg/init/init.h"

#define STOP_PASSES_MAX 32u
#define END_PAUSE_MS 20
/* A walk takes a few ms; one that takes this long is starved by what it is to end. */
#define STARVED_MS 500
#define STARVED_CHECK_EVERY 8u

struct process {
    pid_t pid;
    pid_t parent;
    bool below;
};

struct process_list {
    struct process *items;
    size_t len;
    size_t cap;
};

static void process_list_free(struct process_list *list)
{
    free(list->items);
    *list = (struct process_list){0};
}
#define _cleanup_processes_ _cleanup_(process_list_free)

static bool process_list_add(struct process_list *list, struct process process)
{
    if (list->len == list->cap) {
        size_t cap = list->cap ? list->cap * 2 : 128;
        struct process *items = realloc(list->items, cap * sizeof(*items));
        if (!items)
            return false;
        list->items = items;
        list->cap = cap;
    }
    list->items[list->len++] = process;
    return true;
}

/* -1 when the process is gone. Zombies count: one whose first thread ended is shown as a zombie
 * while its other threads live on. */
static pid_t parent_of(int proc_fd, const char *pid_name)
{
    char path[32];
    size_t name_len = strlen(pid_name);
    if (name_len > 16)
        return -1;
    memcpy(path, pid_name, name_len + 1);
    memcpy(path + name_len, "/stat", sizeof("/stat"));
    _cleanup_close_ int fd = openat(proc_fd, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    char text[512];
    ssize_t len = read(fd, text, sizeof(text) - 1);
    if (len <= 0)
        return -1;
    text[len] = 0;
    /* "pid (name) state parent …": the name may hold anything, also ')' and newlines. */
    const char *after_name = strrchr(text, ')');
    if (!after_name || after_name[1] != ' ')
        return -1;
    if (after_name[2] == 0 || after_name[3] != ' ')
        return -1;
    return (pid_t)strtol(after_name + 4, NULL, 10);
}

static int compare_pids(const void *left, const void *right)
{
    const struct process *a = left;
    const struct process *b = right;
    return (a->pid > b->pid) - (a->pid < b->pid);
}

/* In a list sorted by process id. */
static const struct process *find_pid(const struct process_list *list, pid_t pid)
{
    struct process key = {.pid = pid};
    if (list->len == 0)
        return NULL;
    return bsearch(&key, list->items, list->len, sizeof(key), compare_pids);
}

/* Stops the world of the guest's user: undone when the tree is gone. */
struct freeze {
    uid_t uid;
    int64_t walk_started_ms;
    bool done;
};

/* From a process that has this user's ids alone, so that it reaches no supervisor. */
static void signal_all_of_user(uid_t uid, int signal_number)
{
    /* The one address space is what makes a child cheap; it calls nothing but the kernel. */
    pid_t pid = vfork(); /* NOLINT(bugprone-unsafe-functions) */
    if (pid == 0) {
        if (setresuid(uid, uid, uid) == 0)
            (void)kill(-1, signal_number);
        _exit(0);
    }
    while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

static void freeze_if_starved(struct freeze *freeze)
{
    if (freeze->done || init_now_ms() - freeze->walk_started_ms < STARVED_MS)
        return;
    freeze->done = true;
    signal_all_of_user(freeze->uid, SIGSTOP);
}

struct walk {
    pid_t root;
    struct freeze *freeze;            /* NULL: only look */
    int signal_number;                /* sent to each descendant; 0: none */
    const struct process_list *spare; /* who got it already; may be NULL */
    struct process_list *list;
};

/* Returns whether it is known now to be below the root and was not before. */
static bool judge(const struct walk *walk, struct process *process)
{
    if (process->below || process->pid == walk->root)
        return false;
    const struct process *parent = find_pid(walk->list, process->parent);
    process->below = process->parent == walk->root || (parent && parent->below);
    if (process->below && walk->signal_number != 0 &&
        !(walk->spare && find_pid(walk->spare, process->pid)))
        (void)kill(process->pid, walk->signal_number);
    return process->below;
}

/* Directories of /proc come in rising order, so most parents are known before their children. */
static void read_processes(const struct walk *walk)
{
    struct process_list *list = walk->list;
    DIR *proc = opendir("/proc");
    if (!proc)
        return;
    pid_t last = 0;
    unsigned seen = 0;
    const struct dirent *entry;
    while ((entry = readdir(proc))) {
        if (walk->freeze && seen++ % STARVED_CHECK_EVERY == 0)
            freeze_if_starved(walk->freeze);
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        struct process process = {.pid = (pid_t)strtol(entry->d_name, NULL, 10),
                                  .parent = parent_of(dirfd(proc), entry->d_name)};
        if (process.parent <= 0)
            continue;
        if (process.pid > last)
            (void)judge(walk, &process);
        if (!process_list_add(list, process))
            break; /* the caller walks again; what was found is dealt with first */
        if (process.pid < last)
            qsort(list->items, list->len, sizeof(*list->items), compare_pids);
        else
            last = process.pid;
    }
    closedir(proc);
}

/* Leaves the descendants in walk->list, sorted by process id. */
static void collect(const struct walk *walk)
{
    struct process_list *list = walk->list;
    list->len = 0;
    read_processes(walk);
    bool changed = true;
    while (changed) {
        changed = false;
        for (size_t i = 0; i < list->len; i++)
            changed |= judge(walk, &list->items[i]);
    }
    size_t kept = 0;
    for (size_t i = 0; i < list->len; i++) {
        if (list->items[i].below)
            list->items[kept++] = list->items[i];
    }
    list->len = kept;
}

void tree_signal(pid_t root, int signal_number)
{
    _cleanup_processes_ struct process_list list = {0};
    const struct walk walk = {.root = root, .signal_number = signal_number, .list = &list};
    collect(&walk);
}

void tree_kill_orphan(pid_t pid)
{
    _cleanup_processes_ struct process_list list = {0};
    const struct walk walk = {.root = getpid(), .list = &list};
    collect(&walk);
    const struct process *process = find_pid(&list, pid);
    if (!process || process->parent != getpid())
        return;
    tree_signal(pid, SIGKILL);
    (void)kill(pid, SIGKILL);
}

static void stop_all(pid_t group, struct freeze *freeze, struct process_list *now)
{
    _cleanup_processes_ struct process_list before = {0};
    const struct walk walk = {.root = getpid(),
                              .freeze = freeze,
                              .signal_number = SIGSTOP,
                              .spare = &before,
                              .list = now};
    for (unsigned pass = 0; pass < STOP_PASSES_MAX; pass++) {
        if (group > 0)
            (void)kill(-group, SIGSTOP);
        if (freeze->done)
            signal_all_of_user(freeze->uid, SIGSTOP);
        freeze->walk_started_ms = init_now_ms();
        collect(&walk);
        bool found_new = false;
        for (size_t i = 0; i < now->len && !found_new; i++)
            found_new = !find_pid(&before, now->items[i].pid);
        if (!found_new)
            return;
        struct process_list swap = before;
        before = *now;
        *now = swap;
    }
}

void tree_end(const struct init_options *options, pid_t (*reap)(void *arg), void *arg)
{
    _cleanup_processes_ struct process_list list = {0};
    struct freeze freeze = {.uid = options->uid};
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    const struct timespec pause = {.tv_nsec = END_PAUSE_MS * 1000000L};
    pid_t group;
    while ((group = reap(arg)) >= 0) {
        stop_all(group, &freeze, &list);
        if (group > 0)
            (void)kill(-group, SIGKILL);
        for (size_t i = 0; i < list.len; i++)
            (void)kill(list.items[i].pid, SIGKILL);
        /* Blocked everywhere in this program, so one that comes earlier is not lost. */
        (void)sigtimedwait(&child, NULL, &pause);
    }
    if (freeze.done)
        signal_all_of_user(options->uid, SIGCONT);
}
