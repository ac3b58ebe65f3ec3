"""Several hosts on one database: silent ones are given up, and begin anew when they wake.

The second host is a paddockd on this machine with a number, folders and cgroup of
its own. It has no web server: what waits for its sandboxes is asked for again.
"""

import os
import signal
import subprocess

import pytest

from harness import BUILD, cgroups_naming, children, cmdline, processes_naming, wait_for

LEASE_S = 5
# What stops main is to look like a silent host, not like a main to be replaced.
CONFIG = f"[daemon]\nlease = {LEASE_S}s\nheartbeat = 1s\nwatchdog = 120s\n"


class Node:
    """A second paddockd of a stack."""

    def __init__(self, stack, number):
        self.stack, self.number = stack, number
        self.dir = stack.dir / f"node{number}"
        self.dir.mkdir(mode=0o755)
        parent = f"/paddock-node{number}-{stack.dir.name}"
        env = dict(
            os.environ,
            PADDOCK_NODE_NUMBER=str(number),
            PADDOCK_DAEMON_RUN_DIR=str(self.dir / "sock"),
            PADDOCK_DAEMON_STATE_DIR=str(self.dir / "state"),
            PADDOCK_DAEMON_HANDOFF_SOCKET=str(self.dir / "sock" / "handoff.sock"),
            PADDOCK_CGROUP_PARENT=parent,
        )
        self.parent = parent
        with open(stack.run_dir / f"node{number}.log", "wb") as log:
            self.process = subprocess.Popen(
                [str(BUILD / "paddockd"), "--config", str(stack.config_path)], env=env, stdout=log, stderr=log
            )
        wait_for(lambda: self.row() and self.row()[2] == "t", "the second node")

    def row(self):
        """[epoch, accepting, live]"""
        rows = self.stack.sql(
            f"SELECT epoch, accepting, node_is_live(n) FROM nodes n WHERE number = {self.number}"
        )
        return rows[0] if rows else None

    def main(self):
        for child in children(self.process.pid):
            with open(f"/proc/{child}/comm") as name:
                if name.read().strip() == "paddockd-main":
                    return child
        return None

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
        for folder in sorted(cgroups_naming(self.parent), reverse=True):
            os.rmdir(folder)


@pytest.fixture
def two_nodes(own_stack):
    stack = own_stack(CONFIG)
    second = Node(stack, 2)
    yield stack, second
    second.close()


def ready(client, **fields):
    """A sandbox of whichever node, ready."""
    made = client.request("POST", "~?wait=0", {"template": "base", **fields}).expect(202)
    return wait_for(lambda: (s := client.get(made))["state"] == "ready" and s, "a ready sandbox")


def one_each(client, **fields):
    """{node: a ready sandbox}: a new one goes where fewest are."""
    found = {s["node"]: s for s in (ready(client, **fields), ready(client, **fields))}
    assert set(found) == {1, 2}
    return found


def running(client, sandbox, cmd):
    one = client.request("POST", f"~/{sandbox['id']}/exec?wait=0", {"cmd": cmd}).expect(202)
    path = f"~/{sandbox['id']}/executions/{one['id']}"
    wait_for(lambda: client.request("GET", path).json["state"] == "running", "the start")
    return path


def rows(stack, sandbox):
    """All that the database has of a sandbox; the nodes' own rows apart."""
    return stack.sql(
        f"SELECT s, e, v, i FROM sandboxes s LEFT JOIN executions e ON e.sandbox_id = s.id"
        f" LEFT JOIN sandbox_events v ON v.sandbox_id = s.id LEFT JOIN usage_intervals i"
        f" ON i.sandbox_id = s.id WHERE s.id = '{sandbox['id']}' ORDER BY e.id, v.seq, i.seq"
    )


