#!/usr/bin/python3
"""Measures the service against a baseline in the same run, so that the ratio means something on
a machine that is shared and noisy. Called by `./dev bench [NAME...] [--json]`.

A baseline is another way to do the same work. The two take turns, round by round; value and
baseline are the medians of their rounds, ratio is value / baseline, and spread gives the quartiles
of the rounds' own ratios. Each figure is one line: {"name", "value", "unit", "baseline", "ratio",
"spread", "aim"}.
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
from docker_peer import Docker  # noqa: E402
from harness import IMAGES, Stack, quote  # noqa: E402
from node_peer import Node  # noqa: E402

# What a row should reach: a bound of the ratio.
AIMS = {
    "plain": (">=", 0.25),
    "plain_node_select": (">=", 1),
    "plain_node_insert": (">=", 1),
    "exec_true": ("<=", 0.4),
    "no_process": ("<=", 0.05),
    "create_cold": ("<=", 1.3),
    "docker_create": ("<", 0.5),
}

# Starts /usr/bin/true in the guest as an idle guest would, and prints the median time in ms.
FLOOR = """
import os, time
took = []
for _ in range(4):
    time.sleep(0.05)
    began = time.perf_counter()
    os.waitpid(os.posix_spawn("/usr/bin/true", ["true"], {}), 0)
    took.append((time.perf_counter() - began) * 1000)
