"""What must hold when the work is over and nobody has touched the service since.

Called by faults.py: watch() before the work, back_to_work() and check() after
it. Each check adds what it finds to the ledger's violations; none ends the run,
so that a broken seed shows all that is wrong with it.
"""

import collections
import os
import pathlib
import re
import time

from harness import cgroups_naming, children, cmdline, fd_count, processes_naming, rss_kib

BACK_S = 90  # until the service works again by itself
SETTLE_S = 60  # until every execution is over and every sandbox ready or over
# Beside what the baseline had: hand-off connections of handlers (web.children of them), and one to
# the database that is just being made anew.
FDS_MORE = 8
# glibc keeps some of what was freed; a leak of what these runs move would be more.
RSS_MORE_KIB = 16 * 1024

# The end of an interval is noted after the sandbox's, in its transaction; that was held up at times.
NOTED_LATE_S = 10

# What usage_intervals may not hold, with what is wrong with it.
USAGE = f"""
select 'intervals overlap', a.sandbox_id from usage_intervals a join usage_intervals b
    on b.sandbox_id = a.sandbox_id and b.seq > a.seq
    where a.ended_at is null or b.begun_at < a.ended_at
union all select 'an interval is open', sandbox_id from usage_intervals where ended_at is null
union all select 'an interval is not within its life', s.id
    from usage_intervals i join sandboxes s on s.id = i.sandbox_id
    where i.begun_at < s.ready_at - interval '{NOTED_LATE_S} s' or i.begun_at < s.created_at
        or i.ended_at > s.ended_at + interval '{NOTED_LATE_S} s'
union all select 'it was ready, and no interval says so', s.id from sandboxes s
    where s.ready_at is not null
        and not exists (select from usage_intervals i where i.sandbox_id = s.id)
union all select 'it was never ready, and used something', s.id from sandboxes s
    join usage_intervals i on i.sandbox_id = s.id where s.ready_at is null
union all select 'its usage is no sum of its intervals, or longer than its life', u.id
    from sandbox_usage u join sandboxes s on s.id = u.id, lateral (
        select coalesce(sum(extract(epoch from i.ended_at - i.begun_at)), 0) * 1000 as ms, count(*)
        from usage_intervals i where i.sandbox_id = s.id) i
    where abs(u.runtime_ms + u.paused_ms - i.ms) > i.count + 1
        or i.ms > (extract(epoch from s.ended_at - s.created_at) + {NOTED_LATE_S}) * 1000
union all select 'it used more CPU time than its cores had', s.id from sandboxes s
    where s.cpu_us > (extract(epoch from s.ended_at - s.created_at) + {NOTED_LATE_S})
        * 1000000 * s.cpus
"""

# How often audit has what must be there once; who asked for it is in it.
AUDIT = """
select 'sandbox.create', s.id, count(a) from sandboxes s left join audit a
    on a.sandbox_id = s.id and a.action = 'sandbox.create' and a.token_id = s.token_id
    and a.request_id is not null group by s.id having count(a) <> 1
union all select 'sandbox.end', s.id, count(a) from sandboxes s left join audit a
    on a.sandbox_id = s.id and a.action = 'sandbox.end'
    and a.detail->>'state' = s.state and a.detail->>'reason' = s.reason
    group by s.id having count(a) <> 1
union all select 'sandbox.terminate', s.id, count(a) from sandboxes s left join audit a
    on a.sandbox_id = s.id and a.action = 'sandbox.terminate' and a.token_id is not null
    where s.reason = 'requested' group by s.id having count(a) <> 1
union all select 'execution.create', e.id, count(a) from executions e left join audit a
    on a.execution_id = e.id and a.action = 'execution.create' and a.sandbox_id = e.sandbox_id
    and a.token_id = e.token_id and a.request_id is not null group by e.id having count(a) <> 1
union all select 'execution.end', e.id, count(a) from executions e left join audit a
    on a.execution_id = e.id and a.action = 'execution.end' and a.sandbox_id = e.sandbox_id
    and a.detail->>'state' = e.state group by e.id having count(a) <> 1
union all select 'a second ' || action, coalesce(execution_id, sandbox_id), count(*) from audit
    where action in ('sandbox.create', 'sandbox.end', 'execution.create', 'execution.end')
    group by action, coalesce(execution_id, sandbox_id) having count(*) > 1
"""

