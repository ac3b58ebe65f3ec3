/*
 * Finds and checks the guest images. Called by the preflight; the keeper only
 * looks them up. An image is <images_dir>/<name>/{rootfs,manifest.json}, made by
 * root, not writable by anyone else, with our PID 1 inside.
 */
#include "daemon/keeper/templates.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/cleanup.h"
#include "common/json.h"
#include "common/text.h"
#include "daemon/keeper/bundle.h"

#define MANIFEST_MAX_BYTES (16u << 20)
#define MANIFEST_ELEMENTS 200000
#define BUILD_HINT "build it with build-image"

static int fail(struct error *err, const char *name, const char *what)
{
    return error_set(err, ERR_PREFLIGHT, "template %s: %s", name, what);
}

static int read_all(int fd, struct buf *out)
{
    for (;;) {
        char *room = buf_reserve(out, 65536);
        ssize_t got;

        if (!room || out->len > MANIFEST_MAX_BYTES)
            return -1;
        got = read(fd, room, 65536);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0)
            return 0;
        out->len += (size_t)got;
    }
}

static int read_manifest(const char *dir, struct template_image *image, struct error *err)
{
    static const struct json_limits limits = {
        .bytes = MANIFEST_MAX_BYTES, .depth = JSON_DEFAULT_DEPTH, .elements = MANIFEST_ELEMENTS};
    _cleanup_buf_ struct buf text = BUF_INIT(0);
    struct error cause = ERROR_INIT;
    _cleanup_json_ json_t *manifest = NULL;
    _cleanup_close_ int fd = -1;
    char path[PATH_MAX];
    const char *name;
    const char *key;

    (void)snprintf(path, sizeof(path), "%s/manifest.json", dir);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read_all(fd, &text) < 0)
        return fail(err, image->name, "its manifest.json is missing or unreadable: " BUILD_HINT);
    manifest = json_parse_object(text.data, text.len, &limits, &cause);
    if (!manifest)
        return fail(err, image->name, "its manifest.json is not valid JSON: " BUILD_HINT);
    name = json_string_value(json_object_get(manifest, "template"));
    if (!name || strcmp(name, image->name) != 0)
        return fail(err, image->name, "its manifest.json is another template's: " BUILD_HINT);
    key = json_string_value(json_object_get(manifest, "key"));
    if (!key || !*key || strlen(key) > TEMPLATE_KEY_MAX)
        return fail(err, image->name, "its manifest.json has no key: " BUILD_HINT);
    memcpy(image->key, key, strlen(key) + 1);
    return 0;
}

/* Links inside the image are followed as the guest would: never out of it. */
static int check_init(const char *rootfs, const char *name, struct error *err)
{
    struct open_how how = {.flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT};
    _cleanup_close_ int root = open(rootfs, O_PATH | O_DIRECTORY | O_CLOEXEC);
    _cleanup_close_ int init =
        root < 0 ? -1 : (int)syscall(SYS_openat2, root, BUNDLE_INIT, &how, sizeof(how));
    struct stat st;

    if (root < 0 || fstat(root, &st) < 0)
        return fail(err, name, "its rootfs is missing: " BUILD_HINT);
    if (st.st_uid != 0 || (st.st_mode & 022) != 0)
        return fail(err, name, "its rootfs is not root's alone to change: chown root, chmod go-w");
    if (init < 0 || fstat(init, &st) < 0 || !S_ISREG(st.st_mode) || (st.st_mode & 0111) == 0)
        return fail(err, name, "its rootfs has no executable " BUNDLE_INIT ": " BUILD_HINT);
    return 0;
}

static int load_one(struct template_image *image, const char *images_dir, struct error *err)
{
    char path[PATH_MAX];
    _cleanup_free_ char *dir = NULL;

    (void)snprintf(path, sizeof(path), "%s/%s", images_dir, image->name);
    dir = realpath(path, NULL);
    if (!dir)
        return error_set(err, ERR_PREFLIGHT,
                         "template %s: no image in %s: " BUILD_HINT
                         ", or take it out of guest.templates",
                         image->name, images_dir);
    if (read_manifest(dir, image, err) < 0)
        return -1;
    (void)snprintf(path, sizeof(path), "%s/rootfs", dir);
    image->rootfs = realpath(path, NULL);
    if (!image->rootfs)
        return fail(err, image->name, "its rootfs is missing: " BUILD_HINT);
    return check_init(image->rootfs, image->name, err);
}

int templates_load(struct templates *all, const struct config *config, struct error *err)
{
    char name[KEEPER_TEMPLATE_MAX + 2];

    memset(all, 0, sizeof(*all));
    while (config_name_at(config->guest_templates, all->count, name, sizeof(name))) {
        struct template_image *image = &all->items[all->count];

        if (!text_is_name(name, KEEPER_TEMPLATE_MAX))
            return error_set_field(err, ERR_PREFLIGHT, "guest.templates",
                                   "guest.templates: %s is not a template's name", name);
        memcpy(image->name, name, strlen(name) + 1);
        all->count++;
        if (load_one(image, config->guest_images_dir, err) < 0)
            return -1;
        if (all->count == TEMPLATES_MAX)
            break;
    }
    if (all->count == 0)
        return error_set_field(err, ERR_PREFLIGHT, "guest.templates",
                               "guest.templates names no template");
    return 0;
}

const struct template_image *templates_find(const struct templates *all, const char *name)
{
    for (unsigned i = 0; i < all->count; i++)
        if (strcmp(all->items[i].name, name) == 0)
            return &all->items[i];
    return NULL;
}

void templates_clear(struct templates *all)
{
    for (unsigned i = 0; i < all->count; i++)
        free(all->items[i].rootfs);
    memset(all, 0, sizeof(*all));
}
