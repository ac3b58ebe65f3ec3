"""Many clients at once and hostile users of a guest.

Clients that break HTTP: test_web.py. Parts that are killed at random: tests/faults.

What must hold, whatever they do: other clients and other guests go on, nothing
grows, every answer is true, and what was acknowledged exists for ever.
"""

import collections
import concurrent.futures
import os
import select
import signal
import subprocess
import threading
import time
import uuid

import pytest

from harness import cgroups_naming, children, fd_count, growth, processes_naming, rss_kib, wait_for
from raw_http import connect, raw_request


class Witness:
    """Another guest, used all the time: it must not notice what is done to its neighbours."""

    def __init__(self, client):
        self.client = client
        self.failures, self.count = [], 0

    def __enter__(self):
        self.sandbox = self.client.create(template="base")
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        return self

    def _run(self):
        while not self.stop.is_set():
            try:
                result = self.client.exec(self.sandbox, ["echo", "fine"], timeoutMs=30000)
                if result["stdout"] != "fine\n":
                    self.failures.append(result)
            except (AssertionError, OSError) as e:
                self.failures.append(e)
            self.count += 1
            self.stop.wait(0.05)

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()
        self.client.delete(self.sandbox)
        assert self.failures == [] and self.count > 0


# --- waits --------------------------------------------------------------------------


def test_waits_that_nobody_wants_any_more_leave_other_tokens_their_room(own_stack):
    stack = own_stack("[daemon]\nconnections_max = 40\n")
    client, (other, _) = stack.client, stack.new_project()
    sandbox, others = client.create(template="base"), other.create(template="base")
    body = '{"cmd": "sleep 600"}'
    # Sent whole: lighttpd will not notice that they leave.
    key = f"Idempotency-Key: {uuid.uuid4().hex}\r\n"
    data = raw_request(client, "POST", f"/{sandbox['id']}/exec?wait=200", body, key)
    waiting = []
    try:
        for _ in range(100):
            waiting.append(connect(stack))
            waiting[-1].sendall(data)
        # Half of 40 are the token's; the others are answered at once or refused. Not before that
        # are the 20 known to be taken.
        wait_for(lambda: len(select.select(waiting, [], [], 0)[0]) >= 80, "80 are not made to wait")
        held = [s for s in waiting if s not in select.select(waiting, [], [], 0)[0]]
        assert len(held) == 20
        more = client.request("POST", f"~/{sandbox['id']}/exec", {"cmd": "sleep 600"})
        assert more.expect(202)["state"] in ("queued", "running")
    finally:
        for s in waiting:
            s.close()
    for _ in range(5):
        assert other.run(others, "sleep 0.3; echo waited for") == "waited for\n"
    assert set(at_once(10, lambda i: other.run(others, f"sleep 0.3; echo {i}"))) == {
        f"{i}\n" for i in range(10)
    }


def test_a_token_revoked_while_its_request_waits_gets_no_result(stack):
    client, project = stack.new_project()
    sandbox = client.create(template="base")
    answers = []
    thread = threading.Thread(
        target=lambda: answers.append(
            client.request("POST", f"~/{sandbox['id']}/exec", {"cmd": "sleep 5; echo secret"})
        )
    )
    thread.start()
    running = f"select id from executions where sandbox_id = '{sandbox['id']}' and state = 'running'"
    execution = wait_for(lambda: stack.sql(running), "it runs")[0][0]
    token = client.token.split("_")[1]
    stack.cli("token", "revoke", token)
    thread.join()
    assert answers[0].expect(401)["code"] == "unauthenticated"
    assert b"secret" not in answers[0].body
    # Work that was admitted goes on: another token of the project reads its result.
    client.token = stack.new_token(project)
    final = client.request("GET", f"~/{sandbox['id']}/executions/{execution}?wait=30").expect(200)
    assert final["stdout"] == "secret\n"
    client.delete(sandbox)


# --- many at once ---------------------------------------------------------------------


def at_once(count, call):
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(call, range(count)))


def test_two_hundred_creates_at_once_are_each_made_or_refused(own_stack):
    stack = own_stack("[node]\nmax_sandboxes = 8\n")
    client = stack.client
    answers = at_once(200, lambda _: client.request("POST", "~?wait=60", {"template": "base"}))
    made = [a.json for a in answers if a.status == 201]
    refused = [a for a in answers if a.status != 201]
    assert len({s["id"] for s in made}) == 8 and {s["state"] for s in made} == {"ready"}
    for a in refused:
        assert a.expect(503, 429)["code"] in ("no_capacity", "project_limit"), a.body
        assert int(a.headers["Retry-After"]) >= 1
    assert stack.sql("select count(*) from sandboxes") == [["8"]]
    # Room that is given back is found again.
    client.delete(made[0])
    client.create(template="base")


