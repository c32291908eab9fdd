"""Compose files with the real compose: nodes are containers, and find each other by name."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from jobspec import targets
from jobspec.artifact import load
from tests.cli import records
from tests.e2e import foreign
from tests.e2e.docker.client import ROOT, Docker
from tests.e2e.docker.project import Project, run_on_one_machine, run_on_two_machines

EXAMPLES = sorted((ROOT / "docker").glob("*.compose.yaml"))
GPU_EXAMPLES = {"fashion-mnist.compose.yaml"}
# So small that it is over in seconds, and so long that there is a middle.
STEPS = 200
TRAIN = {
    "model": "mnist_cnn",
    "dataset": "synthetic",
    "batch_size": 128,
    "epochs": 3,
    "optimizer": "adam",
    "lr": 1e-3,
    "log_every": 10,
    "max_steps": STEPS,
    "run_dir": "/runs",
}
SAVING = {"checkpoint_dir": "/runs", "checkpoint_every": 20, "resume": "auto"}
RUNS = {"claim": "runs", "path": "/runs"}
SEEN = """
import json, os, pathlib
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor(2 ** dist.get_rank())
dist.all_reduce(total)
seen = {"total": total.item(), "host": os.uname().nodename, "env": dict(os.environ)}
pathlib.Path("/runs", str(dist.get_rank())).write_text(json.dumps(seen))
dist.destroy_process_group()
"""


@pytest.fixture
def project(docker: Docker, compose_command: tuple[str, ...], image: str, tmp_path: Path) -> Project:
    return Project(docker, compose_command, image, tmp_path)


@pytest.fixture
def each_project(docker: Docker, each_compose_command: tuple[str, ...], image: str, tmp_path: Path) -> Project:
    """With each compose that is installed."""
    return Project(docker, each_compose_command, image, tmp_path)


def read_until(process: subprocess.Popen[str], words: str, said: list[str], timeout_s: float = 180.0) -> None:
    """Read what a process prints, up to a line with these words."""
    assert process.stdout is not None
    patience = threading.Timer(timeout_s, process.kill)
    patience.start()
    try:
        for line in process.stdout:
            said.append(line)
            if words in line:
                return
    finally:
        patience.cancel()
    raise AssertionError(f"no {words!r} in {timeout_s:g} s:\n{''.join(said)}")


@pytest.fixture(scope="session")
def spec_of_training(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Keys of a job that trains on FashionMNIST, or on synthetic images where its files are not there."""
    try:
        root = str(request.getfixturevalue("data_root"))
    except pytest.skip.Exception as absent:
        print(f"synthetic images in place of FashionMNIST: {absent}")
        return {"train": TRAIN, "mounts": [RUNS]}
    # At the same path here and there, since both run the same spec.
    mount = {"source": root, "path": root, "read_only": True}
    return {"train": {**TRAIN, "dataset": "fashion_mnist", "data_root": root}, "mounts": [RUNS, mount]}


def saving(spec: dict[str, Any]) -> dict[str, Any]:
    """The same job, which saves and resumes."""
    return {**spec, "train": {**spec["train"], **SAVING}}


def weights(project: Project) -> str:
    """The hash of the weights at the end of a run."""
    (end,) = project.records("end")
    return str(end["weights_sha256"])


@pytest.fixture(scope="module")
def trained(
    docker: Docker,
    compose_command: tuple[str, ...],
    image: str,
    spec_of_training: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Project]:
    """A job that has trained in containers."""
    project = Project(docker, compose_command, image, tmp_path_factory.mktemp("trained"))
    project.write(**spec_of_training)
    with project.compose() as compose:
        compose.up()
        yield project


def test_two_nodes_of_two_processes_have_the_first_losses_of_the_same_run_on_one_machine(
    trained: Project, tmp_path: Path
) -> None:
    """Not the same bits: on one machine sums go through shared memory, which adds in another order."""
    (start,) = trained.records("start")
    assert start["world"]["world_size"] == 4
    hosts = [line.partition("(")[2].partition(")")[0] for line in start["world"]["ranks"]]
    assert hosts == ["job-0", "job-0", "job-1", "job-1"]
    run_on_one_machine(trained.spec, tmp_path)
    here, there = ([step["loss"] for step in steps] for steps in (records(tmp_path, "step"), trained.records("step")))
    assert len(here) == len(there) == STEPS
    assert there[:20] == pytest.approx(here[:20], abs=1e-4)


