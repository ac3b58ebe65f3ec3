"""Parts are killed under work; nothing acknowledged is lost, nothing is left behind."""

import base64
import http.client
import os
import pathlib
import signal
import subprocess
import threading
import time
import uuid

import pytest

from harness import BUILD, WEB, cgroups_naming, children, cut_client, processes_naming, wait_for


def ended(client, sandbox, seconds=60):
    return wait_for(lambda: (s := client.request("GET", f"~/{sandbox['id']}")).status == 200
                    and s.json["endedAt"] and s.json, f"end of {sandbox['id']}", seconds)


def works_again(client, seconds=90):
    def attempt():
        answer = client.request("POST", "~", {"template": "base"})
        if answer.status == 201 and answer.json["state"] == "ready":
            return answer.json
        assert answer.status in (201, 202, 503), answer.body
        if answer.status != 503:  # or those that came too early would fill the node up
            client.request("DELETE", f"~/{answer.json['id']}?wait=0")
        return None

    sandbox = wait_for(attempt, "the service works again", seconds)
    assert client.run(sandbox, "echo back") == "back\n"
    client.delete(sandbox)


@pytest.mark.any_web
def test_the_keepers_death_ends_every_guest_whatever_the_guest_does(own_stack):
    stack = own_stack()
    client = stack.client
    made = [client.create(template="base") for _ in range(2)]
    running = client.request(
        "POST", f"~/{made[0]['id']}/exec?wait=0",
        {"cmd": "trap '' TERM HUP INT; while :; do :; done"},
    ).expect(202)
    wait_for(lambda: client.request("GET", f"~/{made[0]['id']}/executions/{running['id']}").json["state"]
             == "running", "the execution runs")
    keeper = wait_for(lambda: stack.daemon_part("keeper"), "the keeper")
    os.kill(keeper, signal.SIGKILL)
    for sandbox in made:
        wait_for(lambda: not processes_naming(sandbox["id"]), "the guest's death", 10)
        final = ended(client, sandbox)
        assert final["state"] == "failed" and final["reason"] == "daemon_restart"
    lost = client.request("GET", f"~/{made[0]['id']}/executions/{running['id']}").expect(200)
    assert lost["state"] == "lost" and lost["exitCode"] is None
    works_again(client)
    for sandbox in made:
        assert cgroups_naming(sandbox["id"]) == []


@pytest.mark.any_web
def test_a_killed_sentry_is_a_crash_and_harms_no_other(client):
    victim, other = client.create(template="base"), client.create(template="base")
    running = client.request("POST", f"~/{victim['id']}/exec?wait=0", {"cmd": "sleep 100"}).expect(202)
    # the boot process is the sentry
    sentry = wait_for(
        lambda: [p for p in processes_naming(victim["id"]) if " boot " in _cmdline(p)], "the sentry"
    )
    os.kill(sentry[0], signal.SIGKILL)
    final = ended(client, victim)
    assert final["state"] == "failed" and final["reason"] == "guest_crash"
    lost = client.request("GET", f"~/{victim['id']}/executions/{running['id']}").json
    assert lost["state"] in ("lost", "cancelled")
    assert client.run(other, "echo fine") == "fine\n"
    client.delete(other)
    assert cgroups_naming(victim["id"]) == []


def _cmdline(pid):
    from harness import cmdline

    return f" {cmdline(pid)} "


@pytest.mark.any_web
def test_a_smoke_guest_that_is_killed_is_no_reason_to_give_up(own_stack):
    stack = own_stack()
    stack.signal("paddockd", signal.SIGKILL)
    state = str(stack.run_dir / "state")
    wait_for(lambda: not processes_naming(state), "no process of the former daemon")
    restarted = stack.restart("paddockd")
    assert restarted.returncode == 0, restarted.stderr
    supervisor = stack.pid("paddockd")
    # The smoke guest is the first; main and its keeper are started when it is done.
    smoke = wait_for(
        lambda: [p for p in processes_naming(state) if " boot " in _cmdline(p)], "the smoke guest"
    )
    os.kill(smoke[0], signal.SIGKILL)
    works_again(stack.client)
    assert stack.pid("paddockd") == supervisor and pathlib.Path(f"/proc/{supervisor}/exe").exists()


