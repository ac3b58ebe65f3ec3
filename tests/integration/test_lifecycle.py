"""A sandbox's life as clients and operators change it: lifetimes, cancel, memory, policy, usage."""

import csv
import datetime
import io
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness import Client, wait_for

DAY = lambda: datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")


def update(client, sandbox, **fields):
    return client.request("PATCH", f"~/{sandbox['id']}", fields)


def ended(client, sandbox, seconds=60):
    return wait_for(lambda: (s := client.get(sandbox))["endedAt"] and s, "the end", seconds)


def sleep_until(sandbox, member, offset_ms):
    """Until a sandbox's deadline, by about so much."""
    due = datetime.datetime.fromisoformat(sandbox[member].replace("Z", "+00:00"))
    wait = (due - datetime.datetime.now(datetime.timezone.utc)).total_seconds()
    time.sleep(max(0, wait + offset_ms / 1000))


def running(client, sandbox, cmd, **fields):
    """An execution that has begun."""
    one = client.request(
        "POST", f"~/{sandbox['id']}/exec", {"cmd": cmd, "background": True, **fields}
    ).expect(202)
    path = f"~/{sandbox['id']}/executions/{one['id']}"
    return wait_for(
        lambda: (e := client.request("GET", path).json)["state"] == "running" and e, "the start"
    )


@pytest.fixture
def admin(stack):
    return Client(stack, stack.new_token(None, "admin"), stack.project)


# --- lifetimes ------------------------------------------------------------------------------


def test_a_longer_life_is_given_and_a_shorter_one_taken(client):
    sandbox = client.create(template="base", ttlSeconds=5)
    longer = update(client, sandbox, ttlSeconds=600, labels={"a": "b"}).expect(200)
    assert longer["ttlSeconds"] == 600 and longer["labels"] == {"a": "b"}
    assert longer["expiresAt"] > sandbox["expiresAt"]
    with pytest.raises(AssertionError, match="not within"):
        ended(client, sandbox, seconds=6)
    update(client, sandbox, ttlSeconds=1).expect(200)
    final = ended(client, sandbox)
    assert (final["state"], final["reason"]) == ("expired", "ttl")
    late = update(client, sandbox, ttlSeconds=60)
    assert late.status == 410 and "expired (ttl)" in late.json["detail"]


def test_no_limit_is_a_limit_that_can_be_lifted(client):
    sandbox = client.create(template="base", ttlSeconds=30, idleSeconds=30)
    free = update(client, sandbox, ttlSeconds=None, idleSeconds=None).expect(200)
    assert (free["expiresAt"], free["idleAt"]) == (None, None)
    client.delete(sandbox)


@pytest.mark.parametrize(
    "body, status, code",
    [
        ({}, 400, "malformed_request"),
        ({"cpus": 2}, 400, "unknown_field"),
        ({"ttlSeconds": 0}, 400, "invalid_field"),
        ({"ttlSeconds": "1"}, 400, "invalid_field"),
        ({"idleSeconds": 10**12}, 400, "limit_exceeded"),
        ({"labels": {"a": 1}}, 400, "invalid_field"),
    ],
)
def test_update_refuses_by_name(client, sandbox, body, status, code):
    answer = client.request("PATCH", f"~/{sandbox['id']}", body)
    assert (answer.status, answer.json["code"]) == (status, code)


def test_renewals_and_expiry_have_one_winner(client):
    """Renewals at about the moment of expiry: each that was granted holds."""
    for offset_ms in (-30, -5, 0, 5, 30):
        sandbox = update(client, client.create(template="base"), ttlSeconds=2).expect(200)
        sleep_until(sandbox, "expiresAt", offset_ms)
        answer = update(client, sandbox, ttlSeconds=600)
        if answer.status == 200:
            assert client.run(sandbox, "echo alive") == "alive\n"
            client.delete(sandbox)
        else:
            assert answer.status == 410
            assert ended(client, sandbox)["reason"] == "ttl"


def test_looking_does_not_lengthen_a_life_and_cpu_use_does(client):
    sandbox = client.create(template="base", idleSeconds=21)
    # A process in the background of an execution that has ended.
    client.run(sandbox, "(while :; do :; done) >/dev/null 2>&1 & disown; echo $! > pid")
    started = time.monotonic()
    while time.monotonic() - started < 32:
        assert client.get(sandbox)["state"] == "ready"
        time.sleep(1)
    client.run(sandbox, "kill $(cat pid)")
    looks = 0
    while not client.get(sandbox)["endedAt"]:
        looks += 1
        assert looks < 400
        time.sleep(0.2)
    assert client.get(sandbox)["reason"] == "idle"


