# What ./dev check --full adds: sanitizers, analysers, other compilers, machines and libraries. Each
# function is one check, or one set of tests that counts for itself. Sourced by ./dev.
# shellcheck shell=bash

full_check_packages=(clang-tidy-19 valgrind)

# Programs, and all that `make check` would run, in a folder of their own: FOLDER WORD...
build_all() {
    local folder=$1
    shift
    configure_tree "$cache/log/${folder##*/}.log" "$folder" "$@" &&
        make -s -C "$folder" -j"$(nproc)" all &&
        make -s -C "$folder" -j"$(nproc)" check TESTS=
}

# --- analysers ---------------------------------------------------------------------------

# .clang-tidy says what is asked; the flags are those that the build gives the compiler.
clang_tidy_check() {
    # shellcheck disable=SC2016 # make expands that
    make -s -C "$build" --no-print-directory \
        --eval='say-flags: ; @printf "%s\n" $(AM_CPPFLAGS) -std=c17' say-flags \
        >"$build/compile_flags.txt" || return
    c_files | grep -z '\.c$' | xargs -0 -P"$(nproc)" -n 4 clang-tidy-19 --quiet -p "$build"
}

# gcc's analyser is advisory: it knows C alone, and not what a library's function does to its
# arguments. Its findings are counted; the log has them.
gcc_analyzer() {
    local folder=$cache/build-analyzer log=$cache/log/gcc_analyzer.log
    configure_tree "$log" "$folder" CFLAGS='-g -O1 -fanalyzer'
    make -s -C "$folder" clean >/dev/null
    make -s -C "$folder" -j"$(nproc)" all >"$log" 2>&1 || build_failed "$log"
    printf 'gcc -fanalyzer: %d findings (advisory; .cache/log/%s)\n' \
        "$(grep -E '\[-Wanalyzer' "$log" | sort -u | wc -l)" "${log##*/}"
}

# --- other builds ------------------------------------------------------------------------

clang_build() { build_all "$cache/build-clang" --enable-werror CC=clang; }

# The archive alone builds out of tree, passes every unit test, installs, and leaves nothing when
# it is uninstalled or cleaned.
distribution_check() {
    PADDOCK_IMAGES_DIR=$images make -s -C "$build" -j"$(nproc)" distcheck \
        DISTCHECK_CONFIGURE_FLAGS=--enable-werror
}

# --- sanitizers --------------------------------------------------------------------------

sanitized=$cache/build-sanitized

sanitizer_build() { build_all "$sanitized" --enable-werror --enable-sanitizers; }

# Images with the paddock-init of that build; all else of them is shared.
sanitizer_images() {
    "$root/guestimg/build" --if-needed --images-dir "$cache/images-sanitized" \
        --cache "$images/cache" --templates-dir "$root/guestimg/templates" \
        --init "$sanitized/guestimg/init/paddock-init" base node
}

