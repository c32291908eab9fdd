"""Nodes wait for the last of them as long as the spec says and no longer: on the real torchrun."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from jobspec import targets
from jobspec.artifact import load, render
from tests.cli import free_port
from tests.clusters import KINDS

BACKENDS = {"static": "timeout={0}", "c10d": "join_timeout={0},read_timeout={0}"}


def write(folder: Path, backend: str, timeout: str = "") -> Path:
    """A job of two nodes whose processes write a file each."""
    (folder / "mine.py").write_text("import os, pathlib; pathlib.Path('ran-' + os.environ['RANK']).touch()\n")
    timeout = f", timeout: {timeout}" if timeout else ""
    spec = folder / "job.yaml"
    spec.write_text(
        "name: job\nnodes: 2\nprocs_per_node: 1\ndevice: cpu\nimage: train:1\ncommand: [mine.py]\n"
        f"rendezvous: {{backend: {backend}, port: {free_port()}{timeout}}}\n"
    )
    return spec


@pytest.mark.parametrize(("backend", "node"), [("static", 0), ("static", 1), ("c10d", 0)])
def test_node_that_is_alone_gives_up_after_that_time(backend: str, node: int, tmp_path: Path, programs: Path) -> None:
    spec = write(tmp_path, backend, "8s")
    env = {"PATH": f"{programs}:{os.environ['PATH']}", "NODE_RANK": str(node), "MASTER_ADDR": "127.0.0.1"}
    began = time.monotonic()
    # torchrun's own time is 600 s (c10d) or 900 s.
    words = ["bash", "-c", render("torchrun", str(spec))]
    agent = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True)
    assert agent.returncode != 0
    assert time.monotonic() - began >= 8, agent.stderr.decode()


@pytest.mark.parametrize(
    ("target", "backend"),
    [
        (target, backend)
        for target in targets.names()
        for backend in BACKENDS
        if backend == "static" or target not in ("indexedjob", "jobset", "trainjob")  # which refuse c10d
    ],
)
def test_every_target_hands_the_time_to_torchrun(target: str, backend: str, tmp_path: Path) -> None:
    default_s = 3600 if target in KINDS else 900
    for timeout, seconds in (("", default_s), ("7m", 420)):
        spec = write(tmp_path, backend, timeout)
        assert load(targets.load(target), str(spec)).rendezvous_timeout_s == seconds
        if seconds != 900 or backend != "static":  # torchrun's default
            assert BACKENDS[backend].format(seconds) in render(target, str(spec))


def test_train_that_srun_starts_waits_as_long(tmp_path: Path) -> None:
    def timeouts(*settings: str) -> list[str]:
        spec = tmp_path / "job.yaml"
        spec.write_text("name: job\nnodes: 2\nprocs_per_node: 1\ndevice: cpu\nslurm: {launcher: srun}\ntrain: {}\n")
        script = render("slurm", str(spec), settings)
        return [word for word in script.split() if word.startswith("--rendezvous-timeout-s")]

    assert timeouts("rendezvous.timeout=7m") == ["--rendezvous-timeout-s=420"]
    given = timeouts("rendezvous.timeout=7m", "train.rendezvous_timeout_s=30.0")
    assert given == ["--rendezvous-timeout-s=30.0"]
    assert timeouts() == []  # train's own time is also that of a collective


@pytest.mark.parametrize(
    ("launcher", "runs", "is_noted"),
    [
        ("srun", "command: [mine.py]", True),
        ("srun", "train: {dataset: synthetic}", False),
        ("torchrun", "command: [mine.py]", False),
    ],
)
def test_time_that_nothing_reads_is_noted_on_slurm(launcher: str, runs: str, is_noted: bool, tmp_path: Path) -> None:
    spec = tmp_path / "job.yaml"
    spec.write_text(
        f"name: job\nnodes: 2\nprocs_per_node: 1\n{runs}\n"
        f"rendezvous: {{timeout: 5m}}\nslurm: {{launcher: {launcher}}}\n"
    )
    assert ("# Not used here: rendezvous.timeout;" in render("slurm", str(spec))) == is_noted
    without = render("slurm", str(spec), ["rendezvous.timeout=null"])
    assert "rendezvous.timeout;" not in without
