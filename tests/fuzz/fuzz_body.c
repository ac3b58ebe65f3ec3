/*
 * JSON request bodies: first byte even: of a create request, odd: of an exec
 * request. What the handlers make of an accepted body is what the daemon
 * accepts from the database, and normalising it by its text changes nothing.
 */
#include <string.h>

#include "common/config.h"
#include "common/json.h"
#include "daemon/execution_spec.h"
#include "fcgi/exec_request.h"
#include "fcgi/sandbox_request.h"
#include "tests/fuzz/fuzz.h"

static const struct json_limits limits = {
    .bytes = 1u << 20, .depth = JSON_DEFAULT_DEPTH, .elements = JSON_DEFAULT_ELEMENTS};

static void daemon_takes_spec(const json_t *request)
{
    _cleanup_execution_spec_ struct execution_spec spec = EXECUTION_SPEC_INIT;
    struct error err = ERROR_INIT;
    _cleanup_free_ char *text = json_canonical(json_object_get(request, "spec"));

    MUST(text != NULL);
    /* All at their bounds together may be more than the wire takes; nothing here is that large. */
    MUST(execution_spec_parse(text, strlen(text), &spec, &err) == 0);
    MUST(exec_request_default_wait_ms(request) >= 0);
}

static void daemon_takes_env(const json_t *request)
{
    _cleanup_buf_ struct buf env = BUF_INIT(0);
    struct error err = ERROR_INIT;
    _cleanup_free_ char *text = json_canonical(json_object_get(request, "env"));

    MUST(text != NULL);
    MUST(execution_env_parse(text, strlen(text), &env, &err) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    bool exec = fuzz_u8(&in) & 1;
    struct error err = ERROR_INIT;
    _cleanup_config_ struct config *config = config_parse("", 0, "fuzz", &err);
    _cleanup_json_ json_t *body = NULL;
    _cleanup_json_ json_t *request = NULL;

    MUST(config != NULL);
    body = json_parse_object((const char *)in.data, in.len, &limits, &err);
    if (!body) {
        MUST(error_is_set(&err));
        return 0;
    }
    request = exec ? exec_request_from_body(body, config, &err)
                   : sandbox_request_from_body(body, config, &err);
    if (!request)
        MUST(error_is_set(&err));
    else if (exec)
        daemon_takes_spec(request);
    else
        daemon_takes_env(request);
    return 0;
}
