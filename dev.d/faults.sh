# Seeded faults under work, and what must hold after them. Sourced by ./dev; tests/faults does it.
# shellcheck shell=bash

run_faults() {
    # The small file systems that are filled up are mounted where nobody else sees them, and are gone
    # with the last of these processes, however that ends.
    PADDOCK_BUILD_DIR=$build PADDOCK_IMAGES_DIR=$images PYTHONDONTWRITEBYTECODE=1 \
        unshare --mount "$python" "$root/tests/faults/faults.py" "$@"
}

# ./dev faults [SEED...]
do_faults() {
    forget_service
    make_ready
    run_faults "$@"
}

# For ./dev check: a seed that is always the same, and one that is not. Adds to its counts.
fault_tests() {
    local log=$cache/log/faults.log sum
    run_faults 1 --random 1 >"$log" 2>&1 || true
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