# Every change of a state, as the database saw it, with the transaction it belongs to.
HISTORY = """
create table faults_history (n bigserial primary key, kind text, id uuid, was text, now text);
create function faults_note() returns trigger language plpgsql as $$
begin
    if TG_OP = 'INSERT' then
        insert into faults_history (kind, id, now) values (TG_ARGV[0], NEW.id, NEW.state);
    elsif NEW.state <> OLD.state then
        insert into faults_history (kind, id, was, now)
            values (TG_ARGV[0], NEW.id, OLD.state, NEW.state);
    end if;
    return null;
end $$;
create trigger faults_note after insert or update on sandboxes
    for each row execute function faults_note('sandbox');
create trigger faults_note after insert or update on executions
    for each row execute function faults_note('execution');
"""


def poll(condition, seconds):
    """The first true value of condition() within the time, else its last."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value or time.monotonic() > deadline:
            return value
        time.sleep(0.1)


TABLES = {"sandbox": "sandboxes", "execution": "executions"}


class Invariants:
    def __init__(self, stack, ledger):
        self.stack, self.client, self.ledger = stack, stack.client, ledger
        self.state = stack.run_dir / "state"

    def say(self, text):
        self.ledger.violation(text)

    # --- before ----------------------------------------------------------------------

    def watch(self):
        """Notes the state of a service that has worked a little."""
        self.stack.sql(HISTORY)
        for _ in range(2):
            self._try_out()
        self.base = self._measure()

    def _try_out(self):
        """One sandbox from create to delete; None when the service does not do that (yet)."""
        try:
            made = self.client.request("POST", "~", {"template": "base"}, timeout=60)
            if made.status != 201 or made.json["state"] != "ready":
                return None
            path = f"~/{made.json['id']}"
            ran = self.client.request("POST", f"{path}/exec", {"cmd": "echo back"}, timeout=60)
            gone = self.client.request("DELETE", path, timeout=60)
        except (OSError, ValueError):
            return None
        right = ran.status == 201 and ran.json["stdout"] == "back\n"
        return right and gone.status == 200 or None

    def _measure(self):
        main, keeper = self.stack.daemon_part("main"), self.stack.daemon_part("keeper")
        if main is None or keeper is None:
            return None
        manager = self.stack.pid("paddock-fcgi")
        handlers = children(manager)
        return {
            "main_fds": fd_count(main),
            "main_rss_kib": rss_kib(main),
            "keeper_fds": fd_count(keeper),
            "keeper_rss_kib": rss_kib(keeper),
            "manager_fds": fd_count(manager),
            "handlers": len(handlers),
            "handler_fds": max(map(fd_count, handlers), default=0),
            "handler_rss_kib": max(map(rss_kib, handlers), default=0),
        }

    # --- after -----------------------------------------------------------------------

    def back_to_work(self):
        """The service works again without a hand. True when it does."""
        if poll(self._try_out, BACK_S):
            return True
        self.say(f"the service does not work again within {BACK_S} s")
        return False

    def check(self):
        self._settle()
        self._survivors()
        self._end_all()
        self._rows()
        self._histories()
        self._usage()
        self._audit()
        self._results()
        self._lists()
        self._host()
        self._sizes()
        self._logs()

    def _settle(self):
        """No execution goes on, and no sandbox is between two states, without an end."""

        def unsettled():
            return self.stack.sql(
                "select 'sandbox', id, state from sandboxes"
                " where ended_at is null and state <> 'ready' union all"
                " select 'execution', id, state from executions where ended_at is null"
            )

        poll(lambda: not unsettled(), SETTLE_S)
        for kind, row_id, state in unsettled():
            self.say(f"{kind} {row_id} stays {state}")

    def _survivors(self):
        """Every sandbox that is said to be ready has its guest, with all that was done in it."""
        for (sandbox,) in self.stack.sql("select id from sandboxes where state = 'ready'"):
            # It may expire just now, here and below.
            if not [p for p in processes_naming(sandbox) if " boot " in f" {cmdline(p)} "]:
                if self.client.get({"id": sandbox})["state"] == "ready":
                    self.say(f"sandbox {sandbox} is ready and has no guest")
                continue
            ran = self.client.request(
                "POST", f"~/{sandbox}/exec", {"cmd": "touch /workspace/ran; cat /workspace/ran"}
            )
            over = ran.status == 201 and ran.json["state"] in ("lost", "cancelled")
            if over or ran.status == 410:
                if not self.client.get({"id": sandbox})["endedAt"]:
                    self.say(f"sandbox {sandbox} is ready and does not work: {ran.body[:500]!r}")
                continue
            if ran.status != 201 or ran.json["state"] != "succeeded":
                self.say(f"sandbox {sandbox} is ready and does not work: {ran.body[:500]!r}")
                continue
            times = collections.Counter(ran.json["stdout"].split())
            for execution, known in self._executions_of(sandbox):
                key, said = known.expect.key, self._now(execution, known)
                if times[key] > 1 or said["state"] == "succeeded" and times[key] != 1:
                    self.say(f"execution {execution} is {said['state']} and ran {times[key]} times")

    def _executions_of(self, sandbox):
        return [
            (i, known)
            for i, known in self.ledger.known.items()
            if known.kind == "execution" and known.sandbox_id == sandbox
        ]

    def _path(self, resource_id, known):
        if known.kind == "sandbox":
            return f"~/{resource_id}"
        return f"~/{known.sandbox_id}/executions/{resource_id}"

    def _now(self, resource_id, known):
        asked = time.monotonic()
        answer = self.client.request("GET", self._path(resource_id, known))
        if answer.status != 200:
            self.say(f"{known.kind} {resource_id}: HTTP {answer.status} {answer.body[:300]!r}")
            return {"state": None}
        self.ledger.told(known.kind, answer.json, asked, time.monotonic())
        return answer.json

    def _end_all(self):
        for (sandbox,) in self.stack.sql("select id from sandboxes where ended_at is null"):
            answer = self.client.request("DELETE", f"~/{sandbox}?wait=60")
            if answer.status != 200 or not answer.json["endedAt"]:
                self.say(f"{sandbox} does not end: HTTP {answer.status} {answer.body[:500]!r}")

    def _rows(self):
        """Also those of requests whose answer was lost."""
        for kind, table in TABLES.items():
            extra = "null" if kind == "sandbox" else "error"
            for row_id, state, reason, error in self.stack.sql(
                f"select id, state, reason, {extra} from {table}"
            ):
                unexplained = not reason and not error
                if state not in self.ledger.states.terminal[kind]:
                    self.say(f"{kind} {row_id} is left {state}")
                elif unexplained and (kind == "sandbox" or state in ("lost", "cancelled")):
                    self.say(f"{kind} {row_id} is {state} and nothing says why")
        # Each request has a mark of its own, and what has no key is sent once.
        for table, column in (("executions", "tag"), ("sandboxes", "labels->>'mark'")):
            for mark, count in self.stack.sql(
                f"select {column}, count(*) from {table} where {column} is not null"
                " group by 1 having count(*) > 1"
            ):
                self.say(f"the request with mark {mark} made {count} {table}")

    def _histories(self):
        """The states that each row went through, as common/states.def allows them."""
        for kind, table in TABLES.items():
            steps, at = self.ledger.states.next[kind], {}
            for row_id, was, now in self.stack.sql(
                f"select id, was, now from faults_history where kind = '{kind}' order by n"
            ):
                if at.get(row_id, "") != was:
                    self.say(f"{kind} {row_id} was {at.get(row_id)} and went from {was} to {now}")
                elif was == "" and now != "queued" or was != "" and now not in steps[was]:
                    self.say(f"{kind} {row_id} went from {was or 'nothing'} to {now}")
                at[row_id] = now
            for row_id, state in self.stack.sql(f"select id, state from {table}"):
                if row_id in at and at[row_id] != state:
                    self.say(f"{kind} {row_id} is {state}, and its history ends with {at[row_id]}")

    def _usage(self):
        """Intervals of one sandbox are disjoint, within its life, and what its usage is made of."""
        for problem, sandbox in self.stack.sql(USAGE):
            self.say(f"usage of sandbox {sandbox}: {problem}")

    def _audit(self):
        """Whatever was acknowledged, and every end, is there once, with who asked for it."""
        for action, row_id, count in self.stack.sql(AUDIT):
            self.say(f"audit has {count} times {action} of {row_id}")

    def _results(self):
        """Everything that was acknowledged is there, over, and as it was said to be."""
        for resource_id, known in list(self.ledger.known.items()):
            said = self._now(resource_id, known)
            if said["state"] is None or known.kind == "sandbox":
                continue
            wrong = known.expect and known.expect.judge(said)
            if wrong:
                self.say(f"execution {resource_id} ({known.expect.kind}): {wrong}: {said}")

    def _lists(self):
        """Page by page, every sandbox once, and every execution once below its sandbox."""
        sandboxes = self._walk("~?limit=50")
        for sandbox in self.ledger.ids("sandbox"):
            if sandboxes[sandbox] != 1:
                self.say(f"sandbox {sandbox} is {sandboxes[sandbox]} times in the list")
            executions = self._walk(f"~/{sandbox}/executions?limit=50")
            for execution, _ in self._executions_of(sandbox):
                if executions[execution] != 1:
                    self.say(f"execution {execution} is {executions[execution]} times in the list")

    def _walk(self, path):
        found, cursor = collections.Counter(), ""
        while cursor is not None:
            answer = self.client.request("GET", path + (cursor and f"&cursor={cursor}"))
            if answer.status != 200:
                self.say(f"GET {path}: HTTP {answer.status} {answer.body[:300]!r}")
                break
            found.update(item["id"] for item in answer.json["items"])
            cursor = answer.json["nextCursor"]
        return found

    def _host(self):
        """Nothing of any guest is left: processes, cgroups, mounts, sockets, folders, entries."""
        state, ids = str(self.state), [row[0] for row in self.stack.sql("select id from sandboxes")]

        def left():
            found = [f"process {p}: {cmdline(p)[:200]}" for p in processes_naming(state)]
            found += [f"folder {p}" for p in (self.state / "guests").iterdir()]
            found += [f"state of runsc {p}" for p in (self.state / "runsc").iterdir()]
            keeper = self.stack.daemon_part("keeper")
            found += [f"child {p} of the keeper" for p in (children(keeper) if keeper else [])]
            for mounts in ("/proc/mounts", f"/proc/{keeper}/mounts"):
                found += [f"mount {m}" for m in self._lines(mounts) if state in m]
            found += [f"socket {s}" for s in self._lines("/proc/net/unix") if state in s]
            found += [
                f"cgroup {c}" for c in cgroups_naming("paddock-") if os.path.basename(c) in ids
            ]
            return found

        poll(lambda: not left(), 15)
        for what in left():
            self.say(f"left behind: {what}")

    @staticmethod
    def _lines(path):
        try:
            return pathlib.Path(path).read_text(errors="replace").splitlines()
        except OSError:
            return []

    def _sizes(self):
        def grown():
            now = self._measure()
            if now is None:
                return ["there is no daemon"]
            out = []
            for name, before in self.base.items():
                more = RSS_MORE_KIB if name.endswith("_kib") else FDS_MORE
                if name == "handlers" and now[name] != before:
                    out.append(f"{name}: {before}, and now {now[name]}")
                elif now[name] > before + more:
                    out.append(f"{name} grew from {before} to {now[name]}")
            return out

        poll(lambda: not grown(), 15)
        for what in grown():
            self.say(what)

    def _logs(self):
        """Nobody died of anything but a kill -9."""
        for name in ("paddockd", "paddock-fcgi"):
            for line in self._lines(self.stack.run_dir / f"{name}.log"):
                # 134, 139 …: 128 + SIGABRT, SIGSEGV …; 137 is SIGKILL, and with SIGTERM the
                # supervisor ends a main that is too young to have a handler for it.
                died = re.search(r"(?:main_died|keeper_died)\W.*code\W+(\d+)", line)
                child = re.search(r"child_died\W.*exit\W+(-?\d+)\W.*signal\W+(\d+)", line)
                if died and int(died.group(1)) > 128 and died.group(1) not in ("137", "143"):
                    self.say(f"it crashed: {line}")
                if child and child.group(2) not in ("0", "9"):
                    self.say(f"it crashed: {line}")
                if "Sanitizer" in line:
                    self.say(f"{name}: {line}")

    def nothing_after_down(self):
        """`./dev down`, and the host is as it was."""
        run = str(self.stack.run_dir)
        self.stack.down()
        for pid in processes_naming(run):
            self.say(f"left behind after ./dev down: process {pid}: {cmdline(pid)[:200]}")
