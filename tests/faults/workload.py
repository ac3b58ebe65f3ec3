"""Clients that do everything the service offers, at random, and remember what they were told.

Started by faults.py. The ledger holds every acknowledgement; what an answer
says is judged against it at once (a terminal state stays as it was told, states
follow common/states.def, one key is one resource), and invariants.py judges the
rest when the work is over. A client that gets no answer has been told nothing.
"""

import http.client
import pathlib
import random
import re
import sys
import threading
import time

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests" / "integration"))

# The longest a request waits here, and the longest it may go without any answer at all. Handlers
# give the database up to 15 s, and what is killed or stopped under a request adds to that.
WAIT_S = 20
ANSWER_S = 90
LIVE_A_CLIENT = 2
# A server that was killed serves and forgets so much longer at most.
CRASH_S = 5


class States:
    """The tables of common/states.def."""

    def __init__(self):
        text = (TOP / "common" / "states.def").read_text()
        self.terminal, self.next, self.reachable = {}, {}, {}
        for kind in ("SANDBOX", "EXECUTION"):
            rows = re.findall(rf'^{kind}_STATE\((\w+), "(\w+)", ([01])\)', text, re.M)
            name = {symbol: word for symbol, word, _ in rows}
            steps = {word: set() for word in name.values()}
            for a, b in re.findall(rf"^{kind}_TRANSITION\((\w+), (\w+)\)", text, re.M):
                steps[name[a]].add(name[b])
            key = kind.lower()
            self.terminal[key] = {word for _, word, end in rows if end == "1"}
            self.next[key] = steps
            self.reachable[key] = {word: self._closure(steps, word) for word in steps}
        self.reasons = set(re.findall(r'^REASON\("(\w+)"', text, re.M))
        assert self.terminal["sandbox"] and self.next["execution"] and self.reasons

    @staticmethod
    def _closure(steps, start):
        found, todo = {start}, [start]
        while todo:
            for state in steps[todo.pop()] - found:
                found.add(state)
                todo.append(state)
        return found


class Known:
    """One acknowledged resource: all that was said of it that still counts."""

    def __init__(self, kind, sandbox_id):
        self.kind = kind
        self.sandbox_id = sandbox_id
        self.seen = None  # (asked, answered, state), the latest that was not terminal
        self.final = None  # the terminal resource, as it was first told
        self.final_at = None
        self.expect = None  # of an execution: what a true result looks like


class Ledger:
    """What the clients were told, and what was wrong with it."""

    def __init__(self):
        self.states = States()
        self.lock = threading.Lock()
        self.known = {}
        self.keys = {}
        self.operations = 0
        self.unanswered = 0
        self.violations = []
        self.database_crashes = []  # times

    def violation(self, text):
        with self.lock:
            self.violations.append(f"{time.strftime('%H:%M:%S')} {text}")

    def database_crashed(self, at):
        with self.lock:
            self.database_crashes.append(at)

    def count(self):
        with self.lock:
            self.operations += 1

    def ids(self, kind):
        with self.lock:
            return [i for i, known in self.known.items() if known.kind == kind]

    def key_gave(self, operation, key, resource_id):
        with self.lock:
            before = self.keys.setdefault((operation, key), resource_id)
        if before != resource_id:
            self.violation(f"key {key} of {operation} gave {before}, and then {resource_id}")

    def told(self, kind, said, asked, answered, expect=None):
        """Takes a resource from an answer to a request that was sent at `asked`."""
        resource_id, state = said["id"], said["state"]
        steps = self.states.next[kind]
        if state not in steps:
            self.violation(f"{kind} {resource_id} is in state {state!r}")
            return
        for problem in self._form(kind, said):
            self.violation(f"{kind} {resource_id}: {problem}: {said}")
        with self.lock:
            known = self.known.get(resource_id)
            if known is None:
                known = self.known[resource_id] = Known(kind, said.get("sandboxId"))
            known.expect = known.expect or expect
            wrong = self._compare(known, said, asked, answered)
        if wrong:
            self.violation(f"{kind} {resource_id}: {wrong}")

    def _form(self, kind, said):
        ended = said["state"] in self.states.terminal[kind]
        if ended != (said["endedAt"] is not None):
            yield "endedAt and state disagree"
        if said["reason"] is not None and said["reason"] not in self.states.reasons:
            yield "a reason that is not in the list"
        if kind == "sandbox":
            if (ended or said["state"] == "stopping") and said["reason"] is None:
                yield "it ends without a reason"
        elif said["state"] in ("lost", "cancelled") and not (said["reason"] or said["error"]):
            yield "it is over and nothing says why"

    def _compare(self, known, said, asked, answered):
        """Under the lock. What is wrong, or None."""
        state = said["state"]
        if state in self.states.terminal[known.kind]:
            if known.final is not None:
                return None if known.final == said else f"was {known.final}, and now is {said}"
            known.final, known.final_at = said, answered
        elif known.final is not None and asked > known.final_at:
            return f"was {known.final['state']}, and now is {state}"
        if known.seen and known.seen[1] < asked:
            before = known.seen[2]
            # The claim of an execution is not waited for until it is on disk (0001_schema.sql).
            forgotten = (before, state) == ("running", "queued") and any(
                known.seen[0] - CRASH_S <= t <= answered for t in self.database_crashes
            )
            if state not in self.states.reachable[known.kind][before] and not forgotten:
                return f"was {before}, and now is {state}"
        if known.seen is None or known.seen[1] < asked:
            known.seen = (asked, answered, state)
        return None


