/*
 * What the fuzz targets share: the input as a stream that is taken apart from
 * its front, and the check of a property. Each target is LLVMFuzzerTestOneInput
 * in a file of its own; libFuzzer drives it in a --enable-fuzz build, replay.c
 * in any other. Past its end an input reads as zeros, so every input is whole.
 */
#ifndef PADDOCK_TESTS_FUZZ_FUZZ_H
#define PADDOCK_TESTS_FUZZ_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct fuzz_input {
    const uint8_t *data;
    size_t len;
};

static inline uint8_t fuzz_u8(struct fuzz_input *in)
{
    if (in->len == 0)
        return 0;
    in->len--;
    return *in->data++;
}

static inline uint16_t fuzz_u16(struct fuzz_input *in)
{
    uint16_t high = fuzz_u8(in);

    return (uint16_t)(high << 8 | fuzz_u8(in));
}

/* At most len bytes, borrowed; *len becomes what there is. */
static inline const uint8_t *fuzz_bytes(struct fuzz_input *in, size_t *len)
{
    const uint8_t *bytes = in->data;

    if (*len > in->len)
        *len = in->len;
    in->data += *len;
    in->len -= *len;
    return bytes;
}

/* A property that holds for every input: unlike assert, always compiled. */
#define MUST(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            (void)fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);    \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

#endif
