"""What a web server makes of a request before any handler sees it.

A FastCGI program of the tests' own (fcgi_backend.py) stands where the handlers
were. What must hold with each web server: the target arrives as it was sent or
not at all, no header is mistaken for another, a body arrives whole or not at
all, no request arrives twice, and an answer goes on as it comes.
"""

import os
import signal
import socket
import threading
import urllib.parse

import pytest

from fcgi_backend import Backend
from harness import Stack, wait_for
from raw_http import connect, converse, status_of


@pytest.fixture(scope="module")
def bare():
    """A service without handlers."""
    stack = Stack()
    handlers = stack.pid("paddock-fcgi")
    os.kill(handlers, signal.SIGTERM)
    wait_for(lambda: not os.path.exists(f"/proc/{handlers}/exe"), "the handlers' end")
    yield stack
    stack.close()


@pytest.fixture
def behind(bare):
    """behind(handle): the backend that answers; its requests are kept in .requests."""
    made = []

    def make(handle=lambda request: request.answer()):
        made.append(Backend(bare.run_dir / "sock" / "fcgi.sock", handle))
        return made[-1]

    yield make
    for one in made:
        one.close()


def until(s, text):
    """Reads on until the answer holds text."""
    out = b""
    while text not in out:
        more = s.recv(65536)
        assert more, (text, out)
        out += more
    return out


def ask(stack, target, head="", method="GET", body=b""):
    """(status, answer) of a request on a connection of its own."""
    text = f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{head}\r\n"
    answer = converse(stack, text.encode("latin-1") + body)
    return status_of(answer), answer


def pieces(target):
    """A target as the handlers understand it: decoded segments, raw query."""
    path, _, query = target.partition("?")
    return [urllib.parse.unquote_to_bytes(p) for p in path.split("/")], query


PATHS = [
    "/api/v1/projects/a/sandboxes",
    "/api/v1/projects/a%2Fb/sandboxes",
    "/api/v1/projects/a%2fb/../c",
    "/api/v1/projects/../../../healthz",
    "/api/v1/projects/a/./b",
    "/api/v1/projects/%2e%2e/b",
    "/api/v1/projects/.%2e/b",
    "/api/v1/projects/a//b",
    "/api/v1/projects//a/b",
    "//api/v1/projects/a",
    "/api/v1/projects/a/%252e%252e/b",
    "/api/v1/projects/a%00/b",
    "/api/v1/projects/a%0d%0aX:/b",
    "/api/v1/projects/a\\..\\b",
    "/api/v1/projects/a%5c..%5cb",
    "/api/v1/projects/%61/b",
    "/api/v1/projects/a;b=c/d",
    "/api/v1/projects/%c0%ae%c0%ae/b",
    "/api/v1/projects/%ff/b",
    "/%61pi/v1/projects/a",
    "/API/v1/projects/a",
    "/sandbox/a/../../api/v1/health",
    "/sandbox/..%2f..%2fapi/v1/health",
    "/healthz/../api/v1/health",
    "/healthz/x",
    "/api/v1/x?a=/../b&c=%2e%2e%2f",
    "/api/v1/x?a=%00",
    "/api/v1/x#fragment",
    "/api/v1/x y",
    "/api/v1/\xff",
    "http://other/api/v1/x",
    "http://other/../api/v1/x",
    "api/v1/x",
    "*",
]


@pytest.mark.parametrize("target", PATHS)
def test_the_target_arrives_as_it_was_sent_or_not_at_all(bare, behind, target):
    backend = behind()
    status, answer = ask(bare, target)
    if not backend.requests:
        assert 400 <= status < 500, answer
        return
    (uri,) = backend.requests[0].all("REQUEST_URI")
    # Handlers read this alone, and decode it once: equal for them is equal. A target with its host
    # in front they refuse.
    sent = target.removeprefix("http://other")
    assert uri == target or pieces(uri) == pieces(sent), uri


@pytest.mark.parametrize("spelling", ["X_Name", "X-Name", "x_name", "X_NAME"])
@pytest.mark.parametrize("header", ["X-API-Key", "Idempotency-Key", "Last-Event-ID", "X-Request-Id"])
def test_no_header_is_mistaken_for_another(bare, behind, header, spelling):
    backend = behind()
    name = {"X_Name": header.replace("-", "_"), "X-Name": header, "x_name": header.lower().replace("-", "_"),
            "X_NAME": header.upper().replace("-", "_")}[spelling]
    status, _ = ask(bare, "/api/v1/x", f"{name}: other\r\n")
    variable = "HTTP_" + header.upper().replace("-", "_")
    arrived = [value for request in backend.requests for value in request.all(variable)]
    if "_" in name:
        assert arrived == [] and status in (200, 403)
    else:
        assert arrived == ["other"] and status == 200


def test_a_client_sets_no_variable_that_is_the_servers(bare, behind):
    backend = behind()
    ask(
        bare,
        "/api/v1/x",
        "Proxy: http://evil\r\nRemote-Addr: 192.0.2.1\r\nRequest-URI: /evil\r\nContent_Type: evil\r\n"
        "Script-Filename: /etc/passwd\r\nAuthorization: Bearer t\r\n",
    )
    (request,) = backend.requests
    assert request.all("REQUEST_URI") == ["/api/v1/x"] and request.all("REMOTE_ADDR") == ["127.0.0.1"]
    assert "".join(request.all("HTTP_PROXY")) == ""
    assert request.all("HTTP_AUTHORIZATION") == ["Bearer t"]
    assert "evil" not in "".join(request.all("CONTENT_TYPE"))