def test_two_hundred_executions_at_once_are_each_run_or_refused(client, sandbox):
    answers = at_once(
        200, lambda i: client.request("POST", f"~/{sandbox['id']}/exec", {"cmd": ["echo", str(i)]})
    )
    done = {i: a.json for i, a in enumerate(answers) if a.status == 201}
    assert len(done) >= 32 and len({e["id"] for e in done.values()}) == len(done)
    for i, execution in done.items():
        assert execution["stdout"] == f"{i}\n"
    for a in answers:
        if a.status != 201:
            assert a.expect(429)["code"] == "project_limit" and a.headers["Retry-After"]


def test_fifty_with_the_same_key_are_one_execution(client, sandbox):
    key = {"Idempotency-Key": uuid.uuid4().hex}
    body = {"cmd": "echo once >> /workspace/runs; sleep 0.2"}
    answers = at_once(50, lambda _: client.request("POST", f"~/{sandbox['id']}/exec", body, key))
    assert collections.Counter(a.status for a in answers) == {201: 1, 200: 49}
    assert len({a.json["id"] for a in answers}) == 1
    assert {a.json["state"] for a in answers} == {"succeeded"}
    assert client.run(sandbox, "cat /workspace/runs") == "once\n"


def test_without_a_free_database_connection_it_is_503_and_then_works_again(own_stack):
    stack = own_stack()
    client = stack.client
    sandbox = client.create(template="base")
    taken = []

    def take(count):
        for _ in range(count):
            taken.append(
                subprocess.Popen(
                    ["psql", "-X", "-q", stack.dsn()],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )

    def attempt(_):
        answer = client.request("POST", f"~/{sandbox['id']}/exec", {"cmd": ["true"]})
        return answer.status, answer.json.get("code")

    def exhausted():
        # Handlers hold theirs; new ones find none left.
        for child in children(stack.pid("paddock-fcgi")):
            os.kill(child, signal.SIGKILL)
        take(20)
        time.sleep(0.3)
        return client.request("GET", "/healthz").status == 503

    try:
        take(110)
        wait_for(exhausted, "no connection is free")
        assert set(at_once(50, attempt)) <= {(503, "database_unavailable"), (201, None)}
    finally:
        for process in taken:
            process.stdin.close()
        for process in taken:
            process.wait()
    wait_for(lambda: attempt(0)[0] == 201, "it works again", 30)
    assert set(at_once(20, attempt)) == {(201, None)}


# --- a user of a guest ----------------------------------------------------------------

FORK_BOMBS = {
    "bash": (256, ":(){ :|:& };:; sleep 1"),
    "few_processes": (16, "f(){ f & f & f & }; f; sleep 3"),
    "new_sessions": (
        64,
        "python3 -c 'import os\nwhile True:\n try:\n  if os.fork() == 0: os.setsid()\n except OSError: pass'",
    ),
}


@pytest.mark.any_web
@pytest.mark.parametrize("name", FORK_BOMBS)
def test_a_fork_bomb_stays_in_its_guest(client, name):
    pids, cmd = FORK_BOMBS[name]
    sandbox = client.create(template="base", pids=pids)
    with Witness(client):
        client.request("POST", f"~/{sandbox['id']}/exec?wait=60", {"cmd": cmd, "timeoutMs": 3000})
        client.request(
            "POST", f"~/{sandbox['id']}/exec?wait=60", {"cmd": "echo alive", "timeoutMs": 20000}
        )
        now = client.get(sandbox)
        # It lives, or was too starved to obey a KILL, or was out of memory; it did not "exit", and
        # gVisor did not crash for want of host tasks.
        if now["endedAt"]:
            assert now["reason"] in ("relay_lost", "oom"), now
        client.delete(sandbox)
    assert processes_naming(sandbox["id"]) == [] and cgroups_naming(sandbox["id"]) == []


@pytest.mark.any_web
def test_every_file_system_full_at_the_least_memory_is_no_death(client):
    refused = client.request("POST", "~", {"template": "base", "memoryMb": 128}).expect(400)
    least = int(refused["detail"].split("it must be ")[1].split()[0])
    sandbox = client.create(template="base", memoryMb=least)
    try:
        full = client.run(
            sandbox,
            "for d in /workspace /tmp /dev/shm; do"
            " dd if=/dev/zero of=$d/fill bs=1M 2>$d.log & done 2>/dev/null; wait;"
            " for d in /workspace /tmp /dev/shm; do"
            "   dd if=/dev/zero of=$d/fill bs=1M oflag=append conv=notrunc 2>&1 | grep -o 'No space.*';"
            " done",
            timeoutMs=60000,
        )
        assert full == "No space left on device\n" * 3
        assert client.run(sandbox, "echo alive; rm /workspace/fill") == "alive\n"
    finally:
        client.delete(sandbox)


@pytest.mark.any_web
def test_the_end_of_a_memory_hog_is_told_as_oom(client):
    hogs = {
        "memfd": "import os\nf = os.memfd_create('x')\nwhile True: os.write(f, bytes(4 << 20))",
        "sockets": (
            "import socket\nkept = []\nwhile True:\n"
            "    a, b = socket.socketpair(); kept.append((a, b)); a.setblocking(False)\n"
            "    try:\n        while True: a.send(bytes(65536))\n    except OSError: pass"
        ),
    }
    for name, code in hogs.items():
        sandbox = client.create(template="base", memoryMb=512)
        result = client.exec(sandbox, code=code, language="python", timeoutMs=60000)
        final = wait_for(lambda: (s := client.get(sandbox))["endedAt"] and s, name)
        assert (final["state"], final["reason"]) == ("failed", "oom"), name
        assert (result["state"], result["reason"]) == ("lost", "oom"), name


ROOT_OF_ITS_OWN = r"""
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
ready, mapped = os.pipe(), os.pipe()
child = os.fork()
if child:
    os.read(ready[0], 1)
    with open(f"/proc/{child}/uid_map", "w") as f: f.write("0 1000 1")
    os.write(mapped[1], b"x")
    os.waitpid(child, 0)
    sys.exit()
for flag in (0x10000000, 0x20000, 0x40000000):  # user, mount, network namespaces
    if libc.unshare(flag): print("cannot unshare", hex(flag))
os.write(ready[1], b"x"); os.read(mapped[0], 1)
print("uid", os.getuid())
def attempt(what, call):
    try:
        if call() is not False: print("REACHED", what)
    except OSError: pass
for sig in (9, 15, 19):
    attempt(f"kill {sig}", lambda: os.kill(1, sig))
attempt("clock", lambda: time.clock_settime(time.CLOCK_REALTIME, 0))
for p in (int(x) for x in os.listdir("/proc") if x.isdigit()):
    if p in (os.getpid(), os.getppid()): continue
    attempt(f"mem {p}", lambda: open(f"/proc/{p}/mem", "rb"))
    attempt(f"ptrace {p}", lambda: libc.ptrace(0x4206, p, 0, 0) == 0)
def write(path):
    with open(path, "w") as f: f.write("max")
for path in ("/sys/fs/cgroup/pids/pids.max", "/etc/passwd", "/proc/sysrq-trigger"):
    attempt(path, lambda: write(path))
for controller in (b"pids", b"memory", b"cpu"):
    if libc.mount(b"none", b"/mnt", b"cgroup", 0, controller) == 0:
        for folder, _, names in os.walk("/mnt"):
            for name in names:
                if name.endswith((".max", "limit_in_bytes", "quota_us", "procs")):
                    attempt(f"{folder}/{name}", lambda: write(f"{folder}/{name}"))
            attempt(f"mkdir {folder}/x", lambda: os.mkdir(f"{folder}/x"))
attempt("the socket", lambda: os.open("/proc/1/fd/0", os.O_RDWR))
for major, minor in ((1, 1), (1, 2), (10, 232)):  # mem, kmem, kvm
    attempt("device", lambda: os.mknod("/workspace/device", 0o20666, os.makedev(major, minor)) or
            os.open("/workspace/device", os.O_RDWR))
    attempt("device", lambda: os.unlink("/workspace/device") or False)
print("done", flush=True)
"""


@pytest.mark.any_web
def test_root_in_a_namespace_of_its_own_reaches_nothing(client, sandbox):
    result = client.exec(sandbox, code=ROOT_OF_ITS_OWN, language="python", timeoutMs=30000)
    assert result["stdout"] == "uid 0\ndone\n", result
    assert client.run(sandbox, "echo alive") == "alive\n"


def test_arguments_and_environment_at_linux_s_limit(client, sandbox):
    def run(length):
        return client.request(
            "POST",
            f"~/{sandbox['id']}/exec",
            {"cmd": ["bash", "-c", "echo ${#1} ${#A}", "x", "a" * length], "env": {"A": "b" * (length - 2)}},
        )

    assert run(131071).expect(201)["stdout"] == "131071 131069\n"
    assert run(131072).expect(400)["code"] == "limit_exceeded"


@pytest.mark.any_web
def test_many_streams_of_small_and_large_writes_at_once(stack, client, sandbox):
    main = wait_for(lambda: stack.daemon_part("main"), "main")
    before = rss_kib(main)
    tiny = "import os\nfor _ in range(5000): os.write(1, b'a'); os.write(2, b'b')"

    def one(i):
        if i % 2:
            return client.exec(sandbox, "head -c 5M /dev/zero", timeoutMs=120000)
        return client.exec(sandbox, code=tiny, language="python", timeoutMs=120000)

    for i, result in enumerate(at_once(32, one)):
        assert result["state"] == "succeeded", result
        assert result["bytes"] == (
            {"stdout": 5 << 20, "stderr": 0} if i % 2 else {"stdout": 5000, "stderr": 5000}
        )
    # Head and tail of 32 executions, 64 KiB a stream, and their answers.
    assert growth(before, rss_kib(main)) < 24 * 1024


@pytest.mark.any_web
def test_stdout_closed_early_and_stdin_never_read(client, sandbox):
    assert client.exec(sandbox, "exec >&- 2>&-; sleep 0.5; exit 7")["exitCode"] == 7
    assert client.run(sandbox, "exec <&-; sleep 0.1; echo done", stdin="x" * 2000000) == "done\n"
    assert client.run(sandbox, "sleep 0.1; echo done", stdin="x" * 2000000) == "done\n"


@pytest.mark.any_web
def test_what_ignores_its_signals_or_stopped_itself_is_ended_in_time(client, sandbox):
    for cmd in (
        "trap '' TERM INT HUP; while :; do sleep 1; done",
        "trap '' TERM; (setsid bash -c \"trap '' TERM; while :; do sleep 1; done\" &) ; sleep 100",
        "kill -STOP $$",
    ):
        result = client.exec(sandbox, cmd, timeoutMs=500)
        assert result["state"] == "timed_out" and result["timedOut"], (cmd, result)
        assert result["durationMs"] < 20000
    assert client.exec(sandbox, ["pgrep", "sleep"])["exitCode"] == 1


@pytest.mark.any_web
def test_hundreds_of_executions_grow_nothing(stack, client, sandbox):
    main = wait_for(lambda: stack.daemon_part("main"), "main")
    keeper = stack.daemon_part("keeper")
    look = "ls /proc/1/fd | wc -l; ls -d /proc/[0-9]* | wc -l; ls -A /workspace /tmp | wc -l"

    def measure():
        return (
            [fd_count(main), fd_count(keeper)],
            [int(x) for x in client.run(sandbox, look).split()],
            rss_kib(main) + rss_kib(keeper),
        )

    def run(count):
        for _ in range(count):
            client.run(sandbox, ["true"])

    run(100)
    fds, guest, rss = measure()
    run(300)
    fds_now, guest_now, rss_now = measure()
    assert max(a - b for a, b in zip(fds_now, fds)) <= 4, (fds, fds_now)
    # Descriptors of PID 1 go with the supervisors that it holds ready.
    assert guest_now[0] - guest[0] <= 12 and guest_now[1] - guest[1] <= 4, (guest, guest_now)
    assert guest_now[2] == guest[2]
    assert growth(rss, rss_now) < 1024, (rss, rss_now)


@pytest.mark.any_web
def test_sandbox_after_sandbox_leaves_the_host_as_it_was(stack, client):
    state = stack.run_dir / "state"
    main = wait_for(lambda: stack.daemon_part("main"), "main")
    keeper = stack.daemon_part("keeper")

    def measure():
        return (
            sorted(str(p) for p in state.rglob("*")),
            processes_naming(str(state)),
            fd_count(keeper),
            fd_count(main),
        )

    client.delete(client.create(template="base"))
    before = measure()
    made = []
    for _ in range(12):
        sandbox = client.create(template="base")
        client.run(sandbox, "echo x > /workspace/x")
        client.delete(sandbox)
        made.append(sandbox)
    after = measure()
    assert after[:3] == before[:3]
    assert after[3] - before[3] <= 4
    assert [c for s in made for c in cgroups_naming(s["id"])] == []
