# Measurements beside a baseline. Sourced by ./dev.
# shellcheck shell=bash

do_bench() {
    unset PADDOCK_URL PADDOCK_PROJECT PADDOCK_TOKEN PADDOCK_RUN_DIR PADDOCK_PORT PADDOCK_CONF_EXTRA
    ensure_packages wrk
    make_ready
    PYTHONDONTWRITEBYTECODE=1 PADDOCK_BUILD_DIR=$build PADDOCK_IMAGES_DIR=$images \
        exec "$python" "$root/bench/bench.py" "$@"
}
