"""Clocks that are wrong: nothing that crosses processes is decided by them.

Handlers and daemon each get a wall clock five minutes away from the database's, in opposite
directions (their monotonic clocks stay right). What they say of time, and when they
end a sandbox, must be the database's.
"""

import subprocess
import time

import pytest

from harness import wait_for

pytestmark = pytest.mark.any_web

# Preloaded (libfaketime's is of no use to programs that change their user).
CLOCK = """
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t id, struct timespec *now)
{
    const char *offset_s = getenv("CLOCK_OFFSET_S");
    int result = (int)syscall(SYS_clock_gettime, id, now);

    if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) && offset_s)
        now->tv_sec += atoi(offset_s);
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    *now = (struct timeval){.tv_sec = exact.tv_sec, .tv_usec = exact.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *out)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}
"""
TTL_S = 6
NEAR_S = 60  # what a busy machine may take; the clocks are 300 s and 600 s apart


@pytest.fixture(scope="module")
def clock(tmp_path_factory):
    """The library that shifts a program's wall clock."""
    folder = tmp_path_factory.mktemp("clock", numbered=False)
    # The daemon drops its privileges before it reads it again.
    for part in (folder, *folder.parents[:2]):
        part.chmod(0o755)
    source = folder / "clock.c"
    source.write_text(CLOCK)
    library = folder / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


def restart_at(stack, part, clock, offset_s):
    """The part again, with such a clock."""
    stack.stop(part)
    kept = dict(stack.env)
    stack.env.update(LD_PRELOAD=str(clock), CLOCK_OFFSET_S=str(offset_s))
    try:
        done = stack.restart(part)
    finally:
        stack.env.clear()
        stack.env.update(kept)
    assert done.returncode == 0, done.stderr


def log_time(stack, part):
    """The wall clock of a part, as its last log line has it, less the machine's; in seconds."""
    line = (stack.run_dir / f"{part}.log").read_text().splitlines()[-1]
    stamp = line.split("ts=", 1)[1].split(".", 1)[0]
    return time.mktime(time.strptime(stamp, "%Y-%m-%dT%H:%M:%S")) - time.timezone - time.time()


def seconds_from_database(stack, *stamps):
    rows = stack.sql("SELECT " + ", ".join(
        f"extract(epoch FROM clock_timestamp() - '{stamp}'::timestamptz)" for stamp in stamps
    ))
    return [float(value) for value in rows[0]]


@pytest.mark.parametrize("handlers, daemon", [(300, -300), (-300, 300)])
def test_only_the_databases_clock_decides(own_stack, clock, handlers, daemon):
    stack = own_stack("[daemon]\nlease = 5s\nheartbeat = 1s\n")
    client = stack.client
    restart_at(stack, "paddock-fcgi", clock, handlers)
    restart_at(stack, "paddockd", clock, daemon)
    wait_for(
        lambda: stack.sql("SELECT accepting AND node_is_live(n) FROM nodes n") == [["t"]], "the daemon"
    )
    lasting = client.create(template="base", ttlSeconds=200, idleSeconds=200)
    # The clocks are as wrong as they should be.
    for part, offset_s in (("paddock-fcgi", handlers), ("paddockd", daemon)):
        assert abs(log_time(stack, part) - offset_s) < NEAR_S, part

    short = client.create(template="base", ttlSeconds=TTL_S)
    ran = client.exec(lasting, "echo ran")
    assert ran["state"] == "succeeded"
    for age in seconds_from_database(stack, short["createdAt"], ran["startedAt"], ran["endedAt"]):
        assert 0 <= age < NEAR_S
    (left,) = seconds_from_database(stack, lasting["expiresAt"])
    assert -200 <= left < -200 + NEAR_S
    assert client.exec(lasting, "sleep 60", timeoutMs=300)["state"] == "timed_out"

    gone = wait_for(lambda: (s := client.get(short))["endedAt"] and s, "the end of its life")
    assert (gone["state"], gone["reason"]) == ("expired", "ttl")
    lived = seconds_from_database(stack, gone["createdAt"], gone["endedAt"])
    assert TTL_S <= lived[0] - lived[1] < TTL_S + NEAR_S

    # A change of lifetimes counts from the database's now, and ends in its time.
    changed = client.request("PATCH", f"~/{lasting['id']}", {"ttlSeconds": TTL_S}).expect(200)
    (left,) = seconds_from_database(stack, changed["expiresAt"])
    assert -TTL_S <= left < NEAR_S
    gone = wait_for(lambda: (s := client.get(lasting))["endedAt"] and s, "the end of the other")
    assert (gone["state"], gone["reason"]) == ("expired", "ttl")
    # Nobody took the daemon for dead, nor did it give itself up.
    assert stack.sql("SELECT accepting AND node_is_live(n) FROM nodes n") == [["t"]]
