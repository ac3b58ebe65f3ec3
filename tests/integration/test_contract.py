"""docs/openapi.yaml and the running service agree, both ways.

Every operation's documented answers are produced, to the last error code, and
every answer received is one that the document knows (contract.py judges).
test_contract_generated.py goes on with odd requests.
"""

import re
import signal
import uuid

import jsonschema
import pytest

from contract import (
    ERROR_CODES,
    GOOD_BODIES,
    METHODS,
    REQUEST_BODIES,
    Contract,
    ask_fastcgi,
    ask_http,
    audit_actions,
    config_bounds,
    policy_limits,
    routes,
)
from harness import TOP, Client, wait_for

CONTRACT = Contract()
OPERATIONS = CONTRACT.operations
SECRET = "only-the-guest-may-know"

# Codes that no REST client sees, and why no test here produces them.
NEVER_SENT = {
    "config_invalid": "stops a start; test_refusals_at_start.py, test_command_line.py",
    "preflight_failed": "stops a start; test_refusals_at_start.py",
    "system_error": "plumbing, sent as internal_error; test_respond.c",
    "protocol_error": "plumbing, sent as internal_error; test_respond.c",
    "database_conflict": "sent as database_unavailable; test_respond.c, test_db.c",
}
# Produced by what is no operation of the document.
OF_NO_OPERATION = {"method_not_allowed"}


# --- the document by itself ----------------------------------------------------------------

SCHEMA_WORDS = {
    "$ref", "description", "type", "enum", "const", "default", "format", "pattern", "minLength",
    "maxLength", "minimum", "maximum", "items", "prefixItems", "minItems", "maxItems", "required",
    "properties", "additionalProperties", "propertyNames", "minProperties", "maxProperties", "oneOf",
    "x-limit",
}


def closed(required, /, **properties):
    return {"type": "object", "additionalProperties": False, "required": required.split(),
            "properties": properties}


TEXT = {"type": "string", "minLength": 1}
REF = closed("$ref", **{"$ref": {"type": "string", "pattern": "^#/components/"}})
SCHEMA = {"type": ["object", "boolean"]}  # judged by check_schemas
MAP = {"type": "object", "minProperties": 1}
HEADER = closed("schema required", description=TEXT, required={"type": "boolean"}, schema=SCHEMA)
MEDIA = closed("schema", schema=SCHEMA)
PARAMETER = closed(
    "name in schema", name=TEXT, description=TEXT, required={"const": True}, schema=SCHEMA,
    **{"in": {"enum": ["path", "query", "header"]}},
)
PARAMETER["if"] = {"properties": {"in": {"const": "path"}}}
PARAMETER["then"] = {"required": ["required"]}
RESPONSE = closed(
    "description headers content", description=TEXT,
    headers={**MAP, "additionalProperties": REF},
    content={**MAP, "maxProperties": 1, "additionalProperties": MEDIA},
)
OPERATION = closed(
    "tags operationId summary responses", operationId=TEXT, summary=TEXT,
    tags={"type": "array", "items": {"enum": ["sandboxes", "executions", "service"]}},
    security={"const": []},
    parameters={"type": "array", "items": {"oneOf": [REF, PARAMETER]}},
    requestBody=closed(
        "required content", required={"type": "boolean"}, description=TEXT,
        content=closed("application/json", **{"application/json": MEDIA}),
    ),
    responses={
        "type": "object", "additionalProperties": False,
        "patternProperties": {"^[2-5][0-9][0-9]$": {"oneOf": [REF, RESPONSE]}},
    },
)
# The part of OpenAPI 3.1 that this document uses, closed: a word in a wrong place is no silence.
OPENAPI = closed(
    "openapi info servers security tags paths components",
    openapi={"const": "3.1.0"},
    info=closed("title version summary description", title=TEXT, version=TEXT, summary=TEXT,
                description=TEXT),
    servers={"type": "array", "items": closed("url", url=TEXT)},
    security={"type": "array", "items": {"type": "object"}},
    tags={"type": "array", "items": closed("name", name=TEXT)},
    paths={
        "type": "object", "additionalProperties": False,
        "patternProperties": {
            "^/": closed("", parameters={"type": "array", "items": {"oneOf": [REF, PARAMETER]}},
                         **{method: OPERATION for method in METHODS}),
        },
    },
    components=closed(
        "securitySchemes parameters headers responses schemas",
        securitySchemes={"type": "object"},
        parameters={"type": "object", "additionalProperties": PARAMETER},
        headers={"type": "object", "additionalProperties": HEADER},
        responses={"type": "object", "additionalProperties": RESPONSE},
        schemas={"type": "object", "additionalProperties": SCHEMA},
    ),
)