def test_two_nodes_of_two_processes_end_with_the_weights_of_the_same_run_on_two_machines(
    trained: Project, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("playing two machines needs root: run it with sudo")
    (start,) = trained.records("start")
    if start["versions"]["torch"] != torch.__version__:
        pytest.skip(f"torch is {start['versions']['torch']} in the image and {torch.__version__} here")
    run_on_two_machines(trained.spec, tmp_path / "run")
    (here,) = records(tmp_path / "run", "end")
    assert weights(trained) == here["weights_sha256"]


@pytest.mark.parametrize("nodes", [2, {"min": 1, "max": 2}], ids=["static", "elastic"])
def test_every_process_sees_what_explain_says(project: Project, tmp_path: Path, nodes: Any) -> None:
    (tmp_path / "seen.py").write_text(SEEN)
    mounts = [RUNS, {"source": str(tmp_path / "seen.py"), "path": "/app/seen.py", "read_only": True}]
    project.write(nodes=nodes, command=["seen.py"], mounts=mounts, env={"NOTE": "$HOME 'x'"})
    target = targets.load("compose")
    plan = load(target, str(project.spec))
    with project.compose() as compose:
        compose.up_as_told()
        found = [json.loads(project.docker.read(compose.volume("runs"), project.image, str(rank))) for rank in range(4)]
    for rank, seen in zip(plan.ranks(), found, strict=True):
        assert (seen["total"], seen["host"]) == (15, f"job-{rank.node}")
        told = {setting.name: setting.value for setting in target.environment(plan, rank)}
        known = {name: value for name, value in told.items() if not value.startswith("<")}
        assert {name: seen["env"][name] for name in known} == known


@pytest.mark.slow
@pytest.mark.parametrize("node", [0, 1])
def test_killed_node_is_started_again_and_the_job_ends_like_one_that_was_not_killed(
    each_project: Project, trained: Project, spec_of_training: dict[str, Any], node: int
) -> None:
    each_project.write(**saving(spec_of_training), max_restarts=3)
    said: list[str] = []
    with each_project.compose() as compose, compose.ends() as ends:
        running = compose.start()
        read_until(running, "step 50/", said)
        each_project.docker.kill(compose.container(f"job-{node}"), each_project.image)
        # `up` of the older compose goes when all nodes have failed at the same moment, and the engine goes on.
        for _ in range(2):
            read_until(ends, "ended with 0.", said, timeout_s=300.0)
        ends.kill()
        said += [ends.communicate()[0], running.communicate(timeout=60)[0]]
        assert "resume: /runs/step-" in each_project.docker("logs", compose.container("job-0")), "".join(said)
        killed = each_project.docker.inspect(compose.container(f"job-{node}"))
        assert killed["RestartCount"] >= 1
        (end,), starts = each_project.records("end"), each_project.records("start")
    assert [start["world"]["world_size"] for start in starts] == [4, 4]
    assert (end["step"], end["weights_sha256"]) == (STEPS, weights(trained))


@pytest.mark.slow
@pytest.mark.parametrize("max_restarts", [0, 3])
def test_stop_saves_and_ends_both_nodes_and_the_next_up_ends_like_a_run_that_was_not_stopped(
    each_project: Project, trained: Project, spec_of_training: dict[str, Any], max_restarts: int
) -> None:
    each_project.write(**saving(spec_of_training), max_restarts=max_restarts, preemption={"grace": "60s"})
    said: list[str] = []
    with each_project.compose() as compose:
        running = compose.start()
        read_until(running, "step 50/", said)
        asked = time.monotonic()
        stopped = compose.run("stop")
        stop_s = time.monotonic() - asked
        assert stopped.returncode == 0, stopped.stdout
        said.append(running.communicate(timeout=60)[0])
        assert "stopped by a signal" in "".join(said)
        (stop,) = each_project.records("stop")
        states = [each_project.docker.inspect(compose.container(f"job-{node}"))["State"] for node in range(2)]
        compose.up()
        (end,) = each_project.records("end")
    print(f"compose stop took {stop_s:.2f} s")
    # Codes of a stop, not that of a process that was killed at the end of the grace period (137).
    assert {state["ExitCode"] for state in states} <= {1, 143}, states
    assert not any(state["Running"] for state in states)
    assert stop["saved"] and stop["step"] < STEPS
    assert (end["step"], end["weights_sha256"]) == (STEPS, weights(trained))


@pytest.mark.slow
def test_script_that_nobody_here_wrote_runs_unchanged(
    project: Project, foreign_script: foreign.Foreign, data_root: Path, tmp_path: Path
) -> None:
    foreign.unpack(data_root / "FashionMNIST" / "raw", tmp_path / "data" / "FashionMNIST" / "raw")
    mounts = [
        {"source": str(foreign_script.script), "path": "/app/mnist.py", "read_only": True},
        {"source": str(foreign_script.packages), "path": "/packages", "read_only": True},
        {"source": str(tmp_path / "data"), "path": "/data", "read_only": True},
    ]
    command = ["mnist.py", "--epochs=1", "--batch-size=250", "--lr=0.05", "--dir=/tmp/logs"]
    project.write(command=command, env={"PYTHONPATH": "/packages"}, mounts=mounts)
    with project.compose() as compose:
        said = compose.up()
    assert {f"World Size: 4. Rank: {rank}" in said for rank in range(4)} == {True}
    accuracies = [float(line.partition("accuracy=")[2]) for line in said.splitlines() if "accuracy=" in line]
    # Each of four processes counts its quarter of the test images against all of them; a guess is right at a tenth.
    assert len(accuracies) == 4 and sum(accuracies) > 0.4


@pytest.mark.slow
@pytest.mark.parametrize(
    "example", [file for file in EXAMPLES if file.name not in GPU_EXAMPLES], ids=lambda file: file.name
)
def test_example_runs_as_it_is(project: Project, example: Path) -> None:
    with project.compose(example) as compose:
        compose.up()
