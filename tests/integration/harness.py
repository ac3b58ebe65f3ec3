"""The one harness of the integration tests.

A Stack is the service as `./dev up` starts it - Postgres, web server, handlers,
daemon, gVisor guests - in a folder and on a port of its own. Tests speak to it
as clients do, and look at the host where a client's view is not proof enough.
"""

import ctypes
import errno
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.parse
import uuid

TOP = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PADDOCK_BUILD_DIR", TOP / ".cache" / "build"))
IMAGES = pathlib.Path(os.environ.get("PADDOCK_IMAGES_DIR", TOP / ".cache" / "images"))

# The web server that all goes through: lighttpd, apache or nginx, as `./dev up` has it.
WEB = os.environ.get("PADDOCK_WEB", "lighttpd")


def free_port():
    """A loopback port that was free a moment ago."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(condition, what, seconds=60):
    """Waits until condition() is true; for states of the host that give no event."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.05)


class Answer:
    """An HTTP answer: status, headers, body and, where it is JSON, json."""

    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()
        kind = self.headers.get_content_type()
        self.json = json.loads(self.body) if kind.endswith("json") and self.body else None

    def expect(self, *statuses):
        assert self.status in statuses, f"HTTP {self.status}: {self.body[:2000]!r}"
        return self.json


class Client:
    """A REST client with a token of its own."""

    def __init__(self, stack, token, project):
        self.stack, self.token, self.project = stack, token, project

    def request(self, method, path, body=None, headers=None, timeout=330):
        """`~` at the beginning of path stands for the project's sandboxes."""
        if path.startswith("~"):
            path = f"/api/v1/projects/{self.project}/sandboxes{path[1:]}"
        head = {}
        if self.token:
            head["Authorization"] = f"Bearer {self.token}"
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
        if body is not None:
            head["Content-Type"] = "application/json"
            if isinstance(body, str):
                body = body.encode()
        head.update(headers or {})
        connection = http.client.HTTPConnection("127.0.0.1", self.stack.port, timeout=timeout)
        try:
            connection.request(method, path, body=body, headers=head)
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def create(self, **fields):
        """A ready sandbox."""
        sandbox = self.request("POST", "~", fields).expect(201)
        assert sandbox["state"] == "ready", sandbox
        return sandbox

    def exec(self, sandbox, cmd=None, **fields):
        """An execution that has ended."""
        if cmd is not None:
            fields["cmd"] = cmd
        return self.request("POST", f"~/{sandbox['id']}/exec", fields).expect(201)

    def run(self, sandbox, cmd, **fields):
        """stdout of a command that must succeed."""
        result = self.exec(sandbox, cmd, **fields)
        assert result["state"] == "succeeded", result
        return result["stdout"]

    def get(self, sandbox):
        return self.request("GET", f"~/{sandbox['id']}").expect(200)

    def delete(self, sandbox):
        return self.request("DELETE", f"~/{sandbox['id']}").expect(200)


class Disk:
    """A small file system of its own, in memory, which can be made full."""

    def __init__(self, path, size_mb):
        self.path = path
        self.ballast = path / "ballast"
        path.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m,mode=755", "paddock-test", str(path)], check=True
        )

    def fill(self):
        """Takes all that is free, to the last block."""
        with open(self.ballast, "ab") as file:
            for size in (1 << 24, 1 << 20, 1 << 16, 1 << 12):
                try:
                    while True:
                        os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)
                except OSError as e:
                    if e.errno != errno.ENOSPC:
                        raise

    def free(self):
        self.ballast.unlink(missing_ok=True)

    def unmount(self):
        subprocess.run(["umount", "--lazy", str(self.path)], check=True)