def test_handlers_may_be_killed_at_any_time(own_stack):
    stack = own_stack()
    client = stack.client
    sandbox = client.create(template="base")
    stop = threading.Event()
    kills = 0

    def killer():
        nonlocal kills
        while not stop.is_set():
            for child in children(stack.pid("paddock-fcgi"))[:1]:
                try:
                    os.kill(child, signal.SIGKILL)
                    kills += 1
                except ProcessLookupError:
                    pass  # reaped since it was listed
            stop.wait(0.1)

    thread = threading.Thread(target=killer)
    thread.start()
    acknowledged = {}
    try:
        deadline = time.monotonic() + 120
        while (kills < 30 or len(acknowledged) < 15) and time.monotonic() < deadline:
            key = uuid.uuid4().hex
            try:
                answer = client.request(
                    "POST", f"~/{sandbox['id']}/exec", {"cmd": ["true"]}, {"Idempotency-Key": key}
                )
            except (http.client.HTTPException, OSError):
                continue
            if answer.status == 201:
                acknowledged[key] = answer.json["id"]
    finally:
        stop.set()
        thread.join()
    assert kills >= 30 and len(acknowledged) >= 15
    for eid in acknowledged.values():
        kept = client.request("GET", f"~/{sandbox['id']}/executions/{eid}").expect(200)
        assert kept["state"] == "succeeded"
    client.delete(sandbox)


def test_a_manager_is_replaced_while_a_handler_of_the_former_one_is_held_up(own_stack):
    stack = own_stack()
    former = stack.pid("paddock-fcgi")
    held_up = children(former)[0]
    os.kill(held_up, signal.SIGSTOP)
    try:
        os.kill(former, signal.SIGKILL)
        restarted = stack.restart("paddock-fcgi")
        assert restarted.returncode == 0, restarted.stderr
        manager = stack.pid("paddock-fcgi")
        assert manager != former
        # Before it listens, what connects waits for the former handler.
        wait_for(lambda: len(children(manager)) == 4, "the new handlers")
        works_again(stack.client)
        assert stack.pid("paddock-fcgi") == manager
    finally:
        os.kill(held_up, signal.SIGCONT)
    wait_for(lambda: not pathlib.Path(f"/proc/{held_up}/exe").exists(), "the former handler's end")


@pytest.mark.any_web
def test_postgres_restarts_under_work_without_losing_a_result(own_stack):
    stack = own_stack()
    client = stack.client
    sandbox = client.create(template="base")
    answers = []
    thread = threading.Thread(
        target=lambda: answers.append(
            client.request("POST", f"~/{sandbox['id']}/exec", {"cmd": "sleep 3; echo kept", "timeoutMs": 60000})
        )
    )
    thread.start()
    wait_for(lambda: stack.sql("select 1 from executions where state = 'running'"), "running")
    stack.signal("postgres", signal.SIGQUIT)
    wait_for(lambda: client.request("GET", "/healthz").status == 503, "503 while it is away")
    away = client.request("GET", "~")
    assert away.expect(503)["code"] == "database_unavailable" and away.headers["Retry-After"]
    stack.up()
    thread.join()
    assert answers[0].status in (201, 202), answers[0].body
    eid = stack.sql("select id from executions")[0][0]
    final = client.request("GET", f"~/{sandbox['id']}/executions/{eid}?wait=60").expect(200)
    assert final["state"] == "succeeded" and final["stdout"] == "kept\n"
    assert client.run(sandbox, "echo alive") == "alive\n"
    client.delete(sandbox)


def test_what_was_acknowledged_survives_a_crash_of_postgres(own_stack):
    stack = own_stack()
    client = stack.client
    sandbox = client.create(template="base")
    # Else the server's own writer would soon make up for a flush that was left out.
    stack.sql("ALTER SYSTEM SET wal_writer_delay = '10s'")
    for kind in ("sandbox", "execution", "execution with a key"):
        stack.sql("SELECT pg_reload_conf()")
        main = stack.daemon_part("main")
        os.kill(main, signal.SIGSTOP)  # its commits would flush, too
        try:
            if kind == "sandbox":
                path = "~"
                body = {"template": "base"}
            else:
                path = f"~/{sandbox['id']}/exec"
                body = {"cmd": "true"}
            head = {"Idempotency-Key": uuid.uuid4().hex} if "key" in kind else {}
            told = client.request("POST", f"{path}?wait=0", body, head).expect(202)["id"]
            postgres = stack.pid("postgres")
            stack.signal("postgres", signal.SIGQUIT)  # it forgets what is not on disk
            wait_for(lambda: not os.path.exists(f"/proc/{postgres}"), "the end of Postgres")
        finally:
            os.kill(main, signal.SIGCONT)
        stack.up()
        where = "~" if kind == "sandbox" else f"~/{sandbox['id']}/executions"
        client.request("GET", f"{where}/{told}").expect(200)


@pytest.mark.any_web
def test_listen_backends_death_loses_no_work(own_stack):
    stack = own_stack()
    client = stack.client
    for _ in range(3):
        stack.sql(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where pid <> pg_backend_pid() and application_name like 'paddockd%'"
        )
        sandbox = client.create(template="base")
        client.delete(sandbox)


