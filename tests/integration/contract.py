"""docs/openapi.yaml as a judge of answers, and the two ways to the service.

The contract tests ask through the web server, and directly by FastCGI as a web
server does: what a web server would refuse or mend by itself reaches the
handlers only that way. Every answer goes through Contract.judge, which knows
nothing but the document.
"""

import copy
import http.client
import json
import os
import re
import socket
import struct

import jsonschema
import yaml

from harness import TOP



def _pattern(validator, pattern, instance, schema):
    """As ECMA-262 reads it: `$` is the very end, not a place before a last newline."""
    if validator.is_type(instance, "string"):
        strict = pattern[:-1] + r"\Z" if pattern.endswith("$") else pattern
        if not re.search(strict, instance):
            yield jsonschema.ValidationError(f"{instance[:200]!r} does not match {pattern!r}")


Validator = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"pattern": _pattern})

DOCUMENT = TOP / "docs" / "openapi.yaml"
METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")

# Of the connection, not of the answer; and what web servers add of their own.
TRANSPORT_HEADERS = {
    "content-type", "content-length", "transfer-encoding", "connection", "keep-alive", "date",
    "server",
}
# What a web server may answer by itself to what is no proper HTTP, or beyond its limits.
WEB_SERVER_REFUSALS = {400, 403, 404, 405, 411, 413, 414, 417, 431, 501, 505}


# --- the two ways ------------------------------------------------------------------------


class Answer:
    """Status, headers as a list of pairs, body; how it was asked for, for a failure's message."""

    def __init__(self, asked, status, headers, body):
        self.asked, self.status, self.headers, self.body = asked, status, headers, body

    def header(self, name):
        values = [v for k, v in self.headers if k.lower() == name.lower()]
        assert len(values) < 2, f"{name} given twice: {self}"
        return values[0] if values else None

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def code(self):
        return self.json["code"] if self.status >= 400 and self.body else None

    @property
    def is_the_web_servers(self):
        return self.asked.startswith("http ") and self.header("X-Request-Id") is None

    def __repr__(self):
        return f"{self.asked}\n-> {self.status} {self.headers}\n{self.body[:1500]!r}"


def describe(way, method, target, headers, body):
    shown = [(k, "…" if k.lower() in ("authorization", "x-api-key") else v) for k, v in headers]
    body = b"" if body is None else body
    return f"{way} {method} {target[:300]} {shown} {body[:600]!r} ({len(body)} bytes)"