def random_hex(chance):
    return f"{chance.getrandbits(128):032x}"


class Command:
    """A command for an execution, and what a true result of it looks like."""

    def __init__(self, chance):
        self.key = random_hex(chance)
        # It notes that it ran, and says how often it did by now.
        note = f"echo {self.key} >> /workspace/ran; grep -c {self.key} /workspace/ran"
        self.exit_code, self.stdout, self.times_out = 0, "1\n", False
        self.body = {"timeoutMs": 20000, "tag": self.key}
        self.language = None
        kind = chance.choice(
            ("quick", "quick", "quick", "fails", "output", "stdin", "spooled", "long", "slow_output",
             "python", "kill", "terminate")
        )
        self.kind = kind
        if kind == "quick":
            self.body["cmd"] = note
        elif kind == "fails":
            self.exit_code = chance.randint(1, 125)
            self.body["cmd"] = f"{note}; exit {self.exit_code}"
        elif kind == "output":
            count = chance.randint(1000, 9000)
            self.body["cmd"] = f"{note}; seq {count}"
            self.stdout += "".join(f"{i}\n" for i in range(1, count + 1))
        elif kind == "stdin":
            text = f"{self.key}\n" * chance.randint(1, 1500)
            self.body.update(cmd=f"{note}; cat", stdin=text)
            self.stdout += text
        elif kind == "spooled":
            # More than a web server keeps of a body in memory.
            count = chance.randint(2500, 6000)
            self.body.update(cmd=f"{note}; wc -l", stdin=f"{self.key}\n" * count)
            self.stdout += f"{count}\n"
        elif kind == "long":
            self.body["cmd"] = f"{note}; sleep {chance.uniform(0.5, 4):.2f}; echo slept"
            self.stdout += "slept\n"
        elif kind == "slow_output":
            count = chance.randint(3, 15)
            self.body["cmd"] = f"{note}; for i in $(seq {count}); do echo $i; sleep 0.1; done"
            self.stdout += "".join(f"{i}\n" for i in range(1, count + 1))
        elif kind == "python":
            self.body.update(
                language="python",
                code="import subprocess, sys\n"
                f"sys.stdout.write(subprocess.getoutput({note!r}) + '\\n')\n"
                f"sys.exit({self.exit_code})\n",
            )
        else:
            self.times_out = True
            self.body.update(cmd=f"{note}; sleep 100", timeoutMs=chance.randint(300, 1500))
            self.body["onTimeout"] = kind
        if chance.random() < 0.1:
            self.body["background"] = True

    def judge(self, said):
        """What is wrong with a final result, or None."""
        state, code = said["state"], said["exitCode"]
        if state == "succeeded":
            if self.times_out or self.exit_code != 0:
                return "it cannot have succeeded"
            return self._output(said) if code == 0 else "it succeeded with another exit code"
        if state == "failed" and code is not None:
            if code != self.exit_code or code == 0 or self.times_out:
                return "it has an exit code that it cannot have"
            return self._output(said)
        if state == "failed":
            return None if said["error"] else "it failed without an exit code or an error"
        if state == "timed_out":
            # A machine that is busy enough makes anything late.
            late = said["durationMs"] >= self.body["timeoutMs"]
            return None if self.times_out or late else "it timed out before its time"
        return None  # lost, cancelled: Ledger._form asks for their reason

    def _output(self, said):
        out, omitted = said["stdout"], said["omitted"]["stdout"]
        # What came before a main took over is counted and not kept.
        start = omitted["bytes"] if omitted and omitted["at"] == 0 else 0
        if out == self.stdout[start:] and said["bytes"]["stdout"] == len(self.stdout):
            return None
        return f"its output is {out[:200]!r} and not {self.stdout[:200]!r}"


