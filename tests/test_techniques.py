"""The commands of docs/techniques.md work as they are, but for the number of steps, one after the other."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.cli import ROOT, environment
from tests.idx import write_small_mnist
from train.datasets import tokens

_PAGE = (ROOT / "docs" / "techniques.md").read_text()
_COMMANDS = [block.partition("   #")[0].strip() for block in re.findall(r"^```text\n(.*?)^```", _PAGE, re.M | re.S)]
# Steps 20 to 24 are profiled; elsewhere the model may be a resnet18.
_STEPS, _STEPS_OF_A_PROFILE = 3, 26


def _few_steps(command: str) -> str:
    if " -m train " not in command:
        return command
    return f"{command} --max-steps {_STEPS_OF_A_PROFILE if '--profile ' in command else _STEPS}"


def _write_data(folder: Path) -> None:
    write_small_mnist(folder / "data", 200, 100)
    texts = [str(file) for file in sorted((ROOT / "docs").glob("*.md"))]
    tokens.main(["--data-root", str(folder / "data"), *texts])
    for part in ("train", "val"):
        for label in ("cat", "dog"):
            pictures = folder / "FOLDER" / part / label
            pictures.mkdir(parents=True)
            for number in range(4):
                Image.new("RGB", (64, 64), (30 * number, 0, 0)).save(pictures / f"{number}.png")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_command_of_the_techniques_works(tmp_path: Path) -> None:
    _write_data(tmp_path)
    path = f"{Path(sys.executable).parent}:{environment()['PATH']}"
    for command in _COMMANDS:
        if "train.report" in command:
            shutil.copytree(tmp_path / "runs" / "a", tmp_path / "runs" / "b")
        done = subprocess.run(
            shlex.split(_few_steps(command)), cwd=tmp_path, env=environment(PATH=path), capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-1000:]}{done.stderr[-3000:]}"


def test_every_section_of_the_techniques_has_its_command() -> None:
    assert len(_COMMANDS) == len(re.findall(r"^## ", _PAGE, re.M)) > 10