# Programs drop their privileges and live in namespaces; they all get at this folder, and conftest.py
# fails the test that a report comes up in. Left out is what asks about gVisor or about memory,
# not about them, and what preloads a library: ASan wants to be the first.
sanitizer_integration_tests() {
    local name=$1 reports build=$sanitized images=$cache/images-sanitized
    reports=$(mktemp -d /tmp/paddock-sanitizer.XXXXXX)
    chmod 1777 "$reports"
    PADDOCK_SANITIZER_REPORTS=$reports UBSAN_OPTIONS=print_stacktrace=1:log_path=$reports/report \
        ASAN_OPTIONS=detect_leaks=1:quarantine_size_mb=64:log_exe_name=1:log_path=$reports/report \
        integration_tests "$name" lighttpd \
        --ignore=tests/integration/test_guest_isolation.py \
        --ignore=tests/integration/test_endurance.py --ignore=tests/integration/test_clocks.py
    if ! rmdir "$reports"; then
        failed=$((failed + 1))
        cat "$reports"/*
        rm -r "$reports"
    fi
}

# --- coverage ----------------------------------------------------------------------------

# Lines of the programs that the unit tests run, by folder; a file that is compiled twice counts as
# its better half. Advisory, so a test that fails here, slower and at -O1, is not counted.
coverage() {
    local folder=$cache/build-coverage log=$cache/log/coverage.log
    build_all "$folder" CFLAGS='-g -O1 --coverage' >"$log" 2>&1 || build_failed "$log"
    find "$folder" -name '*.gcda' -delete
    PADDOCK_IMAGES_DIR=$images make -s -k -C "$folder" -j"$(nproc)" check >>"$log" 2>&1 || true
    (cd "$folder" && find . -name '*.gcda' -exec gcov -n -r -s "$root" {} + 2>/dev/null) |
        awk -F"'" '
            /^File/ { file = $2; next }
            /^Lines executed:/ && file ~ /^(cli|common|daemon|fcgi|guestimg)\// {
                split($0, word, /[:%]/); n = $0; sub(/.* of /, "", n)
                if (!(file in of) || word[2] * n / 100 > run[file]) {
                    run[file] = word[2] * n / 100; of[file] = n
                }
                file = ""
            }
            END {
                for (file in of) {
                    part = file; sub(/\/[^\/]*$/, "", part)
                    r[part] += run[file]; l[part] += of[file]; R += run[file]; L += of[file]
                }
                for (part in l)
                    printf "coverage of %s: %.1f %% of %d lines\n", part, 100 * r[part] / l[part], l[part]
                printf "coverage of all: %.1f %% of %d lines\n", L ? 100 * R / L : 0, L
            }' | sort
}

# --- other machines ----------------------------------------------------------------------

# In a machine that has nothing but these programs.
cgroup_v2_test() {
    make -s -C "$build" -j"$(nproc)" tests/unit/test_cgroup tests/unit/test_keeper &&
        PADDOCK_BUILD_DIR=$build PADDOCK_IMAGES_DIR=$images PADDOCK_CACHE_DIR=$cache tests/vm/cgroup-v2
}

# --- the list of all ---------------------------------------------------------------------

# run_all_checks has their order.
sanitizer_builds=(the_sanitizer_build_has_no_warning images_take_a_sanitized_init)
sanitized_checks=(unit_tests_under_sanitizers integration_tests_under_sanitizers)
# These need a processor and no clock (valgrind's tests have twenty times as long): they run beside
# those that mostly wait for guests, and take only what those leave of it.
background_checks=(
    clang_tidy_finds_nothing clang_builds_without_a_warning arm64_builds_without_a_warning
    templates_resolve_for_arm64 unit_tests_under_valgrind gcc_analyzer coverage
)
# What needs the machine for itself, or what those in the background built.
last_checks=(
    guests_limits_hold_on_a_cgroup_v2_kernel unit_tests_of_common_on_arm64
    unit_tests_in_an_arm64_machine the_archive_passes_distcheck
)
full_checks=(
    "${sanitizer_builds[@]}" "${sanitized_checks[@]}" "${background_checks[@]}" "${last_checks[@]}"
)

run_full_check() {
    case $1 in
        clang_tidy_finds_nothing) check_one "$1" clang_tidy_check ;;
        gcc_analyzer) timed "$1" gcc_analyzer ;;
        clang_builds_without_a_warning) check_one "$1" clang_build ;;
        guests_limits_hold_on_a_cgroup_v2_kernel) check_one "$1" cgroup_v2_test ;;
        the_sanitizer_build_has_no_warning) check_one "$1" sanitizer_build ;;
        images_take_a_sanitized_init) check_one "$1" sanitizer_images ;;
        unit_tests_under_sanitizers)
            ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 CK_TIMEOUT_MULTIPLIER=3 \
                unit_tests "$1" "$sanitized" check
            ;;
        integration_tests_under_sanitizers) sanitizer_integration_tests "$1" ;;
        unit_tests_under_valgrind) unit_tests "$1" "$build" check-valgrind ;;
        the_archive_passes_distcheck) check_one "$1" distribution_check ;;
        arm64_builds_without_a_warning) check_one "$1" arm64_cross_build ;;
        unit_tests_of_common_on_arm64)
            unit_tests "$1" "$arm64_build" check-common \
                LOG_COMPILER="qemu-aarch64-static -L $arm64/sysroot"
            ;;
        unit_tests_in_an_arm64_machine) check_one "$1" arm64_machine_tests ;;
        templates_resolve_for_arm64) check_one "$1" templates_resolve_for_arm64 ;;
        coverage) timed "$1" coverage ;;
    esac
}

background_log=$cache/log/background.log
background_counts=$cache/log/background.counts

run_background_checks() {
    local passed=0 failed=0
    chrt --idle --pid 0 "$BASHPID"
    run_checks "${background_checks[@]}"
    printf '%d %d\n' "$passed" "$failed" >"$background_counts"
}

# What they print is kept until await_background.
in_background() {
    rm -f "$background_counts"
    run_background_checks >"$background_log" 2>&1 &
}

await_background() {
    local more
    wait || true
    cat "$background_log"
    # Where it did not get to its end, that is a failure of its own.
    more=$(cat "$background_counts" 2>/dev/null) || more='0 1'
    passed=$((passed + ${more% *}))
    failed=$((failed + ${more#* }))
}

run_all_checks() {
    run_checks "${source_checks[@]}" "${sanitizer_builds[@]}"
    in_background # from here on nothing else writes to the build folder
    run_checks "${service_checks[@]}" "${sanitized_checks[@]}"
    await_background
    run_checks "${last_checks[@]}"
}
