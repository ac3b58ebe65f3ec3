"""`paddock doctor`: each cause of a failure is made for real, found, and told with its mend."""

import http.server
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import threading

import pytest

from harness import BUILD, TOP, free_port

pytestmark = pytest.mark.any_web

HOST = ["user", "store", "kernel", "runsc", "cgroups", "images", "guest"]
ALL = ["configuration", "database", "schema", *HOST, "paddockd", "handlers", "web server"]
V1 = not pathlib.Path("/sys/fs/cgroup/cgroup.controllers").exists()


@pytest.fixture
def folder():
    """A short path: runsc's control sockets must fit into 108 bytes."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="pt-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def changed_config(stack, folder, changes):
    """The stack's configuration with keys replaced: {"section.key": value}."""
    out, section = [], ""
    left = dict(changes)
    for line in stack.config_path.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
            out.append(line)
            mine = [name for name in left if name.split(".")[0] == section]
            out += [f"{name.split('.')[1]} = {left.pop(name)}" for name in mine]
        elif f"{section}.{line.partition('=')[0].strip()}" not in changes:
            out.append(line)
    for name, value in left.items():
        out += [f"[{name.split('.')[0]}]", f"{name.split('.')[1]} = {value}"]
    path = folder / "doctor.conf"
    path.write_text("\n".join(out) + "\n")
    return path


def run(stack, *options, config=None, before=(), url=None, **env):
    words = [*before, str(BUILD / "paddock"), "--config", str(config or stack.config_path), *options, "doctor"]
    env = {**stack.env, "PADDOCKD": str(BUILD / "paddockd"), "PADDOCK_URL": url or stack.url, **env}
    env = {name: value for name, value in env.items() if value is not None}
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=300)


def diagnose(stack, folder=None, changes=None, **how):
    """{check: finding} of a run, whose exit status must fit."""
    config = changed_config(stack, folder, changes) if changes else None
    done = run(stack, "--json", config=config, **how)
    findings = {one["check"]: one for one in json.loads(done.stdout)}
    all_ok = all(one["result"] == "ok" for one in findings.values())
    assert done.returncode == (0 if all_ok else 1), (findings, done.stderr)
    return findings


def assert_only(findings, check, words, unchecked=()):
    """check failed and says all the words, some could not be checked, and all others are well."""
    detail = findings[check]["detail"]
    for word in words:
        assert word in detail, detail
    wrong = {name: one["result"] for name, one in findings.items() if one["result"] != "ok"}
    assert wrong == {check: "failed", **{name: "unchecked" for name in unchecked}}, findings


def test_a_good_installation_is_found_good(stack):
    findings = diagnose(stack)
    assert list(findings) == ALL
    assert {one["result"] for one in findings.values()} == {"ok"}, findings
    for check, word in (("database", "Postgres 1"), ("kernel", os.uname().release), ("runsc", "systrap"),
                        ("images", "base node"), ("web server", stack.url), ("store", "MiB free")):
        assert word in findings[check]["detail"]
    text = run(stack)
    assert text.returncode == 0 and text.stderr == ""
    lines = text.stdout.splitlines()
    assert [line.partition(" ok: ")[0].strip() for line in lines] == ALL and all(" ok: " in line for line in lines)


def test_it_needs_no_token(stack):
    assert diagnose(stack, PADDOCK_TOKEN=None, PADDOCK_PROJECT=None)["web server"]["result"] == "ok"


def test_it_asks_for_nothing_on_the_network_but_the_web_server(stack):
    """In a network namespace with no interface up, only that one can not be reached."""
    assert_only(diagnose(stack, before=["unshare", "--net"]), "web server", ["PADDOCK_URL", "start the web server"])


def fake_runsc(folder, script):
    path = folder / "runsc"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


OF_RUNSC = ("guest",)


def test_a_wrong_configuration(stack, folder):
    findings = diagnose(stack, folder, {"guest.memroy_mb": "5"})
    assert_only(findings, "configuration", ["memroy_mb", "doctor.conf:", "paddock config show"], ["all others"])


def test_a_database_that_does_not_answer(stack, folder):
    secret = "word-of-the-database"
    dsn = f"host={folder} dbname=paddock user=paddock password={secret}"
    config = changed_config(stack, folder, {"database.dsn": dsn})
    findings = diagnose(stack, folder, {"database.dsn": dsn})
    assert_only(findings, "database", ["start Postgres", "database.dsn"], ["schema", "paddockd"])
    for done in (run(stack, config=config), run(stack, "--json", config=config)):
        assert secret not in done.stdout + done.stderr


def test_a_schema_that_is_behind(stack, folder):
    sql = folder / "sql"
    shutil.copytree(TOP / "sql", sql)
    last = max(int(path.name[:4]) for path in sql.glob("*.sql"))
    (sql / f"{last + 1:04}_more.sql").write_text("select 1;")
    findings = diagnose(stack, PADDOCK_SQL_DIR=str(sql))
    assert_only(findings, "schema", [f"{last + 1:04}_more.sql is not applied", "run paddock db migrate"])


