"""Starts again what the service itself does not, as systemd does with Restart=always.

That is paddockd's supervisor, the prefork manager, the web server and Postgres,
one part at a time. Started by faults.py. A part that ends though nobody killed it
is a violation, but for what a full disk does: Postgres may end of it, and a paddockd
that is just starting asks for room before it begins (exit status 1).
"""

import pathlib
import random
import threading
import time

from harness import WEB

# What a kind of injector.py takes with it that must be started again here.
SUPERVISED = {
    "supervisor": "paddockd",
    "manager": "paddock-fcgi",
    "web": WEB,
    "postgres": "postgres",
}
# Of Stack.disks: the one that this part cannot start without room on.
DISK_OF = {"postgres": "pg", "paddockd": ""}
# After a disk was full: until a part has given up.
LATE_S = 10


def is_alive(pid):
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat[stat.rindex(")") + 2] not in "ZX"


def part_pid(stack, name):
    """None while it is being started."""
    try:
        return stack.pid(name)
    except (OSError, IndexError, ValueError):
        return None


class ServiceManager(threading.Thread):
    """Starts a part again that ended, after a pause."""

    def __init__(self, stack, log, ledger, seed):
        super().__init__(name="service manager")
        self.stack, self.log, self.ledger = stack, log, ledger
        self.chance = random.Random(f"{seed}:service manager")
        self.finish = threading.Event()
        self.killed = set()  # process ids; each is here before it is killed
        self.full_until = {}  # by the disk's name; infinity while it is full
        self.begun = set()  # process ids of paddockd that started a main: no full disk ends those

    def run(self):
        due = {}
        while not self.finish.wait(0.1):
            for part in SUPERVISED.values():
                pid = part_pid(self.stack, part)
                if pid and is_alive(pid):
                    self._look_whether_begun(part, pid)
                    continue
                now = time.monotonic()
                if part not in due:
                    due[part] = now + self.chance.choice((0, self.chance.uniform(0.1, 2)))
                    if pid not in self.killed:
                        self._judge(part, pid, now)
                    self.killed.add(pid)
                if now < due[part]:
                    continue
                del due[part]
                self._restart(part)

    def _look_whether_begun(self, part, pid):
        if part != "paddockd" or pid in self.begun:
            return
        try:
            if self.stack.daemon_part("main"):
                self.begun.add(pid)
        except (OSError, IndexError, ValueError):
            pass  # it ended just now

    def _judge(self, part, pid, now):
        """It ended, and nobody killed it."""
        was_full = now <= self.full_until.get(DISK_OF.get(part), -LATE_S) + LATE_S
        if was_full and pid not in self.begun:
            self.log.note(f"{part} ended of a full disk")
        else:
            self.ledger.violation(f"{part} ended though nobody killed it")

    def _restart(self, part):
        done = self.stack.restart(part)
        if done.returncode == 0:
            self.log.note(f"{part} started again")
        elif part != "postgres":
            # Restart=always would try again; but nothing stands in its way, so it need not.
            self.ledger.violation(f"{part} did not start: {done.stderr[-1500:]}")
        else:
            # Its former backends may hold its memory a moment longer; an init system would have
            # waited for their end. Or its disk is full.
            self.log.note("postgres did not start yet")

    def all_up(self):
        pids = [part_pid(self.stack, part) for part in SUPERVISED.values()]
        return all(pid and pid not in self.killed and is_alive(pid) for pid in pids)
