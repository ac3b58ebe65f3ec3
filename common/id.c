/*
 * UUIDs as text. Programs make request ids here; ids that come in are checked
 * here before they reach a statement, a path or a log. Only the one canonical
 * spelling is accepted, so an id can be compared and used as a name bytewise.
 */
#include "common/id.h"

#include <uuid/uuid.h>

_Static_assert(ID_SIZE == UUID_STR_LEN, "an id is a UUID's text");
_Static_assert(sizeof(uuid_t) == ID_BYTES, "and its bytes");

void id_new(char out[ID_SIZE])
{
    uuid_t uuid;

    uuid_generate_random(uuid);
    uuid_unparse_lower(uuid, out);
}

void id_to_bytes(const char *id, uint8_t out[ID_BYTES])
{
    (void)uuid_parse(id, out); /* a valid one parses */
}

void id_from_bytes(const uint8_t bytes[ID_BYTES], char out[ID_SIZE])
{
    uuid_unparse_lower(bytes, out);
}

bool id_is_valid(const char *text)
{
    if (!text)
        return false;
    for (unsigned i = 0; i < ID_SIZE - 1; i++) {
        char c = text[i];
        if (i == 8 || i == 13 || i == 18 || i == 23) {
            if (c != '-')
                return false;
        } else if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) {
            return false;
        }
    }
    return text[ID_SIZE - 1] == '\0';
}
