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


def start(spec: Path, programs: Path, node: int) -> subprocess.Popen[bytes]:
    env = {"PATH": f"{programs}:{os.environ['PATH']}", "NODE_RANK": str(node), "MASTER_ADDR": "127.0.0.1"}
    words = ["bash", "-c", render("torchrun", str(spec))]
    return subprocess.Popen(words, cwd=spec.parent, env=env, stderr=subprocess.PIPE)


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize("backend", BACKENDS)
def test_node_that_is_alone_gives_up_after_that_time(backend: str, node: int, tmp_path: Path, programs: Path) -> None:
    agent = start(write(tmp_path, backend, "8s"), programs, node)
    began = time.monotonic()
    # torchrun's own times are 60 s (c10d, to reach node 0) to 900 s.
    _, err = agent.communicate(timeout=55)
    assert agent.returncode != 0
    assert time.monotonic() - began >= 8, err.decode()


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("backend", BACKENDS)
def test_node_that_comes_within_that_time_is_waited_for(
    backend: str, late: int, tmp_path: Path, programs: Path
) -> None:
    spec = write(tmp_path, backend, "100s")
    agents = [start(spec, programs, 1 - late)]
    time.sleep(10)  # more than the time after which the test above sees a node give up
    agents.append(start(spec, programs, late))
    ends = [agent.communicate(timeout=150)[1].decode() for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], ends
    assert sorted(file.name for file in tmp_path.glob("ran-*")) == ["ran-0", "ran-1"]


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
