/*
 * The jsonb of an execution (first byte even) and of a sandbox's environment
 * (odd), as the daemon reads them: what is accepted is records that paddock-init
 * accepts, within the wire's bounds.
 */
#include <string.h>

#include "common/wire.h"
#include "daemon/execution_spec.h"
#include "tests/fuzz/fuzz.h"

static void read_spec(const char *json, size_t len)
{
    _cleanup_execution_spec_ struct execution_spec spec = EXECUTION_SPEC_INIT;
    struct error err = ERROR_INIT;
    struct wire_record record;
    size_t offset = 0;
    unsigned args = 0;
    bool has_stdin = false;
    int more;

    if (execution_spec_parse(json, len, &spec, &err) < 0) {
        MUST(error_is_set(&err));
        return;
    }
    MUST(spec.wire.len > 0 && spec.wire.len <= WIRE_SPEC_MAX);
    while ((more = wire_spec_next(spec.wire.data, spec.wire.len, &offset, &record, &err)) > 0) {
        args += record.tag == WIRE_SPEC_ARG;
        has_stdin = has_stdin || record.tag == WIRE_SPEC_STDIN;
    }
    MUST(more == 0 && args > 0 && has_stdin == spec.has_input);
}

static void read_env(const char *json, size_t len)
{
    _cleanup_buf_ struct buf env = BUF_INIT(0);
    struct error err = ERROR_INIT;

    if (execution_env_parse(json, len, &env, &err) < 0) {
        MUST(error_is_set(&err));
        return;
    }
    MUST(env.len == 0 || env.data[env.len - 1] == '\0');
    for (size_t at = 0; at < env.len; at += strlen(env.data + at) + 1) {
        const char *equals = strchr(env.data + at, '=');

        MUST(equals && equals != env.data + at);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};

    if (fuzz_u8(&in) & 1)
        read_env((const char *)in.data, in.len);
    else
        read_spec((const char *)in.data, in.len);
    return 0;
}
