/*
 * What differs between cgroup versions 1 and 2, as a table of functions, and
 * the file helpers both use. Only cgroup.c, cgroup_v1.c and cgroup_v2.c include
 * this.
 */
#ifndef PADDOCK_KEEPER_CGROUP_DRIVER_H
#define PADDOCK_KEEPER_CGROUP_DRIVER_H

#include "daemon/keeper/cgroup.h"

#define CGROUP_PERIOD_US 100000u /* the kernel's default CPU bandwidth period */
#define CGROUP_HIERARCHIES_MAX 32
#define CGROUP_SETTINGS_MAX 8

/* One limit: what to write into which file, and what an operator does when it cannot be. */
struct cgroup_setting {
    const char *controller;
    const char *file;
    char value[48];
    const char *mend;
};

struct cgroup_driver {
    int version;
    const char *const *controllers; /* NULL-terminated */
    int (*resolve)(struct cgroup *cg, const char *parent, const char *own, struct error *err);
    int (*prepare)(const struct cgroup *cg, struct error *err);
    /* In the order they must be written. Returns their number. */
    unsigned (*settings)(const struct cgroup_limits *limits,
                         struct cgroup_setting out[CGROUP_SETTINGS_MAX]);
    /* Called for <id> after its limits are set and before its children are made. */
    int (*open_children)(const struct cgroup *cg, const char *id, struct error *err);
    int (*open_entry)(const struct cgroup *cg, const char *id, struct cgroup_entry *entry,
                      struct error *err);
    /* Kills by one write; false when this kernel or version cannot. */
    bool (*kill_at_once)(const char *dir);
    void (*read_usage)(const struct cgroup *cg, const char *id, struct cgroup_usage *usage);
};

extern const struct cgroup_driver cgroup_v1_driver;
extern const struct cgroup_driver cgroup_v2_driver;

struct cgroup {
    const struct cgroup_driver *driver;
    char root[128];
    char parent[256];
    char move_to[256]; /* v2: where this process goes first; "" for nowhere */
    /* Directory names below root that hold a hierarchy; v2: one, "". */
    char hierarchies[CGROUP_HIERARCHIES_MAX][32];
    unsigned hierarchy_count;
};

/* <root>/<hierarchy>/<parent>/<id>/<part>. hierarchy "" for v2; id NULL: the parent. */
void cgroup_dir(const struct cgroup *cg, const char *hierarchy, const char *id,
                enum cgroup_part part, char out[CGROUP_PATH_MAX]);

/* mkdir; an existing directory is fine when exist_ok. ERR_SYSTEM. */
int cgroup_mkdir(const char *dir, bool exist_ok, struct error *err)
    __attribute__((warn_unused_result));
/* ERR_SYSTEM names dir and file. */
int cgroup_write(const char *dir, const char *file, const char *value, struct error *err)
    __attribute__((warn_unused_result));
/* The file's text without its last newline; -1 when unreadable or longer than size - 1. */
int cgroup_read(const char *dir, const char *file, char *out, size_t size);
/* A file that is one number; 0 when unreadable. */
uint64_t cgroup_read_u64(const char *dir, const char *file);
/* `key number` in a file of such lines; 0 when missing. */
uint64_t cgroup_read_keyed(const char *dir, const char *file, const char *key);
/* Is word one of the space-separated words of text? */
bool cgroup_has_word(const char *text, const char *word);

#endif