def walk(node, place=""):
    """Every node of the document, with its place."""
    yield place, node
    if isinstance(node, dict):
        for key, value in node.items():
            yield from walk(value, f"{place}/{key}")
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from walk(value, f"{place}/{index}")


def subschemas(schema):
    yield schema
    if isinstance(schema, bool):
        return
    inner = list(schema.get("properties", {}).values())
    inner += schema.get("oneOf", []) + schema.get("prefixItems", [])
    inner += [schema[k] for k in ("items", "additionalProperties", "propertyNames") if k in schema]
    for one in inner:
        yield from subschemas(one)


def all_schemas():
    for place, node in walk(CONTRACT.document):
        if place.startswith("/components/schemas/") and place.count("/") == 3:
            yield place, node
        elif place.endswith("/schema"):
            yield place, node


def test_the_document_is_openapi():
    errors = list(jsonschema.Draft202012Validator(OPENAPI).iter_errors(CONTRACT.document))
    assert not errors, "\n".join(f"{list(e.absolute_path)}: {e.message[:300]}" for e in errors[:5])
    for place, schema in all_schemas():
        jsonschema.Draft202012Validator.check_schema(schema)
        for part in subschemas(schema):
            if isinstance(part, dict):
                assert set(part) <= SCHEMA_WORDS, (place, set(part) - SCHEMA_WORDS)
                assert part.get("type") != "object" or "additionalProperties" in part, (
                    f"{place}: an object that does not say what it may hold"
                )
    ids = [o.id for o in OPERATIONS.values()]
    assert len(ids) == len(set(ids)) == sum(
        m in item for item in CONTRACT.document["paths"].values() for m in METHODS
    )
    for operation in OPERATIONS.values():
        names = [(p["in"], p["name"]) for p in operation.parameters]
        assert len(names) == len(set(names)), operation.id
        in_path = {name for where, name in names if where == "path"}
        assert in_path == set(re.findall(r"{(\w+)}", operation.path)), operation.id


def test_every_reference_leads_somewhere_and_every_component_is_used():
    used = set()
    for place, node in walk(CONTRACT.document):
        if isinstance(node, dict) and isinstance(node.get("$ref"), str):
            assert CONTRACT.resolve({"$ref": node["$ref"]}) is not None, place
            used.add(node["$ref"])
    for kind in ("parameters", "headers", "responses", "schemas"):
        for name in CONTRACT.document["components"][kind]:
            assert f"#/components/{kind}/{name}" in used, f"{kind}/{name} is used nowhere"


# --- the document and the tables of the source ---------------------------------------------


def test_the_document_has_the_routes_that_exist_and_no_other():
    table = routes()
    documented = {(o.method, o.path): o for o in OPERATIONS.values()}
    assert set(documented) == set(table)
    for key, (access, takes_body, query) in table.items():
        operation = documented[key]
        assert operation.needs_token == (access != "NONE"), key
        assert bool(operation.body_schema) == takes_body, key
        names = {re.sub(r"\{\w+\}$", "*", name) for name in operation.query()}
        assert names == query, key
        scoped = access not in ("NONE", "TOKEN")
        codes = {code for _, code in CONTRACT.documented(operation)}
        assert ("project_disabled" in codes) == ("not_found" in codes) == scoped, key
        assert ("forbidden" in codes) == (access in ("WRITE", "ADMIN", "INSTALLATION")), key


