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

# Prints, one a line, what the compiler is told of the project's own.
compile_flags() {
    # shellcheck disable=SC2016 # make expands that
    make -s -C "$build" --no-print-directory \
        --eval='say-flags: ; @printf "%s\n" $(AM_CPPFLAGS) -std=c17' say-flags
}

# .clang-tidy says what is asked. From the build folder, where the flags hold.
clang_tidy_check() {
    local list
    local -a flags
    list=$(compile_flags) || return
    mapfile -t flags <<<"$list"
    find "$root" \( -path "$cache" -o -path "$root/.git" -o -name 'build*' -type d \) -prune \
        -o -name '*.c' -print0 |
        (cd "$build" && xargs -0 -P"$(nproc)" -n 4 clang-tidy-19 --quiet -- "${flags[@]}")
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
# fails the test that a report comes up in. Left out is what asks about gVisor, not about them.
sanitizer_integration_tests() {
    local name=$1 reports build=$sanitized images=$cache/images-sanitized
    reports=$(mktemp -d /tmp/paddock-sanitizer.XXXXXX)
    chmod 1777 "$reports"
    PADDOCK_SANITIZER_REPORTS=$reports UBSAN_OPTIONS=print_stacktrace=1:log_path=$reports/report \
        ASAN_OPTIONS=detect_leaks=1:quarantine_size_mb=64:log_exe_name=1:log_path=$reports/report \
        integration_tests "$name" lighttpd --ignore=tests/integration/test_guest_isolation.py
    if ! rmdir "$reports"; then
        failed=$((failed + 1))
        cat "$reports"/*
        rm -r "$reports"
    fi
}

sanitizer_tests() {
    check_one the_sanitizer_build_has_no_warning sanitizer_build
    check_one images_take_a_sanitized_init sanitizer_images
    ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 \
        unit_tests unit_tests_under_sanitizers "$sanitized" check
    sanitizer_integration_tests integration_tests_under_sanitizers
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

# Needs what unit_tests built.
cgroup_v2_test() {
    PADDOCK_BUILD_DIR=$build PADDOCK_IMAGES_DIR=$images PADDOCK_CACHE_DIR=$cache tests/vm/cgroup-v2
}

full_checks() {
    check_one clang_tidy_finds_nothing clang_tidy_check
    timed gcc_analyzer gcc_analyzer
    check_one clang_builds_without_a_warning clang_build
    check_one guests_limits_hold_on_a_cgroup_v2_kernel cgroup_v2_test
    sanitizer_tests
    unit_tests unit_tests_under_valgrind "$build" check-valgrind
    check_one the_archive_passes_distcheck distribution_check
    arm64_checks
    timed coverage coverage
}
