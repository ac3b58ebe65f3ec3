/*
 * The environment of executions. Four layers, later ones win: what every guest
 * has, the image's file, SETUP's, and the execution's own. The first three are
 * one block in PID 1 (environ_setup), which supervisors inherit by fork; the
 * fourth is joined in launch.c. PID 1's own environment is never looked at.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "guestimg/init/init.h"

#define ENVIRONMENT_MAX_BYTES (1u << 20)
#define IMAGE_FILE_MAX_BYTES 65536u

bool environ_is_assignment(const char *text, size_t len)
{
    const char *equals = memchr(text, '=', len);
    return equals && equals != text;
}

static int append_base(struct buf *env, const char *workspace)
{
    static const char *const fixed[] = {
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "USER=paddock",
        "LOGNAME=paddock",
        "LANG=C.UTF-8",
        "TERM=dumb",
        "SHELL=/bin/bash",
    };
    int rc = buf_printf(env, "HOME=%s", workspace);
    rc |= buf_append_u8(env, 0);
    for (size_t i = 0; i < ARRAY_LEN(fixed); i++)
        rc |= buf_append(env, fixed[i], strlen(fixed[i]) + 1);
    return rc;
}

/* Lines that are no assignments (blank, comments) are passed over. */
static int append_lines(struct buf *env, const char *text, size_t len)
{
    while (len > 0) {
        const char *newline = memchr(text, '\n', len);
        size_t line = newline ? (size_t)(newline - text) : len;
        if (line > 0 && text[0] != '#' && !memchr(text, 0, line) &&
            environ_is_assignment(text, line)) {
            if (buf_append(env, text, line) < 0 || buf_append_u8(env, 0) < 0)
                return -1;
        }
        size_t step = newline ? line + 1 : line;
        text += step;
        len -= step;
    }
    return 0;
}

static int append_image_file(struct buf *env, const char *path, struct error *err)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return errno == ENOENT ? 0 : error_set_errno(err, "%s", path);
    _cleanup_buf_ struct buf text = BUF_INIT(IMAGE_FILE_MAX_BYTES);
    for (;;) {
        char *room = buf_reserve(&text, 4096);
        if (!room)
            return error_set(err, ERR_SYSTEM, "%s is too long", path);
        ssize_t got = read(fd, room, 4096);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return error_set_errno(err, "%s", path);
        if (got == 0)
            break;
        text.len += (size_t)got;
    }
    if (text.len > 0 && append_lines(env, text.data, text.len) < 0)
        return error_set(err, ERR_SYSTEM, "no memory for the environment");
    return 0;
}

int environ_setup(struct init *init, const uint8_t *data, size_t len, struct error *err)
{
    const char *text = (const char *)data;
    if (len > 0 && text[len - 1] != 0)
        return error_set(err, ERR_PROTOCOL, "SETUP environment does not end in NUL");
    for (size_t at = 0; at < len;) {
        size_t entry = strlen(text + at);
        if (entry + 1 > WIRE_ARG_MAX || !environ_is_assignment(text + at, entry))
            return error_set(err, ERR_PROTOCOL, "SETUP environment is not NAME=value");
        at += entry + 1;
    }
    buf_clear(&init->environment);
    init->environment.max = ENVIRONMENT_MAX_BYTES;
    if (append_base(&init->environment, init->options->workspace) < 0)
        return error_set(err, ERR_SYSTEM, "no memory for the environment");
    if (append_image_file(&init->environment, init->options->environment_path, err) < 0)
        return -1;
    if (len > 0 && buf_append(&init->environment, text, len) < 0)
        return error_set(err, ERR_SYSTEM, "no memory for the environment");
    return 0;
}

struct ranked {
    const char *text;
    size_t name_len;
    size_t rank;
};

static int compare_names(const struct ranked *a, const struct ranked *b)
{
    size_t shorter = a->name_len < b->name_len ? a->name_len : b->name_len;
    int order = memcmp(a->text, b->text, shorter);
    if (order != 0)
        return order;
    return (a->name_len > b->name_len) - (a->name_len < b->name_len);
}

static int compare_ranked(const void *left, const void *right)
{
    const struct ranked *a = left;
    const struct ranked *b = right;
    int order = compare_names(a, b);
    return order != 0 ? order : (a->rank > b->rank) - (a->rank < b->rank);
}

/* Sorted rather than searched: the number of entries is the guest user's choice. */
size_t environ_unique(const char **entries, size_t count)
{
    if (count == 0)
        return 0;
    _cleanup_free_ struct ranked *sorted = calloc(count, sizeof(*sorted));
    if (!sorted)
        return 0;
    for (size_t i = 0; i < count; i++) {
        const char *equals = strchr(entries[i], '=');
        sorted[i].text = entries[i];
        sorted[i].name_len = equals ? (size_t)(equals - entries[i]) : strlen(entries[i]);
        sorted[i].rank = i;
    }
    qsort(sorted, count, sizeof(*sorted), compare_ranked);
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        bool last_of_name = i + 1 == count || compare_names(&sorted[i], &sorted[i + 1]) != 0;
        if (last_of_name)
            entries[kept++] = sorted[i].text;
    }
    return kept;
}
