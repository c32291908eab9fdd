"""A job spec names its secrets; with their values in the environment nothing that is printed holds one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobspec import targets
from jobspec.artifact import render
from jobspec.problems import SpecError

ROOT = Path(__file__).parents[2]
VALUE = "hush-7f3a"
SPEC = """\
name: job
nodes: 2
procs_per_node: 2
device: cpu
image: registry.example/train:1
command: [mine.py, --name, "$WANDB_API_KEY"]
env: {NOTE: "${HF_TOKEN}"}
secrets: [WANDB_API_KEY, HF_TOKEN]
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(SPEC)
    return file


def command_line(*arguments: str) -> bytes:
    """Everything that the command prints."""
    env = {**os.environ, "WANDB_API_KEY": VALUE, "HF_TOKEN": VALUE}
    words = [sys.executable, str(ROOT / "render.py"), *arguments]
    return subprocess.run(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout


@pytest.mark.parametrize("target", targets.names())
def test_no_command_prints_the_value_of_a_secret(target: str, spec: Path, tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old\n")
    for arguments in (
        [target, str(spec)],
        [target, str(spec), "--set", "nodes=0", "--set", "secrets.0=$HF_TOKEN"],
        ["explain", str(spec), "--target", target],
        ["explain", str(spec), "--target", target, "--json"],
        ["diff", str(spec), str(tmp_path / "old"), "--target", target],
    ):
        told = command_line(*arguments)
        assert told
        assert VALUE.encode() not in told


@pytest.mark.parametrize("target", targets.names())
def test_no_script_traces_its_commands(target: str, spec: Path) -> None:
    try:
        text = render(target, str(spec))
    except SpecError as error:
        pytest.fail(f"this job is meant for every target: {error}")
    assert "set -x" not in text
    assert "xtrace" not in text
