/*
 * Identifiers: lower-case UUIDs (RFC 9562), by libuuid. The database makes those
 * of its rows (a sandbox's begins with its node's number); programs make request
 * ids.
 */
#ifndef PADDOCK_COMMON_ID_H
#define PADDOCK_COMMON_ID_H

#include <stdbool.h>
#include <stdint.h>

#define ID_SIZE 37 /* 36 characters and NUL */

/* A random (version 4) UUID. */
void id_new(char out[ID_SIZE]);
/* The 16 bytes of a valid one, and back. */
#define ID_BYTES 16
void id_to_bytes(const char *id, uint8_t out[ID_BYTES]);
void id_from_bytes(const uint8_t bytes[ID_BYTES], char out[ID_SIZE]);
/* Exactly 36 characters, lower-case hex with dashes in place. */
bool id_is_valid(const char *text);

#endif