def test_the_document_has_the_error_codes_that_are_sent_and_no_other():
    sent = set(ERROR_CODES) - set(NEVER_SENT)
    assert set(NEVER_SENT) <= set(ERROR_CODES)
    assert set(CONTRACT.document["components"]["schemas"]["Problem"]["properties"]["code"]["enum"]) == sent
    answered = set()
    for operation in OPERATIONS.values():
        for status, code in CONTRACT.documented(operation):
            assert code is None or ERROR_CODES[code][1] == status, (operation.id, code)
            answered.add(code)
    assert answered - {None} == sent - OF_NO_OPERATION
    text = (TOP / "docs" / "api.md").read_text()
    for code in sent:
        row = rf"^\|.*`{code}`.*\| {ERROR_CODES[code][1]} \|"
        assert re.search(row, text, re.M), f"docs/api.md does not tell {code}"


def test_what_is_never_sent_is_tested_where_it_is_said_to_be():
    for code, reason in NEVER_SENT.items():
        symbol = ERROR_CODES[code][0]
        for name in re.findall(r"test_\w+\.(?:c|py)", reason):
            folder = "unit" if name.endswith(".c") else "integration"
            text = (TOP / "tests" / folder / name).read_text()
            assert f"ERR_{symbol}" in text or folder == "integration", (code, name)


def test_states_and_reasons_are_those_of_the_source():
    text = (TOP / "common" / "states.def").read_text()
    schemas = CONTRACT.document["components"]["schemas"]
    for macro, name in (("SANDBOX_STATE", "SandboxState"), ("EXECUTION_STATE", "ExecutionState")):
        assert schemas[name]["enum"] == re.findall(rf'^{macro}\(\w+, "(\w+)"', text, re.M)
    reasons = re.findall(r'^REASON\(\s*"?(\w+)"?,', text, re.M)
    assert reasons and schemas["Reason"]["enum"] == reasons + [None]


def test_limits_are_the_bounds_of_configuration_keys():
    bounds = config_bounds()
    for name in REQUEST_BODIES:
        for field, member in CONTRACT.document["components"]["schemas"][name]["properties"].items():
            if "x-limit" not in member:
                continue
            most = bounds[member["x-limit"]][1] // (1000 if field.endswith("Seconds") else 1)
            stated = {
                "env": lambda m: m["additionalProperties"]["maxLength"],
                "labels": lambda m: CONTRACT.resolve({"$ref": m["$ref"]})["maxProperties"],
            }.get(field, lambda m: m.get("maximum", m.get("maxLength")))(member)
            assert stated == most, (name, field)


def test_the_policy_is_that_of_the_source():
    limits, lists, defaults = policy_limits()
    schemas = CONTRACT.document["components"]["schemas"]
    documented = schemas["Policy"]["properties"]
    assert list(documented) == [*limits, *lists] == schemas["Project"]["properties"]["policy"]["required"]
    for name, (least, most) in limits.items():
        assert (documented[name]["minimum"], documented[name]["maximum"]) == (least, most), name
    for default, limit in defaults:
        assert {default, limit} <= limits.keys()
    text = (TOP / "docs" / "api.md").read_text()
    assert not [name for name in documented if f"`{name}`" not in text], "docs/api.md does not tell it"


def test_audit_actions_are_those_of_the_source():
    assert CONTRACT.document["components"]["schemas"]["AuditAction"]["enum"] == audit_actions()
    text = (TOP / "docs" / "api.md").read_text()
    assert not [name for name in audit_actions() if f"`{name}`" not in text], "docs/api.md does not tell it"


# --- a world in which everything can be asked for ------------------------------------------


