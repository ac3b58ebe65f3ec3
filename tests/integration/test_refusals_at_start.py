"""paddockd starts only when everything it stands on is there; else it names the piece and its mend."""

import pathlib
import shutil
import subprocess

import tempfile

import pytest

from harness import BUILD, IMAGES

pytestmark = pytest.mark.any_web


@pytest.fixture
def tmp_path():
    """A short path: runsc's control sockets must fit into 108 bytes."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="pt-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def check(tmp_path, *lines, executable="paddockd"):
    """Runs `paddockd --check` on a configuration made of lines."""
    text = f"""
[daemon]
run_dir = {tmp_path}/run
state_dir = {tmp_path}/state
handoff_socket = {tmp_path}/run/handoff.sock
[guest]
images_dir = {IMAGES}
templates = base
[cgroup]
parent = /paddock-check
"""
    sections = {}
    current = None
    for line in text.splitlines() + list(lines):
        line = line.strip()
        if line.startswith("["):
            current = sections.setdefault(line, {})
        elif line:
            key, _, value = line.partition("=")
            current[key.strip()] = value.strip()
    config = tmp_path / "paddock.conf"
    config.write_text(
        "\n".join(
            f"{name}\n" + "\n".join(f"{k} = {v}" for k, v in keys.items())
            for name, keys in sections.items()
        )
    )
    done = subprocess.run(
        [str(BUILD / executable), "--config", str(config), "--check"],
        capture_output=True,
        text=True,
        timeout=180,
    )
    return done


def v1_host():
    return not pathlib.Path("/sys/fs/cgroup/cgroup.controllers").exists()


ALLOW = ("[cgroup]", "cgroup_v1 = allow")


def test_a_fitting_host_passes_with_its_smoke_guest(tmp_path):
    done = check(tmp_path, *ALLOW)
    assert done.returncode == 0, done.stderr
    assert ("cgroup_v1" in done.stderr) == v1_host()


def test_cgroup_v1_needs_a_word_of_consent(tmp_path):
    if not v1_host():
        assert check(tmp_path).returncode == 0
        return
    done = check(tmp_path)
    assert done.returncode != 0 and "cgroup_v1" in done.stderr and "allow" in done.stderr


def test_runsc_missing(tmp_path):
    done = check(tmp_path, *ALLOW, "[guest]", f"runsc = {tmp_path}/runsc")
    assert done.returncode != 0 and f"{tmp_path}/runsc" in done.stderr and "install" in done.stderr.lower()


def test_a_runsc_of_another_build(tmp_path):
    done = check(tmp_path, *ALLOW, "[guest]", "runsc_versions = 0.0~20991231.0")
    assert done.returncode != 0
    assert "20240729" in done.stderr and "runsc_versions" in done.stderr


def test_a_runsc_that_starts_no_guest(tmp_path):
    fake = tmp_path / "runsc"
    fake.write_text("#!/bin/sh\ncase \"$*\" in *' run '*) exit 1;; *) exec /usr/bin/runsc \"$@\";; esac\n")
    fake.chmod(0o755)
    done = check(tmp_path, *ALLOW, "[guest]", f"runsc = {fake}")
    assert done.returncode != 0 and "smoke" in done.stderr.lower()


def test_a_guest_that_corrupts_data_is_noticed(tmp_path):
    """An image whose cat drops a byte: the smoke guest moves data both ways and compares."""
    images = tmp_path / "images"
    (images / "base").mkdir(parents=True)
    source = (IMAGES / "base").resolve()
    subprocess.run(["cp", "-al", f"{source}/rootfs", f"{images}/base/rootfs"], check=True)
    shutil.copy(source / "manifest.json", images / "base" / "manifest.json")
    cat = images / "base" / "rootfs" / "usr" / "bin" / "cat"
    cat.unlink()
    cat.write_text("#!/bin/sh\nexec tail -c +2\n")
    cat.chmod(0o755)
    done = check(tmp_path, *ALLOW, "[guest]", f"images_dir = {images}")
    assert done.returncode != 0 and "smoke" in done.stderr.lower(), done.stderr


def test_an_image_missing(tmp_path):
    done = check(tmp_path, *ALLOW, "[guest]", f"images_dir = {tmp_path}")
    assert done.returncode != 0 and "base" in done.stderr and "build" in done.stderr.lower()


@pytest.mark.parametrize(
    "lines, words",
    [
        (("[guest]", "memroy_mb = 5"), ("memroy_mb",)),
        (("[guest]", "memory_mb = 5"), ("memory_mb", "128")),
        (("[guest]", "memory_mb = lots"), ("memory_mb",)),
        (("[nonsense]", "x = 1"), ("nonsense",)),
        (("[cgroup]", "cgroup_v1 = maybe"), ("cgroup_v1", "deny")),
    ],
)
def test_a_wrong_configuration_names_its_line(tmp_path, lines, words):
    done = check(tmp_path, *lines)
    assert done.returncode != 0
    assert "paddock.conf:" in done.stderr, done.stderr
    for word in words:
        assert word in done.stderr


def test_only_root_may_start_it(tmp_path):
    tmp_path.chmod(0o755)
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", str(BUILD / "paddockd"), "--check"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
