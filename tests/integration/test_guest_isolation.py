"""What a guest can see and use: each limit is proved by trying to exceed it."""

import json
import os
import pathlib
import secrets

import pytest

from harness import processes_naming

pytestmark = pytest.mark.any_web

PROBE = r"""
import ctypes, errno, json, os, socket
libc = ctypes.CDLL(None, use_errno=True)
status = dict(l.split(":\t", 1) for l in open("/proc/self/status").read().splitlines() if ":\t" in l)
print(json.dumps({
    "uids": os.getresuid(), "gids": os.getresgid(), "groups": os.getgroups(),
    "caps": {k: v.strip() for k, v in status.items() if k.startswith("Cap")},
    "no_new_privs": libc.prctl(39, 0, 0, 0, 0),
    "interfaces": [n for _, n in socket.if_nameindex()],
    "fds": sorted(int(f) for f in os.listdir("/proc/self/fd")),
    "env": dict(os.environ),
    "cwd": os.getcwd(),
}))
"""


def probe(client, sandbox, **fields):
    result = client.exec(sandbox, code=PROBE, language="python", **fields)
    assert result["exitCode"] == 0, result
    return json.loads(result["stdout"])


def test_a_command_is_uid_1000_without_privileges(client, sandbox):
    seen = probe(client, sandbox)
    assert seen["uids"] == [1000] * 3 and seen["gids"] == [1000] * 3
    assert seen["groups"] in ([], [1000])
    for kind in ("CapInh", "CapPrm", "CapEff"):
        assert seen["caps"][kind] == "0" * 16, seen["caps"]
    # What PID 1 needs, and nothing that could be gained: no_new_privs, and no set-id file.
    assert int(seen["caps"]["CapBnd"], 16) & ~0x4E0 == 0, seen["caps"]
    assert client.run(sandbox, "find / -xdev -perm /6000 -type f 2>/dev/null | wc -l") == "0\n"
    assert seen["no_new_privs"] == 1


def test_the_only_network_interface_is_loopback(client, sandbox):
    assert probe(client, sandbox)["interfaces"] == ["lo"]
    refused = client.exec(
        sandbox,
        language="python",
        code="import socket\ns=socket.socket(); s.settimeout(5); s.connect(('192.0.2.1', 80))",
    )
    assert refused["exitCode"] == 1 and "OSError" in refused["stderr"], refused


def test_a_command_inherits_no_descriptor_but_its_own_three(client, sandbox):
    # The fourth is the one that lists the folder.
    assert probe(client, sandbox)["fds"] == [0, 1, 2, 3]


def test_the_root_is_read_only(client, sandbox):
    for path in ("/x", "/etc/passwd", "/usr/bin/bash", "/sbin/paddock-init", "/home/x"):
        result = client.exec(sandbox, f"echo x > {path}")
        assert result["exitCode"] != 0, path
    assert client.exec(sandbox, "rm -f /etc/passwd; test -e /etc/passwd")["exitCode"] == 0


def test_tmpfs_sizes_hold_and_overflow_is_enospc(client):
    sandbox = client.create(template="base", workspaceMb=16)
    try:
        for folder, size_mb in (("/workspace", 16), ("/dev/shm", 64), ("/tmp", 128)):
            result = client.exec(
                sandbox,
                f"dd if=/dev/zero of={folder}/fill bs=1M count={size_mb + 8} 2>&1;"
                f" stat -c %s {folder}/fill; rm {folder}/fill",
            )
            assert "No space left on device" in result["stdout"], (folder, result)
            assert int(result["stdout"].split()[-1]) <= size_mb << 20
        # The guest lives on, and the space is back.
        client.run(sandbox, "dd if=/dev/zero of=/workspace/again bs=1M count=8")
    finally:
        client.delete(sandbox)


def test_memory_beyond_the_limit_is_not_given(client):
    sandbox = client.create(template="base", memoryMb=512)
    try:
        assert int(client.run(sandbox, "awk '/MemTotal/ {print $2}' /proc/meminfo")) <= 512 * 1024
        result = client.exec(
            sandbox, language="python", code="b = bytearray(900 << 20)\nprint('got', len(b))"
        )
        assert "got" not in result["stdout"], result
        assert result["state"] in ("failed", "lost")
    finally:
        client.request("DELETE", f"~/{sandbox['id']}")


def test_the_cpu_limit_holds(client):
    """One CPU: two busy processes get no more CPU time than wall time (with slack for noise)."""
    sandbox = client.create(template="base", cpus=1)
    try:
        result = client.exec(
            sandbox,
            language="python",
            code=(
                "import os, time\n"
                "t = time.monotonic()\n"
                "pids = []\n"
                "for _ in range(2):\n"
                "    pid = os.fork()\n"
                "    if pid == 0:\n"
                "        while time.monotonic() - t < 4: pass\n"
                "        os._exit(0)\n"
                "    pids.append(pid)\n"
                "for p in pids: os.waitpid(p, 0)\n"
            ),
        )
        assert result["exitCode"] == 0, result
        usage = stack_cpu_ms(client.stack, sandbox)
        assert usage is None or usage < 1.5 * (result["durationMs"] + 2000), (usage, result)
    finally:
        client.delete(sandbox)


