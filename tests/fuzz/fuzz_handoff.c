/* Hand-off messages: what was decoded is encoded again, and that says the same. */
#include <string.h>

#include "common/handoff.h"
#include "tests/fuzz/fuzz.h"

static void compare(const struct handoff *a, const struct handoff *b)
{
    MUST(a->wait == b->wait && strcmp(a->id, b->id) == 0);
    MUST(strcmp(a->sandbox_id, b->sandbox_id) == 0 && strcmp(a->request_id, b->request_id) == 0);
    MUST(strcmp(a->token_id, b->token_id) == 0);
    MUST(a->fcgi_request_id == b->fcgi_request_id && a->wait_ms == b->wait_ms);
    MUST(a->status_done == b->status_done && a->status_pending == b->status_pending);
    MUST(a->replayed == b->replayed && a->head_only == b->head_only);
    MUST(strcmp(a->location, b->location) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error err = ERROR_INIT;
    struct handoff first;
    struct handoff second;
    char text[HANDOFF_MAX];
    int len;

    if (handoff_decode((const char *)data, size, &first, &err) < 0) {
        MUST(err.code == ERR_PROTOCOL);
        return 0;
    }
    MUST(id_is_valid(first.id) && id_is_valid(first.sandbox_id));
    MUST(!strpbrk(first.location, "\r\n") && !strpbrk(first.request_id, "\r\n"));
    MUST(first.status_done >= 200 && first.status_done <= 599);
    len = handoff_encode(&first, text, sizeof(text), &err);
    MUST(len > 0 && handoff_decode(text, (size_t)len, &second, &err) == 0);
    compare(&first, &second);
    return 0;
}
