# The web server of a running service: lighttpd, Apache or nginx by PADDOCK_WEB, each from its
# example in lighttpd/ with addresses and paths filled in and nothing else changed. Sourced by
# ./dev. What services.sh says of parts, NAME.pid and NAME.log, holds here too.
# shellcheck shell=bash

web_servers=(lighttpd apache nginx)

web_program() {
    case $1 in
        lighttpd) printf /usr/sbin/lighttpd ;;
        apache) printf /usr/sbin/apache2 ;;
        nginx) printf /usr/sbin/nginx ;;
        *) return 1 ;;
    esac
}

web_package() {
    case $1 in
        apache) printf apache2-bin ;;
        *) printf '%s' "$1" ;;
    esac
}

# fill_in FILE FORMAT NAME VALUE...: each line that sets NAME, by the extended regular expression
# that FORMAT prints of it, gets VALUE instead of what it had. A name that sets nothing is an error.
fill_in() {
    local file=$1 format=$2 pattern
    shift 2
    while (($# > 0)); do
        # shellcheck disable=SC2059
        printf -v pattern "$format" "$1"
        grep -Eq "$pattern" "$file" || die "$file: nothing sets $1"
        sed -E -i "s|$pattern|\\1$2\\2|" "$file"
        shift 2
    done
}

write_lighttpd_config() {
    # shellcheck disable=SC1003
    fill_in "$1" '^(var\.%s +=).*()$' bind ' "127.0.0.1"' port " $port" user ' "paddock"' \
        group ' "paddock"' pid_file " \"$pids/lighttpd.own.pid\"" \
        error_log " \"$run/lighttpd.log\"" spool_dir " \"$run/spool\"" \
        document_root " \"$run/www\"" problem_prefix " \"$root/lighttpd/problem-\"" \
        fcgi_socket " \"$run/sock/fcgi.sock\""
}

write_apache_config() {
    fill_in "$1" '^(Define PADDOCK_%s ).*()$' LISTEN "127.0.0.1:$port" USER paddock GROUP paddock \
        RUN_DIR "$run" PID_FILE "$pids/apache.own.pid" ERROR_LOG "$run/apache.log" \
        SOCKET "$run/sock/fcgi.sock"
}

write_nginx_config() {
    fill_in "$1" '^( *%s ).*(; *# HOST)$' user 'paddock paddock' pid "$pids/nginx.own.pid" \
        error_log "$run/nginx.log warn" server "unix:$run/sock/fcgi.sock max_fails=0" \
        client_body_temp_path "$run/spool/body" fastcgi_temp_path "$run/spool/fastcgi" \
        proxy_temp_path "$run/spool/proxy" scgi_temp_path "$run/spool/scgi" \
        uwsgi_temp_path "$run/spool/uwsgi" \
        listen "127.0.0.1:$port default_server backlog=1024"
}

# Runs the server in the foreground of a session of its own, as systemd would.
start_web() {
    local program
    program=$(web_program "$web")
    sweep_web "$web"
    # Apache takes the one of a process that is not yet reaped for its own.
    rm -f "$pids/$web.own.pid"
    case $web in
        lighttpd) start lighttpd "$program" -D -f "$run/lighttpd.conf" ;;
        apache) TMPDIR=$run/spool start apache "$program" -DFOREGROUND -f "$run/apache.conf" ;;
        nginx)
            start nginx "$program" -e "$run/nginx.log" -c "$run/nginx.conf" -g 'daemon off;'
            ;;
    esac
}

web_is_up() { is_running "$web" "$(web_program "$web")"; }
web_listens() { (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; }

# Prints the processes of server $1, workers that lost their master included: all of them, and no
# others, write their errors to its log in this run folder.
web_processes() {
    local folder
    # Nothing where a process has ended and only waits to be reaped.
    while read -r folder; do
        [[ $(readlink "$folder/fd/2") != "$run/$1.log" ]] || basename "$folder"
    done < <(find /proc/[0-9]* -maxdepth 1 -name exe -lname "$(web_program "$1")" -printf '%h\n' \
        2>/dev/null)
}

# Ends what outlived a killed server: its workers hold the port. systemd does the same for a unit.
sweep_web() {
    local left
    ! is_running "$1" "$(web_program "$1")" || return 0
    while left=$(web_processes "$1") && [[ -n $left ]]; do
        xargs kill -KILL <<<"$left" 2>/dev/null || true
        sleep 0.01
    done
}

stop_web() {
    stop "$1" "$(web_program "$1")"
    sweep_web "$1"
}

web_up() {
    local other
    for other in "${web_servers[@]}"; do
        [[ $other == "$web" ]] || stop_web "$other"
    done
    ! web_is_up || return 0
    install -d -m 0700 -o paddock -g paddock "$run/spool"
    mkdir -p "$run/www"
    cp "$root/lighttpd/$web.conf" "$run/$web.conf"
    "write_${web}_config" "$run/$web.conf"
    touch "$run/$web.log"
    chown paddock:paddock "$run/$web.log"
    start_part "$web"
    await "$web" "$(web_program "$web")" listening web_listens
}

web_down() {
    local name
    for name in "${web_servers[@]}"; do
        stop_web "$name"
    done
}