def stack_cpu_ms(stack, sandbox):
    """CPU time that the guest's cgroup was charged, by the kernel; in ms."""
    for root, folders, files in os.walk("/sys/fs/cgroup"):
        if root.endswith(sandbox["id"]):
            if "cpuacct.usage" in files:
                return int(pathlib.Path(root, "cpuacct.usage").read_text()) // 1000000
            if "cpu.stat" in files:
                for line in pathlib.Path(root, "cpu.stat").read_text().splitlines():
                    if line.startswith("usage_usec"):
                        return int(line.split()[1]) // 1000
    return None


def test_the_process_limit_holds_and_the_guest_survives(client):
    sandbox = client.create(template="base", pids=64)
    try:
        result = client.exec(
            sandbox,
            language="python",
            code=(
                "import os, time\n"
                "n = 0\n"
                "try:\n"
                "    while n < 500:\n"
                "        if os.fork() == 0:\n"
                "            time.sleep(60)\n"
                "            os._exit(0)\n"
                "        n += 1\n"
                "except OSError as e:\n"
                "    print(n, e.strerror, flush=True)\n"
                "os.system('true')\n"
                "os.killpg(0, 9)\n"
            ),
        )
        count, _, why = result["stdout"].partition(" ")
        # gVisor's count is not exact while tasks come and go: up to 100 were seen at a limit of 64.
        assert 16 <= int(count) < 4 * 64 and "temporarily unavailable" in why, result
        client.run(sandbox, "true")
    finally:
        client.delete(sandbox)


def test_no_host_path_and_no_host_environment(client, sandbox, monkeypatch):
    seen = probe(client, sandbox)
    assert set(seen["env"]) <= {
        "PATH", "HOME", "USER", "LOGNAME", "LANG", "TERM", "SHELL", "PWD", "SHLVL", "_", "LC_CTYPE",
        "TZ",
    }, seen["env"]
    mounts = client.run(sandbox, "cat /proc/mounts")
    for line in mounts.splitlines():
        source, target, kind = line.split()[:3]
        assert kind in ("9p", "overlay", "tmpfs", "proc", "sysfs", "devpts", "devtmpfs", "cgroup", "none"), line
        assert str(client.stack.dir) not in line, line
    assert client.exec(sandbox, f"ls {client.stack.dir}")["exitCode"] != 0
    assert client.exec(sandbox, f"ls {pathlib.Path(__file__).parent}")["exitCode"] != 0


def test_it_is_gvisor(client, sandbox):
    assert "Starting gVisor" in client.run(sandbox, "dmesg || cat /dev/kmsg")


def test_env_values_reach_the_guest_and_no_host_command_line_or_bundle(client):
    secret = "sec-" + secrets.token_hex(16)
    sandbox = client.create(template="base", env={"SECRET": secret})
    try:
        assert client.run(sandbox, "printf %s \"$SECRET\"") == secret
        own = secret[::-1]
        background = client.request(
            "POST",
            f"~/{sandbox['id']}/exec",
            {"cmd": "sleep 30", "env": {"OWN": own}, "background": True},
        ).expect(202)
        assert background["state"] in ("queued", "running")
        for needle in (secret, own):
            assert processes_naming(needle) == []
            for root, _, files in os.walk(client.stack.run_dir):
                if "/postgres" in root or "/pg" in root:
                    continue
                for name in files:
                    path = pathlib.Path(root, name)
                    if path.is_file():
                        assert needle.encode() not in path.read_bytes(), path
    finally:
        client.delete(sandbox)


def test_pid_1_and_the_supervisors_are_out_of_reach(client, sandbox):
    code = r"""
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
mine = {os.getpid()}
for pid in sorted(int(p) for p in os.listdir("/proc") if p.isdigit()):
    if pid in mine:
        continue
    for name, attempt in (
        ("kill", lambda: os.kill(pid, signal.SIGKILL)),
        ("mem", lambda: open(f"/proc/{pid}/mem", "r+b")),
        ("ptrace", lambda: libc.ptrace(16, pid, 0, 0) == 0 or 1 / 0),
    ):
        try:
            attempt()
            print("reached", pid, name)
        except (OSError, ZeroDivisionError):
            pass
    try:
        fds = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        fds = []
    for fd in fds:
        for mode in (os.O_RDONLY, os.O_WRONLY):
            try:
                os.open(f"/proc/{pid}/fd/{fd}", mode | os.O_NONBLOCK)
                # Pipes are other executions' output: executions of one sandbox trust each other.
                what = os.readlink(f"/proc/{pid}/fd/{fd}")
                if not what.startswith("pipe:") and what != "/dev/null":
                    print("opened", pid, fd, mode, what)
            except OSError:
                pass
print("done")
"""
    result = client.exec(sandbox, code=code, language="python")
    assert result["stdout"] == "done\n", result
    client.run(sandbox, "true")


def test_guests_do_not_see_each_other(client, sandbox):
    other = client.create(template="base")
    try:
        client.run(sandbox, "echo hello > /workspace/mine; echo hello > /tmp/mine")
        assert client.exec(other, "cat /workspace/mine /tmp/mine")["exitCode"] != 0
    finally:
        client.delete(other)