# --- cancel ---------------------------------------------------------------------------------

STUBBORN = """
trap '' TERM
(setsid sh -c 'trap "" TERM; while :; do sleep 1; done' &)
(sh -c '(sh -c "trap \\"\\" TERM; while :; do sleep 1; done" &)' &)
echo begun
while :; do sleep 1; done
"""


def test_cancel_ends_the_whole_tree_and_nothing_else(client, sandbox):
    other = running(client, sandbox, "sleep 300")
    one = running(client, sandbox, STUBBORN)
    wait_for(lambda: "begun" in client.run(sandbox, "pgrep -fl 'while' >/dev/null && echo begun"), "it")
    done = client.request("POST", f"~/{sandbox['id']}/executions/{one['id']}/cancel").expect(200)
    assert (done["state"], done["reason"]) == ("cancelled", "execution_cancel")
    assert done["stdout"] == "begun\n" and done["cancelRequestedAt"]
    assert client.run(sandbox, "pgrep -f 'trap' | grep -vx $$ | wc -l") == "0\n"
    path = f"~/{sandbox['id']}/executions/{other['id']}"
    assert client.request("GET", path).json["state"] == "running"
    # Again, and of one that ended by itself: as it is.
    again = client.request("POST", f"~/{sandbox['id']}/executions/{one['id']}/cancel").expect(200)
    assert again == done
    over = client.exec(sandbox, "echo over")
    kept = client.request("POST", f"~/{sandbox['id']}/executions/{over['id']}/cancel").expect(200)
    assert kept["state"] == "succeeded"
    missing = f"~/{sandbox['id']}/executions/{sandbox['id']}/cancel"
    assert client.request("POST", missing).status == 404


def test_cancel_of_what_waits_for_its_sandbox(client):
    created = client.request("POST", "~?wait=0", {"template": "base"}).expect(202)
    one = client.request("POST", f"~/{created['id']}/exec?wait=0", {"cmd": "echo x > ran"}).expect(202)
    done = client.request("POST", f"~/{created['id']}/executions/{one['id']}/cancel").expect(200)
    ready = client.request("GET", f"~/{created['id']}?wait=60").expect(200)
    if done["startedAt"] is None:
        assert done["state"] == "cancelled"
        assert client.exec(ready, "cat ran")["exitCode"] != 0
    client.delete(ready)


def test_cancel_that_terminates_ends_the_sandbox(client):
    sandbox = client.create(template="base")
    one = running(client, sandbox, "sleep 300", onTimeout="terminate")
    done = client.request("POST", f"~/{sandbox['id']}/executions/{one['id']}/cancel").expect(200)
    assert done["state"] == "cancelled"
    final = ended(client, sandbox)
    assert (final["state"], final["reason"]) == ("terminated", "execution_cancel")


# --- memory ---------------------------------------------------------------------------------


def test_an_execution_that_exceeds_memory_is_oom_killed_and_its_sandbox_lives(client):
    sandbox = client.create(template="base", memoryMb=512)
    hog = (
        "import mmap\nkept = []\n"
        "while True:\n    m = mmap.mmap(-1, 16 << 20); m.write(b'x' * (16 << 20)); kept.append(m)\n"
    )
    try:
        result = client.exec(sandbox, code=hog, language="python", timeoutMs=120000)
        alive = client.get(sandbox)
        if alive["state"] == "ready":
            assert (result["state"], result["exitCode"]) == ("failed", 137), result
            assert result["oomKilled"] is True
            fine = client.exec(sandbox, "exit 3")
            assert (fine["exitCode"], fine["oomKilled"]) == (3, False)
        else:
            assert ended(client, sandbox)["reason"] == "oom"
            assert (result["state"], result["reason"]) == ("lost", "oom")
    finally:
        client.request("DELETE", f"~/{sandbox['id']}")


# --- policy ---------------------------------------------------------------------------------


