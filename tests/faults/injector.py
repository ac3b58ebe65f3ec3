"""What is killed, stopped, cut and filled up. Started by faults.py.

The plan (kinds and pauses) comes from the seed alone; which process of a kind is
hit depends on what runs at that moment. What the service itself does not start
again is manager.py's to start.
"""

import math
import os
import pathlib
import random
import signal
import subprocess
import threading
import time

from harness import WEB, children, cmdline, cut_client, processes_naming
from manager import SUPERVISED, is_alive, part_pid



def _guest_processes(stack, test):
    state = str(stack.run_dir / "state")
    return [p for p in processes_naming(state) if test(f" {cmdline(p)} ")]


def _sentries(stack):
    return _guest_processes(stack, lambda c: " boot " in c)


def _backends(stack, where):
    """Of Postgres' own view; none while it is away."""
    try:
        rows = stack.sql(
            f"select pid from pg_stat_activity where {where} and pid <> pg_backend_pid()"
        )
    except (AssertionError, subprocess.TimeoutExpired):
        return []
    return [int(row[0]) for row in rows]


def _part(name):
    def find(stack):
        try:
            pid = stack.daemon_part(name)
        except (OSError, IndexError, ValueError):
            pid = None  # no supervisor for now, or it ended just now
        return [pid] if pid else []

    return find


def _supervised(name):
    def find(stack):
        pid = part_pid(stack, name)
        return [pid] if pid and is_alive(pid) else []

    return find


def _handlers(stack):
    manager = part_pid(stack, "paddock-fcgi")
    return children(manager) if manager else []


_LISTENS = "application_name = 'paddockd' and query like 'LISTEN%'"
# kind: how to find its processes
KILLED = {
    "main": _part("main"),
    "keeper": _part("keeper"),
    "supervisor": _supervised("paddockd"),
    "sentry": _sentries,
    "gofer": lambda stack: _guest_processes(stack, lambda c: " gofer " in c),
    "run": lambda stack: _guest_processes(
        stack, lambda c: " run " in c and "runsc-" not in c.split()[0]
    ),
    "handler": _handlers,
    "manager": _supervised("paddock-fcgi"),
    "web": _supervised(WEB),
    "handlers_backend": lambda s: _backends(s, "application_name = 'paddock-fcgi'"),
    "mains_backend": lambda s: _backends(
        s, "application_name = 'paddockd' and query not like 'LISTEN%'"
    ),
    "listen_backend": lambda s: _backends(s, _LISTENS),
    "postgres": _supervised("postgres"),
}
STOPPED = {
    "stop_main": _part("main"),
    "stop_keeper": _part("keeper"),
    "stop_supervisor": _supervised("paddockd"),
    "stop_guest": _sentries,
    "stop_handler": _handlers,
    "stop_handlers_backend": KILLED["handlers_backend"],
    "stop_mains_backend": KILLED["mains_backend"],
    "stop_postgres": _supervised("postgres"),
}
# The LISTEN connection alone, while Postgres goes on: by the server's own hand, which says why, and
# by the socket, which says nothing.
CUT = {"cut_listen": KILLED["listen_backend"], "cut_listen_socket": KILLED["listen_backend"]}
# kind: the file systems, by their names in Stack.disks, that are full for some seconds. The run
# folder's has guests' bundles, runsc's state, spooled bodies and the logs.
FULL = {"full_disk": ("", "pg"), "full_state": ("",), "full_database": ("pg",)}
DISKS_MB = {"": 64, "pg": 256}
KINDS = (*KILLED, *STOPPED, *CUT, *FULL)

# Their end makes Postgres start all over, as after a crash.
_DATABASE = ("handlers_backend", "mains_backend", "listen_backend", "postgres")


class Log:
    """The faults with their times since the beginning."""

    def __init__(self):
        self.began = time.monotonic()
        self.lock = threading.Lock()
        self.lines = []

    def note(self, text):
        with self.lock:
            seconds = time.monotonic() - self.began
            self.lines.append(f"{time.strftime('%H:%M:%S')} +{seconds:6.2f} s  {text}")


