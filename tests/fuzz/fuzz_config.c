/*
 * Configuration files: one that is accepted shows itself as a file that is
 * accepted, too, and means the same; unless a secret in it was masked.
 */
#include <string.h>

#include "common/config.h"
#include "tests/fuzz/fuzz.h"

static char *show(const struct config *config, size_t *len)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, len);

    MUST(out != NULL);
    config_show(config, out, false);
    MUST(fclose(out) == 0);
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error err = ERROR_INIT;
    struct config *first = config_parse((const char *)data, size, "fuzz", &err);
    struct config *second;
    char *shown[2];
    size_t len[2];

    if (!first) {
        MUST(error_is_set(&err) && err.detail[0] != '\0');
        return 0;
    }
    shown[0] = show(first, &len[0]);
    if (strstr(shown[0], "********")) {
        config_free(first);
        free(shown[0]);
        return 0;
    }
    second = config_parse(shown[0], len[0], "shown", &err);
    MUST(second != NULL);
    shown[1] = show(second, &len[1]);
    MUST(len[0] == len[1] && memcmp(shown[0], shown[1], len[0]) == 0);
    config_free(first);
    config_free(second);
    free(shown[0]);
    free(shown[1]);
    return 0;
}
