"""What a running service takes of its host and of its guests, as numbers that can be compared.

Used by tests of long runs, which compare Footprint(stack).take() of two quiet moments. Memory is that
of the process alone (anonymous pages, KiB): pages of files come and go with the page cache.
"""

import pathlib

from harness import WEB, children, cmdline, fd_count, processes_naming, rss_kib, wait_for


def memory_kib(pid):
    return rss_kib(pid, "RssAnon")


def lines_naming(path, text):
    try:
        return [line for line in pathlib.Path(path).read_text(errors="replace").splitlines() if text in line]
    except OSError:
        return []


class Footprint:
    def __init__(self, stack):
        self.stack, self.run = stack, str(stack.run_dir)
        self.state = stack.run_dir / "state"
        conf = stack.config_path.read_text().splitlines()
        self.cgroup = next(line.split("=")[1].strip() for line in conf if line.startswith("parent"))

    def parts(self):
        """Processes of the service by name."""
        stack = self.stack
        manager = stack.pid("paddock-fcgi")
        found = {
            "supervisor": stack.pid("paddockd"),
            "keeper": wait_for(lambda: stack.daemon_part("keeper"), "the keeper"),
            "main": wait_for(lambda: stack.daemon_part("main"), "main"),
            "manager": manager,
        }
        found.update((f"handler {i}", pid) for i, pid in enumerate(sorted(children(manager))))
        return found

    def take(self):
        """{"kib": memory by process, "count": everything else that is counted, "pids"}"""
        parts = self.parts()
        counts = {f"descriptors of {name}": fd_count(pid) for name, pid in parts.items()}
        counts["descriptors of the web server"] = fd_count(self.stack.pid(WEB))
        backends = [p for p in children(self.stack.pid("postgres")) if " paddock paddock " in cmdline(p)]
        counts["connections to the database"] = len(backends)
        keeper = parts["keeper"]
        counts["mounts of the host"] = len(lines_naming("/proc/mounts", self.run))
        counts["mounts of the keeper"] = len(lines_naming(f"/proc/{keeper}/mounts", "/"))
        counts["sockets with a name"] = len(lines_naming("/proc/net/unix", self.run))
        counts["processes"] = len(processes_naming(self.run))
        counts["children of the keeper"] = len(children(keeper))
        counts["cgroups"] = sum(
            1 for root in pathlib.Path("/sys/fs/cgroup").glob(f"**{self.cgroup}") for _ in root.rglob("*/")
        )
        counts["files of state"] = sum(1 for _ in self.state.rglob("*"))
        counts["files beside sockets"] = sum(1 for _ in (self.stack.run_dir / "sock").rglob("*"))
        kib = {name: memory_kib(pid) for name, pid in parts.items()}
        return {"kib": kib, "count": counts, "pids": parts}
