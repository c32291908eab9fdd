"""A train.py or a folder train/ or jobspec/ where a job or render.py is started never runs in place of ours."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobspec import targets
from jobspec.artifact import load, render

ROOT = Path(__file__).parents[2]
SPEC = "name: job\nnodes: 1\nprocs_per_node: 1\ndevice: cpu\nimage: a/b:1\ntrain: {model: mnist_cnn}\n"
THEIRS = "open('theirs', 'w')\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(SPEC)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "torchrun").write_text("#!/bin/sh\necho torchrun was started\n")
    (tmp_path / "bin" / "torchrun").chmod(0o755)
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    return tmp_path


def run(words: list[str], folder: Path, importable: Path = ROOT) -> subprocess.CompletedProcess[str]:
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(importable), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("files", [["train.py"], ["train/__init__.py", "train/__main__.py"], ["train/__main__.py"]])
def test_script_does_not_start_another_program_called_train(files: list[str], folder: Path) -> None:
    for file in files:
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(THEIRS)
    # Python itself takes a folder without __init__.py only if our package is nowhere.
    importable = folder / "nothing" if files == ["train/__main__.py"] else ROOT
    done = run(["bash", "-c", render("torchrun", str(folder / "job.yaml"))], folder, importable)
    assert done.returncode == 1
    assert f"python -m train would run {folder}/{Path(files[0]).parts[0]}" in done.stderr
    assert "torchrun was started" not in done.stdout
    assert not (folder / "theirs").exists()


@pytest.mark.parametrize("data", [False, True])
def test_script_starts_our_package_also_beside_a_folder_of_data_called_train(data: bool, folder: Path) -> None:
    if data:
        (folder / "train").mkdir()
    assert run(["bash", "-c", render("torchrun", str(folder / "job.yaml"))], folder).stdout == "torchrun was started\n"


def lists(value: Any) -> list[list[Any]]:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [*([value] if isinstance(value, list) else []), *(found for below in inside for found in lists(below))]


@pytest.mark.parametrize("name", targets.names())
def test_every_target_looks_where_train_comes_from_first(name: str, folder: Path) -> None:
    guard = load(targets.load(name), str(folder / "job.yaml")).guard
    text = render(name, str(folder / "job.yaml"))
    if ".sh." in targets.template(name):
        assert f"'{guard[2]}' \\\n" in text
    else:
        assert [*guard, "torchrun"] in [words[:4] for words in lists(list(yaml.safe_load_all(text)))]


@pytest.mark.parametrize("words", [["torchrun", "job.yaml"], ["--version"]])
def test_render_runs_our_packages_in_a_folder_with_others_of_their_names(words: list[str], folder: Path) -> None:
    for name in ("train", "jobspec"):
        (folder / f"{name}.py").write_text(THEIRS)
    done = run([sys.executable, "-m", "render", *words], folder)
    assert done.returncode == 0, done.stderr
    assert not (folder / "theirs").exists()
