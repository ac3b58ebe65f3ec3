"""Main comes and goes; sandboxes, and what runs in them, stay."""

import os
import pathlib
import signal
import threading
import time

import pytest

from harness import cgroups_naming, processes_naming, wait_for


def main_of(stack):
    return wait_for(lambda: stack.daemon_part("main"), "main")


def epoch(stack):
    return int(stack.sql("select epoch from nodes")[0][0])


def kill_main(stack, number=signal.SIGKILL):
    """Returns when the next one is registered, and has taken over what was there."""
    before = epoch(stack)
    os.kill(main_of(stack), number)
    wait_for(lambda: epoch(stack) > before, "the next main is registered", 90)


def reload(stack):
    before = epoch(stack)
    stack.signal("paddockd", signal.SIGHUP)
    wait_for(lambda: epoch(stack) > before, "the next main is registered", 90)


def start(client, sandbox, cmd, **fields):
    answer = client.request("POST", f"~/{sandbox['id']}/exec?wait=0", {"cmd": cmd, **fields})
    return answer.expect(202)["id"]


def execution(client, sandbox, eid, wait=0):
    return client.request("GET", f"~/{sandbox['id']}/executions/{eid}?wait={wait}").expect(200)


def ended(client, sandbox, eid, seconds=90):
    """Its end, whatever happens to connections meanwhile."""

    def look():
        try:
            answer = client.request("GET", f"~/{sandbox['id']}/executions/{eid}?wait=10")
        except OSError:
            return None
        return answer.status == 200 and answer.json["endedAt"] and answer.json

    return wait_for(look, f"end of {eid}", seconds)


def running(client, sandbox, eid):
    wait_for(lambda: execution(client, sandbox, eid)["state"] == "running", f"{eid} runs")


def written(client, sandbox, path, text):
    """Waits until a file of the guest holds text."""
    client.run(sandbox, f"until grep -qs '{text}' {path}; do sleep 0.05; done", timeoutMs=60000)


def gone(client, sandbox, seconds=60):
    return wait_for(
        lambda: (s := client.get(sandbox))["endedAt"] and s, f"end of {sandbox['id']}", seconds
    )


