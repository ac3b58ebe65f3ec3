# Every test, and one last line with the sum. Sourced by ./dev.
# shellcheck shell=bash

passed=0 failed=0

# Runs COMMAND..., which counts for itself, and says how long that took: NAME COMMAND...
timed() {
    local name=$1 started=$SECONDS before=$failed verdict=passed
    shift
    say "$name"
    "$@"
    ((failed == before)) || verdict=FAILED
    say "$name: $verdict after $((SECONDS - started)) s"
}

# A check that passes or fails as a whole: NAME COMMAND... (in a subshell: it may die)
check_one() { timed "$1" count_one "$@"; }
count_one() {
    local name=$1 log=$cache/log/$1.log
    shift
    if ("$@") >"$log" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAIL %s\n' "$name"
        tail -n 60 "$log"
    fi
}

# Unit tests in a build folder, by a target of make: NAME FOLDER TARGET [WORD...]
unit_tests() { timed "$1" count_unit_tests "$@"; }
count_unit_tests() {
    local name=$1 folder=$2 result status=0 before=$failed
    local log=$cache/log/$name.log
    find "$folder" -name '*.trs' -delete
    PADDOCK_IMAGES_DIR=$images make -s -k -C "$folder" -j"$(nproc)" "${@:3}" >"$log" 2>&1 ||
        status=$?
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

script_check() {
    local file
    local -a scripts=()
    while IFS= read -r -d '' file; do
        ! head -n 1 "$file" | grep -aEq '^#!/bin/(ba)?sh' || scripts+=("$file")
    done < <(find . \( -path ./.cache -o -path ./.git -o -name 'build*' -type d \) -prune \
        -o -type f ! -name 'configure*' -size -200k -print0)
    # -a: what ./dev sources is checked with it.
    shellcheck -x -a "${scripts[@]}"
}

# Through one web server; tests/integration/conftest.py says which tests run through each and which
# once: NAME SERVER [WORD of pytest...]; $build and $images say what is tested. Two files at a time,
# each with a service of its own: most tests wait more than they compute.
integration_tests() { timed "$1" count_integration_tests "$@"; }
count_integration_tests() {
    local report=$cache/log/$1.xml status=0 counts
    rm -f "$report"
    PADDOCK_DEV_READY=1 PADDOCK_BUILD_DIR=$build PADDOCK_IMAGES_DIR=$images PADDOCK_WEB=$2 \
        "$python" -m pytest -q -p no:cacheprovider --junitxml="$report" \
        --numprocesses=2 --dist=loadfile tests/integration "${@:3}" || status=$?
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

# --- the list of all -----------------------------------------------------------------------

# In the order in which they run.
source_checks=(
    shellcheck_finds_nothing c_files_are_formatted cppcheck_finds_nothing unit_tests
)
service_checks=("${web_servers[@]/#/integration_tests_through_}" faults)
plain_checks=("${source_checks[@]}" "${service_checks[@]}")

run_check() {
    case $1 in
        shellcheck_finds_nothing) check_one "$1" script_check ;;
        c_files_are_formatted) check_one "$1" format_check ;;
        cppcheck_finds_nothing) check_one "$1" cppcheck_check ;;
        unit_tests) unit_tests "$1" "$build" check ;;
        integration_tests_through_*) integration_tests "$1" "${1##*_}" ;;
        faults) timed "$1" fault_tests ;;
        *) run_full_check "$1" ;;
    esac
}

run_checks() {
    local name
    for name; do run_check "$name"; done
}

# ./dev check [--full] [NAME...]
do_check() {
    local started=$SECONDS full='' name
    if [[ ${1-} == --full ]]; then
        full=1
        shift
    fi
    for name; do
        [[ " ${plain_checks[*]} ${full_checks[*]} " == *" $name "* ]] ||
            die "no check is named $name; they are: ${plain_checks[*]} ${full_checks[*]}"
    done
    forget_service
    unset PADDOCK_WEB
    ensure_packages "${check_packages[@]}"
    [[ -z $full && $# -eq 0 ]] || ensure_packages "${full_check_packages[@]}" "${arm64_packages[@]}"
    make_ready
    cd "$root" || exit
    export PYTHONDONTWRITEBYTECODE=1
    if (($# > 0)); then
        run_checks "$@"
    elif [[ -n $full ]]; then
        run_all_checks
    else
        run_checks "${plain_checks[@]}"
    fi
    say "all checks: $((SECONDS - started)) s"
    printf '%d passed, %d failed\n' "$passed" "$failed"
    ((failed == 0))
}
