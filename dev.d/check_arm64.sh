# 64-bit ARM: everything is cross-compiled against Debian's own libraries, then the unit tests of
# common/ run under qemu's user emulation, those of paddock-init in an emulated machine (tests/vm/arm64
# says why), and the templates' packages are resolved. Part of ./dev check --full; sourced by ./dev.
# shellcheck shell=bash

arm64_packages=(
    cpio crossbuild-essential-arm64 qemu-system-arm qemu-user-static
)
# What is linked, the machine's kernel, and what the tests of paddock-init start.
arm64_sysroot_packages=(
    check libc6-dev libcurl4-openssl-dev libevent-dev libfcgi-dev libjansson-dev libpq-dev
    libssl-dev uuid-dev
    bash busybox-static coreutils dash grep linux-image-cloud-arm64 procps
    python3-minimal sed util-linux
)
arm64=$cache/arm64
arm64_build=$cache/build-arm64

# The packages unpacked in a folder, not installed: nothing of them runs on this machine, whose own
# package lists stay as they are.
arm64_sysroot() {
    local suite uri wanted list new=$arm64/sysroot.new
    suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    wanted="$suite ${arm64_sysroot_packages[*]}"
    [[ ! -e $arm64/packages || $(<"$arm64/packages") != "$wanted" ]] || return 0
    uri=$(debian_archive)
    [[ -n $uri ]] || die "no Debian archive in this machine's apt sources"
    rm -rf "$arm64"
    mkdir -p "$arm64"
    # The machine's proxies and time checks hold here too.
    apt-config dump | grep -E '^Acquire::(https?::|Check-|Retries)' >"$arm64/apt.conf" || true
    list=$(IFS=,; printf '%s' "${arm64_sysroot_packages[*]}")
    mmdebstrap --mode=root --variant=extract --architectures=arm64 --include="$list" \
        --aptopt="$arm64/apt.conf" --dpkgopt='path-exclude=/usr/share/doc/*' \
        "$suite" "$new" "deb $uri $suite main" || return
    # Modules of a kernel that has built in what a test needs.
    rm -rf "${new:?}"/{,usr/}lib/modules "${new:?}"/dev
    # Where files moved to /usr, an installation makes these.
    for list in bin sbin lib; do
        [[ -e $new/$list ]] || ln -s "usr/$list" "$new/$list"
    done
    mv "$new" "$arm64/sysroot"
    printf '%s' "$wanted" >"$arm64/packages"
}

arm64_cross_build() {
    local tree=$arm64/sysroot
    arm64_sysroot || return
    PKG_CONFIG_LIBDIR=$tree/usr/lib/aarch64-linux-gnu/pkgconfig:$tree/usr/share/pkgconfig \
        PKG_CONFIG_SYSROOT_DIR=$tree build_all "$arm64_build" --enable-werror \
        --host=aarch64-linux-gnu CC="aarch64-linux-gnu-gcc --sysroot=$tree"
}

arm64_machine_tests() {
    local -a programs
    read -ra programs < <(make -s -C "$arm64_build" --no-print-directory say-machine-tests)
    PADDOCK_BUILD_DIR=$arm64_build PADDOCK_SYSROOT=$arm64/sysroot tests/vm/arm64 "${programs[@]}"
}

# Packages of other architectures have other versions, and npm's other names.
templates_resolve_for_arm64() {
    local found=$cache/arm64/resolved
    guestimg/build --dry-run --architecture arm64 --images-dir "$cache/arm64/images" \
        --templates-dir guestimg/templates base node | tee "$found" || return
    grep -q $'^base\tdeb\tpython3:arm64\t3' "$found" &&
        grep -q $'^node\tdeb\tchromium-headless-shell:arm64\t' "$found" &&
        grep -q $'^node\tnpm\tnode-linux-arm64\t24\\.' "$found" &&
        grep -q $'^node\tnpm\tplaywright\t' "$found"
}