class Client(threading.Thread):
    """One client: a thread with a chance of its own."""

    def __init__(self, seed, number, client, ledger, stop):
        super().__init__(name=f"client {number}")
        self.chance = random.Random(f"{seed}:{number}")
        self.client, self.ledger, self.stop = client, ledger, stop
        self.mine = []  # sandboxes that this client made and did not delete yet
        # Acknowledged requests with a key: kind, operation, path, body, key, expect.
        self.replays = []

    def run(self):
        actions = (
            (4, self.create),
            (10, self.execute),
            (3, self.get_sandbox),
            (4, self.get_execution),
            (1, self.list_sandboxes),
            (1, self.list_executions),
            (2, self.delete),
            (2, self.replay),
            (1, self.conflict),
        )
        weights = [weight for weight, _ in actions]
        try:
            while not self.stop.is_set():
                action = self.chance.choices([a for _, a in actions], weights)[0]
                if action() is None:
                    self.stop.wait(0.02)  # nothing to do it to
        except Exception as e:  # pylint: disable=broad-except
            self.ledger.violation(f"{self.name} cannot read what it was told: {e!r}")

    # --- asking ----------------------------------------------------------------------

    def ask(self, method, path, statuses, body=None, key=None):
        """(answer, asked, answered); the answer is None when there was none from the service."""
        asked = time.monotonic()
        headers = {"Idempotency-Key": key} if key else None
        try:
            answer = self.client.request(method, path, body, headers, timeout=ANSWER_S)
        except TimeoutError:
            self.ledger.violation(f"{method} {path}: no answer within {ANSWER_S} s")
            return None, asked, time.monotonic()
        except (OSError, http.client.HTTPException, ValueError):
            answer = None
        answered = time.monotonic()
        if answer is not None and answer.status >= 500 and answer.json is None:
            answer = None  # the web server's own: whoever held the request was killed
        if answer is None:
            with self.ledger.lock:
                self.ledger.unanswered += 1
            self.stop.wait(self.chance.uniform(0.05, 0.3))
        elif answer.status == 503:
            if not answer.headers["Retry-After"]:
                self.ledger.violation(f"{method} {path}: 503 without Retry-After")
            self.stop.wait(self.chance.uniform(0.1, 0.5))
        else:
            self.ledger.count()
            if answer.status not in statuses:
                said = f"HTTP {answer.status} {answer.body[:500]!r}"
                self.ledger.violation(f"{method} {path}: {said}")
                answer = None
        return answer, asked, answered

    def ask_with_key(self, path, statuses, body, key):
        """Asks again until there is an answer, as a client does that has a key."""
        for _ in range(60):
            answer, asked, answered = self.ask("POST", path, statuses, body, key)
            if answer is not None and answer.status != 503:
                return answer, asked, answered
            if key is None or self.stop.is_set():
                break
        return None, 0, 0

    def acknowledged(self, kind, operation, answer, asked, answered, key, expect=None):
        said = answer.json
        self.ledger.told(kind, said, asked, answered, expect)
        if key:
            self.ledger.key_gave(operation, key, said["id"])
        over = said["state"] not in ("queued", "provisioning", "running")
        if answer.status == 201 and not over or answer.status == 202 and over:
            self.ledger.violation(f"{operation}: HTTP {answer.status} with state {said['state']}")

    def pick(self, kind):
        ids = self.ledger.ids(kind)
        return self.chance.choice(ids) if ids else None

    def wait_word(self):
        return self.chance.choice((f"?wait={WAIT_S}", f"?wait={WAIT_S}", "?wait=1", "?wait=0"))

    # --- actions ---------------------------------------------------------------------

    def create(self):
        if len(self.mine) >= LIVE_A_CLIENT:
            return self.execute()
        mark = random_hex(self.chance)
        key = mark if self.chance.random() < 0.7 else None
        body = {
            "template": "base",
            "memoryMb": 512,
            "labels": {"mark": mark},
            "ttlSeconds": self.chance.choice((None, None, 600, 4)),
        }
        path = f"~{self.wait_word()}"
        answer, asked, answered = self.ask_with_key(path, (200, 201, 202, 429), body, key)
        if answer is None or answer.status == 429:
            return True
        self.acknowledged("sandbox", "create", answer, asked, answered, key)
        self.mine.append(answer.json["id"])
        if key:
            self.replays.append(("sandbox", "create", "~", body, key, None))
        return True

    def execute(self):
        sandbox = self.chance.choice(self.mine) if self.mine else None
        if sandbox is None or self.chance.random() < 0.15:
            sandbox = self.pick("sandbox")
        if sandbox is None:
            return None
        command = Command(self.chance)
        key = command.key if self.chance.random() < 0.7 else None
        path = f"~/{sandbox}/exec"
        answer, asked, answered = self.ask_with_key(
            path + self.wait_word(), (200, 201, 202, 410, 429), command.body, key
        )
        if answer is None or answer.status == 429:
            return True
        if answer.status == 410:
            if sandbox in self.mine:
                self.mine.remove(sandbox)
            return True
        operation = f"exec:{sandbox}"
        self.acknowledged("execution", operation, answer, asked, answered, key, command)
        if key:
            self.replays.append(("execution", operation, path, command.body, key, command))
        return True

    def get_sandbox(self):
        sandbox = self.pick("sandbox")
        if sandbox is None:
            return None
        word = self.chance.choice(("", "?wait=2"))
        answer, asked, answered = self.ask("GET", f"~/{sandbox}{word}", (200,))
        if answer is not None and answer.status == 200:
            self.ledger.told("sandbox", answer.json, asked, answered)
        return True

    def get_execution(self):
        execution = self.pick("execution")
        if execution is None:
            return None
        sandbox = self.ledger.known[execution].sandbox_id
        path = f"~/{sandbox}/executions/{execution}"
        word = self.chance.choice(("", f"?wait={WAIT_S}"))
        answer, asked, answered = self.ask("GET", path + word, (200,))
        if answer is not None and answer.status == 200:
            self.ledger.told("execution", answer.json, asked, answered)
        return True

    def take_list(self, kind, path):
        answer, asked, answered = self.ask("GET", path, (200,))
        if answer is None or answer.status != 200:
            return True
        items = answer.json["items"]
        if len({i["id"] for i in items}) != len(items):
            self.ledger.violation(f"{path}: a resource twice in one page")
        for item in items:
            # A list tells of what others asked for, too, and of requests whose answer was lost.
            if item["id"] in self.ledger.known:
                self.ledger.told(kind, item, asked, answered)
        return True

    def list_sandboxes(self):
        state = self.chance.choice(("", "&state=ready", "&state=failed"))
        return self.take_list("sandbox", f"~?limit={self.chance.randint(1, 200)}{state}")

    def list_executions(self):
        sandbox = self.pick("sandbox")
        return sandbox and self.take_list("execution", f"~/{sandbox}/executions?limit=100")

    def delete(self):
        if not self.mine:
            return None
        sandbox = self.mine.pop(self.chance.randrange(len(self.mine)))
        word = self.chance.choice((f"?wait={WAIT_S}", "?wait=0"))
        answer, asked, answered = self.ask("DELETE", f"~/{sandbox}{word}", (200, 202))
        if answer is None or answer.status == 503:
            self.mine.append(sandbox)
            return True
        self.ledger.told("sandbox", answer.json, asked, answered)
        if (answer.status == 200) != (answer.json["endedAt"] is not None):
            self.ledger.violation(f"DELETE: HTTP {answer.status} with {answer.json['state']}")
        return True

    def replay(self):
        """The same request with the same key once more: the same resource."""
        if not self.replays:
            return None
        kind, operation, path, body, key, expect = self.chance.choice(self.replays)
        answer, asked, answered = self.ask("POST", f"{path}?wait=0", (200,), body, key)
        if answer is None or answer.status != 200:
            return True
        if answer.headers["Idempotency-Replayed"] != "true":
            self.ledger.violation(f"{operation} with key {key} ran again")
        self.acknowledged(kind, operation, answer, asked, answered, key, expect)
        return True

    def conflict(self):
        """The same key with other input is refused."""
        if not self.replays:
            return None
        _, _, path, body, key, _ = self.chance.choice(self.replays)
        other = dict(body, env={"OTHER": "1"})
        answer, _, _ = self.ask("POST", f"{path}?wait=0", (409,), other, key)
        if answer is not None and answer.status == 409:
            if answer.json["code"] != "idempotency_conflict":
                self.ledger.violation(f"{path}: {answer.json}")
        return True