class World:
    """Projects, tokens and sandboxes of the tests here, and both ways to ask."""

    def __init__(self, stack):
        self.stack = stack
        self.client, self.project = stack.new_project()
        self.reader = stack.new_token(self.project, "sandbox:read")
        self.admin = stack.new_token(self.project, "admin")
        self.installation = stack.new_token(None, "admin")
        self.shut, shut_name = stack.new_project()
        self.shut_admin = stack.new_token(shut_name, "admin")
        stack.cli("project", "disable", shut_name)
        self.full, _ = stack.new_project(max_sandboxes=0)
        self.live = self.client.create(template="base", env={"SECRET": SECRET})
        self.ended = self.client.create(template="base")
        self.execution = self.client.exec(self.ended, "echo done")
        self.client.delete(self.ended)
        self.secrets = [SECRET] + [
            token.split("_")[2] for token in (
                self.client.token, self.reader, self.admin, self.installation, self.shut.token,
                self.shut_admin, self.full.token,
            )
        ]

    def close(self):
        for sandbox in self.client.request("GET", "~?limit=200").expect(200)["items"]:
            if sandbox["endedAt"] is None:
                self.client.delete(sandbox)

    def target(self, operation, query="", project=None, id=None, eid=None):
        id = id or (self.ended if "{eid}" in operation.path else self.live)["id"]
        path = operation.target(
            project=project or self.project, id=id, eid=eid or self.execution["id"]
        )
        return path + query

    def token(self, operation, shut=False):
        """One that may do it; shut: in the disabled project."""
        if operation.access == "INSTALLATION":
            return self.installation
        if operation.access == "ADMIN":
            return self.shut_admin if shut else self.admin
        return self.shut.token if shut else self.client.token

    def ask(self, operation, query="", body=None, token=None, headers=(), way="http", secure=True,
            method=None, judge=True, **places):
        """An answer, judged. token: another one, or False for none."""
        headers = list(headers)
        method = operation.method if method is None else method
        if token is not False:
            headers.append(("Authorization", f"Bearer {token or self.token(operation)}"))
        if body is None and operation.body_schema:
            body = GOOD_BODIES[operation.id]
        elif body is None and method == "POST":
            body = b""  # web servers want its length told
        if body and not any(k == "Content-Type" for k, _ in headers):
            headers.append(("Content-Type", "application/json"))
        target = self.target(operation, query, **places)
        if way == "http":
            answer = ask_http(self.stack.port, method, target, headers, body)
        else:
            socket = self.stack.run_dir / "sock" / "fcgi.sock"
            answer = ask_fastcgi(socket, method, target, headers, body)
        return CONTRACT.judge(operation, answer, self.secrets) if judge else answer


@pytest.fixture(scope="module")
def world(stack):
    one = World(stack)
    yield one
    one.close()


# --- every documented answer is produced ---------------------------------------------------


def fresh_key():
    return [("Idempotency-Key", uuid.uuid4().hex)]


WRONG_VALUES = {
    "updateSandbox": b'{"ttlSeconds": 0}',
    "setProjectPolicy": b'{"policy": {"maxCpus": "1"}}',
}


def common_producers(world, operation):
    """{code: producer} of what any operation may answer."""

    def ask(*args, **kwargs):
        return lambda: world.ask(operation, *args, **kwargs)

    wrong = {"query": "?limit=0"}
    if operation.id in WRONG_VALUES:
        wrong = {"body": WRONG_VALUES[operation.id]}
    elif "wait" in operation.query():
        wrong = {"query": "?wait=soon"}
    elif operation.id == "getUsage":
        wrong = {"query": "?from=yesterday"}
    # Which web server takes a body with which method differs: asked directly.
    body = b"x" * (world.body_max + 1) if operation.body_schema else b"{}"
    return {
        "malformed_request": ask("?novalue"),
        "unknown_field": ask("?nonsense=1"),
        "limit_exceeded": ask("?" + "&".join(f"p{n}=1" for n in range(65))),
        "invalid_field": ask(**wrong),
        "unauthenticated": ask(token=False),
        "forbidden": ask(token=world.reader),
        "project_disabled": ask(token=world.token(operation, shut=True), project=world.shut.project),
        "not_found": ask(project="nowhere"),
        "too_large": ask(body=body, way="fastcgi"),
        "invalid_json": ask(body=b"{"),
        "unsupported_media_type": ask(headers=[("Content-Type", "text/plain")]),
    }