class Stack:
    """A whole service of its own. Logs of a failing test are printed by conftest.py.

    disks: sizes in MiB of file systems of its own for parts of the run folder, as {"": 64, "pg": 256}
    (in the order of mounting); then self.disks has them by these names. Pid files, which a host has
    in /run, are on none of them.
    """

    def __init__(self, config="", disks=None):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="paddock-test-"))
        self.dir.chmod(0o755)
        self.port = free_port()
        self.disks = {}
        self.pid_dir = self.dir / "pids"
        self.pid_dir.mkdir()
        extra = self.dir / "extra.conf"
        extra.write_text(config)
        self.env = dict(
            os.environ,
            PADDOCK_RUN_DIR=str(self.dir / "run"),
            PADDOCK_PID_DIR=str(self.pid_dir),
            PADDOCK_PORT=str(self.port),
            PADDOCK_BUILD_DIR=str(BUILD),
            PADDOCK_IMAGES_DIR=str(IMAGES),
            PADDOCK_CONF_EXTRA=str(extra),
            PADDOCK_SQL_DIR=str(TOP / "sql"),
            PADDOCK_DEV_READY="1",
        )
        for name in ("PADDOCK_URL", "PADDOCK_TOKEN", "PADDOCK_PROJECT"):
            self.env.pop(name, None)
        try:
            for name, size_mb in (disks or {}).items():
                self.disks[name] = Disk(self.run_dir / name, size_mb)
            self.up()
        except BaseException:
            self.close()
            raise

    @property
    def run_dir(self):
        return self.dir / "run"

    @property
    def config_path(self):
        return self.run_dir / "paddock.conf"

    def up(self):
        done = subprocess.run(
            [str(TOP / "dev"), "up"], env=self.env, capture_output=True, text=True, timeout=600
        )
        if done.returncode != 0:
            raise AssertionError(f"./dev up failed:\n{done.stdout}\n{done.stderr}\n{self.logs()}")
        words = dict(w.split("=", 1) for w in done.stdout.split() if "=" in w)
        self.url = words["PADDOCK_URL"]
        self.client = Client(self, words["PADDOCK_TOKEN"], words["PADDOCK_PROJECT"])
        self.project = words["PADDOCK_PROJECT"]

    def restart(self, part):
        """Starts one part that ended, as an init system would."""
        return subprocess.run(
            [str(TOP / "dev"), "restart", part], env=self.env, capture_output=True, text=True, timeout=120
        )

    def down(self):
        subprocess.run(
            [str(TOP / "dev"), "down"], env=self.env, capture_output=True, text=True, timeout=120
        )

    def close(self):
        for disk in self.disks.values():
            disk.free()
        self.down()
        self.unmount()
        shutil.rmtree(self.dir, ignore_errors=True)

    def keep(self):
        """Ended, but its folder stays, with what its disks held."""
        self.down()
        if self.disks:
            kept = self.dir / "kept"
            subprocess.run(["cp", "-a", str(self.run_dir), str(kept)], check=True)
            self.unmount()
            self.run_dir.rmdir()
            kept.rename(self.run_dir)

    def unmount(self):
        for name in reversed(list(self.disks)):
            self.disks.pop(name).unmount()

    def logs(self, tail_bytes=8000):
        """The logs of this run, for a failing test."""
        out = []
        for path in sorted(self.run_dir.glob("**/*.log")):
            text = path.read_text(errors="replace")
            out.append(f"--- {path.name}\n{text[-tail_bytes:]}")
        return "\n".join(out)

    # --- parts -------------------------------------------------------------------

    def pid(self, name):
        """Process id of a part: paddockd (the supervisor), paddock-fcgi, postgres, or WEB."""
        return int((self.pid_dir / f"{name}.pid").read_text().split()[0])

    def daemon_part(self, name):
        """Process id of the daemon's "keeper" or "main", by the name it gives itself."""
        for child in children(self.pid("paddockd")):
            try:
                is_it = pathlib.Path(f"/proc/{child}/comm").read_text().strip() == f"paddockd-{name}"
            except OSError:  # it ended meanwhile
                continue
            if is_it:
                return child
        return None

    def stop(self, name, number=signal.SIGTERM):
        """Signals a part that nobody starts again, and waits for its end."""
        pid = self.pid(name)
        os.kill(pid, number)
        wait_for(lambda: not pathlib.Path(f"/proc/{pid}").exists(), f"the end of {name}")

    def signal(self, name, number=signal.SIGTERM):
        os.kill(self.pid(name), number)

    def kill_daemon(self):
        """All of it at once, as a crash of the machine would; nobody starts it again."""
        for pid in (self.pid("paddockd"), self.daemon_part("keeper"), self.daemon_part("main")):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # the others' death took it along

    # --- admin -------------------------------------------------------------------

    def cli(self, *words, token=None, project=None, stdin=None, check=True):
        """The command line, as an operator uses it."""
        env = dict(self.env, PADDOCK_URL=self.url, PADDOCK_PROJECT=project or self.project)
        env["PADDOCK_TOKEN"] = token or self.client.token
        done = subprocess.run(
            [str(BUILD / "paddock"), "--config", str(self.config_path), *words],
            env=env,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=330,
        )
        if check:
            assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stderr}"
        return done

    def new_project(self, **options):
        """(client with write scope, name) of a fresh project."""
        name = "p" + uuid.uuid4().hex[:12]
        words = ["project", "create", name]
        for key, value in options.items():
            words += [f"--{key.replace('_', '-')}", str(value)]
        self.cli(*words)
        return Client(self, self.new_token(name), name), name

    def new_token(self, project, scope="sandbox:write", *options):
        """project None: a token of the installation."""
        whose = ["--project", project] if project else ["--installation"]
        text = self.cli("--json", "token", "create", *whose, "--scope", scope, *options).stdout
        return json.loads(text)["token"]

    def sql(self, text):
        """Rows of a query, as lists of text."""
        done = subprocess.run(
            ["psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", text, self.dsn()],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return [line.split("|") for line in done.stdout.splitlines()]

    def dsn(self):
        for line in self.config_path.read_text().splitlines():
            if line.startswith("dsn"):
                return line.split("=", 1)[1].strip()
        raise AssertionError("no dsn in the configuration")


# --- programs built with sanitizers ---------------------------------------------------

# A folder that anyone may write: ./dev check names it when BUILD has sanitizers, and tells them to
# put their reports there. conftest.py fails the test that a report comes up in.
SANITIZER_REPORTS = os.environ.get("PADDOCK_SANITIZER_REPORTS")


def take_sanitizer_reports():
    """The text of each report since the last call."""
    if not SANITIZER_REPORTS:
        return []
    reports = []
    for path in sorted(pathlib.Path(SANITIZER_REPORTS).iterdir()):
        reports.append(f"{path.name}\n{path.read_text(errors='replace')}")
        path.unlink()
    return reports


def growth(before_kib, now_kib):
    """Growth of memory in use. A sanitizer keeps what was freed; there, leaks are found at exit."""
    return 0 if SANITIZER_REPORTS else now_kib - before_kib


# --- looking at the host -----------------------------------------------------------


def children(pid):
    """Direct children of a process."""
    out = []
    for task in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            stat = (task / "stat").read_text()
        except OSError:
            continue
        if int(stat[stat.rindex(")") + 2 :].split()[1]) == pid:
            out.append(int(task.name))
    return out


def rss_kib(pid, field="VmRSS"):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(f"{field}:"))


