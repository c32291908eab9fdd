"""The same spec gives the same bytes wherever, whenever and by whomever it is rendered."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Every job for every target, in a process of its own; the folder, what the clock says and how long after is up to us.
RENDER_ALL = """
import hashlib, os, pathlib, sys, time
sys.path.insert(0, {root!r})
if len(sys.argv) > 1:
    now = time.time
    time.time = lambda: now() + float(sys.argv[1])
from jobspec import targets
from jobspec.artifact import render
from jobspec.problems import SpecError
for job in sorted(pathlib.Path({root!r}, "jobs").glob("*.yaml")):
    for target in targets.names():
        try:
            text = render(target, os.path.relpath(job), ["name=other"])
        except SpecError as error:
            text = "refused: " + " ".join(problem.message for problem in error.problems)
        print(job.stem, target, hashlib.sha256(text.encode()).hexdigest())
"""
ELSEWHERE = """
    SLURM_JOB_ID=7 SLURM_NODEID=1 KUBERNETES_SERVICE_HOST=10.0.0.1 MASTER_ADDR=elsewhere RANK=3 PET_NNODES=9
    CUDA_VISIBLE_DEVICES=2 USER=somebody HOME=/nowhere COLUMNS=20 LC_ALL=C LANG=de_DE TZ=Asia/Tokyo PYTHONHASHSEED=7
"""


def render_all(cwd: Path, *arguments: str, before: Sequence[str] = (), env: str = "") -> str:
    command = [*before, sys.executable, "-c", RENDER_ALL.format(root=str(ROOT)), *arguments]
    environ = os.environ | dict(word.split("=") for word in env.split())
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, check=True)
    return done.stdout.decode()


def test_bytes_do_not_depend_on_folder_environment_time_and_host_name(tmp_path: Path) -> None:
    other_host = ("unshare", "--uts", "sh", "-c", 'hostname other-host; exec "$@"', "sh")
    may = shutil.which("unshare") and subprocess.run(["unshare", "--uts", "hostname", "x"]).returncode == 0  # as root
    usual = render_all(ROOT)
    assert usual.count("\n") >= 3
    assert render_all(tmp_path, "1e9", before=other_host if may else (), env=ELSEWHERE) == usual
