"""PID 1 itself is the enemy: it breaks the frame protocol in every way, over the real socket.

Each way ends its own sandbox, with the true reason and in bounded time, while a
guest beside it works on and the daemon's memory stays where it was.
"""

import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import threading
import time

import pytest

import hostile_init
from harness import IMAGES, Stack, cgroups_naming, growth, processes_naming, rss_kib, wait_for

pytestmark = pytest.mark.any_web

CONFIG = """
[guest]
images_dir = {images}
templates = base hostile
provision_timeout = 12s
heartbeat = 500ms
heartbeat_timeout = 10s
kill_grace = 100ms
"""

# What ends by itself: the reason, where it is not relay_protocol.
REASONS = {
    "says_nothing": "provision_timeout",
    "hello_then_nothing": "provision_timeout",
    "exits_at_once": "provision_failed",
    "hello_of_another_version": "provision_failed",
    # gVisor sends none of it.
    "an_empty_message": "provision_timeout",
    # The end of the socket, with the guest still there.
    "closes_its_sending_half": "relay_lost",
    "closes_its_socket": "relay_lost",
    "ready_then_deaf": "relay_lost",
    "ready_then_mute": "relay_lost",
    "exits_when_ready": "guest_exit",
    # KILL is not obeyed.
    "takes_an_execution_and_never_starts_it": "relay_lost",
    "starts_and_never_ends": "relay_lost",
}
# What breaks no rule, and has to be ended by its owner.
LAWFUL = ("outlives_its_socket", "trickles_output_for_ever", "trickles_credit_for_ever")
# The longest of the waits above (10 s after the grace of a kill), and a busy machine.
END_SECONDS = 45


def make_images(folder):
    """The images of this run, and "hostile": base with another PID 1."""
    shutil.copytree(IMAGES, folder, symlinks=True, copy_function=os.link, ignore=lambda *_: ["cache"])
    hostile = folder / "hostile"
    subprocess.run(["cp", "-al", str((folder / "base").resolve()), str(hostile)], check=True)
    init = hostile / "rootfs" / "usr" / "sbin" / "paddock-init"
    manifest = hostile / "manifest.json"
    text = manifest.read_text().replace('"template": "base"', '"template": "hostile"')
    # Unlinked first: these are other names of the true image's files.
    init.unlink()
    init.write_bytes(pathlib.Path(hostile_init.__file__).read_bytes())
    init.chmod(0o755)
    manifest.unlink()
    manifest.write_text(text)


class Run:
    """Every way once, some at a time, and what was seen meanwhile."""

    def __init__(self, stack):
        self.stack, self.client = stack, stack.client
        self.main = wait_for(lambda: stack.daemon_part("main"), "main")
        self.keeper = stack.daemon_part("keeper")
        self.witness_runs, self.witness_failures, self.rss = 0, [], []
        self.outcomes = {}
        self.stop = threading.Event()
        witness = threading.Thread(target=self._witness, args=(self.client.create(template="base"),))
        # Memory that is only used for the first time does not count as growth.
        self._end(self._start("an_unknown_type"))
        self.rss_before = rss_kib(self.main)
        witness.start()
        try:
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                for name, outcome in zip(hostile_init.MODES, pool.map(self._drive, hostile_init.MODES)):
                    self.outcomes[name] = outcome
        finally:
            self.stop.set()
            witness.join()

    def _witness(self, sandbox):
        while not self.stop.is_set():
            try:
                result = self.client.exec(sandbox, ["echo", "fine"], timeoutMs=30000)
                if result["stdout"] != "fine\n":
                    self.witness_failures.append(result)
            except (AssertionError, OSError) as e:
                self.witness_failures.append(e)
            self.witness_runs += 1
            self.rss.append(rss_kib(self.main))
        self.client.delete(sandbox)

    def _start(self, name):
        index = list(hostile_init.MODES).index(name)
        return self.client.request(
            "POST", "~?wait=60", {"template": "hostile", "workspaceMb": hostile_init.FIRST_MB + index}
        ).expect(201)

    def _end(self, sandbox):
        return wait_for(
            lambda: (s := self.client.get(sandbox))["endedAt"] and s, f"end of {sandbox}", END_SECONDS
        )

    def _drive(self, name):
        sandbox = self._start(name)
        execution = None
        if sandbox["state"] == "ready":
            answer = self.client.request(
                "POST",
                f"~/{sandbox['id']}/exec?wait=0",
                {"cmd": "true", "stdin": "x" * 100, "timeoutMs": 3000},
            )
            # A guest that ends at once may be gone before.
            execution = answer.json["id"] if answer.status == 202 else None
        if name in LAWFUL:
            time.sleep(2)
            self.client.delete(sandbox)
        final = self._end(sandbox)
        if execution:
            execution = self.client.request(
                "GET", f"~/{sandbox['id']}/executions/{execution}"
            ).expect(200)
        return sandbox, execution, final


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    images = tmp_path_factory.mktemp("images") / "all"
    make_images(images)
    stack = Stack(CONFIG.format(images=images))
    try:
        yield Run(stack)
    except AssertionError:
        print(stack.logs())
        raise
    finally:
        stack.close()


@pytest.mark.parametrize("name", hostile_init.MODES)
def test_the_guest_is_ended_for_the_true_reason(run, name):
    _, execution, final = run.outcomes[name]
    if name in LAWFUL:
        assert (final["state"], final["reason"]) == ("terminated", "requested")
    else:
        assert (final["state"], final["reason"]) == ("failed", REASONS.get(name, "relay_protocol"))
    # A result is only what the guest said in a lawful order; nothing was ever invented.
    if execution and name not in ("exit_twice", "output_after_exit"):
        assert execution["state"] in ("lost", "cancelled", "timed_out"), execution
        assert execution["exitCode"] is None, execution
    assert processes_naming(final["id"]) == []
    assert cgroups_naming(final["id"]) == []


def test_a_guest_beside_them_worked_on(run):
    assert run.witness_runs >= 20
    assert run.witness_failures == []


def test_the_daemon_lived_through_it_in_bounded_memory(run):
    assert run.stack.daemon_part("main") == run.main
    assert run.stack.daemon_part("keeper") == run.keeper
    # Eight guests at once, each with a window of 256 KiB a channel, and what malloc keeps.
    assert growth(run.rss_before, max(run.rss)) < 16 * 1024, (run.rss_before, max(run.rss))
