"""Docker with runsc, as a peer to measure against: Debian's dockerd and containerd, unpacked and not
installed, in mount and process namespaces of their own, so that nothing of theirs outlives them.
Called by bench.py. Needs root.
"""

import http.client
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

WAIT_S = 60


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=WAIT_S)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Docker:
    """A running dockerd whose only image is the given root file system."""

    def __init__(self, unpacked, rootfs):
        self.unpacked = pathlib.Path(unpacked)
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="paddock-docker-"))
        self.socket = self.dir / "docker.sock"
        self.cgroup = f"/paddock-bench-{os.getpid()}"
        self.process = None
        self.connection = None
        try:
            self.start()
            self.import_image(rootfs)
        except BaseException:
            print(self.log_tail(), file=sys.stderr)
            self.close()
            raise

    # --- its life ----------------------------------------------------------------

    def start(self):
        # dockerd insists on finding a "runc", so its only runtime has that name.
        wrapper = self.dir / "bin" / "runc"
        wrapper.parent.mkdir()
        wrapper.write_text(
            '#!/bin/sh\nexec /usr/bin/runsc --network=none --platform=systrap "$@"\n'
        )
        wrapper.chmod(0o755)
        settings = {
            "runtimes": {"gvisor": {"path": str(wrapper)}},
            "default-runtime": "gvisor",
            "data-root": str(self.dir / "data"),
            "exec-root": str(self.dir / "exec"),
            "pidfile": str(self.dir / "docker.pid"),
            "hosts": [f"unix://{self.socket}"],
            "bridge": "none",
            "iptables": False,
            "ip-forward": False,
            "ip-masq": False,
            "exec-opts": ["native.cgroupdriver=cgroupfs"],
            "cgroup-parent": self.cgroup,
        }
        (self.dir / "daemon.json").write_text(json.dumps(settings))
        libraries = ":".join(str(p) for p in self.unpacked.glob("usr/lib/*-linux-gnu*"))
        programs = f"{wrapper.parent}:{self.unpacked}/usr/sbin:{self.unpacked}/usr/bin"
        env = dict(os.environ, PATH=f"{programs}:{os.environ['PATH']}", HOME=str(self.dir))
        if libraries:
            env["LD_LIBRARY_PATH"] = libraries
        # /run is where containerd keeps its shims' sockets, whatever it is told.
        inside = 'mount -t tmpfs tmpfs /run && exec dockerd --config-file "$1"'
        with open(self.dir / "log", "wb") as log:
            self.process = subprocess.Popen(
                ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
                 "sh", "-c", inside, "sh", str(self.dir / "daemon.json")],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
                start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + WAIT_S
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("dockerd does not answer")
            time.sleep(0.05)

    def answers(self):
        try:
            return self.request("GET", "/_ping")[0] == 200
        except OSError:
            self.connection = None
            return False

    def log_tail(self):
        log = self.dir / "log"
        return log.read_text(errors="replace")[-3000:] if log.exists() else ""

    def close(self):
        if self.connection:
            self.connection.close()
        if self.process:
            # The end of the first process of its namespace is the end of all others.
            self.process.kill()
            self.process.wait()
        for _ in range(100):
            shutil.rmtree(self.dir, ignore_errors=True)
            if not self.dir.exists():
                break
            time.sleep(0.05)
        for folder in pathlib.Path("/sys/fs/cgroup").glob(f"*{self.cgroup}"):
            remove_cgroup(folder)
        for folder in pathlib.Path("/sys/fs/cgroup").glob(f"*/{self.cgroup[1:]}"):
            remove_cgroup(folder)

    # --- its API -----------------------------------------------------------------

    def request(self, method, path, body=None, expect=None):
        """One request on the kept connection; (status, JSON or bytes)."""
        if not self.connection:
            self.connection = UnixConnection(self.socket)
        head = {}
        if body is not None:
            head["Content-Type"] = "application/json"
            body = json.dumps(body)
        self.connection.request(method, path, body, head)
        answer = self.connection.getresponse()
        data = answer.read()
        if expect and answer.status not in expect:
            raise RuntimeError(f"docker: {method} {path}: {answer.status} {data[:500]!r}")
        is_json = "json" in (answer.headers.get("Content-Type") or "")
        return answer.status, json.loads(data) if is_json and data else data

    def import_image(self, rootfs):
        tar = subprocess.Popen(
            ["tar", "-C", str(rootfs), "--numeric-owner", "-cf", "-", "."], stdout=subprocess.PIPE
        )
        connection = UnixConnection(self.socket)
        try:
            connection.request(
                "POST", "/images/create?fromSrc=-&repo=bench", tar.stdout, {}, encode_chunked=True
            )
        except BrokenPipeError:
            tar.kill()  # the answer says why it wants no more
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        if tar.wait() != 0 or answer.status != 200 or '"error"' in text:
            raise RuntimeError(f"docker import: {answer.status} {text[-500:]}")

    def create(self):
        """A started container that waits; its id."""
        container = self.request(
            "POST", "/containers/create",
            {
                "Image": "bench",
                "Cmd": ["/usr/bin/sleep", "infinity"],
                "HostConfig": {
                    "NetworkMode": "none", "Memory": 1 << 30, "NanoCpus": 1000000000,
                    "PidsLimit": 3000, "ReadonlyRootfs": True,
                    "Tmpfs": {"/workspace": "", "/tmp": ""},
                },
            },
            expect=(201,),
        )[1]["Id"]  # fmt: skip
        self.request("POST", f"/containers/{container}/start", expect=(204,))
        return container

    def remove(self, container):
        self.request("DELETE", f"/containers/{container}?force=1", expect=(204,))

    def exec(self, container, argv):
        """Runs a command to its end, with its output read and its exit code looked at."""
        made = self.request(
            "POST", f"/containers/{container}/exec",
            {"Cmd": argv, "AttachStdout": True, "AttachStderr": True}, expect=(201,),
        )[1]["Id"]  # fmt: skip
        # Its output ends with its connection, which therefore cannot be the kept one.
        stream = UnixConnection(self.socket)
        stream.request(
            "POST", f"/exec/{made}/start", json.dumps({"Detach": False, "Tty": False}),
            {"Content-Type": "application/json"},
        )  # fmt: skip
        answer = stream.getresponse()
        answer.read()
        stream.close()
        state = self.request("GET", f"/exec/{made}/json", expect=(200,))[1]
        assert not state["Running"] and state["ExitCode"] == 0, state


def remove_cgroup(folder):
    """A cgroup folder and those below it; their processes end meanwhile."""
    for root, folders, _ in os.walk(folder, topdown=False):
        for name in [*folders, ""]:
            for _ in range(100):
                try:
                    os.rmdir(os.path.join(root, name))
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.02)
