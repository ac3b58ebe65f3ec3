/*
 * Fingerprints of requests (see fingerprint.h), for the handlers that admit
 * work. Only the hash is kept with the key: values of env may be secrets.
 */
#include "fcgi/fingerprint.h"

#include <string.h>

#include "common/cleanup.h"
#include "common/json.h"
#include "common/text.h"

char *fingerprint_take(const json_t *request, struct fingerprint *print, struct error *err)
{
    uint8_t hash[TOKEN_HASH_LEN];
    _cleanup_free_ char *text = json_canonical(request);
    if (!text) {
        error_set(err, ERR_INTERNAL, "out of memory");
        return NULL;
    }
    if (token_sha256(text, strlen(text), hash, err) < 0)
        return NULL;
    memcpy(print->hex, "\\x", 2);
    text_hex(hash, sizeof(hash), print->hex + 2);
    return steal_ptr(text);
}
