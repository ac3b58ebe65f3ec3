"""Commands and scripts in a guest: exact output, exact ends."""

import base64
import json

import pytest


def test_a_string_runs_in_bash(client, sandbox):
    result = client.exec(sandbox, "echo out; echo err >&2; exit 3")
    assert (result["stdout"], result["stderr"], result["exitCode"]) == ("out\n", "err\n", 3)
    assert result["state"] == "failed" and result["signal"] is None


def test_an_argv_runs_without_a_shell(client, sandbox):
    words = ["printf", "%s|", "a b", "$HOME", "multi\nline", "*", "", "ünïcödé"]
    assert client.run(sandbox, words) == "a b|$HOME|multi\nline|*||ünïcödé|"


def test_a_python_script_runs_in_workspace(client, sandbox):
    client.run(sandbox, "echo 'value = 42' > /workspace/mod.py")
    result = client.exec(
        sandbox, code="import mod, os\nprint(mod.value, os.getcwd())", language="python"
    )
    assert result["stdout"] == "42 /workspace\n", result
    assert client.run(sandbox, "ls -A /workspace | grep -v -e mod.py -e __pycache__ | wc -l") == "0\n"


def test_a_bash_script_of_a_megabyte_runs(client, sandbox):
    code = "echo begin\n" + "# filler line to make it long\n" * 36000 + "echo end\n"
    result = client.exec(sandbox, code=code, language="bash")
    assert result["stdout"] == "begin\nend\n", result


@pytest.mark.any_web
def test_a_javascript_module_runs_with_top_level_await(client):
    sandbox = client.create(template="node")
    try:
        code = (
            "import fs from 'node:fs';\n"
            "import { helper } from './helper.mjs';\n"
            "const v = await Promise.resolve(helper());\n"
            "console.log(v, process.cwd(), process.version.split('.')[0]);\n"
            "const { chromium } = await import('playwright');\n"
            "console.log(typeof chromium.launch);\n"
        )
        client.run(sandbox, "echo 'export const helper = () => \"helped\"' > /workspace/helper.mjs")
        result = client.exec(sandbox, code=code, language="javascript")
        assert result["stdout"] == "helped /workspace v24\nfunction\n", result
    finally:
        client.delete(sandbox)


def test_stdin_is_delivered_and_closed(client, sandbox):
    text = "line\n" * 100000
    result = client.exec(sandbox, ["sha256sum"], stdin=text)
    import hashlib

    assert result["stdout"].split()[0] == hashlib.sha256(text.encode()).hexdigest()
    # without stdin there is an end of file at once
    assert client.exec(sandbox, "cat; echo done")["stdout"] == "done\n"


def test_environment_and_cwd(client):
    sandbox = client.create(template="base", env={"A": "sandbox", "B": "sandbox"})
    try:
        client.run(sandbox, "mkdir -p /workspace/sub/dir")
        out = client.run(sandbox, "echo $A $B $C; pwd", env={"B": "exec", "C": "x=y z"}, cwd="sub/dir")
        assert out == "sandbox exec x=y z\n/workspace/sub/dir\n"
        assert client.run(sandbox, "pwd", cwd="/tmp") == "/tmp\n"
        missing = client.exec(sandbox, "pwd", cwd="nowhere")
        assert missing["state"] == "failed" and missing["exitCode"] is None
        assert "working directory" in missing["error"], missing
    finally:
        client.delete(sandbox)


@pytest.mark.any_web
@pytest.mark.parametrize(
    "cmd, code, signal",
    [
        ("exit 0", 0, None),
        ("exit 255", 255, None),
        ("kill -TERM $$", 143, "SIGTERM"),
        ("kill -KILL $$", 137, "SIGKILL"),
        ("kill -SEGV $$", 139, "SIGSEGV"),
        ("nosuchcommand", 127, None),
        ("/etc/passwd", 126, None),
    ],
)
def test_exit_codes_as_the_shell_has_them(client, sandbox, cmd, code, signal):
    result = client.exec(sandbox, cmd)
    assert (result["exitCode"], result["signal"]) == (code, signal), result
    assert result["state"] == ("succeeded" if code == 0 else "failed")


def test_a_command_that_does_not_exist(client, sandbox):
    result = client.exec(sandbox, ["/no/such/program"])
    assert result["exitCode"] == 127 and result["state"] == "failed"
    assert "No such file" in result["error"]
    denied = client.exec(sandbox, ["/etc/passwd"])
    assert denied["exitCode"] == 126 and "denied" in denied["error"]


def test_output_beyond_the_limit_keeps_head_and_tail(client, sandbox):
    result = client.exec(sandbox, "seq 1 200000")
    whole = "".join(f"{n}\n" for n in range(1, 200001))
    assert result["exitCode"] == 0
    assert result["bytes"]["stdout"] == len(whole)
    assert result["truncated"] == {"stdout": True, "stderr": False}
    at, left_out = result["omitted"]["stdout"]["at"], result["omitted"]["stdout"]["bytes"]
    assert whole[:at] + whole[at + left_out :] == result["stdout"]
    assert result["stdout"].startswith("1\n2\n") and result["stdout"].endswith("\n200000\n")


