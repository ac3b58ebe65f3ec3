"""What clients and operators change at the moment at which it changes by itself: one winner each,
and every answer tells the same story as the row does for ever after."""

import datetime
import itertools
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from contract import seed
from harness import processes_naming, wait_for
from test_lifecycle import ended, running, sleep_until, update

SEED = seed()
# What a race between an end of its own and one that was asked for may give, with its reason.
ENDS = {"succeeded": None, "cancelled": "execution_cancel", "timed_out": "execution_timeout"}


def path_of(sandbox, execution, more=""):
    return f"~/{sandbox['id']}/executions/{execution['id']}{more}"


def cancel(client, sandbox, execution, query=""):
    return client.request("POST", path_of(sandbox, execution, f"/cancel{query}"))


def started(client, sandbox, cmd, **fields):
    return client.request("POST", f"~/{sandbox['id']}/exec?wait=0", {"cmd": cmd, **fields}).expect(202)


def check_end(execution):
    assert ENDS[execution["state"]] == execution["reason"], execution
    assert execution["timedOut"] == (execution["state"] == "timed_out")
    if execution["state"] == "succeeded":
        assert execution["exitCode"] == 0
    assert execution["startedAt"] or execution["state"] == "cancelled"


# --- cancel ---------------------------------------------------------------------------------


def test_twenty_cancels_at_once_are_one(stack, client, sandbox):
    one = running(client, sandbox, "trap '' TERM; echo begun; while :; do sleep 1; done")
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: cancel(client, sandbox, one).expect(200), range(20)))
    assert {a["state"] for a in answers} == {"cancelled"}
    assert all(a == answers[0] for a in answers)
    assert answers[0] == client.request("GET", path_of(sandbox, one)).expect(200)
    recorded = f"SELECT count(*) FROM audit WHERE action = 'execution.cancel' AND execution_id = '{one['id']}'"
    assert stack.sql(recorded) == [["1"]]
    assert client.run(sandbox, "pgrep -fc '[b]egun' || true") == "0\n"


def test_cancel_exit_and_timeout_have_one_winner(client, sandbox):
    """At about the moment of its end, and of its time limit."""
    rng = random.Random(SEED)
    seen = set()
    for number in range(40):
        limit = 300 if number % 2 else None
        one = started(client, sandbox, f"sleep {0.3 if number % 4 < 2 else 0.05}", timeoutMs=limit)
        time.sleep(rng.uniform(0, 0.4))
        final = cancel(client, sandbox, one).expect(200)
        check_end(final)
        assert final == client.request("GET", path_of(sandbox, one)).expect(200), f"PADDOCK_SEED={SEED}"
        seen.add(final["state"])
    assert {"cancelled", "succeeded"} <= seen
    assert client.run(sandbox, "pgrep -c sleep || true") == "0\n"


def test_a_cancel_before_the_start_is_told_to_who_waits(own_stack):
    """The sandbox cannot become ready while its keeper stands still."""
    stack = own_stack()
    client = stack.client
    keeper = stack.daemon_part("keeper")
    os.kill(keeper, signal.SIGSTOP)
    try:
        sandbox = client.request("POST", "~?wait=0", {"template": "base"}).expect(202)
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(
                client.request, "POST", f"~/{sandbox['id']}/exec?wait=300", {"cmd": "touch ran"}
            )
            items = lambda: client.request("GET", f"~/{sandbox['id']}/executions").json["items"]
            one = wait_for(lambda: (found := items()) and found[0], "its admission")
            assert one["state"] == "queued"
            final = cancel(client, sandbox, one).expect(200)
            assert (final["state"], final["startedAt"]) == ("cancelled", None)
            answer = waits.result(60).expect(201)
            assert answer == final
    finally:
        os.kill(keeper, signal.SIGCONT)
    wait_for(lambda: client.get(sandbox)["state"] == "ready", "the guest")
    assert client.exec(sandbox, "cat ran")["exitCode"] == 1


def test_a_cancel_of_a_silent_guest_ends_in_bounded_time(own_stack):
    stack = own_stack("[guest]\nkill_grace = 100ms\n")
    client = stack.client
    sandbox = client.create(template="base")
    one = running(client, sandbox, "sleep 600")
    other = running(client, sandbox, "sleep 600")
    for pid in processes_naming(sandbox["id"]):
        os.kill(pid, signal.SIGSTOP)
    # It is not cancelled: what became of it is not known.
    final = cancel(client, sandbox, one, "?wait=120").expect(200)
    assert (final["state"], final["reason"]) == ("lost", "relay_lost")
    assert ended(client, sandbox)["reason"] == "relay_lost"
    assert client.request("GET", path_of(sandbox, other)).json["state"] == "lost"
    wait_for(lambda: not processes_naming(sandbox["id"]), "the guest's end")
    after = cancel(client, sandbox, other).expect(200)
    assert (after["state"], after["cancelRequestedAt"]) == ("lost", None)