@pytest.mark.any_web
def test_work_announced_while_nobody_listens_is_found(own_stack):
    # Found by the look at a reconnect: the next scan comes in ten minutes.
    stack = own_stack("[daemon]\nscan = 600s\nwatchdog = 120s\n")
    client = stack.client
    sandbox = client.create(template="base")
    listener = int(stack.sql(
        "select pid from pg_stat_activity where application_name = 'paddockd' and query like 'LISTEN%'"
    )[0][0])
    main, pidfd = stack.daemon_part("main"), os.pidfd_open(listener)
    os.kill(main, signal.SIGSTOP)  # else it connects again at once
    try:
        assert cut_client(listener, pidfd)
        wait_for(lambda: not os.path.exists(f"/proc/{listener}"), "the backend's end")
        # A wait of none is answered by the handler, so that the announcement is all that main gets.
        path = f"~/{sandbox['id']}"
        announced = client.request("POST", f"{path}/exec?wait=0", {"cmd": "echo found"}).expect(202)
        other = client.request("POST", "~?wait=0", {"template": "base"}).expect(202)
    finally:
        os.kill(main, signal.SIGCONT)
        os.close(pidfd)
    over = client.request("GET", f"{path}/executions/{announced['id']}?wait=60").expect(200)
    assert over["state"] == "succeeded" and over["stdout"] == "found\n"
    assert client.request("GET", f"~/{other['id']}?wait=60").expect(200)["state"] == "ready"
    assert stack.daemon_part("main") == main


def test_a_full_state_folder_takes_no_new_sandboxes_and_ends_no_other(own_stack):
    stack = own_stack(disks={"": 64, "pg": 192})
    client = stack.client
    sandbox = client.create(template="base")
    running = client.request("POST", f"~/{sandbox['id']}/exec?wait=0", {"cmd": "sleep 6; echo on"}).expect(202)
    supervisor, main = stack.pid("paddockd"), stack.daemon_part("main")
    stack.disks[""].fill()

    def refused():
        answer = client.request("POST", "~", {"template": "base"})
        if answer.status == 201:  # until the daemon knows
            assert (answer.json["state"], answer.json["reason"]) == ("failed", "provision_failed")
            return None
        return answer

    answer = wait_for(refused, "no more sandboxes are taken")
    assert answer.expect(503)["code"] == "daemon_unavailable" and int(answer.headers["Retry-After"]) > 0
    # It is known after the first that failed.
    failed = "select count(*) from sandboxes where state = 'failed'"
    assert int(stack.sql(failed)[0][0]) <= 1
    # What lives goes on, and writes in its own memory.
    assert client.run(sandbox, "head -c 4000000 /dev/zero >/workspace/f; wc -c </workspace/f") == "4000000\n"
    # So it does with another main, which takes no new ones either.
    os.kill(main, signal.SIGKILL)
    main = wait_for(lambda: (p := stack.daemon_part("main")) != main and p, "another main")
    assert client.run(sandbox, "wc -c </workspace/f") == "4000000\n"
    again = wait_for(lambda: (a := client.request("POST", "~", {"template": "base"})).status == 503 and a, "503")
    assert again.json["code"] == "daemon_unavailable" and int(stack.sql(failed)[0][0]) <= 2
    # A body that lighttpd and nginx have to spool: they cannot, and nothing of it is taken. Apache
    # passes it on as it comes.
    count = "select count(*) from executions"
    before = int(stack.sql(count)[0][0])
    large = client.request("POST", f"~/{sandbox['id']}/exec", {"cmd": "wc -c", "stdin": "x" * 1000000})
    assert large.status == {"lighttpd": 500, "nginx": 500, "apache": 201}[WEB], large.body
    assert int(stack.sql(count)[0][0]) == before + (large.status == 201)
    assert client.request("GET", "/healthz").status == 200
    stack.disks[""].free()
    works_again(client)
    over = client.request("GET", f"~/{sandbox['id']}/executions/{running['id']}?wait=60").expect(200)
    assert over["state"] == "succeeded" and over["stdout"] == "on\n"
    assert client.run(sandbox, "wc -c", stdin="x" * 1000000) == "1000000\n"
    assert (stack.pid("paddockd"), stack.daemon_part("main")) == (supervisor, main)