def test_ten_kills_under_work_lose_no_sandbox_and_run_nothing_twice(own_stack):
    stack = own_stack()
    client = stack.client
    made = [client.create(template="base") for _ in range(3)]
    for sandbox in made:
        client.run(sandbox, f"echo {sandbox['id']} > kept")
    server = start(client, made[0], ["python3", "-u", "-c",
                   "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8000)"])
    loop = start(client, made[1], "until [ -e enough ]; do sleep 0.05; done; echo done; exit 7")
    running(client, made[0], server)
    running(client, made[1], loop)

    stop = threading.Event()
    acknowledged = {}

    def work(sandbox, lane):
        number = 0
        while not stop.is_set():
            number += 1
            word = f"{lane}-{number}"
            try:
                answer = client.request(
                    "POST", f"~/{sandbox['id']}/exec", {"cmd": f"echo {word} >> ran; echo {word}"}
                )
            except OSError:
                continue
            if answer.status in (201, 202):
                acknowledged[answer.json["id"]] = (sandbox, word)
                ended(client, sandbox, answer.json["id"])  # one at a time
            else:
                # 500 and 502: the web server's word for a connection that died with main
                assert answer.status in (500, 502, 503), (answer.status, answer.body)

    threads = [threading.Thread(target=work, args=(s, f"lane{i}")) for i, s in enumerate(made * 2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            done = len(acknowledged)
            kill_main(stack)
            wait_for(lambda: len(acknowledged) >= done + 3, "work goes on", 90)
    finally:
        stop.set()
        for thread in threads:
            thread.join()

    for sandbox in made:
        assert client.get(sandbox)["state"] == "ready"
        assert client.run(sandbox, "cat kept") == sandbox["id"] + "\n"
    assert execution(client, made[0], server)["state"] == "running"
    assert "kept" in client.run(made[0], "python3 -c \"import urllib.request as u;"
                                " print(u.urlopen('http://127.0.0.1:8000/').read().decode())\"")
    client.run(made[1], "touch enough")
    final = ended(client, made[1], loop)
    assert (final["state"], final["exitCode"], final["stdout"]) == ("failed", 7, "done\n")

    states = {}
    for eid, (sandbox, word) in acknowledged.items():
        final = ended(client, sandbox, eid)
        states[final["state"]] = states.get(final["state"], 0) + 1
        assert final["state"] in ("succeeded", "lost"), final
        if final["state"] == "succeeded":
            assert final["stdout"] == word + "\n" or final["truncated"]["stdout"], final
        else:
            assert final["reason"] == "daemon_restart" and final["exitCode"] is None
    assert states["succeeded"] > 30
    for sandbox in made:
        ran = client.run(sandbox, "cat ran").split()
        assert len(ran) == len(set(ran)), "something ran twice"
        # what succeeded did run, and once
        for eid, (where, word) in acknowledged.items():
            if where is sandbox and execution(client, sandbox, eid)["state"] == "succeeded":
                assert ran.count(word) == 1
    for sandbox in made:
        client.delete(sandbox)
        assert cgroups_naming(sandbox["id"]) == []


def test_a_running_execution_keeps_its_result_and_says_what_was_omitted(own_stack):
    stack = own_stack()
    client = stack.client
    sandbox = client.create(template="base")
    eid = start(client, sandbox, "echo before; echo bad >&2; touch up;"
                " until [ -e go ]; do sleep 0.05; done; echo after; exit 3")
    client.run(sandbox, "until [ -e up ]; do sleep 0.05; done")
    kill_main(stack)
    assert execution(client, sandbox, eid)["state"] == "running"
    client.run(sandbox, "touch go")
    final = ended(client, sandbox, eid)
    assert final["state"] == "failed" and final["exitCode"] == 3
    assert final["stdout"] == "after\n" and final["stderr"] == ""
    kept = stack.sql(
        "select stdout_bytes, stdout_omitted_at, stderr_bytes, stderr_omitted_at from executions"
        f" where id = '{eid}'"
    )
    assert kept == [["13", "0", "4", "0"]]


def test_what_ends_while_no_main_is_there_is_not_lost(own_stack):
    stack = own_stack()
    client = stack.client
    sandbox = client.create(template="base")
    eid = start(client, sandbox, "sleep 1; exit 5")
    running(client, sandbox, eid)
    supervisor = stack.pid("paddockd")
    # A supervisor that is stopped starts no main: the end falls into the gap.
    os.kill(supervisor, signal.SIGSTOP)
    os.kill(main_of(stack), signal.SIGKILL)
    guest = processes_naming(sandbox["id"])
    assert guest
    time.sleep(2)  # nothing tells from outside when a guest's process ended
    before = epoch(stack)
    os.kill(supervisor, signal.SIGCONT)
    wait_for(lambda: epoch(stack) > before, "the next main is registered", 90)
    final = ended(client, sandbox, eid)
    assert (final["state"], final["exitCode"]) == ("failed", 5)


def test_stdin_goes_on_where_it_stopped(own_stack):
    stack = own_stack()
    client = stack.client
    sandbox = client.create(template="base")
    text = "".join(f"line {i}\n" for i in range(100000))  # more than pipe and window hold
    eid = start(client, sandbox, "read first; echo \"$first\" > began;"
                " until [ -e go ]; do sleep 0.05; done; wc -c; ", stdin=text)
    client.run(sandbox, "until [ -e began ]; do sleep 0.05; done")
    kill_main(stack)
    client.run(sandbox, "touch go")
    final = ended(client, sandbox, eid)
    assert final["state"] == "succeeded", final
    # The shell reads stdin byte by byte: what wc counts is all but the first line.
    assert final["stdout"].strip() == str(len(text) - len("line 0\n"))


def test_sighup_loses_nothing_not_even_who_waits(own_stack):
    stack = own_stack()
    client = stack.client
    sandbox = client.create(template="base")
    keeper, supervisor = stack.daemon_part("keeper"), stack.pid("paddockd")
    answers = []

    def wait_long(number):
        answers.append(client.request("POST", f"~/{sandbox['id']}/exec", {
            "cmd": f"echo began >> began; until [ -e go ]; do sleep 0.05; done; echo end {number}"}))

    threads = [threading.Thread(target=wait_long, args=(i,)) for i in range(5)]
    for thread in threads:
        thread.start()
    client.run(sandbox, "until [ \"$(grep -c began began)\" = 5 ]; do sleep 0.05; done")
    created = []
    maker = threading.Thread(target=lambda: created.append(client.create(template="base")))
    for round_ in range(3):
        before = main_of(stack)
        if round_ == 1:
            maker.start()  # provisioned, or queued, within a change of mains
        reload(stack)
        wait_for(lambda: not pathlib.Path(f"/proc/{before}").exists(), "the former main's end")
    maker.join()
    client.run(sandbox, "touch go")
    for thread in threads:
        thread.join()
    assert sorted(a.expect(201)["stdout"] for a in answers) == [f"end {i}\n" for i in range(5)]
    assert client.run(created[0], "echo fine") == "fine\n"
    assert (stack.daemon_part("keeper"), stack.pid("paddockd")) == (keeper, supervisor)


def test_sighup_under_load_fails_no_request(own_stack):
    stack = own_stack()
    client = stack.client
    sandbox = client.create(template="base")
    stop = threading.Event()
    bad, good = [], []

    def work():
        while not stop.is_set():
            answer = client.request("POST", f"~/{sandbox['id']}/exec", {"cmd": ["true"]})
            (good if answer.status in (201, 202) else bad).append((answer.status, answer.body))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(4):
            done = len(good)
            reload(stack)
            wait_for(lambda: len(good) >= done + 10 or bad, "work goes on", 90)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert bad == []
    states = stack.sql("select state, count(*) from executions group by 1")
    assert [s for s, _ in states] == ["succeeded"], states


def test_a_bad_configuration_does_not_survive_sighup_and_nothing_else_suffers(own_stack):
    stack = own_stack()
    client = stack.client
    sandbox = client.create(template="base")
    text = stack.config_path.read_text()
    main = main_of(stack)
    log = stack.run_dir / "paddockd.log"
    stack.config_path.write_text(text + "\n[daemon]\nno_such_key = 1\n")
    stack.signal("paddockd", signal.SIGHUP)
    wait_for(lambda: "event=reload_failed" in log.read_text(), "the refusal")
    assert stack.daemon_part("main") == main
    assert client.run(sandbox, "echo fine") == "fine\n"
    # and a good one takes effect
    stack.config_path.write_text(text + "\n[limits]\noutput_bytes = 1K\n")
    reload(stack)
    assert client.run(sandbox, "head -c 5000 /dev/zero | tr '\\0' x")[:3] == "xxx"
    assert stack.sql("select max(octet_length(stdout)) from executions") == [["1024"]]


def test_deadlines_go_on(own_stack):
    stack = own_stack()
    client = stack.client
    timed = client.create(template="base")
    mortal = client.create(template="base", ttlSeconds=8)
    idle = client.create(template="base", idleSeconds=6)
    eid = start(client, timed, "sleep 1000", timeoutMs=6000)
    running(client, timed, eid)
    kill_main(stack)
    final = ended(client, timed, eid)
    assert final["state"] == "timed_out"
    assert 6000 <= final["durationMs"] < 30000
    assert client.get(timed)["state"] == "ready"
    end = gone(client, mortal)
    assert (end["state"], end["reason"]) == ("expired", "ttl")
    end = gone(client, idle)
    assert (end["state"], end["reason"]) == ("expired", "idle")


def test_a_guest_that_dies_without_a_main_tells_the_true_reason(own_stack):
    stack = own_stack()
    client = stack.client
    crashed = client.create(template="base")
    deleted = client.create(template="base")
    supervisor = stack.pid("paddockd")
    os.kill(supervisor, signal.SIGSTOP)
    os.kill(main_of(stack), signal.SIGKILL)
    sentry = [p for p in processes_naming(crashed["id"])
              if " boot " in pathlib.Path(f"/proc/{p}/cmdline").read_text().replace("\0", " ")]
    os.kill(sentry[0], signal.SIGKILL)
    wait_for(lambda: not processes_naming(crashed["id"]), "the guest's end")
    # A client's wish in the gap is the next main's to fulfil.
    client.request("DELETE", f"~/{deleted['id']}?wait=0").expect(200, 202)
    os.kill(supervisor, signal.SIGCONT)
    end = gone(client, crashed)
    assert (end["state"], end["reason"]) == ("failed", "guest_crash")
    end = gone(client, deleted)
    assert (end["state"], end["reason"]) == ("terminated", "requested")
    assert cgroups_naming(deleted["id"]) == []


def test_a_stopped_main_is_replaced(own_stack):
    stack = own_stack("[daemon]\nwatchdog = 2s\n")
    client = stack.client
    sandbox = client.create(template="base")
    client.run(sandbox, "echo kept > kept")
    kill_main(stack, signal.SIGSTOP)
    assert client.run(sandbox, "cat kept") == "kept\n"


def test_no_main_within_the_lease_ends_the_guests(own_stack):
    stack = own_stack("[daemon]\nlease = 3s\nheartbeat = 1s\n")
    client = stack.client
    sandbox = client.create(template="base")
    eid = start(client, sandbox, "sleep 1000")
    running(client, sandbox, eid)
    supervisor = stack.pid("paddockd")
    os.kill(supervisor, signal.SIGSTOP)
    os.kill(main_of(stack), signal.SIGKILL)
    wait_for(lambda: not processes_naming(sandbox["id"]), "the guest's end", 60)
    os.kill(supervisor, signal.SIGCONT)
    end = gone(client, sandbox)
    assert (end["state"], end["reason"]) == ("failed", "node_lost")
    lost = execution(client, sandbox, eid)
    assert (lost["state"], lost["reason"]) == ("lost", "node_lost")
    assert cgroups_naming(sandbox["id"]) == []


def test_postgres_away_while_main_changes(own_stack):
    stack = own_stack()
    client = stack.client
    sandbox = client.create(template="base")
    eid = start(client, sandbox, "until [ -e go ]; do sleep 0.05; done; echo kept")
    running(client, sandbox, eid)
    before = epoch(stack)
    main = main_of(stack)
    stack.signal("postgres", signal.SIGQUIT)
    os.kill(main, signal.SIGKILL)
    wait_for(lambda: stack.daemon_part("main") not in (None, main), "the next main")
    stack.up()
    wait_for(lambda: epoch(stack) > before, "the next main is registered", 90)
    client.run(sandbox, "touch go")
    final = ended(client, sandbox, eid)
    assert (final["state"], final["stdout"]) == ("succeeded", "kept\n")
