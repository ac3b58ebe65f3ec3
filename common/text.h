/*
 * Small text facts that several programs need: strict numbers, UTF-8, base64,
 * hex, percent-decoding, names, times. All are pure.
 */
#ifndef PADDOCK_COMMON_TEXT_H
#define PADDOCK_COMMON_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decimal, optional leading '-', no spaces, no '+', no leading zeros, whole string.
 * Returns 0, or -1 when malformed or outside [min, max]. */
int text_parse_i64(const char *text, int64_t min, int64_t max, int64_t *value);

/* Length of the longest prefix of data that is whole, valid UTF-8 (RFC 3629: no surrogates, no
 * overlong forms, at most U+10FFFF). Equals len when all of it is valid. */
size_t text_utf8_prefix(const void *data, size_t len);
static inline bool text_is_utf8(const void *data, size_t len)
{
    return text_utf8_prefix(data, len) == len;
}

/* Base64 (RFC 4648, padded). Returns a malloc'd string, or NULL without memory. */
char *text_base64(const void *data, size_t len);

/* Lower-case hex of len bytes into out (2 * len + 1 bytes). */
void text_hex(const void *data, size_t len, char *out);

/* Percent-decodes one URI path segment or query value in place (RFC 3986). '+' stays '+'.
 * Returns the decoded length, or -1 for a bad escape or a decoded NUL. */
int text_percent_decode(char *text);

/* True when text is 1..max bytes of [a-z0-9-], begins with a letter, and does not end in '-'.
 * The form of project and template names. */
bool text_is_name(const char *text, size_t max);

/* A date and time of RFC 3339 that the database can hold: upper-case T and Z, up to 9 digits of
 * fraction, offset up to 14 hours. */
bool text_is_time(const char *text);

#endif
