#!/usr/bin/python3 -I
"""A PID 1 that breaks the frame protocol in the one way it is asked for.

test_hostile_guest.py puts it where an image has paddock-init. Which way: the
size of /workspace in MiB, less FIRST_MB, is an index into MODES; nothing else
can be chosen from outside before HELLO. It shares no code with what it attacks:
its frames are made here by hand, from docs/protocol.md.
"""

import os
import socket
import struct
import sys
import time

FIRST_MB = 16
PAYLOAD_MAX = 65536
WINDOW = 256 * 1024
HELLO, SETUP, READY, PING, PONG, EXEC, SPEC, STARTED, FAILED = range(1, 10)
DATA, EOF, CREDIT, SIGNAL, KILL, EXIT, RESET = range(10, 17)
STDIN, STDOUT, STDERR = range(3)


def frame(kind, payload=b"", stream=0, channel=0, flags=0):
    return struct.pack(">BBHI", kind, channel, flags, stream) + payload


def u32(*values):
    return struct.pack(f">{len(values)}I", *values)


def exit_frame(stream, code=0, sig=0, killed=0, zero=0, cpu_us=0):
    return frame(EXIT, struct.pack(">BBBBQQ", code, sig, killed, zero, cpu_us, 0), stream)


class Link:
    """Descriptor 0."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, fileno=os.dup(0))
        self.socket.setblocking(True)

    def send(self, *frames):
        for one in frames:
            self.socket.send(one)

    def receive(self):
        """(type, stream, channel, payload); None at the end of file."""
        message = self.socket.recv(PAYLOAD_MAX + 8)
        if not message:
            return None
        kind, channel, _, stream = struct.unpack(">BBHI", message[:8])
        return kind, stream, channel, message[8:]

    def handshake(self):
        self.send(frame(HELLO, u32(2)))
        while self.receive()[0] != SETUP:
            pass
        self.send(frame(READY))

    def pong(self, payload):
        self.send(frame(PONG, payload))

    def next_exec(self):
        """The stream of an execution, when all of its spec is there."""
        stream = size = None
        while True:
            kind, on, _, payload = self.receive()
            if kind == PING:
                self.pong(payload)
            elif kind == EXEC:
                stream, size = on, struct.unpack(">I", payload[:4])[0]
            elif kind == SPEC and on == stream:
                size -= len(payload)
                if size == 0:
                    return stream

    def live(self, forever_after_eof=False):
        """Goes on as a guest that does nothing wrong, until the daemon closes the socket."""
        while True:
            message = self.receive()
            if message is None:
                if not forever_after_eof:
                    return
                time.sleep(3600)
            elif message[0] == PING:
                self.pong(message[3])


def sleep_for_ever():
    while True:
        time.sleep(3600)


# --- before the handshake is over ---------------------------------------------------


def says_nothing(link):
    sleep_for_ever()


def exits_at_once(link):
    sys.exit(0)


def hello_then_nothing(link):
    link.send(frame(HELLO, u32(2)))
    sleep_for_ever()


def hello_of_another_version(link):
    link.send(frame(HELLO, u32(3)))
    sleep_for_ever()


def hello_twice(link):
    link.send(frame(HELLO, u32(2)), frame(HELLO, u32(2)))
    sleep_for_ever()


def ready_without_hello(link):
    link.send(frame(READY))
    sleep_for_ever()


def half_a_header(link):
    link.send(b"\1\0\0")
    sleep_for_ever()


def an_empty_message(link):
    link.send(b"")
    sleep_for_ever()


def an_oversized_message(link):
    link.send(frame(HELLO, bytes(PAYLOAD_MAX + 1)))
    sleep_for_ever()


def hello_with_a_long_payload(link):
    link.send(frame(HELLO, bytes(5)))
    sleep_for_ever()


def an_unknown_type(link):
    link.send(frame(200))
    sleep_for_ever()


def flags(link):
    link.send(frame(HELLO, u32(2), flags=1))
    sleep_for_ever()


def hello_on_a_stream(link):
    link.send(frame(HELLO, u32(2), stream=1))
    sleep_for_ever()


def a_frame_of_the_daemon(link):
    link.send(frame(RESET))
    sleep_for_ever()


def output_before_ready(link):
    link.send(frame(HELLO, u32(2)), frame(DATA, b"x", 1, STDOUT))
    sleep_for_ever()


def a_passed_descriptor(link):
    try:
        socket.send_fds(link.socket, [frame(HELLO, u32(2))], [1])
    except OSError:
        # gVisor itself refuses to pass descriptors to the host: nothing reached it.
        link.send(frame(200))
    sleep_for_ever()


def closes_its_sending_half(link):
    link.send(frame(HELLO, u32(2)))
    link.socket.shutdown(socket.SHUT_WR)
    sleep_for_ever()


def closes_its_socket(link):
    link.send(frame(HELLO, u32(2)))
    link.socket.close()
    for fd in range(3):
        os.close(fd)
    sleep_for_ever()


# --- a ready guest --------------------------------------------------------------------


def ready_then_deaf(link):
    link.handshake()
    sleep_for_ever()


def ready_then_mute(link):
    link.handshake()
    while link.receive():
        pass


def exits_when_ready(link):
    link.handshake()
    sys.exit(3)


def pong_without_ping(link):
    link.handshake()
    link.pong(bytes(8))
    sleep_for_ever()


def pong_with_another_nonce(link):
    link.handshake()
    while True:
        kind, _, _, payload = link.receive()
        if kind == PING:
            link.pong(bytes(b ^ 0xFF for b in payload))


def two_pongs(link):
    link.handshake()
    while True:
        kind, _, _, payload = link.receive()
        if kind == PING:
            link.pong(payload)
            link.pong(payload)


def result_of_nothing(link):
    link.handshake()
    link.send(exit_frame(7))
    sleep_for_ever()


def flood_of_garbage(link):
    link.handshake()
    while True:
        link.send(os.urandom(64))


def outlives_its_socket(link):
    link.handshake()
    link.live(forever_after_eof=True)


# --- with an execution ----------------------------------------------------------------


def on_exec(*make):
    """A way that answers an execution with frames made by each of make(stream)."""

    def way(link):
        link.handshake()
        stream = link.next_exec()
        for one in make:
            link.send(one(stream))
        link.live()

    return way


def started(stream):
    return frame(STARTED, u32(7), stream)


def data(channel, size=1, add=0):
    return lambda stream: frame(DATA, b"x" * size, stream + add, channel)


def eof(channel):
    return lambda stream: frame(EOF, b"", stream, channel)


def credit(amount, channel=STDIN):
    return lambda stream: frame(CREDIT, u32(amount), stream, channel)


def failed(errno_value, step):
    return lambda stream: frame(FAILED, u32(errno_value) + bytes([step]), stream)


def ended(**fields):
    return lambda stream: exit_frame(stream, **fields)


overruns = [data(STDOUT, PAYLOAD_MAX)] * (WINDOW // PAYLOAD_MAX) + [data(STDOUT)]


def takes_an_execution_and_never_starts_it(link):
    link.handshake()
    link.next_exec()
    link.live()


def starts_and_never_ends(link):
    link.handshake()
    link.send(started(link.next_exec()))
    link.live()


def trickles_output_for_ever(link):
    """As many and as small frames as the credit allows, and every heartbeat answered."""
    link.handshake()
    stream = link.next_exec()
    link.send(started(stream))
    allowed = {STDOUT: WINDOW, STDERR: WINDOW}
    one = {channel: frame(DATA, b"x", stream, channel) for channel in allowed}
    link.socket.setblocking(False)
    while True:
        try:
            while True:
                message = link.receive()
                if message is None:
                    return
                kind, _, channel, payload = message
                if kind == PING:
                    link.pong(payload)
                elif kind == CREDIT:
                    allowed[channel] += struct.unpack(">I", payload)[0]
        except BlockingIOError:
            pass
        for channel, left in allowed.items():
            try:
                for _ in range(min(left, 1000)):
                    link.send(one[channel])
                    allowed[channel] -= 1
            except BlockingIOError:
                time.sleep(0.001)


def trickles_credit_for_ever(link):
    link.handshake()
    stream = link.next_exec()
    link.send(started(stream))
    one = frame(CREDIT, u32(1), stream, STDIN)
    link.socket.setblocking(False)
    while True:
        try:
            message = link.receive()
            if message is None:
                return
            if message[0] == PING:
                link.pong(message[3])
        except BlockingIOError:
            pass
        try:
            for _ in range(1000):
                link.send(one)
        except BlockingIOError:
            time.sleep(0.001)


MODES = {
    way.__name__: way
    for way in (
        says_nothing,
        exits_at_once,
        hello_then_nothing,
        hello_of_another_version,
        hello_twice,
        ready_without_hello,
        half_a_header,
        an_empty_message,
        an_oversized_message,
        hello_with_a_long_payload,
        an_unknown_type,
        flags,
        hello_on_a_stream,
        a_frame_of_the_daemon,
        output_before_ready,
        a_passed_descriptor,
        closes_its_sending_half,
        closes_its_socket,
        ready_then_deaf,
        ready_then_mute,
        exits_when_ready,
        pong_without_ping,
        pong_with_another_nonce,
        two_pongs,
        result_of_nothing,
        flood_of_garbage,
        outlives_its_socket,
        takes_an_execution_and_never_starts_it,
        starts_and_never_ends,
        trickles_output_for_ever,
        trickles_credit_for_ever,
    )
}
MODES |= {
    "output_beyond_its_credit": on_exec(started, *overruns),
    "output_before_started": on_exec(data(STDOUT)),
    "output_on_stdin": on_exec(started, data(STDIN)),
    "output_on_a_channel_that_is_none": on_exec(started, data(3)),
    "output_after_its_end": on_exec(started, eof(STDOUT), data(STDOUT)),
    "output_of_another_stream": on_exec(started, data(STDOUT, add=1)),
    "two_ends_of_output": on_exec(started, eof(STDERR), eof(STDERR)),
    "started_twice": on_exec(started, started),
    "started_as_process_0": on_exec(lambda stream: frame(STARTED, u32(0), stream)),
    "failed_when_running": on_exec(started, failed(2, 1)),
    "failed_without_errno": on_exec(failed(0, 1)),
    "failed_in_no_step": on_exec(failed(2, 99)),
    "exit_before_started": on_exec(ended()),
    "exit_twice": on_exec(started, ended(), ended()),
    "exit_by_no_signal": on_exec(started, ended(sig=65)),
    "exit_killed_by_nobody": on_exec(started, ended(killed=1)),
    "exit_with_impossible_cpu": on_exec(started, ended(cpu_us=1 << 63)),
    "output_after_exit": on_exec(started, ended(), data(STDOUT)),
    "credit_of_nothing": on_exec(started, credit(0)),
    "credit_beyond_count": on_exec(started, credit(1 << 30), credit(1 << 30)),
    "credit_on_stdout": on_exec(started, credit(1, STDOUT)),
}


def main():
    size = os.statvfs("/workspace")
    index = (size.f_blocks * size.f_frsize >> 20) - FIRST_MB
    list(MODES.values())[index](Link())


if __name__ == "__main__":
    main()
