"""What is killed and stopped, and who starts it again. Started by faults.py.

The plan (kinds and pauses) comes from the seed alone; which process of a kind is
hit depends on what runs at that moment. What the service itself does not start
again (paddockd's supervisor, the prefork manager, the web server, Postgres) is started
by a ServiceManager, one part at a time, as systemd does with Restart=always.
"""

import os
import pathlib
import random
import signal
import subprocess
import threading
import time

from harness import WEB, children, cmdline, processes_naming


def is_alive(pid):
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat[stat.rindex(")") + 2] not in "ZX"


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


def part_pid(stack, name):
    """None while it is being started."""
    try:
        return stack.pid(name)
    except (OSError, IndexError, ValueError):
        return None


def _supervised(name):
    def find(stack):
        pid = part_pid(stack, name)
        return [pid] if pid and is_alive(pid) else []

    return find


def _handlers(stack):
    manager = part_pid(stack, "paddock-fcgi")
    return children(manager) if manager else []


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
    "listen_backend": lambda s: _backends(
        s, "application_name = 'paddockd' and query like 'LISTEN%'"
    ),
    "postgres": _supervised("postgres"),
}
STOPPED = {
    "stop_main": _part("main"),
    "stop_guest": _sentries,
    "stop_handler": _handlers,
}
KINDS = {**KILLED, **STOPPED}

# Their end makes Postgres start all over, as after a crash.
_DATABASE = ("handlers_backend", "mains_backend", "listen_backend", "postgres")
# What a kind takes with it that a ServiceManager must start again.
_SUPERVISED = {
    "supervisor": "paddockd",
    "manager": "paddock-fcgi",
    "web": WEB,
    "postgres": "postgres",
}


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


class ServiceManager(threading.Thread):
    """Starts a part again that ended, after a pause."""

    def __init__(self, stack, log, ledger, seed):
        super().__init__(name="service manager")
        self.stack, self.log, self.ledger = stack, log, ledger
        self.chance = random.Random(f"{seed}:service manager")
        self.finish = threading.Event()
        self.killed = set()  # process ids; each is here before it is killed

    def run(self):
        due = {}
        while not self.finish.wait(0.1):
            for part in _SUPERVISED.values():
                pid = part_pid(self.stack, part)
                if pid and is_alive(pid):
                    continue
                now = time.monotonic()
                if part not in due:
                    due[part] = now + self.chance.choice((0, self.chance.uniform(0.1, 2)))
                    if pid not in self.killed:
                        self.ledger.violation(f"{part} ended though nobody killed it")
                if now < due[part]:
                    continue
                del due[part]
                self._restart(part)

    def _restart(self, part):
        done = self.stack.restart(part)
        if done.returncode == 0:
            self.log.note(f"{part} started again")
        elif part != "postgres":
            # Restart=always would try again; but nothing stands in its way, so it need not.
            self.ledger.violation(f"{part} did not start: {done.stderr[-1500:]}")
        else:
            # Its former backends may hold its memory a moment longer; an init system would have
            # waited for their end.
            self.log.note("postgres did not start yet")

    def all_up(self):
        pids = [part_pid(self.stack, part) for part in _SUPERVISED.values()]
        return all(pid and pid not in self.killed and is_alive(pid) for pid in pids)


class Injector(threading.Thread):
    """Works the plan off."""

    def __init__(self, seed, stack, ledger, log, manager, kinds, count):
        super().__init__(name="injector")
        self.stack, self.ledger, self.log, self.manager = stack, ledger, log, manager
        self.chance = random.Random(f"{seed}:faults")
        self.done = 0
        self.give_up = threading.Event()
        self.timers = []
        # Each kind once before any comes again.
        self.plan = []
        while len(self.plan) < count:
            some = list(kinds)
            self.chance.shuffle(some)
            self.plan += some
        self.plan = self.plan[:count]
        self.kinds = list(kinds)

    def run(self):
        for kind in self.plan:
            if self.give_up.wait(self.chance.uniform(0.1, 2.5)):
                return
            while not self.give_up.is_set():
                if self._hit(kind):
                    self.done += 1
                    break
                # No such process for now.
                self.give_up.wait(0.2)

    def _hit(self, kind):
        found = sorted(KINDS[kind](self.stack))
        if not found:
            return False
        pid = self.chance.choice(found)
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        # By now the number may be another process's.
        if pid not in KINDS[kind](self.stack) or not is_alive(pid):
            os.close(pidfd)
            return False
        if kind in STOPPED:
            return self._pause(kind, pid, pidfd)
        if kind in _SUPERVISED:
            self.manager.killed.add(pid)
        asked = time.monotonic()
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except ProcessLookupError:
            return False
        finally:
            os.close(pidfd)
        if kind in _DATABASE:
            with self.ledger.lock:
                self.ledger.database_crashes.append(asked)
        self.log.note(f"kill -9 {kind} {pid}")
        return True

    def _pause(self, kind, pid, pidfd):
        seconds = self.chance.uniform(0.5, 2)

        def go_on():
            try:
                signal.pidfd_send_signal(pidfd, signal.SIGCONT)
            except ProcessLookupError:
                pass  # it was killed meanwhile
            os.close(pidfd)

        try:
            signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
        except ProcessLookupError:
            os.close(pidfd)
            return False
        self.log.note(f"{kind} {pid} for {seconds:.2f} s")
        timer = threading.Timer(seconds, go_on)
        timer.start()
        self.timers.append(timer)
        return True

    def settle(self):
        """After the last fault: everything that was stopped runs."""
        for timer in self.timers:
            timer.join()
