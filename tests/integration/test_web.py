"""The web server in front: hostile, broken, slow and hasty clients, and its own restarts.

The same must hold through each of lighttpd, Apache and nginx as the examples
in lighttpd/ set them up: what can be read in two ways is refused or decides
nothing, the slow hold up nobody, the hasty leave nothing, and what the server
refuses by itself still tells why. Where their ways differ, the table says so.
"""

import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import threading
import time
import uuid

import pytest

from harness import TOP, WEB, children, fd_count, growth, rss_kib, wait_for
from raw_http import connect, converse, raw_request, status_of


# --- requests that can be read in two ways --------------------------------------------


BODY = '{"cmd": "true"}'
LENGTH = "Content-Length: 15\r\n"
CHUNKED = "Transfer-Encoding: chunked\r\n"
IN_CHUNKS = f"f\r\n{BODY}\r\n0\r\n\r\n"
HIDDEN = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
# 400, or: Apache takes no body without its length; its limits are 400 and not 431; header names
# with an underscore are refused by lighttpd and dropped by the others.
NO_LENGTH = 411 if WEB == "apache" else 400
TOO_LONG = 400 if WEB == "apache" else 431
UNDERSCORE = 403 if WEB == "lighttpd" else 201
# RFC 9112, section 2.2: a recipient may take a bare LF for a line's end. nginx does; nothing behind
# it sees the line.
BARE_LF = 201 if WEB == "nginx" else 400


@pytest.mark.parametrize(
    "head, body, status",
    [
        (LENGTH + CHUNKED, IN_CHUNKS, NO_LENGTH),
        (CHUNKED + LENGTH, f"0\r\n\r\n{BODY}", NO_LENGTH),
        (CHUNKED + "Content-Length: 5\r\n", f"0\r\n\r\n{HIDDEN}", NO_LENGTH),
        ("Transfer-Encoding: xchunked\r\n" + LENGTH, BODY + HIDDEN, None),
        ("Transfer-Encoding: chunked, identity\r\n", IN_CHUNKS + HIDDEN, None),
        ("Transfer-Encoding:\x0bchunked\r\n" + LENGTH, IN_CHUNKS + HIDDEN, None),
        ("Transfer_Encoding: chunked\r\n" + LENGTH, BODY, 201),
        ("Content_Length: 3\r\n" + LENGTH, BODY, 201),
        ("Content-Length: 15\r\nContent-Length: 3\r\n", BODY, 400),
        ("Content-Length: +15\r\n", BODY, 400),
        ("Content-Length: -1\r\n", BODY, 400),
        ("Content-Length: 0x0f\r\n", BODY, 400),
        ("Content-Length: 15, 15\r\n", BODY, 400),
        ("Content-Length: 15 3\r\n", BODY, 400),
        ("Content-Length: 18446744073709551631\r\n", BODY, (400, 413)),
        ("Content-Length : 15\r\n", BODY, 400),
        (f"X: a\n{LENGTH}", BODY, BARE_LF),
        (f"X: a\r\n Content-Length: 3\r\n{LENGTH}", BODY, (201, 400)),
        (f"Idempotency-Key: a\r\n b\r\n{LENGTH}", BODY, 400),
        (f" X: a\r\n{LENGTH}", BODY, (201, 400)),
        (f"X: a\0b\r\n{LENGTH}", BODY, 400),
        (f"X\0Y: a\r\n{LENGTH}", BODY, 400),
        (f"X\r\n{LENGTH}", BODY, (201, 400)),
        (f"X: {'a' * 9000}\r\n{LENGTH}", BODY, TOO_LONG),
        (f"X-{'a' * 9000}: a\r\n{LENGTH}", BODY, TOO_LONG),
        ("".join(f"X-{i}: {'a' * 1000}\r\n" for i in range(600)) + LENGTH, BODY, TOO_LONG),
        (f"Host: y\r\n{LENGTH}", BODY, 400),
        (f"Authorization: Bearer pdk_x_y\r\n{LENGTH}", BODY, (400, 401)),
        (f"X-API-Key: pdk_0000000000000000_0\r\n{LENGTH}", BODY, 401),
        (f"X_API_Key: anything\r\n{LENGTH}", BODY, UNDERSCORE),
        (f"Idempotency_Key: any thing\r\n{LENGTH}", BODY, UNDERSCORE),
        (f"Idempotency-Key: a\r\nIdempotency-Key: b\r\n{LENGTH}", BODY, 400),
        (f"Prefer: wait=-1\r\n{LENGTH}", BODY, 400),
        (f"Prefer: wait=301\r\n{LENGTH}", BODY, 400),
        (f"Prefer: wait=99999999999999999999\r\n{LENGTH}", BODY, 400),
        (CHUNKED, IN_CHUNKS, 411 if WEB == "apache" else 201),
        (CHUNKED, f"ffffffffffffffff1\r\n{BODY}\r\n0\r\n\r\n", NO_LENGTH),
        (CHUNKED, f"-1\r\n{BODY}\r\n0\r\n\r\n", NO_LENGTH),
    ],
)
def test_a_request_that_can_be_read_in_two_ways_is_refused(stack, client, sandbox, head, body, status):
    text = raw_request(client, "POST", f"/{sandbox['id']}/exec")[:-2].decode()
    text += f"Content-Type: application/json\r\nConnection: close\r\n{head}\r\n{body}"
    answer = converse(stack, text.encode("latin-1"))
    expected = status if isinstance(status, tuple) else (status,)
    assert (status_of(answer) in expected) if status else status_of(answer) not in (200, 201), answer
    # Whatever came after it was no second request.
    assert answer.count(b"HTTP/1.1 ") <= 1