def test_a_policy_is_set_by_the_installation_and_holds_at_once(stack, admin):
    client, name = stack.new_project()
    path = f"/api/v1/projects/{name}"
    before = client.request("GET", path).expect(200)
    assert before["name"] == name and set(before["policy"].values()) == {None}
    policy = {"maxSandboxes": 1, "maxTtlSeconds": 60, "maxCpus": 1, "templates": ["base"]}
    own_admin = Client(stack, stack.new_token(name, "admin"), name)
    for weak in (client, own_admin):
        assert weak.request("PUT", path, {"policy": policy}).status == 403
    after = admin.request("PUT", path, {"policy": policy}).expect(200)
    assert {k: v for k, v in after["policy"].items() if v is not None} == policy
    for bad in ({"policy": {"maxCpu": 1}}, {"policy": None}, {}, {"policy": {}, "name": "x"}):
        assert admin.request("PUT", path, bad).status == 400

    assert client.request("POST", "~", {"template": "node"}).status == 422
    assert client.request("POST", "~", {"template": "base", "cpus": 2}).status == 400
    assert client.request("POST", "~", {"template": "base", "ttlSeconds": None}).status == 400
    one = client.create(template="base")
    assert one["ttlSeconds"] == 60
    full = client.request("POST", "~", {"template": "base"})
    assert full.status == 429 and "1 of at most 1" in full.json["detail"]
    assert full.headers["Retry-After"]
    assert update(client, one, ttlSeconds=61).json["code"] == "limit_exceeded"
    client.delete(one)
    admin.request("PUT", path, {"policy": {}}).expect(200)
    client.delete(client.create(template="node", ttlSeconds=None))


def test_parallel_creates_do_not_overshoot(stack):
    client, name = stack.new_project(max_sandboxes=3)
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: client.request("POST", "~?wait=0", {"template": "base"}), range(12)))
    assert sorted(a.status for a in answers) == [202] * 3 + [429] * 9
    for answer in answers:
        if answer.status == 202:
            client.delete(answer.json)


def test_a_disabled_project_is_refused_and_its_sandboxes_end(stack):
    client, name = stack.new_project()
    sandbox = client.create(template="base")
    assert name in stack.cli("project", "disable", name).stdout
    assert client.request("GET", "~").status == 403
    state = lambda: stack.sql(f"SELECT state, reason FROM sandboxes WHERE id = '{sandbox['id']}'")[0]
    wait_for(lambda: state() == ["terminated", "project_disabled"], "its end")
    stack.cli("project", "enable", name)
    client.delete(client.create(template="base"))


def test_policy_on_the_command_line(stack):
    _, name = stack.new_project()
    stack.cli("project", "policy", name, "maxSandboxes=4", "templates=base,node", "maxCpus=null")
    shown = json.loads(stack.cli("--json", "project", "policy", name).stdout)["policy"]
    assert (shown["maxSandboxes"], shown["templates"], shown["maxCpus"]) == (4, ["base", "node"], None)
    stack.cli("project", "policy", name, "templates=null")
    shown = json.loads(stack.cli("--json", "project", "policy", name).stdout)["policy"]
    assert (shown["maxSandboxes"], shown["templates"]) == (4, None)
    assert stack.cli("project", "policy", name, "maxSandboxes", check=False).returncode == 2
    assert stack.cli("project", "policy", name, "nonsense=1", check=False).returncode != 0
    assert stack.cli("project", "policy", "no-such-project", check=False).returncode == 5


# --- usage and audit ------------------------------------------------------------------------


def test_usage_counts_what_was_used(stack):
    client, name = stack.new_project()
    sandbox = client.create(template="base", memoryMb=512)
    busy = "import time\nt = time.monotonic()\nwhile time.monotonic() - t < 1: pass\n"
    client.exec(sandbox, code=busy, language="python")
    client.exec(sandbox, "true")
    client.delete(sandbox)
    days = client.request("GET", "~/usage").expect(200)["days"]
    assert len(days) == 1 and days[0]["day"] == DAY()
    used = days[0]
    assert (used["sandboxes"], used["executions"]) == (1, 2)
    assert used["runtimeMs"] >= 1000 and used["cpuMs"] >= 500
    assert used["memoryMbSeconds"] >= 512
    # What has ended grows no more.
    assert client.request("GET", "~/usage").expect(200)["days"] == days
    assert client.request("GET", "~/usage?from=2001-01-01&to=2001-01-31").expect(200)["days"] == []
    for bad in ("from=yesterday", "from=2026-02-30", "from=2999-01-01", "from=2000-01-01", "since=1"):
        assert client.request("GET", f"~/usage?{bad}").status == 400, bad
    text = stack.cli("usage", "--csv", token=client.token, project=name).stdout
    rows = list(csv.DictReader(io.StringIO(text)))
    assert rows[0]["sandboxes"] == "1"


def test_cancel_and_update_on_the_command_line(stack, client, sandbox):
    one = running(client, sandbox, "sleep 600")
    text = stack.cli("--json", "cancel", sandbox["id"], one["id"]).stdout
    assert json.loads(text)["state"] == "cancelled"
    stack.cli("sandbox", "update", sandbox["id"], "--ttl", "600", "--idle", "none", "--label", "a=b")
    after = client.get(sandbox)
    assert (after["ttlSeconds"], after["idleSeconds"], after["labels"]) == (600, None, {"a": "b"})