@pytest.mark.parametrize("on_timeout", ["kill", "terminate"])
def test_cancel_and_the_sandbox_s_end_have_one_winner(client, on_timeout):
    for _ in range(3):
        sandbox = client.create(template="base")
        one = running(client, sandbox, "sleep 600", onTimeout=on_timeout)
        with ThreadPoolExecutor(2) as pool:
            gate = threading.Barrier(2)
            a = pool.submit(lambda: (gate.wait(), cancel(client, sandbox, one))[1])
            b = pool.submit(lambda: (gate.wait(), client.request("DELETE", f"~/{sandbox['id']}"))[1])
            execution, final = a.result().expect(200), b.result().expect(200)
        assert (execution["state"], execution["reason"]) in (
            ("cancelled", "execution_cancel"), ("lost", "requested"), ("lost", "execution_cancel"),
        )
        assert final["state"] == "terminated"
        assert final["reason"] in ("requested", "execution_cancel")
        assert execution == client.request("GET", path_of(sandbox, one)).expect(200)


def cancelled_in_its_grace(stack):
    """A sandbox with a cancelled execution that does not heed its TERM."""
    client = stack.client
    sandbox = client.create(template="base")
    one = running(client, sandbox, "trap '' TERM; touch deaf; while :; do sleep 1; done")
    client.run(sandbox, "until [ -e deaf ]; do sleep 0.1; done")
    assert cancel(client, sandbox, one, "?wait=0").expect(202)["state"] == "running"
    return sandbox, one


def test_a_cancel_whose_keeper_dies_ends_as_lost(own_stack):
    stack = own_stack("[guest]\nkill_grace = 30s\n")
    client = stack.client
    sandbox, one = cancelled_in_its_grace(stack)
    os.kill(stack.daemon_part("keeper"), signal.SIGKILL)
    final = ended(client, sandbox)
    assert (final["state"], final["reason"]) == ("failed", "daemon_restart")
    lost = cancel(client, sandbox, one).expect(200)
    assert (lost["state"], lost["reason"]) == ("lost", "daemon_restart")
    wait_for(lambda: not processes_naming(sandbox["id"]), "the guest's end")


def test_a_cancel_outlives_main(own_stack):
    stack = own_stack("[guest]\nkill_grace = 5s\n")
    client = stack.client
    sandbox, one = cancelled_in_its_grace(stack)
    os.kill(stack.daemon_part("main"), signal.SIGKILL)
    path = path_of(sandbox, one)
    done = wait_for(
        lambda: (e := client.request("GET", path)).status == 200 and e.json["endedAt"] and e.json,
        "the execution's end",
    )
    assert (done["state"], done["reason"]) == ("cancelled", "execution_cancel")
    assert client.run(sandbox, "echo alive") == "alive\n"
    client.delete(sandbox)


def test_out_of_memory_and_cancel_have_one_winner(client):
    hog = "import mmap\nkept = []\nwhile True:\n    m = mmap.mmap(-1, 8 << 20); m.write(b'x' * (8 << 20)); kept.append(m)\n"
    rng = random.Random(SEED)
    for _ in range(3):
        sandbox = client.create(template="base", memoryMb=512)
        one = client.request(
            "POST", f"~/{sandbox['id']}/exec?wait=0", {"code": hog, "language": "python"}
        ).expect(202)
        time.sleep(rng.uniform(0, 0.7))
        final = cancel(client, sandbox, one, "?wait=120").expect(200)
        story = (final["state"], final["reason"], final["oomKilled"])
        assert story in (
            ("cancelled", "execution_cancel", False), ("failed", None, True), ("lost", "oom", False),
        ), (story, f"PADDOCK_SEED={SEED}")
        if story[0] == "lost":
            assert ended(client, sandbox)["reason"] == "oom"
        client.request("DELETE", f"~/{sandbox['id']}")


# --- changed lifetimes ----------------------------------------------------------------------


def test_changes_at_once_leave_one_of_them(client, sandbox):
    ttls = list(range(1000, 1020))
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda n: update(client, sandbox, ttlSeconds=n, idleSeconds=n).expect(200), ttls))
    last = client.get(sandbox)
    assert last["ttlSeconds"] == last["idleSeconds"] and last["ttlSeconds"] in ttls
    assert all(a["ttlSeconds"] in ttls for a in answers)
    # expiresAt is that of the same change.
    due = datetime.datetime.fromisoformat(last["expiresAt"].replace("Z", "+00:00"))
    left = (due - datetime.datetime.now(datetime.timezone.utc)).total_seconds()
    assert last["ttlSeconds"] - 300 < left <= last["ttlSeconds"]