def test_a_token_in_a_trailer_opens_nothing(stack, client, sandbox):
    text = (
        f"GET /api/v1/projects/{client.project}/sandboxes HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        f"Transfer-Encoding: chunked\r\nTrailer: Authorization\r\n\r\n"
        f"0\r\nAuthorization: Bearer {client.token}\r\n\r\n"
    )
    assert status_of(converse(stack, text.encode())) in (400, 401, 411)


def test_requests_in_one_packet_and_in_many_are_each_answered(stack, client, sandbox):
    one = raw_request(client, "POST", f"/{sandbox['id']}/exec", BODY)
    last = raw_request(client, "GET", f"/{sandbox['id']}", head="Connection: close\r\n")
    out = converse(stack, one * 5 + last)
    assert out.count(b"HTTP/1.1 201 ") == 5 and out.count(b"HTTP/1.1 200 ") == 1
    with connect(stack) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(one), 7):
            s.sendall(one[at : at + 7])
        assert s.recv(65536).startswith(b"HTTP/1.1 201 ")


def test_an_id_is_the_same_however_it_is_spelled(stack, client, sandbox):
    sid = sandbox["id"]
    for spelling, status in (
        ("%30" + sid[1:], 200),
        (sid.replace("-", "%2d"), 200),
        (sid + "%00", (400, 404)),
        (sid + "%2f", (400, 404)),
        (sid + "/", 400),
        ("../" + sid, 400),
        (sid + "%2e%2e", 404),
        (sid + ";a", 404),
        ("%zz", 400),
        (sid + "?wait=1&wait=2", 400),
        (sid + "?wait=0x1", 400),
        (sid + "?wait=%31", 200),
        (sid + "?Wait=1", 400),
    ):
        answer = converse(stack, raw_request(client, "GET", f"/{spelling}", head="Connection: close\r\n"))
        assert status_of(answer) in (status if isinstance(status, tuple) else (status,)), spelling


def test_a_header_with_an_underscore_opens_nothing_and_decides_nothing(client, sandbox):
    stack, path = client.stack, f"/api/v1/projects/{client.project}/sandboxes"
    for name in ("X_API_Key", "X_API-Key", "X-API_Key", "x_api_key"):
        data = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{name}: {client.token}\r\n\r\n"
        assert status_of(converse(stack, data.encode())) in (401, 403), name
    head = f"Idempotency_Key: {uuid.uuid4().hex}\r\nConnection: close\r\n"
    data = raw_request(client, "POST", f"/{sandbox['id']}/exec", BODY, head)
    assert all(status_of(converse(stack, data)) == UNDERSCORE for _ in range(2))


def test_trace_and_connect_are_refused_and_echo_nothing(stack, client):
    for method, target in (("TRACE", "/healthz"), ("TRACK", "/healthz"), ("CONNECT", "x:80")):
        data = f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Secret: s3cret\r\n\r\n"
        answer = converse(stack, data.encode())
        assert status_of(answer) in (400, 403, 405, 501) and b"s3cret" not in answer, answer


