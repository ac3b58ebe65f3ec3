"""A FastCGI program of the tests' own, in the place of paddock-fcgi.

Where Paddock's handlers would refuse or forgive, it shows what a web server
passes on, byte for byte and in its order: variables (twice, where they come
twice), body, the moment each arrives. Used by test_web.py.
"""

import os
import pwd
import socket
import struct
import threading

BEGIN, END, PARAMS, STDIN, STDOUT = 1, 3, 4, 5, 6


class Request:
    """One request: its variables as (name, value) pairs, its body, and the way to answer."""

    def __init__(self, connection):
        self.connection = connection
        self.body = b""
        params = b""
        while True:
            kind, self.id, data = self._record()
            if kind == PARAMS:
                params += data
            elif kind == STDIN and not data:
                break
            elif kind == STDIN:
                self.body += data
        self.variables = list(self._pairs(params))

    def _exactly(self, size):
        out = b""
        while len(out) < size:
            more = self.connection.recv(size - len(out))
            if not more:
                raise ConnectionError("the web server left")
            out += more
        return out

    def _record(self):
        _, kind, number, length, padding = struct.unpack(">BBHHBx", self._exactly(8))
        return kind, number, self._exactly(length + padding)[:length]

    @staticmethod
    def _pairs(data):
        at = 0

        def length():
            nonlocal at
            if data[at] < 128:
                at += 1
                return data[at - 1]
            at += 4
            return struct.unpack(">I", data[at - 4 : at])[0] & 0x7FFFFFFF

        while at < len(data):
            name, value = length(), length()
            yield (
                data[at : at + name].decode("latin-1"),
                data[at + name : at + name + value].decode("latin-1"),
            )
            at += name + value

    def all(self, name):
        """Every value that a variable came with."""
        return [value for key, value in self.variables if key == name]

    def send(self, data):
        """A part of the CGI answer."""
        self.connection.sendall(struct.pack(">BBHHBx", 1, STDOUT, self.id, len(data), 0) + data)

    def end(self):
        for kind, data in ((STDOUT, b""), (END, bytes(8))):
            self.connection.sendall(struct.pack(">BBHHBx", 1, kind, self.id, len(data), 0) + data)
        self.connection.close()

    def answer(self, data=b"Status: 200 OK\r\nContent-Type: text/plain\r\n\r\nfine"):
        self.send(data)
        self.end()


class Backend:
    """Listens where the handlers did. handle(request) is called in a thread of its own."""

    def __init__(self, path, handle):
        self.handle, self.requests = handle, []
        path.unlink(missing_ok=True)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        os.chown(path, pwd.getpwnam("paddock").pw_uid, -1)
        self.listener.listen(1024)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        try:
            request = Request(connection)
            self.requests.append(request)
            self.handle(request)
        except OSError:
            pass  # the web server closed the connection: tests look at its client's side

    def close(self):
        """May be called again."""
        if self.listener.fileno() >= 0:
            self.listener.shutdown(socket.SHUT_RDWR)
            self.listener.close()
