"""A sandbox over REST: create, read, list, terminate, and every refusal."""

import json
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness import Client, cgroups_naming, processes_naming, wait_for


def test_create_answers_the_whole_resource(client):
    answer = client.request(
        "POST",
        "~",
        {"template": "base", "cpus": 1, "memoryMb": 512, "labels": {"run": "7"}, "ttlSeconds": 3600},
    )
    sandbox = answer.expect(201)
    try:
        assert answer.headers["Location"].endswith(sandbox["id"])
        assert answer.headers["X-Request-Id"]
        assert sandbox["state"] == "ready" and sandbox["reason"] is None
        assert sandbox["memoryMb"] == 512 and sandbox["labels"] == {"run": "7"}
        assert sandbox["egress"] == {"mode": "none", "allow": []}
        assert sandbox["timings"]["fromPool"] is False
        timings = sandbox["timings"]
        assert timings["totalMs"] >= timings["provisionMs"] > 0
        assert sandbox["expiresAt"] > sandbox["createdAt"]
        assert int(sandbox["id"][:4], 16) == sandbox["node"]
        assert "env" not in sandbox
        assert client.get(sandbox) == sandbox
    finally:
        client.delete(sandbox)


def test_terminate_is_idempotent_and_leaves_nothing_on_the_host(client):
    sandbox = client.create(template="base")
    assert processes_naming(sandbox["id"]) and cgroups_naming(sandbox["id"])
    first = client.delete(sandbox)
    assert (first["state"], first["reason"]) == ("terminated", "requested")
    assert first["endedAt"]
    assert client.delete(sandbox) == first == client.get(sandbox)
    assert processes_naming(sandbox["id"]) == []
    assert cgroups_naming(sandbox["id"]) == []
    gone = client.request("POST", f"~/{sandbox['id']}/exec", {"cmd": "true"}).expect(410)
    assert gone["code"] == "gone" and "terminated" in gone["detail"]


def test_create_get_and_delete_at_once(client):
    """A sandbox is found from the moment it is acknowledged, and its end is the end."""
    for _ in range(5):
        sandbox = client.request("POST", "~?wait=0", {"template": "base"}).expect(202)
        with ThreadPoolExecutor(2) as pool:
            got = pool.submit(client.get, sandbox)
            deleted = pool.submit(client.delete, sandbox)
        assert got.result()["id"] == sandbox["id"]
        assert deleted.result()["state"] == "terminated"
        wait_for(lambda: not processes_naming(sandbox["id"]), "the guest's end")


def test_an_execution_may_be_asked_for_before_the_sandbox_is_ready(client):
    sandbox = client.request("POST", "~?wait=0", {"template": "base"}).expect(202)
    try:
        assert client.exec(sandbox, "echo early")["stdout"] == "early\n"
    finally:
        client.delete(sandbox)


def test_eight_creates_at_once(client):
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: client.create(template="base"), range(8)))
        outs = list(pool.map(lambda s: client.run(s, "hostname; id -u"), made))
        list(pool.map(client.delete, made))
    assert len({s["id"] for s in made}) == 8 and set(outs) == {"sandbox\n1000\n"}


def test_the_same_idempotency_key_gives_the_same_sandbox(client):
    key = {"Idempotency-Key": uuid.uuid4().hex}
    body = {"template": "base", "labels": {"a": "1", "b": "2"}}
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: client.request("POST", "~", body, key), range(10)))
    assert {a.status for a in answers} == {200, 201}
    assert [a.status for a in answers].count(201) == 1
    assert len({a.json["id"] for a in answers}) == 1
    replay = client.request("POST", "~", '{"labels": {"b":"2", "a":"1"}, "template":"base"}', key)
    assert replay.status == 200 and replay.headers["Idempotency-Replayed"] == "true"
    other = client.request("POST", "~", {"template": "base"}, key).expect(409)
    assert other["code"] == "idempotency_conflict"
    client.delete(answers[0].json)


def test_a_refused_create_frees_its_key(stack):
    client, _ = stack.new_project(max_sandboxes=1)
    first = client.create(template="base")
    key = {"Idempotency-Key": "again"}
    refused = client.request("POST", "~", {"template": "base"}, key)
    assert refused.expect(429)["code"] == "project_limit"
    assert refused.headers["Retry-After"] and "1 of at most 1" in refused.json["detail"]
    client.delete(first)
    made = client.request("POST", "~", {"template": "base"}, key).expect(201)
    client.delete(made)


