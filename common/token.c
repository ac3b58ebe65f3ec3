/*
 * API tokens and what they allow. The command line makes tokens, the handlers
 * and the daemon check them; only the SHA-256 of a secret is ever kept. Random
 * bytes come from getrandom; hashes compare in constant time; the secret is wiped
 * from the stack; no error text quotes a token.
 */
#include "common/token.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <string.h>
#include <sys/random.h>

#include "common/cleanup.h"
#include "common/text.h"

#define TOKEN_PREFIX "pdk_"
#define TOKEN_PREFIX_LEN 4

_Static_assert(sizeof(TOKEN_PREFIX) - 1 == TOKEN_PREFIX_LEN, "prefix and its length agree");

static int random_bytes(void *out, size_t len, struct error *err)
{
    unsigned char *to = out;

    while (len > 0) {
        ssize_t n = getrandom(to, len, 0);
        if (n < 0) {
            if (errno == EINTR)
                continue;
            return error_set_errno(err, "cannot get random bytes");
        }
        to += n;
        len -= (size_t)n;
    }
    return 0;
}

int token_sha256(const void *data, size_t len, uint8_t out[TOKEN_HASH_LEN], struct error *err)
{
    unsigned written = 0;

    if (EVP_Digest(len ? data : "", len, out, &written, EVP_sha256(), NULL) != 1 ||
        written != TOKEN_HASH_LEN)
        return error_set(err, ERR_INTERNAL, "SHA-256 is not available");
    return 0;
}

int token_new(char text[TOKEN_TEXT_LEN + 1], struct token *token, struct error *err)
{
    uint8_t id[TOKEN_ID_LEN / 2];
    uint8_t secret[TOKEN_SECRET_LEN / 2];

    if (random_bytes(id, sizeof(id), err) < 0 || random_bytes(secret, sizeof(secret), err) < 0)
        return -1;
    text_hex(id, sizeof(id), token->id);
    memcpy(text, TOKEN_PREFIX, TOKEN_PREFIX_LEN + 1);
    text_hex(id, sizeof(id), text + TOKEN_PREFIX_LEN);
    text[TOKEN_PREFIX_LEN + TOKEN_ID_LEN] = '_';
    char *secret_text = text + TOKEN_PREFIX_LEN + TOKEN_ID_LEN + 1;
    text_hex(secret, sizeof(secret), secret_text);
    explicit_bzero(secret, sizeof(secret));
    if (token_sha256(secret_text, TOKEN_SECRET_LEN, token->hash, err) < 0) {
        explicit_bzero(text, TOKEN_TEXT_LEN + 1);
        return -1;
    }
    return 0;
}

static bool is_lower_hex(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (!((text[i] >= '0' && text[i] <= '9') || (text[i] >= 'a' && text[i] <= 'f')))
            return false;
    }
    return true;
}

int token_parse(const char *text, struct token *token, struct error *err)
{
    /* strnlen: a header may be long, and only one length is right. */
    if (!text || strnlen(text, TOKEN_TEXT_LEN + 1) != TOKEN_TEXT_LEN)
        return error_set(err, ERR_UNAUTHENTICATED, "the token is malformed");
    const char *id = text + TOKEN_PREFIX_LEN;
    const char *secret = id + TOKEN_ID_LEN + 1;
    if (memcmp(text, TOKEN_PREFIX, TOKEN_PREFIX_LEN) != 0 || !is_lower_hex(id, TOKEN_ID_LEN) ||
        id[TOKEN_ID_LEN] != '_' || !is_lower_hex(secret, TOKEN_SECRET_LEN))
        return error_set(err, ERR_UNAUTHENTICATED, "the token is malformed");
    if (token_sha256(secret, TOKEN_SECRET_LEN, token->hash, err) < 0)
        return -1;
    memcpy(token->id, id, TOKEN_ID_LEN);
    token->id[TOKEN_ID_LEN] = '\0';
    return 0;
}

bool token_hash_equal(const uint8_t a[TOKEN_HASH_LEN], const uint8_t b[TOKEN_HASH_LEN])
{
    return CRYPTO_memcmp(a, b, TOKEN_HASH_LEN) == 0;
}

static const struct {
    enum scope scope;
    const char *name;
} scopes[] = {{SCOPE_READ, "sandbox:read"}, {SCOPE_WRITE, "sandbox:write"}, {SCOPE_ADMIN, "admin"}};

enum scope scope_from_name(const char *name)
{
    for (size_t i = 0; name && i < ARRAY_LEN(scopes); i++) {
        if (strcmp(scopes[i].name, name) == 0)
            return scopes[i].scope;
    }
    return SCOPE_NONE;
}

const char *scope_name(enum scope scope)
{
    for (size_t i = 0; i < ARRAY_LEN(scopes); i++) {
        if (scopes[i].scope == scope)
            return scopes[i].name;
    }
    return "none";
}

bool scope_satisfies(unsigned held, enum scope needed)
{
    switch (needed) {
    case SCOPE_READ:
        return (held & (SCOPE_READ | SCOPE_WRITE | SCOPE_ADMIN)) != 0;
    case SCOPE_WRITE:
        return (held & (SCOPE_WRITE | SCOPE_ADMIN)) != 0;
    case SCOPE_ADMIN:
        return (held & SCOPE_ADMIN) != 0;
    case SCOPE_NONE:
        break;
    }
    /* A route that forgot to say what it needs opens for nobody. */
    return false;
}