@pytest.mark.web("lighttpd", "nginx")
def test_a_chunked_body_arrives_with_its_length(bare, behind):
    backend = behind()
    body = os.urandom(300000)
    chunks = b"".join(
        f"{len(body[at : at + 7000]):x};a=b\r\n".encode() + body[at : at + 7000] + b"\r\n"
        for at in range(0, len(body), 7000)
    )
    status, _ = ask(
        bare, "/api/v1/x", "Transfer-Encoding: chunked\r\n", "POST",
        chunks + b"0\r\nContent-Length: 3\r\nAuthorization: x\r\n\r\n",
    )
    (request,) = backend.requests
    assert status == 200 and request.body == body and request.all("CONTENT_LENGTH") == [str(len(body))]
    assert request.all("HTTP_AUTHORIZATION") == [] and request.all("HTTP_TRANSFER_ENCODING") in ([], ["chunked"])


@pytest.mark.web("apache")
def test_a_chunked_body_is_refused_before_it_is_kept(bare, behind):
    backend = behind()
    status, answer = ask(bare, "/api/v1/x", "Transfer-Encoding: chunked\r\n", "POST", b"1\r\na\r\n0\r\n\r\n")
    assert status == 411 and b"application/problem+json" in answer and backend.requests == []


@pytest.mark.parametrize("size", [100, 200000])
def test_a_body_arrives_whole_or_not_at_all(bare, behind, size):
    backend = behind()
    body = os.urandom(size)
    head = f"POST /api/v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n"
    with connect(bare) as slow, connect(bare) as broken:
        for s in (slow, broken):
            s.sendall(head.encode() + body[:-1])
        # The others' connections are served meanwhile: no handler waits for a body's rest.
        for _ in range(20):
            assert ask(bare, "/api/v1/y")[0] == 200
        assert len(backend.requests) == 20
        broken.shutdown(socket.SHUT_WR)
        slow.sendall(body[-1:])
        assert until(slow, b"fine").startswith(b"HTTP/1.1 200 ")
        assert backend.requests[-1].body == body
        try:
            answer = broken.recv(100)
        except ConnectionResetError:
            answer = b""
        assert not answer.startswith(b"HTTP/1.1 2")
    assert len(backend.requests) == 21


def test_a_request_that_a_handler_dropped_is_not_asked_again(bare, behind):
    backend = behind(lambda request: request.connection.close())
    status, _ = ask(bare, "/api/v1/x", "Content-Length: 3\r\n", "POST", b"abc")
    assert 500 <= status <= 504
    assert len(backend.requests) == 1


def test_an_answer_that_breaks_off_is_no_whole_answer(bare, behind):
    def half(request):
        request.send(b"Status: 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1000\r\n\r\n" + b"a" * 10)
        request.connection.close()

    behind(half)
    status, answer = ask(bare, "/api/v1/x")
    body = answer.split(b"\r\n\r\n", 1)[1]
    assert status >= 500 or body.count(b"a") < 1000 and not answer.endswith(b"0\r\n\r\n")


def test_a_stream_passes_event_by_event(bare, behind):
    seen = threading.Semaphore(0)

    def stream(request):
        request.send(b"Status: 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        for number in range(20):
            request.send(f"data: event {number}\n\n".encode())
            assert seen.acquire(timeout=60)
        request.end()

    backend = behind(stream)
    with connect(bare) as s:
        s.sendall(b"GET /api/v1/x HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\nConnection: close\r\n\r\n")
        for number in range(20):
            # The next is sent once this one is here.
            until(s, f"event {number}\n".encode())
            seen.release()
        while s.recv(65536):
            pass
    assert len(backend.requests) == 1


def leave_one(stack):
    """Sends a request and does not wait: whether it reached a handler is seen there."""
    connection = connect(stack)
    connection.sendall(b"GET /api/v1/x HTTP/1.1\r\nHost: x\r\n\r\n")
    connection.close()


@pytest.mark.web("nginx")
def test_requests_of_one_address_are_capped(bare, behind):
    release = threading.Event()

    def held(request):
        release.wait(60)
        request.answer()

    backend = behind(held)
    waiting = []
    try:
        for _ in range(512):
            waiting.append(connect(bare))
            waiting[-1].sendall(b"GET /api/v1/x HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_for(lambda: len(backend.requests) == 512, "they all wait")
        assert ask(bare, "/api/v1/x")[0] == 429
        waiting.pop().close()
        wait_for(lambda: leave_one(bare) or len(backend.requests) > 512, "room again")
    finally:
        release.set()
        for s in waiting:
            s.close()


def test_without_handlers_it_is_503_and_with_them_it_works_again(bare, behind):
    behind().close()
    assert ask(bare, "/api/v1/x")[0] in (502, 503)
    behind()
    wait_for(lambda: ask(bare, "/api/v1/x")[0] == 200, "it works again", 10)
