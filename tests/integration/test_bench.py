"""The bench itself: one short round of what needs no peer from elsewhere gives every figure."""

import json
import os
import subprocess
import sys

import pytest

from harness import BUILD, IMAGES, TOP

pytestmark = pytest.mark.any_web

BENCHES = ["plain", "healthz", "get_sandbox", "handoff", "exec_true", "exec_shell", "no_process",
           "create_cold", "admission"]  # fmt: skip
FIGURES = {"plain", "healthz", "get_sandbox", "handoff", "exec_true", "exec_floor", "exec_shell",
           "no_process", "create_cold", "admission_1", "admission_8", "admission_32"}  # fmt: skip


def test_every_figure_is_produced():
    done = subprocess.run(
        [sys.executable, str(TOP / "bench" / "bench.py"), "--quick", "--json", *BENCHES],
        env=dict(os.environ, PADDOCK_BUILD_DIR=str(BUILD), PADDOCK_IMAGES_DIR=str(IMAGES)),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert {line["name"] for line in lines} == FIGURES
    assert len(lines) == len(FIGURES)
    for line in lines:
        assert line["value"] > 0 and line["baseline"] > 0, line
        assert abs(line["ratio"] - line["value"] / line["baseline"]) < 0.01 * line["ratio"] + 0.001
        assert line["unit"] in ("ms", "answers/s", "creates/s"), line