def produce_create(world):
    create = OPERATIONS["createSandbox"]
    body = b'{"template": "base", "memoryMb": 512}'

    def conflict():
        key = fresh_key()
        made = world.ask(create, "?wait=0", body, headers=key)
        world.client.delete(made.json)
        return world.ask(create, body=b"{}", headers=key)

    def replay():
        key = fresh_key()
        made = world.ask(create, body=body, headers=key)
        assert made.status == 201
        world.client.delete(made.json)
        return world.ask(create, body=body, headers=key)

    def no_capacity():
        most = world.stack.sql("select max_sandboxes from nodes")[0][0]
        try:
            world.stack.sql("update nodes set max_sandboxes = 1")
            return world.ask(create, body=body)
        finally:
            world.stack.sql(f"update nodes set max_sandboxes = {most}")

    def made(query):
        answer = world.ask(create, query, body)
        world.client.delete(answer.json)
        return answer

    return {
        200: replay,
        201: lambda: made(""),
        202: lambda: made("?wait=0"),
        "idempotency_conflict": conflict,
        "unsatisfiable": lambda: world.ask(create, body=b'{"template": "no-such"}'),
        "project_limit": lambda: world.ask(create, token=world.full.token, project=world.full.project),
        "no_capacity": no_capacity,
    }


def produce_exec(world):
    run = OPERATIONS["exec"]

    def conflict():
        key = fresh_key()
        assert world.ask(run, headers=key).status == 201
        return world.ask(run, body=b'{"cmd": "false"}', headers=key)

    def replay():
        key = fresh_key()
        assert world.ask(run, headers=key).status == 201
        return world.ask(run, headers=key)

    def busy():
        mine = world.client.create(template="base", exclusive=True)["id"]
        held = world.ask(run, body=b'{"cmd": "sleep 600", "background": true}', id=mine)
        assert held.status == 202
        answer = world.ask(run, id=mine)
        world.client.delete({"id": mine})
        return answer

    def paused():
        """This version pauses nothing, but its contract knows the state."""
        mine = world.live["id"]
        try:
            world.stack.sql(f"update sandboxes set state = 'paused' where id = '{mine}'")
            return world.ask(run)
        finally:
            world.stack.sql(f"update sandboxes set state = 'ready' where id = '{mine}'")

    return {
        200: replay,
        201: lambda: world.ask(run),
        202: lambda: world.ask(run, "?wait=0", b'{"cmd": "sleep 1"}'),
        "idempotency_conflict": conflict,
        "busy": busy,
        "state_conflict": paused,
        "gone": lambda: world.ask(run, id=world.ended["id"]),
        "unsatisfiable": lambda: world.ask(run, body=b'{"cmd": "x", "stream": true}'),
    }


def produce_terminate(world):
    terminate = OPERATIONS["terminateSandbox"]

    def pending():
        mine = world.client.create(template="base")["id"]
        answer = world.ask(terminate, "?wait=0", id=mine)
        world.client.delete({"id": mine})
        return answer

    return {200: lambda: world.ask(terminate, id=world.ended["id"]), 202: pending}


def produce_update(world):
    update = OPERATIONS["updateSandbox"]
    return {
        200: lambda: world.ask(update, body=b'{"ttlSeconds": 3600, "idleSeconds": null}'),
        "gone": lambda: world.ask(update, id=world.ended["id"]),
    }


def produce_cancel(world):
    cancel = OPERATIONS["cancelExecution"]

    def pending():
        mine = world.live["id"]
        running = world.ask(OPERATIONS["exec"], "?wait=0", b'{"cmd": "sleep 600"}').json["id"]
        look = OPERATIONS["getExecution"]  # one that waits for its start is cancelled at once
        wait_for(lambda: world.ask(look, id=mine, eid=running).json["state"] == "running", "it")
        answer = world.ask(cancel, "?wait=0", id=mine, eid=running)
        assert world.ask(cancel, id=mine, eid=running).json["state"] == "cancelled"
        return answer

    return {200: lambda: world.ask(cancel), 202: pending}


SPECIAL = {
    "updateSandbox": produce_update,
    "cancelExecution": produce_cancel,
    "createSandbox": produce_create,
    "exec": produce_exec,
    "terminateSandbox": produce_terminate,
}
# They take a service that may be broken: test_answers_of_a_broken_service.
OF_A_BROKEN_SERVICE = {"internal_error", "database_unavailable", "daemon_unavailable"}
BROKEN = {(o, c) for o, p in OPERATIONS.items() for _, c in CONTRACT.documented(p)
          if c in OF_A_BROKEN_SERVICE} | {("exec", "project_limit")}


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_documented_answer_is_produced(world, name):
    operation = OPERATIONS[name]
    world.body_max = 16 << 20
    special = SPECIAL.get(name, lambda _: {200: lambda: world.ask(operation)})(world)
    producers = {**common_producers(world, operation), **special}
    documented = CONTRACT.documented(operation)
    assert set(special) <= {code or status for status, code in documented}
    for status, code in sorted(documented, key=str):
        if (name, code) in BROKEN:
            continue
        answer = producers[code or status]()
        assert (answer.status, answer.code) == (status, code), answer