def test_lists_filter_and_page(stack):
    client, _ = stack.new_project()
    made = [client.create(template="base", labels={"n": str(n % 2)}) for n in range(4)]
    client.delete(made[0])
    items = client.request("GET", "~?state=ready").expect(200)["items"]
    assert [i["id"] for i in items] == [s["id"] for s in reversed(made[1:])]
    odd = client.request("GET", "~?label.n=1").expect(200)["items"]
    assert [i["id"] for i in odd] == [made[3]["id"], made[1]["id"]]
    seen, path = [], "~?limit=3"
    while path:
        page = client.request("GET", path).expect(200)
        seen += [i["id"] for i in page["items"]]
        path = page["nextCursor"] and f"~?limit=3&cursor={page['nextCursor']}"
    assert seen == [s["id"] for s in reversed(made)]
    after = made[1]["createdAt"]
    newer = client.request("GET", f"~?createdAfter={after}").expect(200)["items"]
    assert made[0]["id"] not in [i["id"] for i in newer]
    for sandbox in made[1:]:
        client.delete(sandbox)


def test_ttl_ends_a_sandbox_as_expired(client):
    sandbox = client.create(template="base", ttlSeconds=3)
    final = wait_for(
        lambda: (s := client.get(sandbox))["endedAt"] and s, "expiry", seconds=30
    )
    assert (final["state"], final["reason"]) == ("expired", "ttl")
    assert processes_naming(sandbox["id"]) == []


def test_idle_ends_a_sandbox_but_running_work_counts(client):
    sandbox = client.create(template="base", idleSeconds=2)
    assert client.run(sandbox, "sleep 4; echo done") == "done\n"
    final = wait_for(
        lambda: (s := client.get(sandbox))["endedAt"] and s, "idle end", seconds=30
    )
    assert (final["state"], final["reason"]) == ("expired", "idle")


def test_an_exclusive_sandbox_is_busy_at_once(client):
    sandbox = client.create(template="base", exclusive=True)
    try:
        held = client.request(
            "POST", f"~/{sandbox['id']}/exec", {"cmd": "sleep 3", "background": True}
        ).expect(202)
        started = time.monotonic()
        busy = client.request("POST", f"~/{sandbox['id']}/exec", {"cmd": "true"}).expect(409)
        assert busy["code"] == "busy" and held["id"] in busy["detail"]
        assert time.monotonic() - started < 2.5
    finally:
        client.delete(sandbox)


def test_running_work_of_a_terminated_sandbox_is_lost_not_successful(client):
    sandbox = client.create(template="base")
    running = client.request(
        "POST", f"~/{sandbox['id']}/exec?wait=0", {"cmd": "sleep 300"}
    ).expect(202)
    wait_for(
        lambda: client.request(
            "GET", f"~/{sandbox['id']}/executions/{running['id']}"
        ).json["state"] == "running",
        "the execution's start",
    )
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(
            client.request, "GET", f"~/{sandbox['id']}/executions/{running['id']}?wait=60"
        )
        client.delete(sandbox)
        result = waiting.result().expect(200)
    assert (result["state"], result["reason"], result["exitCode"]) == ("lost", "requested", None)


def test_another_tenant_sees_nothing(stack, client, sandbox):
    other, name = stack.new_project()
    eid = client.exec(sandbox, "true")["id"]
    for method, tail, body in (
        ("GET", f"/{sandbox['id']}", None),
        ("DELETE", f"/{sandbox['id']}", None),
        ("POST", f"/{sandbox['id']}/exec", {"cmd": "true"}),
        ("GET", f"/{sandbox['id']}/executions", None),
        ("GET", f"/{sandbox['id']}/executions/{eid}", None),
    ):
        answer = other.request(method, "~" + tail, body)
        assert answer.expect(404)["code"] == "not_found", (method, tail)
        # nor does its token open the other project by name
        trespass = Client(stack, other.token, client.project)
        assert trespass.request(method, "~" + tail, body).status == 404
    assert client.get(sandbox)["state"] == "ready"
    assert name != client.project


def test_tokens_expire_are_revoked_and_have_scopes(stack, client):
    project = client.project
    reader = Client(stack, stack.new_token(project, "sandbox:read"), project)
    assert reader.request("GET", "~").status == 200
    assert reader.request("POST", "~", {"template": "base"}).expect(403)["code"] == "forbidden"
    assert reader.request("GET", "~", headers={"Authorization": "", "X-API-Key": reader.token}).status == 200
    stack.cli("token", "revoke", reader.token.split("_")[1])
    assert reader.request("GET", "~").expect(401)["code"] == "unauthenticated"
    for token in (
        None,
        "nonsense",
        "pdk_0123456789abcdef_" + "0" * 64,
        client.token[:-1] + ("0" if client.token[-1] != "0" else "1"),
        client.token.upper(),
    ):
        answer = Client(stack, token, project).request("GET", "~")
        assert answer.status == 401 and answer.headers["WWW-Authenticate"].startswith("Bearer")