class Injector(threading.Thread):
    """Works the plan off."""

    def __init__(self, seed, stack, ledger, log, manager, kinds, count):
        super().__init__(name="injector")
        self.stack, self.ledger, self.log, self.manager = stack, ledger, log, manager
        self.chance = random.Random(f"{seed}:faults")
        self.done = 0
        self.give_up = threading.Event()
        self.going_on = []  # threads: what ends by itself
        # Each kind once before any comes again.
        self.plan = []
        while len(self.plan) < count:
            some = list(kinds)
            self.chance.shuffle(some)
            self.plan += some
        self.plan = self.plan[:count]

    def run(self):
        for kind in self.plan:
            if self.give_up.wait(self.chance.uniform(0.1, 1.6)):
                return
            while not self.give_up.is_set():
                if self._fill(kind) if kind in FULL else self._hit(kind):
                    self.done += 1
                    break
                # No such process for now, or the disk is full already.
                self.give_up.wait(0.1)

    def settle(self):
        """After the last fault: everything that was stopped runs, and every disk has room."""
        for thread in self.going_on:
            thread.join()

    # --- processes -------------------------------------------------------------------

    def _hit(self, kind):
        find = {**KILLED, **STOPPED, **CUT}[kind]
        found = sorted(find(self.stack))
        if not found:
            return False
        pid = self.chance.choice(found)
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        try:
            # By now the number may be another process's.
            if pid not in find(self.stack) or not is_alive(pid):
                return False
            if kind in STOPPED:
                return self._pause(kind, pid, pidfd)
            if kind in CUT:
                return self._cut(kind, pid, pidfd)
            return self._kill(kind, pid, pidfd)
        except ProcessLookupError:
            return False
        finally:
            os.close(pidfd)

    def _kill(self, kind, pid, pidfd):
        if kind in SUPERVISED:
            self.manager.killed.add(pid)
        asked = time.monotonic()
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        if kind in _DATABASE:
            self.ledger.database_crashed(asked)
        self.log.note(f"kill -9 {kind} {pid}")
        return True

    def _cut(self, kind, pid, pidfd):
        done = True
        if kind == "cut_listen_socket":
            done = cut_client(pid, pidfd)
        else:
            # What pg_terminate_backend does.
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        if done:
            self.log.note(f"{kind} {pid}")
        return done

    def _pause(self, kind, pid, pidfd):
        seconds = self.chance.uniform(0.5, 2)
        own = os.dup(pidfd)

        def go_on():
            try:
                signal.pidfd_send_signal(own, signal.SIGCONT)
            except ProcessLookupError:
                pass  # it was killed meanwhile
            os.close(own)

        try:
            signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
        except ProcessLookupError:
            os.close(own)
            return False
        self.log.note(f"{kind} {pid} for {seconds:.2f} s")
        timer = threading.Timer(seconds, go_on)
        timer.start()
        self.going_on.append(timer)
        return True

    # --- disks -----------------------------------------------------------------------

    def _fill(self, kind):
        """The disk is full for some seconds, also for what becomes free meanwhile."""
        full_until = self.manager.full_until
        if any(until == math.inf for until in full_until.values()):
            return False
        disks = [self.stack.disks[name] for name in FULL[kind]]
        seconds = self.chance.uniform(1, 4)
        # Rows find room in what is allocated already for a while, WAL in its segment; so the server
        # can neither write a row nor, sometimes, any WAL, which it does not survive.
        new_segment = kind != "full_state" and self.chance.random() < 0.5
        full_until.update((name, math.inf) for name in FULL[kind])
        self.log.note(f"{kind} for {seconds:.2f} s{', and a new WAL segment' if new_segment else ''}")

        def stay_full():
            deadline = time.monotonic() + seconds
            try:
                while time.monotonic() < deadline:
                    for disk in disks:
                        disk.fill()
                    time.sleep(0.05)
            except OSError as e:
                self.ledger.violation(f"{kind}: {e!r}")
            finally:
                for disk in disks:
                    disk.free()
                if kind != "full_state":
                    # It may have been at any time since.
                    self.ledger.database_crashed(time.monotonic())
                full_until.update((name, time.monotonic()) for name in FULL[kind])
                self.log.note("there is room again")

        if kind != "full_state":
            self.ledger.database_crashed(time.monotonic())
        thread = threading.Thread(target=stay_full, name=kind)
        for disk in disks:
            disk.fill()
        thread.start()
        self.going_on.append(thread)
        if new_segment:
            try:
                self.stack.sql("select pg_switch_wal()")
            except (AssertionError, subprocess.TimeoutExpired):
                pass  # it is away, for now or by this
        return True
