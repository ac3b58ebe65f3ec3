"""The command line, as an operator and as a user uses it."""

import json
import signal
import subprocess

from harness import BUILD, wait_for


def test_help_names_every_verb_and_is_reachable_everywhere():
    text = subprocess.run([BUILD / "paddock", "--help"], capture_output=True, text=True).stdout
    for verb in ("db migrate", "project create", "token revoke", "sandbox rm", "exec", "doctor"):
        assert verb in text
    one = subprocess.run([BUILD / "paddock", "exec", "--help"], capture_output=True, text=True)
    assert one.returncode == 0 and "--timeout" in one.stdout


def test_migrate_twice_changes_nothing(stack):
    assert "current" in stack.cli("db", "migrate").stdout
    assert json.loads(stack.cli("--json", "db", "migrate").stdout) == {"applied": 0}


def test_a_sandbox_from_beginning_to_end(stack):
    made = json.loads(
        stack.cli("sandbox", "create", "--template", "base", "--env", "A=b c", "--label", "k=v", "--json").stdout
    )
    listed = stack.cli("sandbox", "list", "--label", "k=v").stdout
    assert made["id"] in listed and "STATE" in listed.upper()
    run = stack.cli("exec", made["id"], "--", "sh", "-c", 'echo "$A"; echo oops >&2; exit 7', check=False)
    assert (run.returncode, run.stdout, run.stderr) == (7, "b c\n", "oops\n")
    script = stack.cli(
        "exec", made["id"], "--language", "python", "--code", "-", stdin="print(6 * 7)"
    )
    assert script.stdout == "42\n"
    assert "ready" in stack.cli("sandbox", "show", made["id"]).stdout
    assert "terminated" in stack.cli("sandbox", "rm", made["id"]).stdout
    gone = stack.cli("exec", made["id"], "--", "true", check=False)
    assert gone.returncode == 125 and "gone" in gone.stderr


def test_exit_statuses(stack):
    assert stack.cli("nonsense", check=False).returncode == 2
    assert stack.cli("sandbox", "show", check=False).returncode == 2
    assert stack.cli("sandbox", "show", "0" * 8, check=False).returncode == 5
    assert stack.cli("sandbox", "list", token="pdk_wrong", check=False).returncode == 4
    bad = subprocess.run([BUILD / "paddock", "--config", "/nowhere", "config", "check"], capture_output=True)
    assert bad.returncode == 3
    dead = subprocess.run(
        [BUILD / "paddock", "--url", "http://127.0.0.1:9", "--project", "p", "sandbox", "list"],
        env={"PADDOCK_TOKEN": "x"}, capture_output=True,
    )
    assert dead.returncode == 7


def test_projects_and_tokens(stack):
    _, name = stack.new_project()
    assert stack.cli("project", "create", name, check=False).returncode == 6
    assert stack.cli("project", "create", "Not A Name", check=False).returncode == 2
    assert name in [p["name"] for p in json.loads(stack.cli("project", "list", "--json").stdout)]
    text = stack.cli("token", "create", "--project", name, "--scope", "admin", "--expires", "60").stdout
    assert text.startswith("pdk_")
    listed = stack.cli("token", "list", "--project", name).stdout
    assert text.strip().split("_")[1] in listed and text.strip().split("_")[2] not in listed
    assert stack.cli("token", "create", "--project", "nope", "--scope", "admin", check=False).returncode == 5


def test_config_show_is_a_loadable_file_with_help(stack, tmp_path):
    text = stack.cli("config", "show", "--help-text").stdout
    again = tmp_path / "again.conf"
    again.write_text(text)
    done = subprocess.run([BUILD / "paddock", "--config", again, "config", "check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "guest" in json.loads(stack.cli("config", "show", "--json").stdout)


def test_root_reaches_a_database_that_admits_only_the_service_user(stack):
    rules = stack.run_dir / "pg" / "pg_hba.conf"
    before = rules.read_text()

    def root_is_admitted():
        words = ["psql", "-X", "-c", "select 1", f"host={stack.run_dir}/pgsock dbname=paddock user=paddock"]
        return subprocess.run(words, capture_output=True).returncode == 0

    assert root_is_admitted()
    try:
        rules.write_text("local all all peer\n")
        stack.signal("postgres", signal.SIGHUP)
        wait_for(lambda: not root_is_admitted(), "the new rules are in force")
        assert stack.project in stack.cli("project", "list").stdout
    finally:
        rules.write_text(before)
        stack.signal("postgres", signal.SIGHUP)
        wait_for(root_is_admitted, "the old rules are in force")