print(sum(sorted(took)[1:3]) / 2)
"""

# The web server closes a connection that was idle for longer than some seconds.
KEPT_S = 2

WRK_POST = """
wrk.method = "POST"
wrk.body = '{"template": "base"}'
wrk.headers["Content-Type"] = "application/json"
"""


class Row:
    """What the rounds of one figure gave: ours and the baseline's values, in pairs."""

    def __init__(self, name, unit, pairs):
        self.name, self.unit = name, unit
        self.value = statistics.median(ours for ours, _ in pairs)
        self.baseline = statistics.median(theirs for _, theirs in pairs)
        ratios = sorted(ours / theirs for ours, theirs in pairs)
        self.spread = [ratios[len(ratios) // 4], ratios[len(ratios) * 3 // 4]]

    def as_dict(self):
        ratio = self.value / self.baseline
        line = {
            "name": self.name, "value": round(self.value, 3), "unit": self.unit,
            "baseline": round(self.baseline, 3), "ratio": round(ratio, 4),
            "spread": [round(r, 4) for r in self.spread],
        }  # fmt: skip
        if self.name in AIMS:
            relation, bound = AIMS[self.name]
            met = ratio >= bound if relation == ">=" else ratio <= bound
            if relation == "<":
                met = ratio < bound
            line["aim"] = f"{relation} {bound} {'met' if met else 'missed'}"
        return line


class Bench:
    def __init__(self, quick=False):
        self.quick = quick
        self.stack = Stack("[node]\nmax_sandboxes = 10000\n[daemon]\nlease = 600s\n")
        self.client = self.stack.client
        self.local = threading.local()
        self.path = f"/api/v1/projects/{quote(self.client.project)}/sandboxes"
        self.auth = f"Authorization: Bearer {self.client.token}"
        static = self.stack.run_dir / "www" / "bench.json"
        static.write_text('{"status":"ok"}\n')
        static.chmod(0o644)

    # --- tools -------------------------------------------------------------------

    def rounds(self, usual):
        return 1 if self.quick else usual

    def request(self, method, path, body=None, headers=None):
        """One request on this thread's kept connection; (status, body)."""
        if not hasattr(self.local, "connection"):
            self.local.connection = http.client.HTTPConnection("127.0.0.1", self.stack.port)
        elif time.monotonic() - self.local.used > KEPT_S:
            self.local.connection.close()  # the next request opens it anew
        head = {"Authorization": f"Bearer {self.client.token}", **(headers or {})}
        if body is not None:
            head["Content-Type"] = "application/json"
            body = json.dumps(body)
        if path.startswith("~"):
            path = self.path + path[1:]
        self.local.connection.request(method, path, body, head)
        answer = self.local.connection.getresponse()
        data = answer.read()
        self.local.used = time.monotonic()
        return answer.status, data

    def wrk(self, url, clients=16, words=(), refused=False):
        """Answers a second, each of which is a success, or each a refusal."""
        command = ["wrk", f"-t{min(2, clients)}", f"-c{clients}", "-d1s", *words, url]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        answers = int(re.search(r"(\d+) requests in", out).group(1))
        others = re.search(r"Non-2xx or 3xx responses: (\d+)", out)
        assert (int(others.group(1)) if others else 0) == (answers if refused else 0), out
        return float(re.search(r"Requests/sec:\s*([0-9.]+)", out).group(1))

    def beside(self, name, ours, theirs, rounds=5):
        """A row of two rates that take turns."""
        pairs = [(ours(), theirs()) for _ in range(self.rounds(rounds))]
        return Row(name, "answers/s", pairs)

    @staticmethod
    def timed(action, times=1):
        """Milliseconds that one of `times` actions in a row took."""
        began = time.perf_counter()
        for _ in range(times):
            action()
        return (time.perf_counter() - began) * 1000 / times

    def turns(self, *actions, rounds=60):
        """Milliseconds of actions that take turns: a list of rounds."""
        rounds = self.rounds(rounds)
        for _ in range(1 if self.quick else 3):
            for action in actions:
                action()
        return [tuple(self.timed(action) for action in actions) for _ in range(rounds)]

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
        result = json.loads(body)
        assert status == 201 and result["state"] == "succeeded", body
        return result

    def runsc_exec(self, sandbox, *argv):
        command = self.in_keeper(
            "/usr/bin/runsc", f"--root={self.state_dir()}/runsc", "exec", sandbox["id"], *argv
        )
        # nsenter itself costs about a ms; the same for every round.
        return lambda: subprocess.run(command, check=True, stdin=subprocess.DEVNULL)

    def database(self):
        """The database "bench" with a table of its own; made once. The folder of its socket."""
        folder = next(w.split("=", 1)[1] for w in self.stack.dsn().split() if w.startswith("host="))
        if not hasattr(self, "has_database"):
            self.stack.sql("CREATE DATABASE bench")
            subprocess.run(
                ["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", f"host={folder} dbname=bench"
                 " user=paddock", "-c", "CREATE TABLE rows (id bigserial PRIMARY KEY, body text);"
                 " INSERT INTO rows (body) VALUES ('first')"], check=True,
            )  # fmt: skip
            self.has_database = True
        return folder

    # --- benches: answers --------------------------------------------------------

    def static(self):
        return self.wrk(f"{self.stack.url}/bench.json")

    def plain_rate(self):
        # All that is answered without the database is refused: here a request without a token.
        return self.wrk(f"{self.stack.url}{self.path}", refused=True)

    def plain(self):
        """An answer without the database (401), beside lighttpd's static file."""
        yield self.beside("plain", self.plain_rate, self.static)

    def healthz(self):
        """One SELECT, beside lighttpd's static file."""
        yield self.beside("healthz", lambda: self.wrk(f"{self.stack.url}/healthz"), self.static)

    def get_sandbox(self):
        """Authentication and one SELECT, beside lighttpd's static file."""
        sandbox = self.sandbox()
        url = f"{self.stack.url}{self.path}/{sandbox['id']}"
        yield self.beside(
            "get_sandbox", lambda: self.wrk(url, words=("-H", self.auth)), self.static
        )
        self.client.delete(sandbox)

    def node(self):
        """Answers beside Node with pg: with one SELECT, with one committed INSERT behind it."""
        modules = os.environ.get("PADDOCK_BENCH_NODE_MODULES")
        if not modules:
            say("node: left out, there is no pg package (PADDOCK_BENCH_NODE_MODULES)")
            return
        self.database()
        peer = Node(IMAGES / "node/rootfs/usr/bin/node", modules, self.stack)
        try:
            select = lambda: self.wrk(f"{peer.url}/select")  # noqa: E731
            insert = lambda: self.wrk(f"{peer.url}/insert")  # noqa: E731
            yield self.beside("plain_node_select", self.plain_rate, select)
            yield self.beside("plain_node_insert", self.plain_rate, insert)
            healthz = lambda: self.wrk(f"{self.stack.url}/healthz")  # noqa: E731
            yield self.beside("healthz_node_select", healthz, select)
        finally:
            peer.close()

    def handoff(self):
        """The same replayed create, answered by the daemon, beside one answered by the handler."""
        key = {"Idempotency-Key": uuid.uuid4().hex}
        status, body = self.request("POST", "~", {"template": "base"}, key)
        assert status == 201, body
        pairs = self.turns(
            lambda: self.request("POST", "~?wait=5", {"template": "base"}, key),
            lambda: self.request("POST", "~?wait=0", {"template": "base"}, key),
            rounds=400,
        )
        self.client.delete(json.loads(body))
        yield Row("handoff", "ms", pairs)

    # --- benches: the guest ------------------------------------------------------

    def floor(self, sandbox):
        return float(self.exec(sandbox, ["/usr/bin/python3", "-c", FLOOR])["stdout"])

    def exec_true(self):
        """`true` by argv, and what the guest alone needs for it, beside `runsc exec` in it."""
        sandbox = self.sandbox()
        ours = lambda: self.exec(sandbox, ["/usr/bin/true"])  # noqa: E731
        theirs = self.runsc_exec(sandbox, "/usr/bin/true")
        pairs, floors = [], []
        for _ in range(1 if self.quick else 3):
            ours()
            theirs()
        for _ in range(self.rounds(60)):
            pairs.append((self.timed(ours), self.timed(theirs)))
            floors.append((self.floor(sandbox), pairs[-1][1]))
        self.client.delete(sandbox)
        yield Row("exec_true", "ms", pairs)
        yield Row("exec_floor", "ms", floors)

    def exec_shell(self):
        """`true` in a shell through the whole stack, beside `runsc exec bash -c`."""
        sandbox = self.sandbox()
        pairs = self.turns(
            lambda: self.exec(sandbox, "true"),
            self.runsc_exec(sandbox, "/bin/bash", "-c", "true"),
        )
        self.client.delete(sandbox)
        yield Row("exec_shell", "ms", pairs)

    def no_process(self):
        """An operation that starts no process (one of ten in a row), beside `runsc exec true`."""
        sandbox = self.sandbox()
        theirs = self.runsc_exec(sandbox, "/usr/bin/true")
        read = lambda: self.request("GET", f"~/{sandbox['id']}")  # noqa: E731
        theirs()
        pairs = [(self.timed(read, 10), self.timed(theirs)) for _ in range(self.rounds(40))]
        self.client.delete(sandbox)
        yield Row("no_process", "ms", pairs)

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
            made.append((host, run))
            assert host.recv(65536), "the guest said nothing"

        pairs = []
        for turn in range(self.rounds(20) + 1):
            took_ours = self.timed(ours)
            self.client.delete(made.pop())
            took_bare = self.timed(bare)
            host, run = made.pop()
            host.close()
            run.wait(30)
            if turn > 0:
                pairs.append((took_ours, took_bare))
        self.client.delete(model)
        yield Row("create_cold", "ms", pairs)

    def docker(self):
        """A create to its answer and an exec of `true`, beside Docker with the same runsc."""
        unpacked = os.environ.get("PADDOCK_BENCH_DOCKER")
        if not unpacked:
            say("docker: left out, there is no unpacked docker.io (PADDOCK_BENCH_DOCKER)")
            return
        peer = Docker(unpacked, IMAGES / "base/rootfs")
        try:
            creates, execs = [], []
            for turn in range(self.rounds(15) + 1):
                made = []
                took = self.timed(lambda: made.append(self.sandbox()))
                creates.append((took, self.timed(lambda: made.append(peer.create()))))
                sandbox, container = made
                true = ["/usr/bin/true"]
                for _ in range(4):
                    took = self.timed(lambda: self.exec(sandbox, true))
                    execs.append((took, self.timed(lambda: peer.exec(container, true))))
                self.client.delete(sandbox)
                peer.remove(container)
                if turn == 0:
                    creates.clear()
                    execs.clear()
            yield Row("docker_create", "ms", creates)
            yield Row("docker_exec", "ms", execs)
        finally:
            peer.close()

    # --- benches: commits --------------------------------------------------------

    def admit(self, clients):
        """Creates that are admitted (committed and announced) a second, by so many clients."""
        script = self.stack.dir / "post.lua"
        script.write_text(WRK_POST)
        rate = self.wrk(
            f"{self.stack.url}{self.path}?wait=0", clients, ("-s", str(script), "-H", self.auth)
        )
        self.stack.sql(
            "UPDATE sandboxes SET state = 'terminated', reason = 'requested', ended_at = now(),"
            " env = '{}' WHERE state = 'queued'"
        )
        return rate

    def commits(self, clients):
        """Rows committed one by one a second, by so many clients."""
        folder = self.database()
        script = self.stack.dir / "insert.sql"
        script.write_text("INSERT INTO rows (body) VALUES ('bench');\n")
        programs = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin/pgbench"))
        out = subprocess.run(
            [str(programs[-1]), "-n", "-h", folder, "-U", "paddock", "-M", "prepared",
             "-c", str(clients), "-j", str(min(2, clients)), "-T", "1", "-f", str(script), "bench"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        rate = re.search(r"tps = ([0-9.]+)", out)
        assert rate, out
        return float(rate.group(1))

    def admission(self):
        """Admitted creates a second (no guest starts), beside bare commits of a row."""
        main = self.stack.daemon_part("main")
        os.kill(main, signal.SIGSTOP)  # what is measured is the way to the commit
        try:
            for clients in (1, 8, 32):
                pairs = [
                    (self.admit(clients), self.commits(clients)) for _ in range(self.rounds(3))
                ]
                yield Row(f"admission_{clients}", "creates/s", pairs)
        finally:
            os.kill(main, signal.SIGCONT)

    def close(self):
        self.stack.close()


BENCHES = (
    "plain", "healthz", "get_sandbox", "node", "handoff", "exec_true", "exec_shell", "no_process",
    "create_cold", "docker", "admission",
)  # fmt: skip


def say(text):
    print(text, file=sys.stderr, flush=True)


def show(line, as_json):
    if as_json:
        print(json.dumps(line), flush=True)
        return
    low, high = line["spread"]
    print(
        f"{line['name']:20} {line['value']:10.2f} {line['unit']:10}"
        f" baseline {line['baseline']:10.2f}  ratio {line['ratio']:.3f}"
        f" ({low:.3f} to {high:.3f})  {line.get('aim', '')}".rstrip(),
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"  {n:12} {getattr(Bench, n).__doc__}" for n in BENCHES),
    )  # fmt: skip
    parser.add_argument("name", nargs="*", choices=[*BENCHES, []], help="all when none is named")
    parser.add_argument("--json", action="store_true", help="JSON lines")
    parser.add_argument("--quick", action="store_true", help="one round of each: it works")
    args = parser.parse_args()
    if not shutil.which("wrk"):
        sys.exit("bench: wrk is missing; ./dev bench installs it")
    bench = Bench(args.quick)
    try:
        for name in args.name or BENCHES:
            for row in getattr(bench, name)():
                show(row.as_dict(), args.json)
    finally:
        bench.close()


if __name__ == "__main__":
    main()