def test_a_silent_node_is_given_up_and_begins_anew_when_it_wakes(two_nodes):
    stack, second = two_nodes
    client = stack.client
    own = one_each(client)
    path = running(client, own[2], "sleep 600")
    # Ends while nobody listens: a result that wants to be written when the node wakes.
    ending = running(client, own[2], "until [ -e stop ]; do sleep 0.1; done")
    epoch = int(second.row()[0])
    sentry = processes_naming(own[2]["id"])
    assert sentry

    main = second.main()
    client.request("POST", f"~/{own[2]['id']}/exec?wait=0", {"cmd": "sleep 3; touch stop"}).expect(202)
    wait_for(
        lambda: len(client.request("GET", f"~/{own[2]['id']}/executions?state=running").json["items"]) == 3,
        "the third",
    )
    os.kill(main, signal.SIGSTOP)
    try:
        lost = wait_for(lambda: (s := client.get(own[2]))["endedAt"] and s, "the fence", 10 * LEASE_S)
        assert (lost["state"], lost["reason"]) == ("failed", "node_lost")
        for each in (path, ending):
            execution = client.request("GET", each).expect(200)
            assert (execution["state"], execution["reason"]) == ("lost", "node_lost")
        assert int(second.row()[0]) == epoch + 1 and second.row()[1:] == ["f", "f"]
        gone = client.request("POST", f"~/{own[2]['id']}/exec", {"cmd": "true"})
        assert gone.status == 410 and "node_lost" in gone.json["detail"]
        # Who lives goes on, and takes what comes.
        assert client.run(own[1], "echo here") == "here\n"
        assert ready(client)["node"] == 1
        # Its guest does not know yet.
        assert processes_naming(own[2]["id"])
        before = rows(stack, own[2])
    finally:
        os.kill(main, signal.SIGCONT)
    wait_for(lambda: int(second.row()[0]) == epoch + 2 and second.row()[1:] == ["t", "t"], "its return")
    wait_for(lambda: not processes_naming(own[2]["id"]), "its guest's end")
    assert not cgroups_naming(own[2]["id"])
    assert rows(stack, own[2]) == before, "the woken daemon wrote"
    assert second.process.poll() is None and second.main() != main

    again = ready(client)
    assert again["node"] == 2
    running(client, again, "sleep 600")


def test_an_outage_of_the_database_gives_up_no_node(two_nodes):
    stack, second = two_nodes
    client = stack.client
    own = one_each(client)
    epochs = stack.sql("SELECT number, epoch FROM nodes ORDER BY number")
    postgres = stack.pid("postgres")
    os.kill(postgres, signal.SIGQUIT)
    wait_for(lambda: not cmdline(postgres), "the database's end")
    # The time alone makes every node look silent.
    with pytest.raises(AssertionError, match="not within"):
        wait_for(lambda: False, "a lease and some", LEASE_S + 2)
    assert stack.restart("postgres").returncode == 0
    back = "SELECT bool_and(heartbeat_at > pg_postmaster_start_time()) FROM nodes"
    wait_for(lambda: stack.sql(back) == [["t"]], "both nodes' return")
    # Long enough for each to look at the other twice.
    wait_for(
        lambda: stack.sql(f"SELECT now() > pg_postmaster_start_time() + interval '{3 * LEASE_S} seconds'")
        == [["t"]],
        "three leases",
    )
    for sandbox in own.values():
        assert client.get(sandbox)["state"] == "ready"
        running(client, sandbox, "sleep 600")
    assert stack.sql("SELECT number, epoch FROM nodes ORDER BY number") == epochs


def test_maintenance_gives_up_a_host_that_is_gone(own_stack):
    stack = own_stack(CONFIG)
    client = stack.client
    sandbox = client.create(template="base")
    stack.kill_daemon()
    wait_for(lambda: stack.sql("SELECT node_is_live(n) FROM nodes n") == [["f"]], "the lease's end")
    assert "fenced 0 nodes" in stack.cli("maintenance").stdout
    wait_for(
        lambda: "fenced 1 nodes (1 sandboxes lost)" in stack.cli("maintenance").stdout, "the second look"
    )
    lost = client.get(sandbox)
    assert (lost["state"], lost["reason"]) == ("failed", "node_lost")
    assert stack.restart("paddockd").returncode == 0
    wait_for(lambda: stack.sql("SELECT node_is_live(n) FROM nodes n") == [["t"]], "the new daemon")
    client.delete(client.create(template="base"))