def test_changes_and_terminate_have_one_order(client):
    """No change is granted to what a client was told is ending."""
    sandbox = client.create(template="base")
    told = threading.Event()
    late = []

    def renew():
        for n in itertools.count(1):
            before = told.is_set()
            answer = update(client, sandbox, ttlSeconds=1000 + n)
            if before:
                late.append(answer.status)
            if answer.status != 200:
                return answer

    with ThreadPoolExecutor(4) as pool:
        renewals = [pool.submit(renew) for _ in range(4)]
        client.request("DELETE", f"~/{sandbox['id']}?wait=0").expect(200, 202)
        told.set()
        answers = [r.result(60) for r in renewals]
    assert [a.status for a in answers] == [410] * 4
    assert set(late) <= {410}
    final = ended(client, sandbox)
    assert (final["state"], final["reason"]) == ("terminated", "requested")
    assert client.get(sandbox) == final


def test_idle_and_a_change_have_one_winner(client):
    for offset_ms in (-40, -10, 0, 10, 40):
        sandbox = client.create(template="base", idleSeconds=2)
        sleep_until(sandbox, "idleAt", offset_ms)
        answer = update(client, sandbox, idleSeconds=600)
        if answer.status == 200:
            assert client.run(sandbox, "echo alive") == "alive\n"
            assert client.get(sandbox)["idleSeconds"] == 600
            client.delete(sandbox)
        else:
            assert answer.status == 410
            final = ended(client, sandbox)
            assert (final["state"], final["reason"], final["idleSeconds"]) == ("expired", "idle", 2)


# --- projects -------------------------------------------------------------------------------


def test_disabling_a_project_ends_its_work_and_tells_who_waits(stack):
    client, name = stack.new_project()
    sandbox = client.create(template="base")
    with ThreadPoolExecutor(8) as pool:
        works = [
            pool.submit(client.request, "POST", f"~/{sandbox['id']}/exec?wait=300", {"cmd": "sleep 600"})
            for _ in range(4)
        ]
        live = f"SELECT count(*) FROM executions WHERE sandbox_id = '{sandbox['id']}' AND state = 'running'"
        wait_for(lambda: stack.sql(live) == [["4"]], "the work")
        stop = threading.Event()

        def create():
            made = []
            while not stop.is_set():
                answer = client.request("POST", "~?wait=0", {"template": "base"})
                made.append(answer.status)
                if answer.status == 403:
                    break
            return made

        creators = [pool.submit(create) for _ in range(2)]
        stack.cli("project", "disable", name)
        for work in works:
            result = work.result(60).expect(201)
            assert (result["state"], result["reason"]) == ("lost", "project_disabled")
        stop.set()
        for creator in creators:
            assert set(creator.result(60)) <= {201, 202, 403, 503}  # 201: it has ended already
    mine = f"FROM sandboxes s JOIN projects p ON p.id = s.project_id WHERE p.name = '{name}'"
    wait_for(lambda: stack.sql(f"SELECT count(*) {mine} AND ended_at IS NULL") == [["0"]], "their end")
    assert stack.sql(f"SELECT DISTINCT s.state, reason {mine}") == [["terminated", "project_disabled"]]
    stack.cli("project", "enable", name)
    client.delete(client.create(template="base"))


def test_a_policy_that_allows_nothing_refuses_by_name(stack):
    """Bounds at their edges; whatever is stored, no create is a fault of the service."""
    client, name = stack.new_project()
    for words, body, status in (
        (["maxSandboxes=0"], {}, 429),
        (["templates="], {}, 422),
        (["egressModes=public"], {}, 422),
        (["maxMemoryMb=1"], {}, 400),
        (["maxPids=16"], {"pids": 17}, 400),
        (["maxTtlSeconds=1", "defaultTtlSeconds=1"], {"ttlSeconds": 2}, 400),
        (["maxIdleSeconds=1"], {"idleSeconds": None}, 400),
    ):
        stack.cli("project", "policy", name, *words)
        answer = client.request("POST", "~?wait=0", {"template": "base", **body})
        assert answer.status == status, (words, answer.body)
        stack.cli("project", "policy", name, *[w.split("=")[0] + "=null" for w in words])
    for words in (["maxTtlSeconds=0"], ["maxTtlSeconds=2", "defaultTtlSeconds=3"], ["maxCpus=0"]):
        assert stack.cli("project", "policy", name, *words, check=False).returncode != 0
    made = client.create(template="base", pids=16)
    client.delete(made)