def test_a_schema_that_is_not_ours(stack, folder):
    sql = folder / "sql"
    shutil.copytree(TOP / "sql", sql)
    with (sql / "0001_schema.sql").open("a") as file:
        file.write("-- more\n")
    assert_only(diagnose(stack, PADDOCK_SQL_DIR=str(sql)), "schema", ["0001_schema.sql", "other content", "original"])


def test_a_service_user_that_does_not_exist(stack, folder):
    findings = diagnose(stack, folder, {"daemon.user": "no-such-user"})
    for check, word in (("user", "useradd --system no-such-user"), ("database", "no-such-user")):
        assert findings[check]["result"] == "failed" and word in findings[check]["detail"]
    for check in ("store", "runsc", "cgroups", "guest"):
        assert findings[check]["result"] == "unchecked"
    assert findings["images"]["result"] == "ok"


def test_a_store_of_somebody_else(stack, folder):
    state = folder / "state"
    state.mkdir()
    (state / "file").touch()
    os.chown(state, 1, 1)
    findings = diagnose(stack, folder, {"daemon.state_dir": state})
    assert_only(findings, "store", [str(state), "chown"], ["runsc", "guest"])


def test_a_store_without_room(stack, folder):
    state = folder / "state"
    state.mkdir(mode=0o711)
    mount = f'mount -t tmpfs -o size=1m,mode=711 none {state} && exec "$@"'
    findings = diagnose(
        stack, folder, {"daemon.state_dir": state}, before=["unshare", "--mount", "sh", "-c", mount, "sh"]
    )
    assert_only(findings, "store", ["free space", "make room", "daemon.state_dir"], ["runsc", "guest"])


def test_a_kernel_that_is_too_old(stack):
    findings = diagnose(stack, before=["setarch", os.uname().machine, "--uname-2.6"])
    assert_only(findings, "kernel", ["Linux 2.6", "boot 5.11 or newer"], OF_RUNSC)


def test_a_runsc_that_is_missing(stack, folder):
    findings = diagnose(stack, folder, {"guest.runsc": folder / "runsc"})
    assert_only(findings, "runsc", ["is missing", "install gVisor", "guest.runsc"], OF_RUNSC)


def test_a_runsc_of_another_build(stack, folder):
    runsc = fake_runsc(folder, "echo runsc version 0.0~20991231.0")
    findings = diagnose(stack, folder, {"guest.runsc": runsc})
    assert_only(findings, "runsc", ["20991231", "guest.runsc_versions", "install one"], OF_RUNSC)


def test_a_runsc_without_the_platform(stack, folder):
    script = 'case "$*" in *--platform=*) exit 128;; *) exec /usr/bin/runsc "$@";; esac'
    findings = diagnose(stack, folder, {"guest.runsc": fake_runsc(folder, script)})
    assert_only(findings, "runsc", ["--platform=systrap", "known good build"], OF_RUNSC)


def test_cgroups_that_may_not_be_used(stack, folder):
    findings = diagnose(stack, folder, {"cgroup.parent": "/../elsewhere"})
    assert_only(findings, "cgroups", ["cgroup.parent must be"], OF_RUNSC)
    if V1:
        findings = diagnose(stack, folder, {"cgroup.cgroup_v1": "deny"})
        assert_only(findings, "cgroups", ["only cgroup v1", "boot with cgroup v2", "= allow"], OF_RUNSC)


def test_a_cgroup_controller_that_is_missing(stack):
    hide = "umount /sys/fs/cgroup/pids" if V1 else "mount -t tmpfs none /sys/fs/cgroup"
    findings = diagnose(stack, before=["unshare", "--mount", "sh", "-c", f'{hide} && exec "$@"', "sh"])
    words = ["controller pids is not mounted", "mount it"] if V1 else ["mount cgroup2 there"]
    assert_only(findings, "cgroups", words, OF_RUNSC)


def test_an_image_that_is_missing(stack, folder):
    findings = diagnose(stack, folder, {"guest.templates": "base no-such"})
    assert_only(findings, "images", ["template no-such", "build-image", "guest.templates"], OF_RUNSC)
    findings = diagnose(stack, folder, {"guest.images_dir": folder})
    assert_only(findings, "images", ["template base", str(folder), "build-image"], OF_RUNSC)


def test_a_node_that_never_came_up_or_is_another_version(stack, folder):
    findings = diagnose(stack, folder, {"node.number": "77"})
    assert_only(findings, "paddockd", ["ever came up as node 77", "start paddockd"])
    version = stack.sql("select version from nodes")[0][0]
    try:
        stack.sql("update nodes set version = '0.0.1'")
        assert_only(diagnose(stack), "paddockd", ["0.0.1", version, "start paddockd"])
    finally:
        stack.sql(f"update nodes set version = '{version}'")