def ask_http(port, method, target, headers=(), body=None, timeout=330):
    """Bytes as they are: http.client would refuse to send what must be tried."""
    lines = [f"{method} {target} HTTP/1.1", "Host: 127.0.0.1", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    head = ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogateescape")
    asked = describe("http", method, target, headers, body)
    with socket.create_connection(("127.0.0.1", port), timeout) as sock:
        try:
            sock.sendall(head + (body or b""))
        except ConnectionError:
            pass  # it answered and closed before the body's end; the answer is there
        response = http.client.HTTPResponse(sock, method=method)
        try:
            response.begin()
            return Answer(asked, response.status, response.getheaders(), response.read())
        except (http.client.HTTPException, OSError) as error:
            raise AssertionError(f"no answer ({error!r}): {asked}") from error


def _record(kind, content):
    return struct.pack("!BBHHBB", 1, kind, 1, len(content), 0, 0) + content


def _stream(kind, data):
    parts = [data[i : i + 65528] for i in range(0, len(data), 65528)]
    return b"".join(_record(kind, part) for part in parts) + _record(kind, b"")


def _pair(name, value):
    out = b""
    for text in (name, value):
        out += bytes([len(text)]) if len(text) < 128 else struct.pack("!I", len(text) | 1 << 31)
    return out + name + value


def _exactly(sock, size):
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def ask_fastcgi(path, method, target, headers=(), body=None, timeout=330, length=None):
    """As a web server asks (FastCGI 1.0, role responder). length: a Content-Length that lies."""
    variables = {"REQUEST_METHOD": method, "REQUEST_URI": target, "SERVER_PROTOCOL": "HTTP/1.1"}
    for name, value in headers:
        key = name.upper().replace("-", "_")
        variables[key if key == "CONTENT_TYPE" else f"HTTP_{key}"] = value
    if body is not None or length is not None:
        variables["CONTENT_LENGTH"] = str(len(body or b"") if length is None else length)
    params = b"".join(
        _pair(k.encode(), v.encode("utf-8", "surrogateescape")) for k, v in variables.items()
    )
    asked = describe("fastcgi", method, target, headers, body)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(timeout)
        sock.connect(str(path))
        out = b""
        try:
            sock.sendall(_record(1, struct.pack("!HB5x", 1, 0)) + _stream(4, params))
            sock.sendall(_stream(5, body or b""))
        except ConnectionError:
            pass  # see ask_http
        try:
            while True:
                _, kind, _, size, padding, _ = struct.unpack("!BBHHBB", _exactly(sock, 8))
                content = _exactly(sock, size + padding)[:size]
                if kind == 6:
                    out += content
                if kind == 3:
                    break
        except (EOFError, OSError) as error:
            raise AssertionError(f"the answer broke off ({error!r}): {asked}\n{out!r}") from error
    head, _, content = out.partition(b"\r\n\r\n")
    pairs = [tuple(line.split(": ", 1)) for line in head.decode().split("\r\n")]
    assert pairs[0][0] == "Status", f"{asked}\n{head!r}"
    return Answer(asked, int(pairs[0][1].split()[0]), pairs[1:], content)


# --- the document ------------------------------------------------------------------------


class Operation:
    def __init__(self, contract, path, method, item):
        raw = item[method]
        self.path, self.method, self.raw = path, method.upper(), raw
        self.id = raw["operationId"]
        self.parameters = [
            contract.resolve(p) for p in item.get("parameters", []) + raw.get("parameters", [])
        ]
        self.responses = {int(k): contract.resolve(v) for k, v in raw["responses"].items()}
        self.needs_token = raw.get("security") != []
        self.access = routes().get((self.method, path), (None,))[0]
        body = raw.get("requestBody")
        self.body_schema = body["content"]["application/json"]["schema"] if body else None

    def query(self):
        return {p["name"]: p["schema"] for p in self.parameters if p["in"] == "query"}

    def headers(self):
        return {p["name"] for p in self.parameters if p["in"] == "header"}

    def target(self, **values):
        return re.sub(r"{(\w+)}", lambda m: values[m[1]], self.path)


class Contract:
    def __init__(self):
        self.document = yaml.safe_load(DOCUMENT.read_text())
        self.operations = {}
        for path, item in self.document["paths"].items():
            for method in METHODS:
                if method in item:
                    operation = Operation(self, path, method, item)
                    self.operations[operation.id] = operation

    def resolve(self, node):
        """What a reference of the document means; other nodes as they are."""
        while isinstance(node, dict) and "$ref" in node and len(node) == 1:
            found = self.document
            for part in node["$ref"].removeprefix("#/").split("/"):
                found = found[part]
            node = found
        return node

    def validator(self, schema, checker=Validator):
        """References lead into the document whatever the library's version: it comes along."""
        return checker({**schema, "components": self.document["components"]})

    def errors(self, schema, instance):
        found = jsonschema.exceptions.best_match(self.validator(schema).iter_errors(instance))
        return "" if found is None else f"{list(found.absolute_path)}: {found.message[:500]}"

    def documented(self, operation):
        """{(status, code)}; no code where it is a success."""
        out = set()
        for status, response in operation.responses.items():
            problem = response["content"].get("application/problem+json")
            if problem is None:
                out.add((status, None))
                continue
            code = problem["schema"]["properties"]["code"]
            out |= {(status, c) for c in code.get("enum", [code.get("const")])}
        return out

    # --- judging -------------------------------------------------------------------------

    def judge(self, operation, answer, secrets=(), odd=False):
        """Fails unless the answer is one that the document knows. operation None: none is asked
        for. odd: a web server may have refused the request by itself. Returns the answer."""
        everything = repr(answer.headers).encode() + answer.body
        for secret in secrets:
            assert secret.encode() not in everything, f"a secret is told: {answer}"
        if answer.is_the_web_servers:
            assert odd and answer.status in WEB_SERVER_REFUSALS, f"not the service's: {answer}"
            return answer
        assert answer.status < 500 or answer.status == 503, f"a fault: {answer}"
        self.judge_any(operation, answer)
        return answer

    def judge_any(self, operation, answer):
        """The same, where a fault is what was wanted."""
        if operation is None:
            assert answer.status in (400, 404, 405), f"no such operation, but {answer}"
            response = {"content": {"application/problem+json": {"schema": self.problem}},
                        "headers": self.common_headers}
        else:
            assert answer.status in operation.responses, f"status not documented: {answer}"
            response = operation.responses[answer.status]
        self._judge_headers(response["headers"], answer)
        (kind, media), = response["content"].items()
        assert answer.header("Content-Type") == kind, f"content type is not {kind}: {answer}"
        if "HEAD" in answer.asked.split()[:2]:
            assert answer.body == b"" and int(answer.header("Content-Length")) > 0, answer
            return
        length = answer.header("Content-Length")
        assert length is None or int(length) == len(answer.body), answer
        wrong = self.errors(media["schema"], answer.json)
        assert not wrong, f"{wrong}: {answer}"
        if answer.status >= 400:
            self._judge_problem(answer)

    @property
    def problem(self):
        return {"$ref": "#/components/schemas/Problem"}

    @property
    def common_headers(self):
        return self.document["components"]["responses"]["NotFound"]["headers"]

    def _judge_headers(self, documented, answer):
        known = {name.lower() for name in documented} | TRANSPORT_HEADERS
        if answer.status == 405:
            known.add("allow")
        for name, value in answer.headers:
            if name.lower() == "accept-ranges" and value == "none":
                continue  # of the web server: true, and no promise
            assert name.lower() in known, f"header {name} is not documented: {answer}"
        for name, reference in documented.items():
            header = self.resolve(reference)
            value = answer.header(name)
            assert value or not header.get("required"), f"header {name} is missing: {answer}"
            if value is not None:
                schema = self.resolve(header["schema"])
                typed = int(value) if schema.get("type") == "integer" else value
                wrong = self.errors(schema, typed)
                assert not wrong, f"header {name}: {wrong}: {answer}"

    def _judge_problem(self, answer):
        problem = answer.json
        assert problem["status"] == answer.status, answer
        assert problem["requestId"] == answer.header("X-Request-Id"), answer
        name = problem["code"]
        assert problem["type"] == f"urn:paddock:error:{name}", answer
        assert (answer.status, problem["title"]) == ERROR_CODES[name][1:], answer
        retry, ms = answer.header("Retry-After"), problem.get("retryAfterMs")
        assert (retry is None) == (ms is None), answer
        assert ms is None or int(retry) == -(-ms // 1000), answer


# --- the tables of the source ------------------------------------------------------------


def error_codes():
    """{name: (symbol, status, title)}"""
    text = (TOP / "common" / "error_codes.def").read_text()
    found = re.findall(r'^ERROR_CODE\((\w+), "(\w+)", (\d+), "([^"]*)"\)', text, re.M)
    return {name: (symbol, int(status), title) for symbol, name, status, title in found}


def routes():
    """{(method, path): (access, takes a body, query names)}"""
    text = (TOP / "fcgi" / "routes.def").read_text()
    found = re.findall(
        r'^ROUTE\((\w+), "([^"]+)", (\w+),\s*(\w+),\s*(\w+),\s*"([^"]*)",\s*"[^"]*"\)', text, re.M
    )
    assert len(found) == len(re.findall(r"^ROUTE\(", text, re.M)), "the table reads otherwise"
    return {
        (method, path): (access, limit != "NONE", set(query.split()))
        for method, path, access, _, limit, query in found
    }


def policy_limits():
    """({name: (least, most)}, [name of a list], [(default, its limit)])"""
    text = (TOP / "common" / "policy.def").read_text()
    limits = re.findall(r"^POLICY_LIMIT\((\w+), (\d+), (\d+),", text, re.M)
    return (
        {name: (int(least), int(most)) for name, least, most in limits},
        re.findall(r"^POLICY_LIST\((\w+),", text, re.M),
        re.findall(r"^POLICY_DEFAULT\((\w+), (\w+)\)", text, re.M),
    )


def audit_actions():
    text = (TOP / "common" / "audit_actions.def").read_text()
    return re.findall(r'^AUDIT_ACTION\("([^"]+)"', text, re.M)


def config_bounds():
    """{"section.key": (type, max)}"""
    text = (TOP / "common" / "config_keys.def").read_text()
    found = re.findall(
        r'^CONFIG_KEY\((\w+), (\w+), (\w+), "[^"]*", (\d+), (\d+),', text, re.M
    )
    return {f"{section}.{key}": (kind, int(most)) for section, key, kind, _, most in found}


ERROR_CODES = error_codes()

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "ms": 1, "s": 1000, "m": 60_000,
         "h": 3_600_000, "d": 86_400_000}


def config_number(text):
    """64K, 30d, 4: in bytes, milliseconds, or as it is."""
    number, unit = re.fullmatch(r"(\d+)([A-Za-z]*)", text).groups()
    return int(number) * UNITS[unit]


# --- request bodies: what the document says is acceptable, on this installation -----------


def _byte_length(validator, most, instance, schema):
    if validator.is_type(instance, "string"):
        size = len(instance.encode("utf-8", "surrogatepass"))
        if size > most:
            yield jsonschema.ValidationError(f"{size} bytes, {most} allowed")


def _env_bytes(validator, most, instance, schema):
    if validator.is_type(instance, "object"):
        size = sum(len(f"{k}{v}".encode("utf-8", "surrogatepass")) + 2 for k, v in instance.items())
        if size > most:
            yield jsonschema.ValidationError(f"env of {size} bytes, {most} allowed")


BodyValidator = jsonschema.validators.extend(
    Validator, {"maxLength": _byte_length, "envBytes": _env_bytes}
)


# Of each operation that takes one: acceptable, and changes nothing that tests build on.
GOOD_BODIES = {
    "createSandbox": b"{}",
    "exec": b'{"cmd": ["true"]}',
    "updateSandbox": b'{"labels": {"a": "b"}}',
    "setProjectPolicy": b'{"policy": {"maxSandboxes": 100}}',
}
REQUEST_BODIES = ("SandboxCreate", "SandboxUpdate", "ExecutionCreate", "ProjectUpdate")


class BodyRules:
    """Judges request bodies by the document with this installation's limits put in."""

    def __init__(self, contract, config):
        self.config = {
            f"{section}.{key}": value for section, keys in config.items() for key, value in keys.items()
        }
        self.contract = contract
        self.schemas = {
            name: self._with_limits(contract.document["components"]["schemas"][name])
            for name in REQUEST_BODIES
        }

    def number(self, key):
        return config_number(self.config[key])

    def _with_limits(self, schema):
        schema = copy.deepcopy(schema)
        for name, member in schema["properties"].items():
            key = member.pop("x-limit", None)
            if key is None:
                continue
            limit = self.number(key) // (1000 if name.endswith("Seconds") else 1)
            if name == "env":
                member["envBytes"] = limit
            elif name == "labels":
                member["maxProperties"] = limit
            elif "maxLength" in member:
                member["maxLength"] = limit
            else:
                member["maximum"] = limit
        return schema

    def member(self, name, field):
        """The schema of a field, references followed, siblings kept."""
        schema = dict(self.schemas[name]["properties"][field])
        while "$ref" in schema:
            schema = {**self.contract.resolve({"$ref": schema.pop("$ref")}), **schema}
        return schema

    def accepts(self, name, body):
        """Is the parsed body what the document asks for?"""
        if not isinstance(body, dict) or _has_unjsonable(body):
            return False
        validator = self.contract.validator(self.schemas[name], BodyValidator)
        if not validator.is_valid(body):
            return False
        return self._sums_fit(name, body)

    def _sums_fit(self, name, body):
        """What the document's descriptions say beyond its schemas."""
        if name == "SandboxUpdate":
            return True
        if name == "ProjectUpdate":
            policy = {k: v for k, v in body["policy"].items() if v is not None}
            return all(
                policy[default] <= policy[limit]
                for default, limit in policy_limits()[2] if {default, limit} <= policy.keys()
            )
        if name == "SandboxCreate":
            workspace = body.get("workspaceMb", self.number("guest.workspace_mb"))
            memory = body.get("memoryMb", self.number("guest.memory_mb"))
            fixed = self.number("guest.tmp_mb") + self.number("guest.shm_mb") + 64
            return workspace + fixed <= memory
        cwd = body.get("cwd", "").encode()
        if not cwd.startswith(b"/") and len(b"/workspace/" + cwd) > 4095:
            return False
        argv = body.get("cmd", "")
        words = ["/bin/bash", "-c", argv] if isinstance(argv, str) else argv
        if "code" in body:
            words = [{"javascript": "node", "python": "python3", "bash": "/bin/bash"}[body["language"]]]
        pairs = [f"{k}={v}" for k, v in body.get("env", {}).items()]
        sizes = [len(w.encode()) + 1 for w in words + pairs]
        return max(sizes) <= 131072 and sum(sizes) <= self.number("limits.argv_bytes")


def _has_unjsonable(value):
    """NUL, surrogates, and numbers that are not written as integers of 64 bits."""
    if isinstance(value, str):
        return "\0" in value or any(0xD800 <= ord(c) < 0xE000 for c in value)
    if isinstance(value, dict):
        return any(_has_unjsonable(k) or _has_unjsonable(v) for k, v in value.items())
    if isinstance(value, list):
        return any(_has_unjsonable(v) for v in value)
    if isinstance(value, float):
        return True
    return isinstance(value, int) and not -(2**63) <= value < 2**63


def seed():
    """PADDOCK_SEED, or a fresh one; a failing generated case prints it."""
    return int(os.environ.get("PADDOCK_SEED") or int.from_bytes(os.urandom(4), "big"))
