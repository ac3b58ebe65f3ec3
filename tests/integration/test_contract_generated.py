"""Odd requests, generated from docs/openapi.yaml: none may surprise.

Whatever is asked, the answer is one that the document knows, never a fault, in
the form of a problem when it is a refusal, and without anybody's secret
(contract.py judges). Bodies and query values are sorted by the document itself
into those to be taken and those to be refused. No guest is made: a project that
may have none refuses a good create with 429, an ended sandbox a good exec or
change with 410; policies are set of a project that nobody uses. PADDOCK_SEED repeats the random cases of a run.
"""

import datetime
import json
import random
import re

import pytest

from contract import GOOD_BODIES, BodyRules, Contract, ask_fastcgi, ask_http, policy_limits, seed

CONTRACT = Contract()
OPERATIONS = CONTRACT.operations
# In every environment, script and input that is sent; no answer may repeat it.
SECRET = "sesame-0pen"
SEED = seed()
RANDOM_CASES = 300


class Target:
    """What the requests are aimed at; nothing that they ask for can come to pass."""

    def __init__(self, stack):
        self.stack = stack
        self.client, self.project = stack.new_project()
        self.full, self.full_project = stack.new_project(max_sandboxes=0)
        _, self.unused_project = stack.new_project()
        self.admin = stack.new_token(self.project, "admin")
        self.installation = stack.new_token(None, "admin")
        ended = self.client.create(template="base", env={"SECRET": SECRET})
        execution = self.client.exec(ended, "true")
        self.client.delete(ended)
        self.values = {"id": ended["id"], "eid": execution["id"]}
        self.secrets = [SECRET] + [
            token.split("_")[2] for token in (
                self.client.token, self.full.token, self.admin, self.installation,
            )
        ]
        self.rules = BodyRules(CONTRACT, json.loads(stack.cli("--json", "config", "show").stdout))

    def places(self, operation):
        """What its path names."""
        project = {"createSandbox": self.full_project, "setProjectPolicy": self.unused_project}
        return {"project": project.get(operation.id, self.project), **self.values}

    def path(self, operation):
        return operation.target(**self.places(operation))

    def token(self, operation):
        token = {"ADMIN": self.admin, "INSTALLATION": self.installation}.get(operation.access)
        if token is None:
            token = (self.full if operation.id == "createSandbox" else self.client).token
        return ("Authorization", f"Bearer {token}")

    def accepted(self, operation):
        """The status of what is acceptable, and of what only this installation cannot do."""
        known = {"createSandbox": (429, 422), "exec": (410, 422), "updateSandbox": (410,)}
        return known.get(operation.id, (200,))

    def send(self, way, method, target, headers=(), body=None, length=None):
        if way == "http":
            return ask_http(self.stack.port, method, target, headers, body)
        return ask_fastcgi(
            self.stack.run_dir / "sock" / "fcgi.sock", method, target, headers, body, length=length
        )

    def ask(self, operation, query="", body=None, headers=None, way="http", odd=False, **more):
        if headers is None:
            headers = [self.token(operation)]
            if body:
                headers.append(("Content-Type", "application/json"))
        if body is None and (operation.body_schema or operation.method == "POST"):
            body = b""
        answer = self.send(way, operation.method, self.path(operation) + query, headers, body, **more)
        return CONTRACT.judge(operation, answer, self.secrets, odd=odd)


@pytest.fixture(scope="module")
def target(stack):
    return Target(stack)


# --- bodies: each member of each schema, alone, with every kind of value --------------------

INTEGERS = [-1, 0, 1, 2, 15, 16, 17, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64,
            -(2**63), -(2**63) - 1, 10**30, 10**400]
STRANGE = [None, True, False, 1.0, 1.5, 0.0, -0.0, 1e300, "", "1", "a", "é", "\0", "a\0b", "\ud800", "\udfff\ud800",
           "\ufeff", "\u2028", "\U0010ffff", "a\nb", "a\n", " a", [], [[]], [None], [1], [""], {}, {"": ""},
           {"a": None}, {"a": 1}, {"a": {}}, {"A": "b"}, {"a=b": "c"}, {"\0": "a"}, {"a\n": "b"}]