def test_every_answer_has_a_request_id_and_problems_are_problem_json(client):
    for method, path, status, code in (
        ("GET", "/api/v1/nowhere", 404, "not_found"),
        ("PATCH", "~", 405, "method_not_allowed"),
        ("GET", "~/not-a-uuid", 404, "not_found"),
        ("GET", f"~/{uuid.uuid4()}", 404, "not_found"),
        ("GET", "~?limit=0", 400, None),
        ("GET", "~?limit=201", 400, None),
        ("GET", "~?nonsense=1", 400, None),
        ("GET", "~?cursor=%21%21", 400, None),
        ("GET", "~?wait=1&wait=2", 400, None),
    ):
        answer = client.request(method, path)
        assert answer.status == status, (path, answer.body)
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert answer.json["requestId"] == answer.headers["X-Request-Id"]
        assert answer.json["status"] == status and answer.json["title"]
        assert code is None or answer.json["code"] == code
        if status == 405:
            assert set(answer.headers["Allow"].split(", ")) == {"GET", "HEAD", "POST"}


@pytest.mark.parametrize(
    "body, status, code",
    [
        ("[]", 400, "invalid_json"),
        ("{", 400, "invalid_json"),
        ('{"template": "base", "template": "base"}', 400, "invalid_json"),
        ('{"ttlSeconds": 3600.0}', 400, None),
        ('{"ttlSeconds": 1e400}', 400, "invalid_json"),
        ('{"labels": {"a": "\\u0000"}}', 400, "invalid_json"),
        ('{"labels": {"a": "\\ud800"}}', 400, "invalid_json"),
        ('{"x": ' + "[" * 3000 + "]" * 3000 + "}", 400, "invalid_json"),
        ('{"nonsense": 1}', 400, "unknown_field"),
        ('{"cpus": "1"}', 400, "invalid_field"),
        ('{"cpus": 65}', 400, "limit_exceeded"),
        ('{"memoryMb": 100000000}', 400, "limit_exceeded"),
        ('{"memoryMb": 300, "workspaceMb": 256}', 400, None),
        ('{"ttlSeconds": 0}', 400, None),
        ('{"ttlSeconds": 99999999999}', 400, "limit_exceeded"),
        ('{"env": {"1A": "x"}}', 400, "invalid_field"),
        ('{"env": {"A": 1}}', 400, "invalid_field"),
        ('{"template": "nope"}', 422, "unsatisfiable"),
        ('{"egress": {"mode": "public"}}', 422, "unsatisfiable"),
        ('{"egress": {"mode": "sideways"}}', 400, "invalid_field"),
    ],
)
def test_create_refuses_by_name(client, body, status, code):
    answer = client.request("POST", "~", body)
    if answer.status in (201, 202):
        client.delete(answer.json)
    problem = answer.expect(status)
    assert code is None or problem["code"] == code, problem


def test_bodies_are_bounded_and_typed(client):
    big = json.dumps({"env": {"A": "x" * (17 << 20)}})
    assert client.request("POST", "~", big).status == 413
    answer = client.request("POST", "~", "{}", {"Content-Type": "text/plain"})
    assert answer.expect(415)["code"] == "unsupported_media_type"
    for key in ("x" * 256, "sp ace", "ünï"):
        headers = {"Idempotency-Key": key.encode("utf-8").decode("latin-1")}
        refused = client.request("POST", "~", {"template": "base"}, headers)
        if refused.status == 201:
            client.delete(refused.json)
        assert refused.status == 400, key


def test_the_short_path_is_the_same_tree(stack, client, sandbox):
    answer = client.request("GET", f"/sandbox/{client.project}/{sandbox['id']}")
    assert answer.expect(200)["id"] == sandbox["id"]


def test_head_answers_like_get_without_a_body(client, sandbox):
    answer = client.request("HEAD", f"~/{sandbox['id']}")
    assert answer.status == 200 and answer.body == b""
    assert int(answer.headers["Content-Length"]) > 100


def test_health(stack, client):
    open_answer = Client(stack, None, None).request("GET", "/healthz").expect(200)
    assert open_answer == {"status": "ok"}
    assert Client(stack, None, None).request("GET", "/api/v1/health").status == 401
    health = client.request("GET", "/api/v1/health").expect(200)
    node = health["nodes"][0]
    assert node["live"] is True and set(node["templates"]) >= {"base", "node"}
    assert node["facts"]["runsc"]["platform"] == "systrap"
    assert {"cpu", "memory", "pids"} <= set(node["facts"]["cgroup"]["controllers"])
