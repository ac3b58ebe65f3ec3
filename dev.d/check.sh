# Every test, and one last line with the sum. Sourced by ./dev.
# shellcheck shell=bash

passed=0 failed=0

# A check that passes or fails as a whole: NAME COMMAND... (in a subshell: it may die)
check_one() {
    local name=$1 log=$cache/log/$1.log
    shift
    say "$name"
    if ("$@") >"$log" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAIL %s\n' "$name"
        tail -n 60 "$log"
    fi
}

# `make check` in a build folder; the name stands for it in what is printed.
unit_tests() {
    local name=$1 folder=$2 result status=0 before=$failed
    local log=$cache/log/$name.log
    say "$name"
    find "$folder" -name '*.trs' -delete
    PADDOCK_IMAGES_DIR=$images PADDOCK_TEST_IMAGES=$images \
        make -s -k -C "$folder" -j"$(nproc)" check >"$log" 2>&1 || status=$?
    while IFS= read -r result; do
        case $result in
            PASS | XFAIL) passed=$((passed + 1)) ;;
            *) # a test that was skipped proved nothing either
                failed=$((failed + 1))
                status=0
                ;;
        esac
    done < <(find "$folder" -name '*.trs' -exec sed -n 's/^:global-test-result: //p' {} +)
    # No result shows why make failed: the tests did not even build.
    ((status == 0)) || failed=$((failed + 1))
    if ((failed > before)); then
        printf 'FAIL %s\n' "$name"
        tail -n 60 "$log"
        [[ ! -e $folder/test-suite.log ]] || cat "$folder/test-suite.log"
    fi
}

# All C files, whatever git knows of them: the tree may be an unpacked archive.
c_files() {
    find . \( -path ./.cache -o -path ./.git -o -name 'build*' -type d \) -prune \
        -o -name '*.[ch]' -print0
}

# Versions of clang-format disagree; this one Debian 12 and 13 both have.
format_check() { c_files | xargs -0 clang-format-19 --dry-run -Werror; }

# The suppressed one only tells that cppcheck limits its own effort.
cppcheck_check() {
    cppcheck -q -j"$(nproc)" --std=c11 --enable=warning,portability --error-exitcode=1 \
        --inline-suppr --suppress=normalCheckLevelMaxBranches -I. -D_GNU_SOURCE \
        cli common daemon fcgi guestimg
}

# Everything, tests included, without a warning of clang's.
clang_build() {
    configure_tree "$cache/log/clang-configure.log" "$cache/build-clang" --enable-werror CC=clang &&
        make -s -C "$cache/build-clang" -j"$(nproc)" all &&
        make -s -C "$cache/build-clang" -j"$(nproc)" check TESTS=
}

# The unit tests and the fuzz corpora once more, under AddressSanitizer and UBSan.
sanitizer_tests() {
    configure_tree "$cache/log/asan-configure.log" "$cache/build-asan" --enable-werror \
        --enable-sanitizers
    unit_tests unit_tests_under_sanitizers "$cache/build-asan"
}

# Needs what unit_tests built.
cgroup_v2_test() {
    PADDOCK_BUILD_DIR=$build PADDOCK_IMAGES_DIR=$images PADDOCK_CACHE_DIR=$cache tests/vm/cgroup-v2
}

script_checks() {
    local file
    local -a scripts=()
    say "scripts"
    while IFS= read -r -d '' file; do
        ! head -n 1 "$file" | grep -aEq '^#!/bin/(ba)?sh' || scripts+=("$file")
    done < <(find . \( -path ./.cache -o -path ./.git -o -name 'build*' -type d \) -prune \
        -o -type f ! -name 'configure*' -size -200k -print0)
    # -a: what ./dev sources is checked with it.
    if shellcheck -x -a "${scripts[@]}"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
    fi
}

# The integration tests through one web server; tests/integration/conftest.py says which of them
# run through each and which once.
integration_tests() {
    local report=$cache/log/integration-$1.xml status=0 counts
    say "integration tests through $1"
    rm -f "$report"
    PADDOCK_DEV_READY=1 PADDOCK_BUILD_DIR=$build PADDOCK_IMAGES_DIR=$images PADDOCK_WEB=$1 \
        "$python" -m pytest -q -p no:cacheprovider --junitxml="$report" tests/integration ||
        status=$?
    counts=$("$python" - "$report" <<'PY'
import sys
import xml.etree.ElementTree as tree

try:
    suites = list(tree.parse(sys.argv[1]).iter("testsuite"))
except (OSError, tree.ParseError):
    suites = []
tests, failures, errors, skipped = (
    sum(int(s.get(name, 0)) for s in suites) for name in ("tests", "failures", "errors", "skipped")
)
print(max(tests - failures - errors - skipped, 0), failures + errors)
PY
    )
    passed=$((passed + ${counts% *}))
    failed=$((failed + ${counts#* }))
    # pytest is unhappy and no test says why: it found none, or did not get to its end.
    ((status == 0 || ${counts#* } > 0)) || failed=$((failed + 1))
}

do_check() {
    local name
    unset PADDOCK_URL PADDOCK_PROJECT PADDOCK_TOKEN PADDOCK_RUN_DIR PADDOCK_PORT PADDOCK_WEB \
        PADDOCK_CONF_EXTRA
    ensure_packages "${check_packages[@]}"
    make_ready
    cd "$root" || exit
    export PYTHONDONTWRITEBYTECODE=1
    script_checks
    check_one c_files_are_formatted format_check
    check_one cppcheck_finds_nothing cppcheck_check
    unit_tests unit_tests "$build"
    for name in "${web_servers[@]}"; do
        integration_tests "$name"
    done
    fault_tests
    # What needs many minutes more: ./dev check --full
    if [[ ${1-} == --full ]]; then
        check_one guests_limits_hold_on_a_cgroup_v2_kernel cgroup_v2_test
        sanitizer_tests
        check_one clang_builds_without_a_warning clang_build
    fi
    printf '%d passed, %d failed\n' "$passed" "$failed"
    ((failed == 0))
}
