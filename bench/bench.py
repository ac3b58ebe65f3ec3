#!/usr/bin/python3
"""Measures the service against a baseline in the same run, so that the ratio means something on
a machine that is shared and noisy. Called by `./dev bench [NAME...] [--json]`.

Each figure is one line: {"name", "value", "unit", "baseline", "ratio"}; ratio is
value / baseline. A baseline is another way to do the same work, named in BENCHES.
"""

import argparse
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import uuid

TOP = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TOP / "tests" / "integration"))
from harness import Stack, quote  # noqa: E402

SECONDS = 3  # of each throughput measurement
ROUNDS = 60  # of each latency measurement; the two sides take turns


class Bench:
    def __init__(self):
        self.stack = Stack("[node]\nmax_sandboxes = 10000\n")
        self.client = self.stack.client
        self.local = threading.local()
        static = self.stack.run_dir / "www" / "bench.json"
        static.write_text('{"status":"ok"}\n')
        static.chmod(0o644)

    # --- tools -------------------------------------------------------------------

    def request(self, method, path, body=None, headers=None):
        """One request on this thread's kept connection; (status, body)."""
        if not hasattr(self.local, "connection"):
            self.local.connection = http.client.HTTPConnection("127.0.0.1", self.stack.port)
        head = {"Authorization": f"Bearer {self.client.token}", **(headers or {})}
        if body is not None:
            head["Content-Type"] = "application/json"
            body = json.dumps(body)
        if path.startswith("~"):
            path = f"/api/v1/projects/{quote(self.client.project)}/sandboxes{path[1:]}"
        self.local.connection.request(method, path, body, head)
        answer = self.local.connection.getresponse()
        return answer.status, answer.read()

    def wrk(self, path, headers=()):
        """Answers a second at 16 clients."""
        command = ["wrk", "-t2", "-c16", f"-d{SECONDS}s"]
        for header in headers:
            command += ["-H", header]
        out = subprocess.run(
            [*command, f"{self.stack.url}{path}"], capture_output=True, text=True, check=True
        ).stdout
        return float(re.search(r"Requests/sec:\s*([0-9.]+)", out).group(1))

    def turns(self, ours, theirs, rounds=ROUNDS):
        """Medians in ms of two actions that take turns."""
        times = ([], [])
        for _ in range(3):
            ours()
            theirs()
        for _ in range(rounds):
            for action, into in zip((ours, theirs), times):
                began = time.perf_counter()
                action()
                into.append((time.perf_counter() - began) * 1000)
        return tuple(statistics.median(t) for t in times)

    def state_dir(self):
        for line in self.stack.config_path.read_text().splitlines():
            if line.startswith("state_dir"):
                return pathlib.Path(line.split("=")[1].strip())
        raise AssertionError("no state_dir")

    def in_keeper(self, *words):
        """A command in the keeper's namespaces, where its guests are."""
        keeper = str(self.stack.daemon_part("keeper"))
        return ["nsenter", "-t", keeper, "-p", "-m", *words]

    def sandbox(self):
        return self.client.create(template="base")

    def exec(self, sandbox, cmd):
        status, body = self.request("POST", f"~/{sandbox['id']}/exec", {"cmd": cmd})
        assert status == 201 and json.loads(body)["state"] == "succeeded", body

    def runsc_exec(self, sandbox, *argv):
        command = self.in_keeper(
            "/usr/bin/runsc", f"--root={self.state_dir()}/runsc", "exec", sandbox["id"], *argv
        )
        # nsenter itself costs about a ms; the same for every round.
        return lambda: subprocess.run(command, check=True, stdin=subprocess.DEVNULL)

    # --- benches -----------------------------------------------------------------

    def plain(self):
        """An answer without the database, beside lighttpd's static file."""
        static = self.wrk("/bench.json")
        return self.wrk("/api/v1/health"), "answers/s", static

    def healthz(self):
        """One SELECT, beside lighttpd's static file."""
        static = self.wrk("/bench.json")
        return self.wrk("/healthz"), "answers/s", static

    def get_sandbox(self):
        """Authentication and one SELECT, beside lighttpd's static file."""
        sandbox = self.sandbox()
        path = f"/api/v1/projects/{self.client.project}/sandboxes/{sandbox['id']}"
        static = self.wrk("/bench.json")
        rate = self.wrk(path, [f"Authorization: Bearer {self.client.token}"])
        self.client.delete(sandbox)
        return rate, "answers/s", static

    def handoff(self):
        """The same replayed create, answered by the daemon, beside one answered by the handler."""
        key = {"Idempotency-Key": uuid.uuid4().hex}
        status, body = self.request("POST", "~", {"template": "base"}, key)
        assert status == 201, body
        ours, theirs = self.turns(
            lambda: self.request("POST", "~?wait=5", {"template": "base"}, key),
            lambda: self.request("POST", "~?wait=0", {"template": "base"}, key),
            rounds=400,
        )
        self.client.delete(json.loads(body))
        return ours, "ms", theirs

    def exec_true(self):
        """`true` by argv through the whole stack, beside `runsc exec` in the same guest."""
        sandbox = self.sandbox()
        ours, theirs = self.turns(
            lambda: self.exec(sandbox, ["/usr/bin/true"]),
            self.runsc_exec(sandbox, "/usr/bin/true"),
        )
        self.client.delete(sandbox)
        return ours, "ms", theirs

    def exec_shell(self):
        """`true` in a shell through the whole stack, beside `runsc exec bash -c`."""
        sandbox = self.sandbox()
        ours, theirs = self.turns(
            lambda: self.exec(sandbox, "true"),
            self.runsc_exec(sandbox, "/bin/bash", "-c", "true"),
        )
        self.client.delete(sandbox)
        return ours, "ms", theirs

    def no_process(self):
        """An operation that starts no process, beside `runsc exec true`."""
        sandbox = self.sandbox()
        ours, theirs = self.turns(
            lambda: self.request("GET", f"~/{sandbox['id']}"),
            self.runsc_exec(sandbox, "/usr/bin/true"),
        )
        self.client.delete(sandbox)
        return ours, "ms", theirs

    def create_cold(self):
        """A create to its answer, beside a bare `runsc run` of the same bundle to its first frame."""
        model = self.sandbox()
        folder = self.stack.dir / "bundle"
        folder.mkdir(exist_ok=True)
        config = json.loads((self.state_dir() / "guests" / model["id"] / "config.json").read_text())
        config["linux"]["cgroupsPath"] += "-bench"
        (folder / "config.json").write_text(json.dumps(config))
        made = []

        def ours():
            made.append(self.client.create(template="base"))

        def bare():
            host, guest = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            name = f"bench-{uuid.uuid4().hex[:8]}"
            run = subprocess.Popen(
                self.in_keeper(
                    "/usr/bin/runsc", f"--root={self.stack.dir}/r", "--platform=systrap",
                    "--network=none", "--overlay2=none", "--file-access=exclusive",
                    "run", f"--bundle={folder}", name,
                ),
                stdin=guest, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            guest.close()
            assert host.recv(65536), "the guest said nothing"
            return host, run

        times = ([], [])
        for _ in range(15):
            began = time.perf_counter()
            ours()
            times[0].append((time.perf_counter() - began) * 1000)
            self.client.delete(made.pop())
            began = time.perf_counter()
            host, run = bare()
            times[1].append((time.perf_counter() - began) * 1000)
            host.close()
            run.wait(30)
        self.client.delete(model)
        return statistics.median(times[0]), "ms", statistics.median(times[1])

    def admit(self, clients):
        """Creates that are admitted (committed and announced) a second, by so many clients."""
        counts = [0] * clients
        stop = time.perf_counter() + SECONDS

        def work(index):
            while time.perf_counter() < stop:
                status, body = self.request("POST", "~?wait=0", {"template": "base"})
                assert status == 202, body
                counts[index] += 1

        threads = [threading.Thread(target=work, args=(i,)) for i in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts) / SECONDS

    def admission(self):
        """Admitted creates a second at 1, 8 and 32 clients, beside one client; no guest starts."""
        main = self.stack.daemon_part("main")
        os.kill(main, signal.SIGSTOP)  # what is measured is the way to the commit
        try:
            one = self.admit(1)
            for clients in (8, 32):
                yield f"admission_{clients}", self.admit(clients), "creates/s", one
        finally:
            self.stack.sql("UPDATE sandboxes SET state = 'terminated', reason = 'requested',"
                           " ended_at = now(), env = '{}' WHERE state = 'queued'")
            os.kill(main, signal.SIGCONT)

    def close(self):
        self.stack.close()


BENCHES = (
    "plain", "healthz", "get_sandbox", "handoff", "exec_true", "exec_shell", "no_process",
    "create_cold", "admission",
)  # fmt: skip


def show(line, as_json):
    if as_json:
        print(json.dumps(line), flush=True)
    else:
        print(
            f"{line['name']:14} {line['value']:12.2f} {line['unit']:10}"
            f" baseline {line['baseline']:12.2f}  ratio {line['ratio']:.3f}",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"  {n:12} {getattr(Bench, n).__doc__}" for n in BENCHES),
    )  # fmt: skip
    parser.add_argument("name", nargs="*", choices=[*BENCHES, []], help="all when none is named")
    parser.add_argument("--json", action="store_true", help="JSON lines")
    args = parser.parse_args()
    if not shutil.which("wrk"):
        sys.exit("bench: wrk is missing; ./dev bench installs it")
    bench = Bench()
    try:
        for name in args.name or BENCHES:
            result = getattr(bench, name)()
            lines = [(name, *result)] if isinstance(result, tuple) else result
            for label, value, unit, baseline in lines:
                show({"name": label, "value": round(value, 3), "unit": unit,
                      "baseline": round(baseline, 3), "ratio": round(value / baseline, 4)},
                     args.json)  # fmt: skip
    finally:
        bench.close()


if __name__ == "__main__":
    main()
