"""Requests as bytes, for what no HTTP library would send."""

import socket


def raw_request(client, method, path, body="", head=""):
    """A request's bytes, with the client's token."""
    path = f"/api/v1/projects/{client.project}/sandboxes{path}"
    text = f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {client.token}\r\n{head}"
    if body:
        text += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{text}\r\n{body}".encode("latin-1")


def connect(stack):
    return socket.create_connection(("127.0.0.1", stack.port), timeout=60)


def converse(stack, data):
    """What comes back for these bytes until the server closes."""
    with connect(stack) as s:
        out = b""
        try:
            s.sendall(data)
            while more := s.recv(65536):
                out += more
        except (ConnectionResetError, BrokenPipeError):
            pass
    return out


def status_of(answer):
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.") else None
