"""A train.py or a folder train/ or jobspec/ where a job or render-job is started never runs in place of ours."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobspec.artifact import render

ROOT = Path(__file__).parents[2]
SPEC = "name: job\nnodes: 1\nprocs_per_node: 1\ndevice: cpu\nimage: a/b:1\n"
THEIRS = "open('theirs', 'w')\n"
# In place of torchrun: runs what torchrun would start, which then ends before it loads torch.
TORCHRUN = '#!/bin/sh\nuntil [ "$1" = -m ]; do shift; done\nexec python3 "$@" --help\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(f"{SPEC}train: {{model: mnist_cnn}}\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "torchrun").write_text(TORCHRUN)
    (tmp_path / "bin" / "torchrun").chmod(0o755)
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    return tmp_path


def run(words: list[str], folder: Path, path: Path = ROOT) -> subprocess.CompletedProcess[str]:
    programs = f"{folder / 'bin'}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": programs, "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 does not know PYTHONSAFEPATH")
@pytest.mark.parametrize("file", ["train.py", "train/__init__.py"])
def test_script_starts_our_package_and_no_other_program_called_train(file: str, folder: Path) -> None:
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_text(THEIRS)
    done = run(["bash", "-c", render("torchrun", str(folder / "job.yaml"))], folder)
    assert "--logical-world" in done.stdout, done.stderr
    assert not (folder / "theirs").exists()


def test_installed_render_job_runs_our_train_where_pythonpath_has_another(folder: Path) -> None:
    (folder / "train.py").write_text(THEIRS)
    start = "from jobspec.commands import command_line; command_line()"  # as pip's script render-job does
    done = run([sys.executable, "-c", start, "torchrun", "job.yaml"], folder, path=Path(f"{folder}:{ROOT}"))
    assert done.returncode == 0, done.stderr
    assert not (folder / "theirs").exists()


def test_render_runs_our_packages_in_a_folder_with_others_of_their_names(folder: Path) -> None:
    for name in ("train", "jobspec"):
        (folder / f"{name}.py").write_text(THEIRS)
    done = run([sys.executable, str(ROOT / "render.py"), "torchrun", "job.yaml"], folder, path=folder)
    assert done.returncode == 0, done.stderr
    assert not (folder / "theirs").exists()