@pytest.mark.parametrize(
    "words", ["--after garbage", "--before 2026-02-30T00:00:00Z", "--action nothing", "--limit 0"]
)
def test_audit_on_the_command_line_refuses_what_it_does_not_know(stack, words):
    done = stack.cli("audit", *words.split(), check=False)
    assert done.returncode == 2 and "usage: paddock audit" in done.stderr


def test_the_audit_names_token_address_and_request_but_no_content(stack):
    client, name = stack.new_project()
    secret = "audit-secret-value"
    create = client.request("POST", "~", {"template": "base", "env": {"S": secret}, "labels": {"l": secret}})
    sandbox = create.expect(201)
    client.exec(sandbox, f"echo {secret}")
    client.delete(sandbox)
    path = f"/api/v1/projects/{name}/audit"
    assert client.request("GET", path).status == 403
    auditor = Client(stack, stack.new_token(name, "admin"), name)
    items = auditor.request("GET", path).expect(200)["items"]
    assert [i["action"] for i in items] == [
        "token.create", "sandbox.end", "sandbox.terminate", "execution.end", "execution.create",
        "sandbox.create", "token.create", "project.create",
    ]
    made = items[5]
    assert made["tokenId"] == client.token.split("_")[1] and made["address"] == "127.0.0.1"
    assert made["requestId"] == create.headers["X-Request-Id"] and made["sandboxId"] == sandbox["id"]
    assert items[1]["detail"] == {"state": "terminated", "reason": "requested"}
    assert secret not in json.dumps(items) and client.token not in json.dumps(items)
    assert items[0]["tokenId"].startswith("operator:")
    page = auditor.request("GET", f"{path}?limit=3").expect(200)
    rest = auditor.request("GET", f"{path}?limit=200&cursor={page['nextCursor']}").expect(200)
    assert page["items"] + rest["items"] == items and rest["nextCursor"] is None
    only = auditor.request("GET", f"{path}?action=sandbox.end").expect(200)["items"]
    assert [i["action"] for i in only] == ["sandbox.end"]
    for bad in ("action=nothing", "cursor=x", "cursor=0", "limit=0", "after=now"):
        assert auditor.request("GET", f"{path}?{bad}").status == 400, bad
    other, _ = stack.new_project()
    assert other.request("GET", path).status == 404
    text = stack.cli("audit", "--project", name, "--csv").stdout
    assert [r["action"] for r in csv.DictReader(io.StringIO(text))] == [i["action"] for i in items]


# --- retention ------------------------------------------------------------------------------


def test_maintenance_cleans_by_age_and_says_what(own_stack):
    stack = own_stack("[retention]\noutput = 1s\nsandboxes = 2s\nidempotency_keys = 1s\nevery = 1h\n")
    client = stack.client
    sandbox = client.create(template="base")
    live = client.exec(sandbox, "echo kept")
    gone = client.create(template="base")
    client.exec(gone, "true")
    client.delete(gone)
    key = {"Idempotency-Key": "k"}
    client.delete(client.request("POST", "~", {"template": "base"}, key).expect(201))
    before = client.request("GET", "~/usage").expect(200)["days"][0]
    time.sleep(3)  # ages are of seconds here
    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(lambda _: json.loads(stack.cli("--json", "maintenance").stdout), range(2)))
    assert sum(r["sandboxes"] for r in reports) == 2 and sum(r["keys"] for r in reports) == 1
    assert client.request("GET", f"~/{gone['id']}").status == 404
    path = f"~/{sandbox['id']}/executions/{live['id']}"
    old = client.request("GET", path).expect(200)
    assert (old["stdout"], old["outputExpired"], old["exitCode"]) == ("", True, 0)
    after = client.request("GET", "~/usage").expect(200)["days"][0]
    assert after["sandboxes"] == before["sandboxes"] == 3
    assert after["executions"] == before["executions"]
    assert "fenced 0 nodes" in stack.cli("maintenance").stdout


def test_the_daemon_cleans_by_itself(own_stack):
    stack = own_stack("[retention]\nsandboxes = 1s\nevery = 1s\n")
    client = stack.client
    sandbox = client.create(template="base")
    client.delete(sandbox)
    wait_for(lambda: client.request("GET", f"~/{sandbox['id']}").status == 404, "its row's end")