def fd_count(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def cmdline(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


SYS_PIDFD_GETFD = 438  # on every architecture (asm-generic/unistd.h)


def cut_client(pid, pidfd):
    """Shuts the client's connection of a Postgres backend down, and neither side knows why.

    False when the backend ended meanwhile.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        names = [(int(n), os.readlink(f"/proc/{pid}/fd/{n}")) for n in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return False
    for number, name in names:
        fd = libc.syscall(SYS_PIDFD_GETFD, pidfd, number, 0) if name.startswith("socket:") else -1
        if fd < 0:
            continue
        with socket.socket(fileno=fd) as copy:
            if copy.family == socket.AF_UNIX and ".s.PGSQL." in str(copy.getsockname()):
                copy.shutdown(socket.SHUT_RDWR)
                return True
    return False


def processes_naming(text):
    """Processes whose command line holds text."""
    return [
        int(p.name)
        for p in pathlib.Path("/proc").glob("[0-9]*")
        if text in cmdline(int(p.name))
    ]


def cgroups_naming(text):
    """cgroup folders, of any hierarchy, whose path holds text."""
    found = []
    for root, folders, _ in os.walk("/sys/fs/cgroup"):
        found += [os.path.join(root, f) for f in folders if text in os.path.join(root, f)]
    return found


def quote(text):
    return urllib.parse.quote(text, safe="")
