# Debian packages: installs what is missing and nothing else, so that a second run costs a look.
# Sourced by ./dev. Mirrors come from the machine's own apt configuration.
# shellcheck shell=bash

build_packages=(
    autoconf automake build-essential pkg-config check
    libcurl4-openssl-dev libevent-dev libfcgi-dev libjansson-dev libpq-dev libssl-dev uuid-dev
    ca-certificates curl debian-archive-keyring jq lighttpd lowdown
    mmdebstrap postgresql python3 xz-utils
)
check_packages=(
    apache2-bin busybox-static clang clang-format-19 cppcheck cpio iproute2 nftables nginx
    python3-jsonschema python3-pytest python3-pytest-xdist python3-yaml shellcheck wrk
)
# The emulated machine of tests/vm is a PC; elsewhere its test says that it cannot run.
[[ $(uname -m) != x86_64 ]] || check_packages+=(qemu-system-x86)

# The one build of runsc that is known good: later ones of Debian panic under load, earlier ones
# lack systrap.
runsc_good=0.0~20240729.0-4

apt_get() {
    DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o DPkg::Lock::Timeout=600 \
        -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-confold \
        -o APT::Install-Recommends=false "$@" 9>&-
}

apt_is_current=

apt_clean_up() {
    local policy=$1 cluster=$2
    [[ ! -e $cluster.paddock-dev ]] || mv "$cluster.paddock-dev" "$cluster"
    ! grep -qs '^# paddock dev$' "$policy" || rm -f "$policy"
}

# Installs without letting a package start its service: ./dev starts private ones. The lock keeps
# two runs from mistaking each other's policy-rc.d for the machine's own.
apt_install() {
    local policy=/usr/sbin/policy-rc.d cluster=/etc/postgresql-common/createcluster.conf
    local log=$cache/log/apt.log
    mkdir -p "$cache/log"
    (
        flock 9
        trap 'apt_clean_up "$policy" "$cluster"' EXIT
        if [[ ! -e $policy ]]; then
            printf '#!/bin/sh\n# paddock dev\nexit 101\n' >"$policy"
            chmod 755 "$policy"
        fi
        [[ -n $apt_is_current ]] || apt_get update || exit
        if [[ " $* " == *' postgresql '* && ! -e $cluster ]]; then
            # No cluster of the package's own; the setting is put back afterwards.
            apt_get install postgresql-common || exit
            cp -p "$cluster" "$cluster.paddock-dev" || exit
            printf 'create_main_cluster = false\n' >>"$cluster"
        fi
        apt_get install "$@"
    ) >"$log" 2>&1 9>/run/lock/paddock-dev-apt || {
        tail -n 30 "$log" >&2
        die "installing packages failed: $log says more"
    }
    apt_is_current=1
}

is_installed() { [[ $(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

ensure_packages() {
    local package
    local -a missing=()
    for package in "$@"; do
        is_installed "$package" || missing+=("$package")
    done
    command -v npm >/dev/null || missing+=(npm)
    if ((${#missing[@]} > 0)); then
        say "installing ${missing[*]}"
        apt_install "${missing[@]}"
    fi
}

# Prints the URI of Debian's archive in this machine's apt configuration.
debian_archive() {
    # apt's own placeholders, not the shell's.
    # shellcheck disable=SC2016
    apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(REPO_URI)' 'Created-By: Packages' |
        awk -F'|' '$1 == "Debian" && $2 == "Debian" && !n++ { print $3 }'
}

# Fetches the good runsc from bookworm-backports into folder $1, through apt settings of its own:
# the machine's sources stay as they are.
fetch_backport() {
    local folder=$1 uri version
    local -a own=(-o Dir::Etc::SourceList="$1/sources.list" -o Dir::Etc::SourceParts=-
        -o Dir::State::Lists="$1/lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=
        -o APT::Sandbox::User=root)
    uri=$(debian_archive)
    [[ -n $uri ]] || return 1
    mkdir -p "$folder/lists/partial"
    printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' \
        "$uri" bookworm-backports >"$folder/sources.list"
    apt-get -qq update "${own[@]}" >&2 || return 1
    version=$(apt-cache "${own[@]}" madison runsc |
        awk -F' *[|] *' -v good="$runsc_good" 'index($2, good) == 1 && !n++ { print $2 }')
    [[ -n $version ]] || return 1
    (cd "$folder" && apt-get -qq download "${own[@]}" "runsc=$version" >&2)
}

ensure_runsc() {
    local version codename folder
    version=$(dpkg-query -W -f='${db:Status-Status} ${Version}' runsc 2>/dev/null || true)
    [[ $version != "installed $runsc_good"* ]] || return 0
    if [[ $version == installed* ]] && dpkg --compare-versions "${version#* }" gt "$runsc_good"; then
        die "runsc ${version#* } is installed, known good is $runsc_good: apt-get remove runsc"
    fi
    [[ $version == installed* || ! -e /usr/bin/runsc ]] ||
        die "/usr/bin/runsc is no Debian package, known good is only $runsc_good: remove it"
    codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    say "installing runsc"
    case $codename in
        bookworm)
            folder=$(mktemp -d)
            # shellcheck disable=SC2064
            trap "rm -rf '$folder'" EXIT
            fetch_backport "$folder" || die "bookworm-backports has no runsc $runsc_good"
            chmod 755 "$folder"
            apt_install "$folder"/runsc_*.deb
            rm -rf "$folder"
            trap - EXIT
            ;;
        trixie)
            version=$(apt-cache madison runsc |
                awk -F' *[|] *' -v good="$runsc_good" 'index($2, good) == 1 && !n++ { print $2 }')
            [[ -n $version ]] || die "this machine's apt sources have no runsc $runsc_good"
            apt_install "runsc=$version"
            ;;
        *) die "runsc $runsc_good comes with Debian 12 (backports) or 13, not ${codename:-this}" ;;
    esac
}

# The unprivileged user of every long-running part.
ensure_user() {
    getent passwd paddock >/dev/null ||
        useradd --system --user-group --no-create-home --home-dir /nonexistent \
            --shell /usr/sbin/nologin paddock
}
