"""Clients that cost little, for tests of many requests: many of them in one process, each with a
connection that it keeps. What they may say is what the tests send; an answer is read as strictly as
a client of HTTP/1.1 must, and a connection that ends before its answer is an error, never a retry.
"""

import asyncio
import json


class LoadAnswer:
    """status, headers (names in lower case) and body of one answer."""

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    def expect(self, *statuses):
        assert self.status in statuses, f"HTTP {self.status}: {self.body[:2000]!r}"
        return self.json


class LoadClient:
    """One request after the other, as the project and with the token of a harness.Client."""

    def __init__(self, client):
        self.port = client.stack.port
        self.base = f"/api/v1/projects/{client.project}/sandboxes"
        self.head = f"Host: 127.0.0.1\r\nAuthorization: Bearer {client.token}\r\n"
        self.reader = self.writer = None

    async def request(self, method, path, body=None, headers=None):
        """`~` at the beginning of path stands for the project's sandboxes."""
        if path.startswith("~"):
            path = self.base + path[1:]
        text = f"{method} {path} HTTP/1.1\r\n{self.head}"
        if body is not None:
            body = json.dumps(body)
            text += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        text += "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writer.write(f"{text}\r\n{body or ''}".encode("ascii"))
        answer = await self._answer()
        if answer.headers.get("connection", "").lower() == "close":
            await self.close()
        return answer

    async def _answer(self):
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {}
        for line in head[1:-2]:
            name, value = line.split(":", 1)
            headers[name.lower()] = value.strip()
        if headers.get("transfer-encoding") == "chunked":
            body = b"".join([chunk async for chunk in self._chunks()])
        else:
            body = await self.reader.readexactly(int(headers["content-length"]))
        return LoadAnswer(int(head[0].split(" ", 2)[1]), headers, body)

    async def _chunks(self):
        while size := int(await self.reader.readline(), 16):
            yield await self.reader.readexactly(size)
            await self.reader.readexactly(2)
        await self.reader.readexactly(2)

    async def close(self):
        if self.writer is not None:
            self.writer.close()
            try:
                await self.writer.wait_closed()
            except OSError:
                pass  # it is closed
            self.reader = self.writer = None
