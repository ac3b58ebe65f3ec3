# libFuzzer over every target of tests/fuzz, with AddressSanitizer and UBSan. Sourced by ./dev.
# What it learns stays in .cache/fuzz/corpus; a finding goes to .cache/fuzz/findings and, once
# mended, under a name that tells its story, to tests/fuzz/corpus, which make check replays.
# shellcheck shell=bash

fuzz_packages=(clang libclang-rt-dev llvm)
fuzz=$cache/fuzz

# All targets, one a line, or those that are named.
fuzz_targets() {
    local target
    if (($# == 0)); then
        find "$root/tests/fuzz" -name 'fuzz_*.c' -printf '%f\n' | sed 's/^fuzz_//; s/\.c$//' | sort
        return
    fi
    for target in "$@"; do
        [[ -e $root/tests/fuzz/fuzz_$target.c ]] ||
            die "no fuzz target $target; there are: $(fuzz_targets | tr '\n' ' ')"
        printf '%s\n' "$target"
    done
}

build_fuzz_targets() {
    local log=$cache/log/fuzz-build.log
    mkdir -p "$cache/log"
    configure_tree "$log" "$fuzz/build" --enable-fuzz CC=clang
    say "building ${*}"
    make -s -C "$fuzz/build" -j"$(nproc)" "${@/#/tests/fuzz/fuzz_}" >"$log" 2>&1 ||
        build_failed "$log"
}

# One target for $1 seconds. What it writes comes out in one piece, for others run beside it.
fuzz_one() {
    local seconds=$1 target=$2 status=0 finding
    local program=$fuzz/build/tests/fuzz/fuzz_$target log=$fuzz/$target.log
    local grown=$fuzz/corpus/$target found=$fuzz/findings/$target
    mkdir -p "$grown" "$found"
    # Its stderr is full of the programs' own words; libFuzzer's stay.
    "$program" -max_total_time="$seconds" -timeout=25 -rss_limit_mb=2048 -close_fd_mask=2 \
        -artifact_prefix="$found/" -print_final_stats=1 "$grown" \
        "$root/tests/fuzz/corpus/$target" >"$log" 2>&1 || status=$?
    if ((status == 0)); then
        printf 'PASS fuzz_%s: %s runs, %s\n' "$target" \
            "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" \
            "$(grep -o 'cov: [0-9]*' "$log" | tail -n 1)"
        return 0
    fi
    finding=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
    # Once more, with all it says.
    [[ -z $finding ]] || "$program" "$finding" >"$log" 2>&1 || true
    printf 'FAIL fuzz_%s: %s\n' "$target" "${finding:-see $log}"
    grep -v '^#' "$log" | tail -n 60
    return 1
}

# ./dev fuzz SECONDS [TARGET...]
do_fuzz() {
    local seconds=${1-} status=0 running=0 list target
    local -a targets
    [[ $seconds =~ ^[1-9][0-9]*$ ]] || die "usage: ./dev fuzz SECONDS [TARGET...]"
    list=$(fuzz_targets "${@:2}")
    mapfile -t targets <<<"$list"
    ensure_packages "${build_packages[@]}" "${fuzz_packages[@]}"
    build_fuzz_targets "${targets[@]}"
    say "fuzzing ${targets[*]}, $seconds s each"
    for target in "${targets[@]}"; do
        if ((running >= $(nproc))); then
            wait -n || status=1
            running=$((running - 1))
        fi
        fuzz_one "$seconds" "$target" >"$fuzz/$target.out" &
        running=$((running + 1))
    done
    while ((running > 0)); do
        wait -n || status=1
        running=$((running - 1))
    done
    for target in "${targets[@]}"; do
        cat "$fuzz/$target.out"
    done
    return "$status"
}