BASES = {"SandboxCreate": {}, "SandboxUpdate": {"labels": {}}, "ExecutionCreate": {"cmd": ["true"]},
         "ProjectUpdate": {"policy": {}}}


def strings_around(most):
    """In bytes, of one and of several each."""
    for size in (most - 1, most, most + 1):
        yield "x" * size
    yield "é" * (most // 2)
    yield "é" * (most // 2) + "xx"


def member_values(rules, name, field):
    """Values of every kind, and those around the bounds that the document gives."""
    schema = rules.member(name, field)
    values = list(STRANGE)
    if "integer" in str(schema.get("type")):
        bounds = [schema["minimum"], schema["maximum"]]
        values += INTEGERS + [b + d for b in bounds for d in (-1, 0, 1)]
    if "maxLength" in schema:
        values += strings_around(schema["maxLength"])
    for word in schema.get("enum", []):
        values += [word, word.upper(), word + " ", [word]]
    for inner in schema.get("oneOf", []):
        if inner.get("type") == "string":
            values += strings_around(inner["maxLength"])
        elif inner.get("type") == "array":
            values += [["x"] * n for n in (inner["maxItems"] - 1, inner["maxItems"], inner["maxItems"] + 1)]
            values += [["x", s] for s in strings_around(inner["items"]["maxLength"])]
            values += [["x" * 1000] * n for n in (1047, 1048)]  # around limits.argv_bytes
    if "propertyNames" in schema:
        names, item = schema["propertyNames"], schema["additionalProperties"]
        values += [{"K" * n: "v"} for n in (1, names["maxLength"], names["maxLength"] + 1)]
        values += [{name: "v"} for name in ("1A", "A-B", "A B", "Ä", "A.B", "_", "a/b", "K\n")]
        values += [{"K": s} for s in strings_around(item["maxLength"])]
        most = schema.get("maxProperties", 40)
        values += [{f"K{i}": "v" for i in range(n)} for n in (most - 1, most, most + 1)]
        if "envBytes" in schema:
            values += [{"K": "x" * (schema["envBytes"] - 3 + d)} for d in (-1, 0, 1)]
    if "properties" in schema:
        for key, inner in schema["properties"].items():
            values += [{key: v} for v in STRANGE + inner.get("enum", []) + [["a"], ["a"] * 1001]]
            if "maximum" in inner:
                bounds = [inner["minimum"], inner["maximum"]]
                values += [{key: v} for v in INTEGERS + [b + d for b in bounds for d in (-1, 0, 1)]]
            if "items" in inner and inner.get("maxItems"):
                most = inner["maxItems"]
                values += [{key: ["a"] * n} for n in (most - 1, most, most + 1)]
                values += [{key: [v]} for v in STRANGE + ["a" * 63, "a" * 64, "a-b", "a-", "A", "none"]]
        if name == "SandboxCreate":
            values += [{"mode": "none", "allow": []}, {"mode": "none", "more": 1}]
        if name == "ProjectUpdate":
            for default, limit in policy_limits()[2]:
                values += [{default: n, limit: 5} for n in (4, 5, 6, None)] + [{default: 6, limit: None}]
    return values


def bodies(rules, name):
    """(the member at fault, a body)"""
    base = BASES[name]
    for field in rules.schemas[name]["properties"]:
        for value in member_values(rules, name, field):
            body = {**base, field: value}
            if field in ("code", "language"):
                body = {"code": "x", "language": "bash", field: value}
            if field == "memoryMb":
                body["workspaceMb"] = 1
            if field == "workspaceMb":
                body["memoryMb"] = rules.number("guest.memory_mb_max")
            # Of two that do not fit together either is at fault.
            yield ("memoryMb", "workspaceMb") if field in ("memoryMb", "workspaceMb") else field, body
    yield "", {}
    yield "nonsense", {**base, "nonsense": SECRET}
    yield "", {**base, "": 1}
    yield "xxx", {**base, "x" * 5000: 1}
    yield "\u202e?", {**base, "\u202e\u0007": 1}
    if name == "ExecutionCreate":
        yield "cmd", {"cmd": "x", "code": "y", "language": "bash"}
        yield "language", {"cmd": "x", "language": "bash"}
        yield "language", {"code": "y"}
        yield "cmd", {"language": "bash"}
        yield "cmd", {"cmd": None, "code": "y", "language": "bash"}
        yield "cmd", {"env": {"K": "v"}}


def check_body(target, operation, body, way="http"):
    name = operation.body_schema["$ref"].rpartition("/")[2]
    text = json.dumps(body).encode()
    answer = target.ask(operation, body=text, way=way)
    if target.rules.accepts(name, body):
        assert answer.status in target.accepted(operation), f"refused what is documented: {answer}"
        if answer.status == 422:
            assert body.get("stream") or body.get("egress", {}).get("mode") != "none", answer
    else:
        assert answer.status == 400, f"took what is not documented: {answer}"
    return answer


@pytest.mark.parametrize("name", [n for n, o in OPERATIONS.items() if o.body_schema])
def test_each_member_takes_what_is_documented_and_nothing_else(target, name):
    operation = OPERATIONS[name]
    schema = operation.body_schema["$ref"].rpartition("/")[2]
    taken = refused = 0
    for field, body in bodies(target.rules, schema):
        answer = check_body(target, operation, body)
        if answer.status == 400:
            assert answer.json.get("field", "").startswith(field), answer
        taken += answer.status != 400
        refused += answer.status == 400
    fields = len(target.rules.schemas[schema]["properties"])
    assert taken > 2 * fields and refused > 15 * fields, (taken, refused)


# --- bodies: what is no JSON, or not ours ---------------------------------------------------

NOT_OURS = [
    b" ", b"\n\n", b"null", b"true", b"0", b'"x"', b"[]", b"[{}]", b"{", b"}", b"{]", b'{"a"', b'{"a":',
    b'{"a":}', b"{,}", b'{"a":1,}', b'{"a":[1,]}', b"{'a':1}", b"{a:1}", b'{"a":1}{}', b'{"a":1} x', b"{}\0",
    b"\0{}", b"\xef\xbb\xbf{}", b'{"\xff":1}', b'{"a":"\xc0\x80"}', b'{"a":"\xed\xa0\x80"}',
    b'{"a":"\xf4\x90\x80\x80"}', b'{"a":"\xe2\x82"}', b'{"a":"\\ud800"}', b'{"a":"\\udc00\\ud800"}', b'{"a":"\\u12"}',
    b'{"a":"\\x41"}', b'{"a":"\n"}', b'{"a":"\x01"}', b'{"a":NaN}', b'{"a":Infinity}', b'{"a":-}',
    b'{"a":01}', b'{"a":+1}', b'{"a":.5}', b'{"a":1.}', b'{"a":0x10}', b'{"a":1e5}', b'{"a":1.0}', b'{"a":-0}x',
    b'{"a":1e999999}', b'{"a":' + b"9" * 100000 + b"}", b'{"a":tru}', b'{"a":/**/1}', b"//\n{}",
    b'{"pids":16,"pids":16}', b'{"pids":16,"\\u0070ids":16}', b'{"egress":{"mode":"none","mode":"none"}}',
    b'{"cmd":"a","cmd":"b"}', b'{"labels":{"a":"1","a":"2"}}', b'{"\\u0000":1}', b'{"a":"\\u0000"}',
    b'{"a":' + b"[" * 17 + b"]" * 17 + b"}", b'{"a":' * 200 + b"1" + b"}" * 200, b"[" * 100000,
    b'{"a":' * 100000, b'{"a":[' + b"0," * 20001 + b"0]}", b"{" + b'"a":1,' * 30000 + b'"b":1}',
    "{}".encode("utf-16"), "{}".encode("utf-16-le"), b"\x1f\x8b\x08\x00", b"a=1&b=2", b"<x/>",
]


@pytest.mark.parametrize("name", [n for n, o in OPERATIONS.items() if o.body_schema])
def test_what_is_no_json_of_ours_is_refused(target, name):
    for way in ("http", "fastcgi"):
        for body in NOT_OURS:
            answer = target.ask(OPERATIONS[name], body=body, way=way)
            assert (answer.status, answer.code) == (400, "invalid_json"), answer


@pytest.mark.parametrize("name", [n for n, o in OPERATIONS.items() if o.body_schema])
def test_content_types(target, name):
    operation, good = OPERATIONS[name], GOOD_BODIES[name]
    for kind, is_json in [
        ("application/json", True), ("APPLICATION/JSON", True), ("application/json;charset=utf-8", True),
        ("application/json ; charset=utf-8", True), ("application/json;", True), (None, False),
        ("application/jsonx", False), ("application/json, text/plain", False), ("text/json", False), ("json", False),
        ("application/x-www-form-urlencoded", False), ("application/problem+json", False), ("*/*", False),
        ("text/plain; application/json", False), ("multipart/form-data; boundary=x", False), (";", False),
        ("application/json" * 100, False),
    ]:
        for way in ("http", "fastcgi"):
            headers = [target.token(operation)] + ([("Content-Type", kind)] if kind else [])
            answer = target.ask(operation, body=good, headers=headers, way=way)
            assert answer.status == (target.accepted(operation)[0] if is_json else 415), (kind, answer)
            # Nothing was sent that it could be the type of.
            empty = target.ask(operation, body=b"", headers=headers, way=way)
            assert empty.status == (429 if name == "createSandbox" else 400), (kind, empty)


def test_bodies_of_the_wrong_size(target):
    create, most = OPERATIONS["createSandbox"], target.rules.number("web.body_max")
    padded = b"{}" + b" " * (most - 2)
    assert target.ask(create, body=padded, way="fastcgi").status == 429
    assert target.ask(create, body=padded + b" ", way="fastcgi").status == 413
    assert target.ask(create, body=b"", length=most + 1, way="fastcgi").status == 413
    for length in ("1", "3", "-1", "x", "2x", " 2", "0x2", "2,2", str(2**63), str(2**64), "9" * 50):
        answer = target.ask(create, body=b"{}", length=length, way="fastcgi")
        assert answer.status in (400, 413), answer
    for operation in OPERATIONS.values():
        if not operation.body_schema:
            for body in (b"{}", b" ", b"x" * 100000):
                assert target.ask(operation, body=body, way="fastcgi").status == 413


# --- queries ------------------------------------------------------------------------------------

# Percent-encoded where a URI must have it so.
QUERY_VALUES = [
    "", "0", "1", "-0", "-1", "+1", "01", "1.0", "1e2", "0x1", "%201", "1%20", "1,2", "50", "199", "200", "201", "299",
    "300", "301", "2147483648", "9223372036854775807", "9223372036854775808", "9" * 40, "true", "null", "%D9%A3",
    "ready", "Ready", "ready,queued", "queued", "running", "succeeded", "nonsense", "base", "Base", "a" * 63, "a" * 64,
    "a-", "-a", "9a", "A" * 31, "A" * 33, "A" * 32, "_" * 32, "A" * 31 + "=", "A" * 31 + "+", "'", "%27%3B--", "%25",
    "2026-01-02T03:04:05Z", "2026-01-02T03:04:05.123Z", "2026-01-02T03:04:05%2B01:00", "2026-01-02T03:04:05-12:30",
    "2024-02-29T00:00:00Z", "2023-02-29T00:00:00Z", "2026-13-01T00:00:00Z", "2026-01-02", "0001-01-01", "0000-12-31",
    "0099-03-01", "9999-12-31", "2023-02-29", "2024-02-29", "2026-1-2", "2026-01-02Z", "26-01-02", "20260102",
    "2026-01-02%20", "1.", "92233720368547758", "sandbox.end", "sandbox.End", "sandbox", "2026-01-02T24:00:00Z",
    "2026-01-02T03:04:05", "2026-01-02%2003:04:05Z", "0000-01-01T00:00:00Z", "0001-01-01T00:00:00%2B14:00",
    "9999-12-31T23:59:59.999999999Z", "9999-12-31T23:59:59-14:00", "99999-01-01T00:00:00Z", "now", "infinity", "epoch",
    "2026-01-02T03:04:05.Z", "2026-01-02T03:04:05.1234567890Z", "2026-01-02T03:04:05%2B24:00", "x" * 255, "x" * 256,
]


def decoded(value):
    return re.sub("%(..)", lambda m: chr(int(m[1], 16)), value)


def is_time(text):
    match = re.fullmatch(
        r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(\.\d{1,9})?(Z|[+-](\d\d):(\d\d))", text, re.A
    )
    if not match:
        return False
    year, month, day, hour, minute, second = (int(match[i]) for i in range(1, 7))
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    days = [31, 29 if leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
    return (year > 0 and 1 <= month <= 12 and 1 <= day <= days[month - 1] and hour < 24 and minute < 60
            and second < 60 and int(match[9] or 0) <= 14 and int(match[10] or 0) < 60)


def usage_takes(parameter, text):
    """from and to have the other's default: 31 days that end with the last, today, and 366 at most."""
    if not is_time(f"{text}T00:00:00Z"):
        return False
    first, today = datetime.date.fromisoformat(text), datetime.datetime.now(datetime.timezone.utc).date()
    return parameter == "to" or 0 <= (today - first).days < 366


def takes(schema, text):
    """Does the document take this query value? None where it does not say it all (cursors)."""
    schema = CONTRACT.resolve(schema)
    if schema.get("type") == "integer":
        if not re.fullmatch(r"0|-?[1-9][0-9]*", text):
            return False
        text = int(text)
    if schema.get("format") == "date-time":
        return is_time(text)
    if CONTRACT.errors(schema, text):
        return False
    schemas = CONTRACT.document["components"]["schemas"]
    if schema == schemas["AuditCursor"]:
        return int(text) < 2**63
    return None if schema == schemas["Cursor"] else True


@pytest.mark.parametrize("name", [n for n, o in OPERATIONS.items() if o.query()])
def test_query_parameters_take_what_is_documented_and_nothing_else(target, name):
    operation = OPERATIONS[name]
    # It must get as far as its sandbox: its body is read first.
    body = GOOD_BODIES.get(name)
    for parameter, schema in operation.query().items():
        for value in QUERY_VALUES:
            shown = parameter.replace("{key}", "K")
            answer = target.ask(operation, f"?{shown}={value}", body=body)
            expected = takes(schema, decoded(value))
            if name == "getUsage":
                expected = usage_takes(parameter, decoded(value))
            assert answer.status in (400, *target.accepted(operation)), answer
            if expected is not None:
                assert (answer.status != 400) == expected, answer
            if answer.status == 400:
                assert answer.json.get("field", "").startswith(parameter.split(".")[0]), answer
    for key in ("", "a" * 63, "a" * 64, "a%2Fb", "a.b", "a%20b", "%C3%A4", "label.x"):
        if "label.{key}" in operation.query():
            answer = target.ask(operation, f"?label.{key}=v")
            assert (answer.status == 200) == bool(re.fullmatch("[A-Za-z0-9._/-]{1,63}", decoded(key))), answer


ODD_QUERIES = [
    "?nonsense=1", "?", "??", "?&", "?=", "?=1", "?a", "?&&", "?wait", "?wait=1&wait=1", "?limit=1&limit=1", "?WAIT=1",
    "?wait[]=1", "?limit%5B%5D=1", "?%77ait=1&wait=1", "?wait=1;limit=2", "?a=%", "?a=%4", "?a=%zz", "?%00=1", "?a=%00",
    "?a=%0a", "?a=%ff", "?a=%c0%80", "?a=%ed%a0%80", "?label.=x", "?label=x", "?" + "x" * 100 + "=1", "?token=x",
    "?" + "&".join(f"label.k{i}=v" for i in range(64)), "?" + "&".join(f"label.k{i}=v" for i in range(65)),
    "?a=" + "x" * 7000, "?%3Cscript%3E=1", "?__proto__=1", "?a=1#b", "?a=1%23b",
]


@pytest.mark.parametrize("name", OPERATIONS)
def test_odd_queries(target, name):
    operation = OPERATIONS[name]
    body = GOOD_BODIES.get(name)
    for query in ODD_QUERIES:
        for way in ("http", "fastcgi") if name in ("exec", "listSandboxes") else ("fastcgi",):
            answer = target.ask(operation, query, body=body, way=way, odd=True)
            good = query == "?" or ("label.{key}" in operation.query() and query == ODD_QUERIES[29])
            expected = target.accepted(operation) if good else range(400, 432)
            assert answer.status in expected, answer


# --- paths ----------------------------------------------------------------------------------------


def odd_ids(good):
    yield from (
        good.upper(), good.replace("-", ""), f"{{{good}}}", f"%7B{good}%7D", good[:-1], good + "0", "g" + good[1:],
        good + "%00", good + "%0a", good + "%20", "%20" + good, good.replace("-", "%2D", 1)[:-1], "0" * 36, "-" * 36, "1",
        "null", "undefined", "*", "%25", "%", "%zz", "%2e%2e", "..", ".", "a%2Fb", "%2F", good + "/", "/" + good, ";x=1",
        good + ";x=1", "%c3%a4", "%ff", "%C0%AF", "%00", "'%20or%20'1'='1", "x" * 1000, "x" * 9000, "%e2%80%ae",
        "00000000-0000-0000-0000-000000000000", "urn:uuid:" + good, "$(id)", "\\", "a\\b", "a|b", '"', "<x>", "é", "",
    )


@pytest.mark.parametrize("name", [n for n, o in OPERATIONS.items() if "{" in o.path])
def test_odd_names_in_paths_are_refused(target, name):
    operation = OPERATIONS[name]
    body = GOOD_BODIES.get(name)
    own = target.places(operation)
    headers = [target.token(operation)] + ([("Content-Type", "application/json")] if body else [])
    for variable in re.findall(r"{(\w+)}", operation.path):
        for odd in odd_ids(own[variable]):
            if odd == own[variable]:
                continue
            path = operation.target(**{**own, variable: odd})
            for way in ("http", "fastcgi") if name == "getExecution" else ("fastcgi",):
                if way == "http" and re.search(r"[^!-~]", path):
                    continue
                sent = body or (b"" if operation.method == "POST" else None)
                answer = target.send(way, operation.method, path, headers, sent)
                # Some are another resource's path; none is a success.
                elsewhere = None if answer.status in (404, 405) else operation
                CONTRACT.judge(elsewhere, answer, target.secrets, odd=True)
                assert answer.status in (400, 404, 405, 414, 431, 403), answer


def test_a_name_may_be_percent_encoded(target):
    operation = OPERATIONS["getSandbox"]
    path = operation.target(
        project="".join(f"%{ord(c):02x}" for c in target.project), id=target.values["id"].replace("-", "%2D")
    )
    for way in ("http", "fastcgi"):
        answer = target.send(way, "GET", path, [target.token(operation)])
        assert CONTRACT.judge(operation, answer, target.secrets).status == 200


# --- headers --------------------------------------------------------------------------------------

KEYS = ["a", "!", "~", "x" * 255, "x" * 256, "", " ", "a b", "a\tb", "é", "\x7f", '"a"', "a,b", "null", "%00", "'--",
        "x" * 4000]


@pytest.mark.parametrize("name", ["createSandbox", "exec"])
def test_idempotency_keys(target, name):
    operation = OPERATIONS[name]
    schema = next(p["schema"] for p in operation.parameters if p["name"] == "Idempotency-Key")
    body = GOOD_BODIES[name]
    for key in KEYS:
        headers = [target.token(operation), ("Content-Type", "application/json"), ("Idempotency-Key", key)]
        for way in ("http", "fastcgi"):
            answer = target.ask(operation, body=body, headers=headers, way=way, odd=True)
            if way == "http" and key.strip() == "":
                continue  # web servers differ: a header without a value may be none
            good = not CONTRACT.errors(schema, key)
            assert answer.status == (target.accepted(operation)[0] if good else 400), answer
            if not good and not answer.is_the_web_servers:
                assert answer.json["field"] == "Idempotency-Key"


@pytest.mark.parametrize("name", [n for n, o in OPERATIONS.items() if "Prefer" in o.headers()])
def test_preferences(target, name):
    operation = OPERATIONS[name]
    body = GOOD_BODIES.get(name)
    for query, prefer, good in [
        ("", "wait=0", True), ("", "wait=300", True), ("", "WAIT=5", True), ("", "respond-async", True), ("", "x, wait=5", True),
        ("", 'wait="5"', True), ("", "wait=5; x", True), ("", "wait=5, wait=oops", True), ("", "waiting=oops", True),
        ("", 'x="a, wait=oops", wait=5', True), ("", ",,,", True), ("?wait=5", "wait=5", True), ("?wait=5", "wait=6", False),
        ("", "wait=301", False), ("", "wait=-1", False), ("", "wait=oops", False), ("", "wait=", False), ("", "wait", False),
        ("", "wait=1.5", False), ("", "wait=5 5", False), ("", "wait=" + "9" * 100, False), ("", 'wait="5', False),
    ]:
        headers = [target.token(operation), ("Prefer", prefer)]
        if body:
            headers.append(("Content-Type", "application/json"))
        for way in ("http", "fastcgi"):
            answer = target.ask(operation, query, body=body, headers=headers, way=way)
            assert answer.status == (target.accepted(operation)[0] if good else 400), answer


def odd_tokens(good):
    head, id, secret = good.split("_")
    yield from (
        "", " ", head, f"{head}_", f"{head}_{id}", f"{head}_{id}_", good[:-1], good + "0", good + " x", good.upper(),
        f"{head}_{id}_{secret[::-1]}", f"{head}_{secret}_{id}", good.replace("_", "-"), f"{good},{good}", f'"{good}"',
        f"{head}_{id}_{'0' * len(secret)}", "é", "x" * 5000, "%00", "pdk_' or 1=1_x", f"{good};", "null",
    )


@pytest.mark.parametrize("name", [n for n, o in OPERATIONS.items() if o.needs_token])
def test_odd_tokens_open_nothing(target, name):
    operation = OPERATIONS[name]
    good = target.token(operation)[1].removeprefix("Bearer ")
    ways = ("http", "fastcgi") if name == "getSandbox" else ("fastcgi",)
    for odd in odd_tokens(good):
        for header in (("Authorization", f"Bearer {odd}"), ("Authorization", odd), ("X-API-Key", odd)):
            for way in ways:
                answer = target.ask(operation, headers=[header], way=way, odd=True)
                assert answer.status in (400, 401, 431), (header[0], answer)


def test_a_range_or_a_condition_changes_no_answer(target):
    """Web servers might act on them, and cut or drop what the service answered."""
    operation = OPERATIONS["getSandbox"]
    whole = target.ask(operation)
    for header in [("Range", "bytes=0-3"), ("Range", "bytes=-1"), ("If-None-Match", "*"), ("If-Match", '"x"'),
                   ("If-Modified-Since", "Fri, 31 Dec 2100 23:59:59 GMT"), ("Accept", "text/html"),
                   ("Accept-Encoding", "gzip, br"), ("X-HTTP-Method-Override", "DELETE"), ("X-Forwarded-For", "::1"),
                   ("X-Request-Id", SECRET), ("Expect", "100-continue"), ("Origin", "http://evil.example")]:
        answer = target.ask(operation, headers=[target.token(operation), header])
        assert (answer.status, answer.body) == (200, whole.body), (header, answer)


# --- at random ------------------------------------------------------------------------------------


def random_text(rng):
    alphabet = rng.choice(["ab", "0123456789", "aé漢🙂", "\0\n\t\x1b\x7f", "\ud800\udfff", "'\"\\{}[]<>&%;$`", "-_./=:, "])
    return "".join(rng.choice(alphabet) for _ in range(rng.choice([0, 1, 2, 7, 40, 300])))


def random_value(rng, depth=0):
    if depth < 3 and rng.random() < 0.3:
        if rng.random() < 0.5:
            return [random_value(rng, depth + 1) for _ in range(rng.randrange(5))]
        return {random_text(rng): random_value(rng, depth + 1) for _ in range(rng.randrange(4))}
    return rng.choice([
        random_text(rng), rng.choice(INTEGERS), rng.choice(STRANGE), rng.randrange(-10, 100000), rng.random() * 1e6,
        10 ** rng.randrange(30),
    ])


def random_body(rng, rules, name):
    body = dict(BASES[name]) if rng.random() < 0.8 else {}
    fields = list(rules.schemas[name]["properties"])
    for field in rng.sample(fields, rng.randrange(len(fields) + 1)):
        small = [v for v in member_values(rules, name, field) if len(str(v)[:2000]) < 2000]
        body[field] = rng.choice(small) if rng.random() < 0.7 else random_value(rng)
    if rng.random() < 0.1:
        body[random_text(rng)] = random_value(rng)
    return body


def broken_bytes(rng, text):
    data = bytearray(text)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(data) + 1)
        data[at : at + rng.randrange(3)] = rng.choice([b"", b"\0", b"\xff", b"{", b"]", b'"', b"\\", b",", b"9" * 25, b"1e"])
    return bytes(data)


def test_random_requests(target):
    rng = random.Random(SEED)
    names = [n for n, o in OPERATIONS.items() if o.body_schema] * 3 + list(OPERATIONS)
    for number in range(RANDOM_CASES):
        operation, way = OPERATIONS[rng.choice(names)], rng.choice(["http", "fastcgi"])
        try:
            if operation.body_schema and rng.random() < 0.6:
                name = operation.body_schema["$ref"].rpartition("/")[2]
                check_body(target, operation, random_body(rng, target.rules, name), way)
                continue
            body = None
            if operation.body_schema:
                name = operation.body_schema["$ref"].rpartition("/")[2]
                body = broken_bytes(rng, json.dumps(random_body(rng, target.rules, name)).encode())
            names_of_query = list(operation.query()) + ["nonsense", "limit", "wait"]
            query = rng.choice(["", "?" + "&".join(
                f"{rng.choice(names_of_query).replace('{key}', 'k')}={rng.choice(QUERY_VALUES)}"
                for _ in range(rng.randrange(1, 4))
            )])
            headers = [target.token(operation), ("Content-Type", "application/json")]
            if rng.random() < 0.3:
                headers.append(("Idempotency-Key", rng.choice(KEYS)))
            target.ask(operation, query, body=body, headers=headers, way=way, odd=True)
        except AssertionError as error:
            raise AssertionError(f"PADDOCK_SEED={SEED}, case {number}: {error}") from error


def test_nothing_came_to_pass(target):
    """None of the requests above made a sandbox or ran anything."""
    assert target.full.request("GET", "~").expect(200)["items"] == []
    assert target.client.request("GET", f"~/{target.values['id']}").expect(200)["labels"] == {}
    executions = target.client.request("GET", f"~/{target.values['id']}/executions").expect(200)["items"]
    assert [e["id"] for e in executions] == [target.values["eid"]]