def test_answers_of_a_broken_service(own_stack):
    stack = own_stack("[daemon]\nlease = 10s\nheartbeat = 1s\n[limits]\nexecutions_live = 1\n")
    world = World(stack)
    seen = set()

    def note(name, way="http", **places):
        operation = OPERATIONS[name]
        answer = world.ask(operation, way=way, judge=False, **places)
        CONTRACT.judge_any(operation, answer)
        seen.add((name, answer.code))
        return answer.code

    idle = world.client.create(template="base")["id"]
    background = b'{"cmd": "sleep 600", "background": true}'
    assert world.ask(OPERATIONS["exec"], body=background).status == 202
    assert note("exec") == "project_limit"

    # The host's daemon dies at once, and nobody comes to take its place.
    stack.kill_daemon()
    wait_for(lambda: stack.sql("select node_is_live(n) from nodes n") == [["f"]], "the lease's end")
    assert note("createSandbox") == note("exec", id=idle) == "daemon_unavailable"

    # Tables and functions that are not as the programs know them.
    stack.sql("alter table tokens rename to tokens_away")
    stack.sql("create function public.current_setting(text) returns text language sql return '-1'")
    stack.sql("alter database paddock set search_path = public, pg_catalog")
    # The handlers' connections have ended when this returns: one that ends under a request is another
    # case, a database that is away.
    stack.sql("select pg_terminate_backend(pid, 60000) from pg_stat_activity where pid <> pg_backend_pid()"
              " and datname = 'paddock'")
    for name in OPERATIONS:
        assert note(name) == "internal_error"

    stack.signal("postgres", signal.SIGQUIT)
    wait_for(lambda: note("healthz") == "database_unavailable", "the database's end")
    for name in OPERATIONS:
        assert note(name) == "database_unavailable"
        note(name, way="fastcgi")
    assert seen == BROKEN


def test_a_wait_whose_token_is_revoked_ends_as_documented(world):
    """The daemon answers here, not a handler: its answers are held against the document too."""
    run, one = OPERATIONS["exec"], OPERATIONS["getExecution"]
    mine = world.client.create(template="base")["id"]
    running = world.ask(run, "?wait=0", b'{"cmd": "sleep 600"}', id=mine).json["id"]
    token = world.stack.new_token(world.project, "sandbox:read")
    world.stack.sql(
        f"update tokens set expires_at = now() + interval '1 second' where id = '{token.split('_')[1]}'"
    )
    answer = world.ask(one, "?wait=60", token=token, id=mine, eid=running)
    assert answer.status == 401
    assert world.ask(one, "?wait=1", id=mine, eid=running).json["state"] == "running"
    world.client.delete({"id": mine})


# --- what is no operation ------------------------------------------------------------------