def test_a_hand_off_socket_that_is_elsewhere(stack, folder):
    findings = diagnose(stack, folder, {"daemon.handoff_socket": folder / "none"})
    assert_only(findings, "paddockd", [str(folder / "none"), "start paddockd"])


def test_handlers_that_are_elsewhere(stack, folder):
    findings = diagnose(stack, folder, {"web.socket": folder / "none"})
    assert_only(findings, "handlers", [str(folder / "none"), "start paddock-fcgi"])


@pytest.mark.parametrize(
    "says, word",
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak FastCGI"),
        (b"", "ends in the middle"),
        (b"\1\6\0\1\0\5\0\0hello", "ends in the middle"),
        (b"\1\6\0\1\0\5\0\0hello\1\3\0\1\0\0\0\0", "not paddock-fcgi"),
        (b"\1\6\0\1\0\x0b\0\0Status: 20x\1\3\0\1\0\0\0\0", "not paddock-fcgi"),
        (b"\1\6\0\1\xff\xff\0\0" + b"x" * 65535 + b"\1\6\0\1\xff\xff\0\0" + b"x" * 65535, "does not speak FastCGI"),
    ],
)
def test_something_else_on_the_handlers_socket(stack, folder, says, word):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "other"))
        listener.listen()

        def answer():
            with listener.accept()[0] as peer:
                peer.recv(4096)
                try:
                    peer.sendall(says)
                except BrokenPipeError:
                    pass  # it heard enough

        thread = threading.Thread(target=answer)
        thread.start()
        findings = diagnose(stack, folder, {"web.socket": folder / "other"})
        thread.join()
    assert_only(findings, "handlers", [word, "start paddock-fcgi"])


def test_a_web_server_that_is_elsewhere(stack):
    findings = diagnose(stack, url=f"http://127.0.0.1:{free_port()}")
    assert_only(findings, "web server", ["no answer", "start the web server", "PADDOCK_URL"])


def test_something_else_where_the_web_server_should_be(stack):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as other:
        threading.Thread(target=other.serve_forever).start()
        findings = diagnose(stack, url=f"http://127.0.0.1:{other.server_port}")
        other.shutdown()
    assert_only(findings, "web server", ["HTTP 501", "PADDOCK_URL"])


def test_who_is_not_root_learns_what_was_not_checked(stack):
    before = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    findings = diagnose(stack, before=before)
    assert findings["host"]["result"] == "unchecked" and "as root" in findings["host"]["detail"]
    assert findings["handlers"]["result"] == "failed" and "as root" in findings["handlers"]["detail"]
    assert findings["web server"]["result"] == "ok"


def test_a_paddockd_that_is_missing_or_gives_no_report(stack, folder):
    findings = diagnose(stack, PADDOCKD=str(folder / "none"))
    assert_only(findings, "host", [str(folder / "none"), "install"])
    assert_only(diagnose(stack, PADDOCKD="/bin/true"), "host", ["no report", "install"])


def test_parts_that_are_stopped(own_stack, folder):
    stack = own_stack()

    stack.stop("lighttpd")
    assert_only(diagnose(stack), "web server", ["no answer", "start the web server"])
    stack.up()

    stack.stop("paddock-fcgi")
    findings = diagnose(stack)
    assert "start paddock-fcgi" in findings["handlers"]["detail"]
    assert "mend handlers" in findings.pop("web server")["detail"]
    assert_only(findings, "handlers", ["systemctl start paddock-fcgi"])
    stack.up()

    stack.stop("paddockd")
    findings = diagnose(stack)
    assert_only(findings, "paddockd", ["systemctl start paddockd"])
    # Nobody holds the state folder now: a guest is tried.
    assert "moved data both ways" in findings["guest"]["detail"]
    broken = fake_runsc(folder, 'case "$*" in *" run "*) exit 1;; *) exec /usr/bin/runsc "$@";; esac')
    findings = diagnose(stack, folder, {"guest.runsc": broken, "guest.smoke": "no"})
    assert findings["guest"]["result"] == "failed" and "smoke" in findings["guest"]["detail"], findings
    stack.up()
    assert {one["result"] for one in diagnose(stack).values()} == {"ok"}

    stack.stop("postgres", signal.SIGINT)
    findings = diagnose(stack)
    assert {name: one["result"] for name, one in findings.items() if one["result"] != "ok"} == {
        "database": "failed", "schema": "unchecked", "paddockd": "unchecked", "handlers": "failed", "web server": "failed",
    }
    assert "start Postgres" in findings["database"]["detail"]
    assert "503" in findings["handlers"]["detail"] and "mend database" in findings["handlers"]["detail"]
