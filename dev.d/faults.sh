# Seeded faults under work, and what must hold after them. Sourced by ./dev; tests/faults does it.
# shellcheck shell=bash

run_faults() {
    PADDOCK_BUILD_DIR=$build PADDOCK_IMAGES_DIR=$images PYTHONDONTWRITEBYTECODE=1 \
        "$python" "$root/tests/faults/faults.py" "$@"
}

# ./dev faults [SEED...]
do_faults() {
    unset PADDOCK_URL PADDOCK_PROJECT PADDOCK_TOKEN PADDOCK_RUN_DIR PADDOCK_PORT PADDOCK_CONF_EXTRA
    make_ready
    run_faults "$@"
}

# For ./dev check: two seeds that are always the same, and one that is not. Adds to its counts.
fault_tests() {
    local log=$cache/log/faults.log sum
    run_faults 1 2 --random 1 >"$log" 2>&1 || true
    sum=$(tail -n 1 "$log")
    if [[ $sum =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]]; then
        passed=$((passed + BASH_REMATCH[1]))
        failed=$((failed + BASH_REMATCH[2]))
        ((BASH_REMATCH[2] == 0)) || cat "$log"
        return
    fi
    failed=$((failed + 1))
    printf 'FAIL faults\n'
    tail -n 60 "$log"
}