def test_other_methods_are_refused_with_those_that_exist(world):
    for path, item in CONTRACT.document["paths"].items():
        exist = {m.upper() for m in METHODS if m in item}
        exist |= {"HEAD"} if "GET" in exist else set()
        operation = next(o for o in OPERATIONS.values() if o.path == path)
        for method in [m.upper() for m in METHODS] + ["get", "BREW", "CONNECT", "PROPFIND", ""]:
            if method in exist:
                continue
            for way in ("http", "fastcgi"):
                if way == "http" and method not in ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
                    continue
                for token in (None, False):
                    answer = world.ask(operation, method=method, way=way, token=token,
                                       body=b"", judge=False)
                    CONTRACT.judge(None, answer, world.secrets)
                    assert answer.status == 405, answer
                    assert set(answer.header("Allow").split(", ")) == exist, answer


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/nowhere", "/api/v1/projects", "/api/v1/projects/", "/api/v1/projects/{p}/",
        "/api/v1/projects/{p}/nowhere", "/api/v1/projects/{p}/usage", "/sandbox/{p}/audit/1",
        "/api/v1/projects/{p}/sandboxes/{id}/nowhere", "/api/v1/projects/{p}/sandboxes/{id}/EXEC",
        "/api/v2/projects/{p}/sandboxes", "/api/v1/healthz", "/sandbox", "/sandbox/{p}/{id}/exec/1",
        "/API/v1/health", "/api/v1/health/", "/", "/healthz/", "/api/v1/projects/{p}/sandboxes/",
        "/" + "a/" * 20, "/" + "x" * 8000, "/" + "x" * 9000, "*", "http://h/healthz", "",
    ],
)
def test_unknown_paths_have_the_form_of_a_problem(world, path):
    path = path.replace("{p}", world.project).replace("{id}", world.live["id"])
    token = [("Authorization", f"Bearer {world.client.token}")]
    for method in ("GET", "POST", "DELETE", "OPTIONS"):
        answer = ask_fastcgi(world.stack.run_dir / "sock" / "fcgi.sock", method, path, token)
        CONTRACT.judge(None, answer, world.secrets)
        assert answer.code in ("not_found", "malformed_request"), answer
    if path.startswith(("/api/v1/", "/sandbox/")):
        answer = ask_http(world.stack.port, "GET", path, token)
        CONTRACT.judge(None, answer, world.secrets, odd=len(path) > 8000 or path.endswith("/"))
        assert answer.status in (400, 404, 414, 431), answer


@pytest.mark.parametrize("name", [n for n, o in OPERATIONS.items() if o.method == "GET"])
def test_head_is_get_without_a_body(world, name):
    def comparable(answer):
        return {k.lower(): v for k, v in answer.headers
                if k.lower() not in ("date", "x-request-id", "content-length")}

    for query, token in (("", None), ("?nonsense=1", None), ("", False)):
        for way in ("http", "fastcgi"):
            asked = {"query": query, "token": token, "way": way}
            get, head = world.ask(OPERATIONS[name], **asked), world.ask(OPERATIONS[name], method="HEAD", **asked)
            assert (head.status, comparable(head)) == (get.status, comparable(get))
            assert way == "http" or int(head.header("Content-Length")) > 0


def test_the_short_spelling_is_the_same_tree(world):
    for operation in OPERATIONS.values():
        if not operation.path.startswith("/api/v1/projects/{project}/sandboxes"):
            continue
        token = world.reader if operation.method != "GET" else world.client.token
        long = world.ask(operation, token=token)
        short = ask_http(
            world.stack.port, operation.method,
            re.sub("^/api/v1/projects/([^/]+)/sandboxes", r"/sandbox/\1", world.target(operation)),
            [("Authorization", f"Bearer {token}")],
            None if operation.method in ("GET", "DELETE") else b"",
        )
        CONTRACT.judge(operation, short, world.secrets)
        assert (short.status, short.code) == (long.status, long.code)


def test_either_header_carries_the_token(world):
    operation, token = OPERATIONS["getSandbox"], world.client.token
    for headers, status in (
        ([("X-API-Key", token)], 200),
        ([("Authorization", f"bearer {token}")], 200),
        ([("Authorization", f"Bearer {token}"), ("X-API-Key", token)], 200),
        ([("Authorization", f"Bearer {token}"), ("X-API-Key", world.reader)], 401),
        ([("Authorization", f"Basic {token}")], 401),
        ([("Authorization", token)], 401),
        ([("X-API-Key", f"Bearer {token}")], 401),
    ):
        for way in ("http", "fastcgi"):
            assert world.ask(operation, token=False, headers=headers, way=way).status == status, headers


def test_a_project_may_be_named_by_its_id(world):
    location = world.ask(OPERATIONS["createSandbox"], "?wait=0", b'{"template": "base"}')
    project, id = re.findall(r"/([0-9a-f-]{36})", location.header("Location"))
    assert world.ask(OPERATIONS["getSandbox"], project=project, id=id).status == 200
    world.client.delete({"id": id})