@pytest.mark.any_web
def test_a_hundred_megabytes_of_output_never_block_the_program(client, sandbox):
    result = client.exec(sandbox, "head -c 104857600 /dev/zero | tr '\\0' x; echo end")
    assert result["exitCode"] == 0 and result["bytes"]["stdout"] == 104857600 + 4
    assert result["stdout"].endswith("xend\n")


def test_every_byte_value_comes_back(client, sandbox):
    code = "import sys\nsys.stdout.buffer.write(bytes(range(256)) * 4)"
    result = client.exec(sandbox, code=code, language="python")
    assert result["encoding"]["stdout"] == "base64"
    assert base64.b64decode(result["stdout"]) == bytes(range(256)) * 4


def test_multibyte_output_written_byte_by_byte_is_whole(client, sandbox):
    text = "añ漢字🙂" * 50
    code = (
        "import sys\n"
        f"for b in {text!r}.encode():\n"
        "    sys.stdout.buffer.write(bytes([b])); sys.stdout.buffer.flush()\n"
    )
    result = client.exec(sandbox, code=code, language="python")
    assert result["stdout"] == text and result["encoding"]["stdout"] == "utf-8"


@pytest.mark.any_web
def test_a_timeout_ends_the_whole_tree_and_keeps_the_output(client, sandbox):
    code = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('started', flush=True)\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        while True: time.sleep(1)\n"
        "    os._exit(0)\n"
        "time.sleep(600)\n"
    )
    result = client.exec(sandbox, code=code, language="python", timeoutMs=2000)
    assert result["state"] == "timed_out" and result["timedOut"] is True
    assert result["stdout"] == "started\n"
    assert client.exec(sandbox, "ps -eo user:20,comm | grep -c python3")["stdout"] == "0\n"
    client.run(sandbox, "true")


def test_on_timeout_terminate_ends_the_sandbox(client):
    sandbox = client.create(template="base")
    result = client.exec(sandbox, "sleep 60", timeoutMs=1000, onTimeout="terminate")
    assert result["state"] == "timed_out"
    final = client.request("DELETE", f"~/{sandbox['id']}").expect(200)
    assert (final["state"], final["reason"]) == ("terminated", "execution_timeout")


@pytest.mark.any_web
def test_a_background_child_does_not_hold_the_execution_open(client, sandbox):
    result = client.exec(sandbox, "(sleep 300; echo late) & echo now")
    assert result["stdout"] == "now\n" and result["exitCode"] == 0
    assert client.run(sandbox, "pgrep -c sleep") == "1\n"


def test_executions_are_listed_newest_first_and_survive_the_sandbox(client):
    sandbox = client.create(template="base")
    ids = [client.exec(sandbox, f"echo {n}", tag=f"n{n}")["id"] for n in range(5)]
    page = client.request("GET", f"~/{sandbox['id']}/executions?limit=2").expect(200)
    assert [e["id"] for e in page["items"]] == ids[:-3:-1]
    rest = client.request(
        "GET", f"~/{sandbox['id']}/executions?limit=50&cursor={page['nextCursor']}"
    ).expect(200)
    assert [e["id"] for e in rest["items"]] == ids[2::-1] and rest["nextCursor"] is None
    client.delete(sandbox)
    kept = client.request("GET", f"~/{sandbox['id']}/executions/{ids[0]}").expect(200)
    assert kept["stdout"] == "0\n" and kept["tag"] == "n0"


def test_fifty_executions_at_once_in_one_guest(client, sandbox):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(16) as pool:
        outs = list(pool.map(lambda n: client.run(sandbox, ["echo", str(n)]), range(50)))
    assert outs == [f"{n}\n" for n in range(50)]


@pytest.mark.any_web
def test_output_is_complete_before_the_end_five_hundred_times(client, sandbox):
    """64 KiB and exit at once: no byte may be lost."""
    code = "for i in $(seq 500); do head -c 65536 /dev/zero | wc -c; done | sort | uniq -c"
    assert client.run(sandbox, code).split() == ["500", "65536"]
    for _ in range(40):
        result = client.exec(sandbox, ["head", "-c", "65536", "/dev/zero"])
        assert result["bytes"]["stdout"] == 65536 and result["truncated"]["stdout"] is False


def test_refusals_name_the_field(client, sandbox):
    for body, field in (
        ({}, None),
        ({"cmd": "x", "code": "y", "language": "bash"}, None),
        ({"cmd": []}, "cmd"),
        ({"cmd": [""]}, "cmd"),
        ({"cmd": ["x" * 131072]}, "cmd"),
        ({"code": "x", "language": "cobol"}, "language"),
        ({"cmd": "x", "timeoutMs": 0}, "timeoutMs"),
        ({"cmd": "x", "timeoutMs": 1.5}, None),
        ({"cmd": "x", "env": {"A=B": "x"}}, "env"),
        ({"cmd": "x", "nonsense": 1}, "nonsense"),
        ({"cmd": "x", "onTimeout": "explode"}, "onTimeout"),
    ):
        answer = client.request("POST", f"~/{sandbox['id']}/exec", body)
        problem = answer.expect(400)
        assert answer.headers["Content-Type"] == "application/problem+json"
        if field:
            assert problem.get("field", "").startswith(field), (body, problem)
    nul = client.request("POST", f"~/{sandbox['id']}/exec", '{"cmd": "a\\u0000b"}').expect(400)
    assert nul["code"] == "invalid_json" and "cmd" in json.dumps(nul)