@pytest.mark.any_web
def test_paddockd_is_started_again_until_there_is_room(own_stack):
    stack = own_stack(disks={"": 64, "pg": 192})
    stack.kill_daemon()
    state = str(stack.run_dir / "state")
    wait_for(lambda: not processes_naming(state), "no process of the former daemon")
    stack.disks[""].fill()
    done = subprocess.run(
        [str(BUILD / "paddockd"), "--config", str(stack.config_path)], env=stack.env, capture_output=True,
        text=True, timeout=60,
    )
    # systemd starts it again after 1, and never after 64.
    assert done.returncode == 1 and "free space" in done.stderr and "make room" in done.stderr, done
    stack.disks[""].free()
    assert stack.restart("paddockd").returncode == 0
    works_again(stack.client)


@pytest.mark.any_web
def test_a_result_waits_for_room_in_the_database(own_stack):
    stack = own_stack(disks={"pg": 192})
    client = stack.client
    sandbox = client.create(template="base")
    path = f"~/{sandbox['id']}/exec"
    go = "until test -e /workspace/go; do sleep 0.1; done; head -c 30000 /dev/urandom | base64 -w 0"
    answers = []
    thread = threading.Thread(target=lambda: answers.append(client.request("POST", path, {"cmd": go})))
    thread.start()
    wait_for(lambda: stack.sql("select 1 from executions where state = 'running'"), "running")
    postgres, main = stack.pid("postgres"), stack.daemon_part("main")
    stack.disks["pg"].fill()
    # Nothing that is admitted fits in any more. Random text, or Postgres would press it flat.
    large = base64.b64encode(os.urandom(400000)).decode()
    refused = client.request("POST", f"{path}?wait=0", {"cmd": "cat", "stdin": large})
    assert refused.expect(503)["code"] == "database_unavailable" and int(refused.headers["Retry-After"]) > 0
    assert client.get(sandbox)["state"] == "ready"
    assert client.request("GET", "/healthz").status == 200
    # Small work may still find its place in a page that is there.
    small = client.request("POST", f"{path}?wait=0", {"cmd": "touch /workspace/go"})
    assert small.status in (202, 503), small.body
    if small.status == 503:
        stack.disks["pg"].free()
        client.request("POST", f"{path}?wait=0", {"cmd": "touch /workspace/go"}).expect(202)
        stack.disks["pg"].fill()
    log = stack.run_dir / "paddockd.log"
    wait_for(lambda: "execution_not_recorded" in log.read_text(), "the result is refused")
    assert "SQLSTATE 53100" in log.read_text()
    # As often as a statement that the database will never take is tried before it is given up.
    wait_for(lambda: log.read_text().count("execution_not_recorded") >= 4, "it is tried again and again")
    assert not answers
    stack.disks["pg"].free()
    thread.join()
    result = answers[0].expect(201)
    assert result["state"] == "succeeded" and len(result["stdout"]) == 40000
    assert (stack.pid("postgres"), stack.daemon_part("main")) == (postgres, main)
    works_again(client)


@pytest.mark.any_web
def test_no_room_for_the_databases_log_loses_nothing(own_stack):
    stack = own_stack(disks={"pg": 192})
    client = stack.client
    sandbox = client.create(template="base")
    path = f"~/{sandbox['id']}"
    told = client.request("POST", f"{path}/exec?wait=0", {"cmd": "sleep 5; echo kept"}).expect(202)
    key = {"Idempotency-Key": uuid.uuid4().hex}
    postgres, main = stack.pid("postgres"), stack.daemon_part("main")
    stack.disks["pg"].fill()

    def server_is_gone():
        """A segment of its log after the other is used up; the first it cannot make is its end."""
        try:
            stack.sql("select pg_switch_wal(), txid_current()")
        except AssertionError:
            pass
        return not os.path.exists(f"/proc/{postgres}")

    wait_for(server_is_gone, "the end of Postgres")
    away = client.request("POST", f"{path}/exec", {"cmd": "true"}, key)
    assert away.expect(503)["code"] == "database_unavailable" and int(away.headers["Retry-After"]) > 0
    assert client.request("GET", "/healthz").status == 503
    assert stack.restart("postgres").returncode != 0
    stack.disks["pg"].free()
    assert stack.restart("postgres").returncode == 0
    over = client.request("GET", f"{path}/executions/{told['id']}?wait=60").expect(200)
    assert over["state"] == "succeeded" and over["stdout"] == "kept\n"
    assert client.request("POST", f"{path}/exec", {"cmd": "true"}, key).expect(201)["state"] == "succeeded"
    assert stack.daemon_part("main") == main
    works_again(client)


def test_sigterm_drains_and_down_leaves_nothing(own_stack):
    stack = own_stack()
    sandbox = stack.client.create(template="base")
    stack.down()
    assert processes_naming(sandbox["id"]) == []
    assert cgroups_naming(sandbox["id"]) == []
    stack.up()
    final = stack.client.get(sandbox)
    assert final["state"] in ("failed", "terminated") and final["reason"] == "daemon_restart"