def test_nothing_but_paddock_is_served(stack):
    for target in ("/", "/index.html", "/etc/passwd", "/apix", "/healthz/..%2f", "/server-status", "/sandbox"):
        answer = converse(stack, f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        assert status_of(answer) in (400, 403, 404), (target, answer)


def test_a_body_over_the_limit_is_refused_in_the_shape_of_every_error(stack, client):
    length = (16 << 20) + 1
    head = f"Content-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n"
    # The length alone is enough.
    answer = converse(stack, raw_request(client, "POST", "", head=head + "Expect: 100-continue\r\n"))
    assert status_of(answer) == 413 and b"application/problem+json" in answer
    problem = json.loads(answer.split(b"\r\n\r\n", 1)[1])
    assert problem["code"] == "too_large" and problem["status"] == 413
    assert client.request("POST", "~", b" " * length).expect(413)["code"] == "too_large"


def test_a_body_without_end_is_cut_off(stack, client):
    head = f"Content-Type: application/json\r\n{CHUNKED}Connection: close\r\n"
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    with connect(stack) as s:
        answer = b""
        try:
            s.sendall(raw_request(client, "POST", "", head=head))
            for _ in range(257):  # one more than the limit of 16 MiB holds
                s.sendall(chunk)
            answer = s.recv(65536)
        except (ConnectionResetError, BrokenPipeError):
            pass  # cut off before its answer was read
    assert status_of(answer) in (413, 411 if WEB == "apache" else 413, None)
    assert client.request("GET", "/healthz").status == 200


# --- slow, hasty and many clients -----------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def drippers(stack):
    """Clients that send one header line a second, from the module's first test to its last."""
    stop, sockets = threading.Event(), []

    def drip():
        while not stop.wait(1):
            for s in list(sockets):
                try:
                    s.sendall(b"X: a\r\n")
                except OSError:
                    sockets.remove(s)

    for _ in range(50):
        s = connect(stack)
        s.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
        sockets.append(s)
    thread = threading.Thread(target=drip)
    thread.start()
    yield sockets
    stop.set()
    thread.join()
    for s in sockets:
        s.close()


def test_slow_senders_and_slow_readers_hold_up_nobody(stack, client, sandbox):
    # A page of them is more than all the sockets on the way hold (the largest send buffer: 4 MiB).
    for _ in range(45):
        client.exec(sandbox, "head -c 70000 /dev/urandom; head -c 70000 /dev/urandom >&2")
    read_big = raw_request(client, "GET", f"/{sandbox['id']}/executions")
    unfinished = raw_request(client, "POST", f"/{sandbox['id']}/exec", BODY)[:-3]
    main = wait_for(lambda: stack.daemon_part("main"), "main")
    before = rss_kib(main)
    slow = []
    try:
        for at in range(150):
            if at < 12:  # three times as many as there are handlers
                reader = socket.socket()
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                reader.connect(("127.0.0.1", stack.port))
                reader.sendall(read_big)
                slow.append(reader)
            for data in (unfinished, unfinished[:40]):
                slow.append(connect(stack))
                slow[-1].sendall(data)
        # Each of them was waited for, a handler that it held would be missing for ever.
        for _ in range(20):
            assert client.run(sandbox, "echo quick") == "quick\n"
    finally:
        for s in slow:
            s.close()
    assert growth(before, rss_kib(main)) < 8 * 1024


def test_a_thousand_that_leave_while_they_wait_leave_nothing(stack, client, sandbox):
    main = wait_for(lambda: stack.daemon_part("main"), "main")
    # All wait for one execution. lighttpd does not watch a client whose whole request was there
    # when it was accepted; these send their bodies when they are told to. Apache never does: there
    # the end of the wait ends it.
    body = '{"cmd": "sleep 600"}'
    wait = 3 if WEB == "apache" else 200
    key = f"Idempotency-Key: {uuid.uuid4().hex}\r\nExpect: 100-continue\r\n"
    data = raw_request(client, "POST", f"/{sandbox['id']}/exec?wait={wait}", body, key)
    before, sizes = fd_count(main), []
    for _ in range(10):
        waiting = []
        for _ in range(100):
            waiting.append(connect(stack))
            waiting[-1].sendall(data[: -len(body)])
        for s in waiting:
            assert s.recv(100).startswith(b"HTTP/1.1 100 ")
            s.sendall(body.encode())
        wait_for(lambda: fd_count(main) >= before + 100, "they wait")
        for i, s in enumerate(waiting):
            if i % 2:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # reset
            s.close()
        wait_for(lambda: fd_count(main) <= before + 20, "they are forgotten", 20)
        sizes.append(rss_kib(main))
    assert growth(max(sizes[:5]), max(sizes[5:])) < 512, sizes
    assert client.run(sandbox, "echo fine") == "fine\n"


def test_clients_that_leave_at_once_cost_the_others_nothing(stack, client, sandbox):
    get = raw_request(client, "GET", f"/{sandbox['id']}")
    run = raw_request(client, "POST", f"/{sandbox['id']}/exec?wait=0", BODY)
    stop = threading.Event()

    def leave():
        at = 0
        while not stop.is_set():
            at += 1
            with connect(stack) as s:
                data = (get, run, get * 3, run[:-3])[at % 4]
                s.sendall(data)
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # reset
            # Some hundreds a second: what they asked for is done, so it must not be more than can be.
            stop.wait(0.01)

    threads = [threading.Thread(target=leave) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        answers = [client.request("GET", f"~/{sandbox['id']}").status for _ in range(200)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert set(answers) == {200}
    wait_for(lambda: client.request("GET", "~/{}/executions?state=running".format(sandbox["id"]))
             .json["items"] == [], "what they started has ended")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_of_the_web_server_under_load_loses_nothing_acknowledged(own_stack, number):
    stack = own_stack()
    client = stack.client
    sandbox = client.create(template="base")
    stop, done, odd = threading.Event(), {}, []

    def work():
        while not stop.is_set():
            key = uuid.uuid4().hex
            try:
                answer = client.request(
                    "POST", f"~/{sandbox['id']}/exec", {"cmd": ["echo", key]},
                    {"Idempotency-Key": key}, timeout=60,
                )
            except (OSError, http.client.HTTPException):
                stop.wait(0.05)
                continue
            if answer.status == 201:
                done[answer.json["id"]] = key
            elif answer.status < 500:
                odd.append((answer.status, answer.body))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            before = len(done)
            wait_for(lambda: len(done) > before + 5, "work")
            leader = stack.pid(WEB)
            os.kill(leader, number)
            wait_for(lambda: not os.path.exists(f"/proc/{leader}/exe"), "its end")
            stack.up()
        before = len(done)
        wait_for(lambda: len(done) > before + 20, "work goes on")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert odd == []
    for execution, key in done.items():
        now = client.request("GET", f"~/{sandbox['id']}/executions/{execution}").expect(200)
        assert now["stdout"] == f"{key}\n"


def test_the_web_servers_workers_have_no_privileges(stack):
    """Those that touch clients' bytes: nginx's master and Apache's parent do not."""
    workers = [stack.pid(WEB)] if WEB == "lighttpd" else children(stack.pid(WEB))
    assert workers
    for worker in workers:
        lines = pathlib.Path(f"/proc/{worker}/status").read_text().splitlines()
        status = dict(line.split(":", 1) for line in lines if ":" in line)
        assert "0" not in status["Uid"].split() and int(status["CapEff"], 16) == 0, worker


@pytest.mark.web("apache", "nginx")
def test_a_dripped_header_is_timed_out(drippers):
    wait_for(lambda: drippers == [], "the server closed them all", 120)


@pytest.mark.web("lighttpd")
def test_a_dripped_header_lasts_but_holds_up_nobody(stack, client, drippers):
    # That it is the firewall's to bound them is the next test's matter.
    assert len(drippers) == 50
    assert client.request("GET", "/healthz").status == 200


FIREWALLED = r"""
import errno, socket
listener = socket.create_server(("", 80), backlog=1024)
kept = []
def attempt(address):
    s = socket.socket()
    s.bind((address, 0))
    try:
        s.connect(("127.0.0.1", 80))
    except OSError as e:
        assert e.errno in (errno.ECONNREFUSED, errno.ECONNRESET), e
        return False
    kept.append((s, listener.accept()[0]))
    return True
assert [attempt("127.0.0.1") for _ in range(512)] == [True] * 512
assert not attempt("127.0.0.1") and not attempt("127.0.0.1")
assert attempt("127.0.0.2")
for s in kept[0]:
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    s.close()
assert attempt("127.0.0.1")
"""


@pytest.mark.any_web
def test_the_firewalls_example_caps_the_connections_of_one_address():
    rules = TOP / "lighttpd" / "nftables.conf"
    script = f"ip link set lo up && ulimit -n 4096 && nft -f {rules} && nft -f {rules} && exec /usr/bin/python3 -"
    done = subprocess.run(
        ["unshare", "--net", "bash", "-c", script],
        input=FIREWALLED, capture_output=True, text=True, timeout=60,
    )
    assert done.returncode == 0, done.stderr
