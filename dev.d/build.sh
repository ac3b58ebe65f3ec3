# Programs (out of tree) and guest images. Sourced by ./dev; make and build-image decide what is
# to be done.
# shellcheck shell=bash

# Made again only for changes that make itself could not follow.
generate_configure() {
    if [[ ! -x $root/configure || $root/configure.ac -nt $root/configure ||
        ! -e $root/Makefile.in ]]; then
        say "generating configure"
        (cd "$root" && autoreconf -fi) >"$1" 2>&1 || build_failed "$1"
    fi
}

# configure_tree LOG FOLDER WORD...
configure_tree() {
    local log=$1 folder=$2
    shift 2
    generate_configure "$log"
    if [[ ! -e $folder/Makefile ]]; then
        say "configuring"
        mkdir -p "$folder"
        (cd "$folder" && "$root/configure" --prefix="$cache/install" "$@") >"$log" 2>&1 ||
            build_failed "$log"
    fi
}

build_programs() {
    local log=$cache/log/build.log
    local -a words
    read -ra words <<<"${PADDOCK_CONFIGURE:---enable-werror}"
    mkdir -p "$cache/log"
    configure_tree "$log" "$build" "${words[@]}"
    if ! make -q -C "$build" all >/dev/null 2>&1; then
        say "building"
        make -s -C "$build" -j"$(nproc)" all >"$log" 2>&1 || build_failed "$log"
    fi
}

build_failed() {
    tail -n 40 "$1" >&2
    die "the build failed: $1 says more"
}

build_images() {
    "$root/guestimg/build" --if-needed --images-dir "$images" \
        --templates-dir "$root/guestimg/templates" --init "$build/guestimg/init/paddock-init" \
        base node >/dev/null
}
