/*
 * Options beside the body (see options.h). Called by the handlers. A value that
 * is there but wrong is refused, never read as absent: a client that asked to
 * wait must not be left guessing.
 */
#include "fcgi/options.h"

#include <string.h>
#include <strings.h>

#include "common/text.h"

static int wait_seconds(const char *text, const char *field, int64_t *seconds, struct error *err)
{
    if (text_parse_i64(text, 0, OPTIONS_WAIT_MAX_S, seconds) < 0)
        return error_set_field(err, ERR_INVALID_FIELD, field,
                               "wait must be a whole number of seconds from 0 to %d",
                               OPTIONS_WAIT_MAX_S);
    return 0;
}

/* Length of a preference up to the comma that ends it; commas inside quotes do not. */
static size_t preference_len(const char *text)
{
    bool quoted = false;
    size_t i = 0;
    for (; text[i] && (quoted || text[i] != ','); i++) {
        if (text[i] == '"')
            quoted = !quoted;
        else if (quoted && text[i] == '\\' && text[i + 1])
            i++;
    }
    return i;
}

/* Copies the value of `wait=VALUE`, quotes and parameters removed; false: another preference. */
static bool wait_value(const char *text, size_t len, char *out, size_t size)
{
    const char *end = text + len;
    while (text < end && (*text == ' ' || *text == '\t'))
        text++;
    if ((size_t)(end - text) < 4 || strncasecmp(text, "wait", 4) != 0)
        return false;
    text += 4;
    text += strspn(text, " \t");
    if (text < end && *text != '=')
        return false; /* a longer name; `wait` alone has an empty value */
    if (text < end)
        text++;
    text += strspn(text, " \t");
    size_t n = 0;
    for (; text < end && *text != ';'; text++) {
        if (n + 1 < size)
            out[n++] = *text;
    }
    while (n > 0 && (out[n - 1] == ' ' || out[n - 1] == '\t'))
        n--;
    out[n] = '\0';
    if (n >= 2 && out[0] == '"' && out[n - 1] == '"') {
        memmove(out, out + 1, n - 2);
        out[n - 2] = '\0';
    }
    return true;
}

/* The first `wait` counts (RFC 7240, section 2). 1: found, 0: none, -1: wrong. */
static int wait_from_prefer(const char *prefer, int64_t *seconds, struct error *err)
{
    while (prefer && *prefer) {
        char value[32];
        size_t len = preference_len(prefer);
        if (wait_value(prefer, len, value, sizeof(value)))
            return wait_seconds(value, "Prefer", seconds, err) < 0 ? -1 : 1;
        prefer += len;
        prefer += strspn(prefer, ",");
    }
    return 0;
}

int options_wait(const struct request *req, int64_t *wait_ms, struct error *err)
{
    int64_t preferred = 0;
    int64_t asked = 0;
    int has_prefer = wait_from_prefer(req->prefer, &preferred, err);
    if (has_prefer < 0)
        return -1;
    const char *query = request_query(req, "wait");
    if (query && wait_seconds(query, "wait", &asked, err) < 0)
        return -1;
    if (query && has_prefer && asked != preferred)
        return error_set_field(err, ERR_MALFORMED, "wait",
                               "the wait of the query and of Prefer are different");
    if (query)
        *wait_ms = asked * 1000;
    else if (has_prefer)
        *wait_ms = preferred * 1000;
    return 0;
}

int options_idempotency_key(const struct request *req, const char **key, struct error *err)
{
    *key = req->idempotency_key;
    if (!*key)
        return 0;
    size_t len = strlen(*key);
    bool good = len >= 1 && len <= OPTIONS_KEY_MAX;
    for (size_t i = 0; good && i < len; i++)
        good = (*key)[i] >= 0x21 && (*key)[i] <= 0x7e;
    if (!good)
        return error_set_field(err, ERR_INVALID_FIELD, "Idempotency-Key",
                               "Idempotency-Key must be 1 to %d visible ASCII characters",
                               OPTIONS_KEY_MAX);
    return 0;
}
