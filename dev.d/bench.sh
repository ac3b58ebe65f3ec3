# Measurements beside a baseline. Sourced by ./dev.
# shellcheck shell=bash

# Debian's Docker, unpacked and not installed; for the service it is a peer to measure against.
# apt-get download takes it from the machine's own mirror.
bench_docker() {
    local folder=$cache/bench/docker package
    local -a packages=(docker.io containerd)
    if [[ ! -e $folder.done ]]; then
        rm -rf "$folder"
        mkdir -p "$folder/deb"
        is_installed libdevmapper1.02.1 || packages+=(libdevmapper1.02.1)
        say "unpacking ${packages[*]}"
        (cd "$folder/deb" && apt-get -qq -o APT::Sandbox::User=root download "${packages[@]}") \
            >"$cache/log/bench.log" 2>&1 || return 1
        for package in "$folder"/deb/*.deb; do
            dpkg-deb -x "$package" "$folder"
        done
        rm -r "$folder/deb"
        touch "$folder.done"
    fi
    printf '%s\n' "$folder"
}

# The pg package of the npm registry that this machine is set up for.
bench_node_modules() {
    local folder=$cache/bench/npm
    if [[ ! -e $folder.done ]]; then
        rm -rf "$folder"
        mkdir -p "$folder"
        say "fetching the npm package pg"
        (cd "$folder" && npm install --no-audit --no-fund --ignore-scripts --loglevel=error pg@8) \
            >"$cache/log/bench.log" 2>&1 || return 1
        touch "$folder.done"
    fi
    printf '%s\n' "$folder/node_modules"
}

do_bench() {
    local docker modules
    forget_service
    unset PADDOCK_WEB
    ensure_packages wrk
    make_ready
    mkdir -p "$cache/log"
    docker=$(bench_docker) || say "no Docker to measure against: $cache/log/bench.log says why"
    modules=$(bench_node_modules) || say "no Node to measure against: $cache/log/bench.log says why"
    PYTHONDONTWRITEBYTECODE=1 PADDOCK_BUILD_DIR=$build PADDOCK_IMAGES_DIR=$images \
        PADDOCK_BENCH_DOCKER=$docker PADDOCK_BENCH_NODE_MODULES=$modules \
        exec "$python" "$root/bench/bench.py" "$@"
}
