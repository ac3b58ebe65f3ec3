# The running service: a private Postgres, paddockd, paddock-fcgi and a web server (web.sh), in one
# folder and on one loopback port. Sourced by ./dev. Every part has NAME.log in the run folder and
# NAME.pid there or in PADDOCK_PID_DIR; `up` starts those that are not running, so it also mends what
# was killed.
# shellcheck shell=bash

# From /, since the user may not even look at the folder that ./dev was called in.
as_paddock() { env --chdir=/ setpriv --reuid=paddock --regid=paddock --clear-groups -- "$@"; }

# Sockets want short paths and the user paddock wants to reach them; where the folder offers
# neither, it becomes a link to one that does.
place_run_dir() {
    local elsewhere
    run=$(realpath -ms "$run")
    if [[ ! -L $run ]]; then
        mkdir -p "$run"
        if ((${#run} > 60)) || [[ $run == *[[:space:]\'\"]* ]] || ! as_paddock test -x "$run"; then
            elsewhere=/var/lib/paddock-dev/$(printf '%s' "$run" | sha256sum | cut -c1-12)
            rmdir "$run" 2>/dev/null || die "$run is out of reach for the user paddock: remove it"
            mkdir -p "$elsewhere"
            ln -s "$elsewhere" "$run"
        fi
    fi
    run=$(realpath "$run")
    pids=${PADDOCK_PID_DIR:-$run}
    # Several of these may run at once on a machine: each has a cgroup of its own.
    cgroup=/paddock-$(printf '%s' "$run" | sha256sum | cut -c1-12)
}

is_running() { start-stop-daemon --status --pidfile "$pids/$1.pid" --exec "$2" 2>/dev/null; }

start() {
    local name=$1 program=$2
    shift 2
    start-stop-daemon --start --quiet --background --make-pidfile --pidfile "$pids/$name.pid" \
        --output "$run/$name.log" --chdir / --exec "$program" -- "$@" ||
        die "$name could not be started"
    # It returns after the fork: until the exec, the process is not the program yet.
    until is_running "$name" "$program" || has_ended "$pids/$name.pid"; do sleep 0.01; done
}

# Was the process of this pid file there, and is it gone?
has_ended() { [[ -s $1 ]] && ! kill -0 "$(<"$1")" 2>/dev/null; }

stop() {
    start-stop-daemon --stop --quiet --oknodo --remove-pidfile --retry TERM/30/KILL/5 \
        --pidfile "$pids/$1.pid" --exec "$2" || say "$1 did not stop"
}

# Waits until "$@" (after name, program and what is waited for) succeeds; a part that ended
# meanwhile is not waited for.
await() {
    # Longer than paddockd gives its smoke guest on a machine that is busy (smoke.c: 90 s).
    local name=$1 program=$2 what=$3 deadline=$((SECONDS + 120))
    shift 3
    until "$@" >/dev/null 2>&1; do
        if ! is_running "$name" "$program" || ((SECONDS > deadline)); then
            tail -n 20 "$run/$name.log" >&2
            die "$name: not $what; $run/$name.log says why"
        fi
        sleep 0.05
    done
}

# --- Postgres ----------------------------------------------------------------------------

postgres_bin() {
    local version='*'
    [[ ! -s $run/pg/PG_VERSION ]] || version=$(<"$run/pg/PG_VERSION")
    # The version may be a pattern; sort takes the newest that is installed.
    # shellcheck disable=SC2086
    printf '%s\n' /usr/lib/postgresql/$version/bin | sort -V | tail -n 1
}

postgres_up() {
    local bin options
    bin=$(postgres_bin)
    options="-c listen_addresses='' -c unix_socket_directories='$run/pgsock'"
    options+=" -c unix_socket_permissions=0700 -c max_connections=100"
    is_running postgres "$bin/postgres" && return
    if [[ ! -s $run/pg/PG_VERSION ]]; then
        # Emptied and not removed: it may be a file system of its own.
        [[ ! -d $run/pg ]] || find "$run/pg" -mindepth 1 -delete
        install -d -m 0700 -o paddock -g paddock "$run/pg"
        as_paddock "$bin/initdb" -D "$run/pg" -U paddock -A trust -E UTF8 --locale=C --no-sync \
            --no-instructions >"$run/postgres.log" 2>&1 || die "initdb failed: $run/postgres.log"
    fi
    # Only root and paddock get at the socket, so trust is no gift.
    install -d -m 0700 -o paddock -g paddock "$run/pgsock"
    touch "$run/postgres.log"
    chown paddock:paddock "$run/postgres.log"
    as_paddock "$bin/pg_ctl" start -s -w -D "$run/pg" -l "$run/postgres.log" \
        -o "$options" >&2 8>&- || {
        tail -n 20 "$run/postgres.log" >&2
        die "Postgres did not start"
    }
    head -n 1 "$run/pg/postmaster.pid" >"$pids/postgres.pid"
}

postgres_down() {
    local bin
    bin=$(postgres_bin)
    # A pid file that outlived its server (a crash of the machine) is nothing to stop.
    if is_running postgres "$bin/postgres"; then
        as_paddock "$bin/pg_ctl" stop -s -w -m fast -D "$run/pg" >&2 || say "Postgres did not stop"
    fi
    rm -f "$pids/postgres.pid"
}

query() { psql -X -q -A -t -v ON_ERROR_STOP=1 -c "$1" "host=$run/pgsock dbname=$2 user=paddock"; }

# --- Configuration -----------------------------------------------------------------------

# Prints "allow" where only cgroup v1 has the controllers that guests need.
cgroup_v1_consent() {
    local controllers
    controllers=" $(cat /sys/fs/cgroup/cgroup.controllers 2>/dev/null || true) "
    if [[ $controllers == *' cpu '* && $controllers == *' memory '* &&
        $controllers == *' pids '* ]]; then
        printf 'deny'
    else
        say "this machine has no cgroup v2 controllers: cgroup_v1 = allow"
        printf 'allow'
    fi
}

# Generated settings, then those of PADDOCK_CONF_EXTRA, which replace them key by key.
write_config() {
    local extra=${PADDOCK_CONF_EXTRA:-/dev/null}
    cat >"$run/generated.conf" <<CONF
[database]
dsn = host=$run/pgsock dbname=paddock user=paddock
[web]
socket = $run/sock/fcgi.sock
user = paddock
[daemon]
user = paddock
run_dir = $run/sock
state_dir = $run/state
handoff_socket = $run/sock/handoff.sock
[guest]
images_dir = $(realpath "$images")
templates = base node
[cgroup]
parent = $cgroup
cgroup_v1 = $(cgroup_v1_consent)
CONF
    awk '
        function key(line) { sub(/=.*/, "", line); gsub(/[ \t]/, "", line); return line }
        /^[ \t]*\[/ { section = $0; gsub(/[ \t]/, "", section) }
        FILENAME == ARGV[1] { if (/=/ && !/^[ \t]*[#;]/) given[section, key($0)] = 1; next }
        /=/ && (section, key($0)) in given { next }
        { print }
    ' "$extra" "$run/generated.conf" >"$run/paddock.conf"
    cat "$extra" >>"$run/paddock.conf"
    rm "$run/generated.conf"
}

# --- The parts together ------------------------------------------------------------------

paddock() {
    env -u PADDOCK_TOKEN PADDOCK_SQL_DIR="$root/sql" \
        "$build/paddock" --config "$run/paddock.conf" "$@"
}

database_up() {
    [[ $(query "select 1 from pg_database where datname = 'paddock'" postgres) == 1 ]] ||
        query 'create database paddock' postgres >&2
    paddock db migrate >&2
}

epochs() { query 'select coalesce(sum(epoch), 0) from nodes' paddock; }
daemon_registered() { (($(epochs) > $1)); }
web_answers() { curl -sf -m 5 "http://127.0.0.1:$port/healthz"; }

# A token of project demo, made once for a database.
demo_token() {
    local token status=0
    [[ ! -s $run/token ]] || return 0
    paddock project create demo >/dev/null 2>"$run/project.err" || status=$?
    # 6: it exists.
    ((status == 0 || status == 6)) || die "project demo: $(<"$run/project.err")"
    rm -f "$run/project.err"
    token=$(paddock --json token create --project demo --scope sandbox:write --name dev |
        jq -er .token) || die "no token for project demo"
    (umask 077 && printf '%s\n' "$token" >"$run/token.new")
    mv "$run/token.new" "$run/token"
}

# One part that is configured and does not run.
start_part() {
    case $1 in
        postgres) postgres_up ;;
        paddockd | paddock-fcgi) start "$1" "$build/$1" --config "$run/paddock.conf" ;;
        "$web") start_web ;;
        *) die "there is no part $1: postgres, paddockd, paddock-fcgi or $web" ;;
    esac
}

# ./dev restart PART: what an init system does for a part that ended (the fault tests do).
do_restart() {
    place_run_dir
    [[ -e $run/paddock.conf ]] || die "nothing is set up in $run: ./dev up"
    start_part "${1-}"
}

do_up() {
    local before
    make_ready
    place_run_dir
    # Closed (8>&-) for what stays running, else the lock would stay too.
    exec 8>"$run/.lock"
    flock 8
    if ! is_running paddockd "$build/paddockd" || ! web_is_up ||
        ! is_running paddock-fcgi "$build/paddock-fcgi" ||
        ! is_running postgres "$(postgres_bin)/postgres"; then
        say "starting in $run"
        write_config
        postgres_up
        database_up
        install -d -m 0750 -o paddock -g paddock "$run/sock"
        if ! is_running paddockd "$build/paddockd"; then
            before=$(epochs)
            start_part paddockd
        fi
        is_running paddock-fcgi "$build/paddock-fcgi" || start_part paddock-fcgi
        web_up
        await paddock-fcgi "$build/paddock-fcgi" 'answering' web_answers
        [[ -z ${before-} ]] ||
            await paddockd "$build/paddockd" 'taking work' daemon_registered "$before"
        demo_token
    fi
    exec 8>&-
    say "running: logs in $run, command line $build/paddock, ./dev down stops it"
    printf 'export PADDOCK_URL=http://127.0.0.1:%s PADDOCK_PROJECT=demo PADDOCK_TOKEN=%s\n' \
        "$port" "$(<"$run/token")"
}

do_down() {
    [[ -d $run ]] || return 0
    place_run_dir
    web_down
    stop paddock-fcgi "$build/paddock-fcgi"
    stop paddockd "$build/paddockd"
    postgres_down
    # Empty by now; rmdir says no otherwise.
    local folder
    for folder in /sys/fs/cgroup"$cgroup" /sys/fs/cgroup/*"$cgroup"; do
        find "$folder" -depth -type d -exec rmdir {} \; 2>/dev/null || true
    done
}
