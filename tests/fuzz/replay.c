/*
 * main for a fuzz target in a build without libFuzzer: runs it once over each
 * file that is named, or over its whole kept corpus (tests/fuzz/corpus/<target>
 * of the source tree). That is how make check keeps what fuzzing once found.
 */
#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "tests/fuzz/fuzz.h"

static int replay(const char *path)
{
    FILE *file = fopen(path, "rb");
    uint8_t *data = NULL;
    long size;

    if (!file || fseek(file, 0, SEEK_END) < 0 || (size = ftell(file)) < 0 ||
        fseek(file, 0, SEEK_SET) < 0 || !(data = malloc(size > 0 ? (size_t)size : 1)) ||
        fread(data, 1, (size_t)size, file) != (size_t)size) {
        (void)fprintf(stderr, "%s: %s\n", path, strerror(errno));
        free(data);
        if (file)
            (void)fclose(file);
        return -1;
    }
    (void)fclose(file);
    (void)fprintf(stderr, "%s\n", path); /* the last one named is the one that crashed */
    (void)LLVMFuzzerTestOneInput(data, (size_t)size);
    free(data);
    return 0;
}

/* "…/fuzz_wire" -> "wire" */
static const char *target_name(const char *program)
{
    static const char prefix[] = "fuzz_";
    const char *slash = strrchr(program, '/');
    const char *name = slash ? slash + 1 : program;

    return strncmp(name, prefix, sizeof(prefix) - 1) == 0 ? name + sizeof(prefix) - 1 : name;
}

static int replay_corpus(const char *program)
{
    const char *source = getenv("srcdir");
    char pattern[512];
    glob_t found;
    int result = 0;

    (void)snprintf(pattern, sizeof(pattern), "%s/tests/fuzz/corpus/%s/*", source ? source : ".",
                   target_name(program));
    if (glob(pattern, 0, NULL, &found) != 0) {
        (void)fprintf(stderr, "%s: no corpus\n", pattern);
        return -1;
    }
    for (size_t i = 0; i < found.gl_pathc && result == 0; i++)
        result = replay(found.gl_pathv[i]);
    globfree(&found);
    return result;
}

int main(int argc, char **argv)
{
    int result = 0;

    for (int i = 1; i < argc && result == 0; i++)
        result = replay(argv[i]);
    if (argc == 1)
        result = replay_corpus(argv[0]);
    return result == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
