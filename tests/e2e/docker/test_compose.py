"""Compose files with docker compose v2: nodes are containers, and find each other by name."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from jobspec import targets
from jobspec.artifact import load, render
from tests.cli import HANG_S, records
from tests.e2e.docker.client import ROOT, Compose, Docker
from tests.e2e.docker.project import Project, run_on_two_machines

EXAMPLES = sorted((ROOT / "docker").glob("*.compose.yaml"))
SPECS = [*sorted((ROOT / "jobs").glob("*.yaml")), ROOT / "tests" / "specs" / "ok" / "every-key.yaml"]
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
FROM_FILES = """#!/usr/bin/env python3
import lib  # empty
from pathlib import Path
Path("/out/text").write_text(Path(__file__).read_text())
dollars = "$HOME ${HOME} $$ ${NO:?way} {{ 7 }} #"
"""
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
def project(docker: Docker, composes: None, image: str, tmp_path: Path) -> Project:
    return Project(docker, image, tmp_path)


def read_until(process: subprocess.Popen[str], words: str, said: list[str]) -> None:
    """Read what a process prints, up to a line with these words."""
    assert process.stdout is not None
    patience = threading.Timer(HANG_S, process.kill)
    patience.start()
    try:
        for line in process.stdout:
            said.append(line)
            if words in line:
                return
    finally:
        patience.cancel()
    raise AssertionError(f"no {words!r} in {HANG_S:g} s:\n{''.join(said)}")


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
    composes: None,
    image: str,
    spec_of_training: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Project]:
    """A job that has trained in containers."""
    project = Project(docker, image, tmp_path_factory.mktemp("trained"))
    project.write(**spec_of_training)
    with project.compose() as compose:
        compose.up()
        yield project


def test_two_nodes_of_two_processes_end_with_the_weights_of_the_same_run_on_two_machines(
    trained: Project, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("playing two machines needs root: run it with sudo")
    (start,) = trained.records("start")
    assert [line.partition("(")[2].partition(")")[0] for line in start["world"]["ranks"]] == ["job-0"] * 2 + [
        "job-1"
    ] * 2
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
        compose.up_by_its_head()
        found = [json.loads(project.docker.read(compose.volume("runs"), project.image, str(rank))) for rank in range(4)]
    for rank, seen in zip(plan.ranks(), found, strict=True):
        assert (seen["total"], seen["host"]) == (15, f"job-{rank.node}")
        told = {setting.name: setting.value for setting in target.environment(plan, rank)}
        known = {name: value for name, value in told.items() if not value.startswith("<")}
        assert {name: seen["env"][name] for name in known} == known


@pytest.mark.slow
@pytest.mark.parametrize("node", [0, 1])
def test_killed_node_is_started_again_and_the_job_ends_like_one_that_was_not_killed(
    project: Project, trained: Project, spec_of_training: dict[str, Any], node: int
) -> None:
    project.write(**saving(spec_of_training), max_restarts=3)
    said: list[str] = []
    with project.compose() as compose, compose.ends() as ends:
        running = compose.start()
        read_until(running, "step 50/", said)
        project.docker.kill(compose.container(f"job-{node}"), project.image)
        for _ in range(2):
            read_until(ends, "ended with 0.", said)
        ends.kill()
        said += [ends.communicate()[0], running.communicate()[0]]
        assert "resume: /runs/step-" in project.docker("logs", compose.container("job-0")), "".join(said)
        killed = project.docker.inspect(compose.container(f"job-{node}"))
        assert killed["RestartCount"] >= 1
        (end,), starts = project.records("end"), project.records("start")
    assert [start["world"]["world_size"] for start in starts] == [4, 4]
    assert (end["step"], end["weights_sha256"]) == (STEPS, weights(trained))


@pytest.mark.slow
@pytest.mark.parametrize(("way", "max_restarts"), [("Ctrl-C", 0), ("stop", 3)])
def test_user_sees_which_step_was_saved_and_resumed_and_the_job_ends_like_one_that_was_not_stopped(
    project: Project, trained: Project, spec_of_training: dict[str, Any], way: str, max_restarts: int
) -> None:
    project.write(**saving(spec_of_training), max_restarts=max_restarts, preemption={"grace": "60s"})
    said: list[str] = []
    with project.compose() as compose:
        running = compose.start()
        read_until(running, "step 50/", said)
        if way == "Ctrl-C":
            os.killpg(running.pid, signal.SIGINT)
        else:
            stopped = compose.run("stop")
            assert stopped.returncode == 0, stopped.stdout
        running.communicate()
        (stop,) = project.records("stop")
        assert f"stopped by a signal at epoch {stop['epoch']}, step {stop['step']}; saved" in compose.log_by_its_head()
        found = [project.docker.inspect(compose.container(f"job-{node}")) for node in range(2)]
        assert f"resume: /runs/step-{stop['step']:08}" in compose.up()
        (end,) = project.records("end")
    # Codes of a stop, not that of a process that was killed at the end of the grace period (137).
    states = [each["State"] | {"Restarts": each["RestartCount"]} for each in found]
    assert {state["ExitCode"] for state in states} <= {1, 143}, json.dumps(states)
    assert not any(state["Running"] for state in states)
    assert stop["saved"] and stop["step"] < STEPS
    assert (end["step"], end["weights_sha256"]) == (STEPS, weights(trained))


@pytest.mark.slow
@pytest.mark.parametrize(
    "example", [file for file in EXAMPLES if file.name not in GPU_EXAMPLES], ids=lambda file: file.name
)
def test_example_runs_as_it_is(project: Project, example: Path) -> None:
    # Not in the project that its file names: it may be somebody's.
    with Compose(project.docker, example, project.name, ("docker", "compose", "-p", project.name)) as compose:
        compose.up()


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.stem)
def test_compose_reads_every_file_without_a_warning(docker: Docker, composes: None, spec: Path, tmp_path: Path) -> None:
    file = tmp_path / "compose.yaml"
    file.write_text(render("compose", str(spec), sweep_index=0 if spec.stem == "sweep" else None))
    compose = Compose(Docker({**docker.environ, "WANDB_API_KEY": "s3cret", "HF_TOKEN": "s3cret"}), file, "")
    done = compose.run("config", "--quiet")
    assert (done.returncode, done.stdout) == (0, "")


def test_older_compose_runs_a_file_without_the_two_lines_that_it_does_not_know(
    project: Project, tmp_path: Path
) -> None:
    if not project.docker.has("docker-compose", "version"):
        pytest.skip("docker-compose is not installed (Debian package docker-compose)")
    project.write(command=["jobs/scripts/own.py", "--steps=2"], mounts=[{"source": str(tmp_path), "path": "/here"}])
    file = project.compose().file
    known = [line for line in file.read_text().splitlines() if not line.strip().startswith(("name:", "bind:"))]
    file.write_text("\n".join(known))
    with Compose(project.docker, file, project.name, ("docker-compose", "-p", project.name)) as compose:
        compose.up()


def test_missing_folder_is_refused_and_not_made(project: Project, tmp_path: Path) -> None:
    mounts = [{"source": str(tmp_path / "absent"), "path": "/data"}]
    project.write(command=["true"], no_python=True, mounts=mounts)
    with project.compose() as compose:
        done = compose.run("up")
    assert done.returncode != 0
    assert f"bind source path does not exist: {tmp_path}/absent" in done.stdout
    assert not (tmp_path / "absent").exists()


def test_files_arrive_as_they_were_rendered_and_the_user_whom_the_spec_names_writes_what_is_his(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compose file is used from a folder in which a file has the same name; the file is a program."""
    (tmp_path / "here" / "lib").mkdir(parents=True)
    (tmp_path / "there").mkdir()
    (tmp_path / "out").mkdir()
    os.chown(tmp_path / "out", 4242, 4242)
    (tmp_path / "here" / "mine.py").write_text(FROM_FILES)
    (tmp_path / "here" / "mine.py").chmod(0o755)
    (tmp_path / "here" / "lib" / "__init__.py").write_text("")
    (tmp_path / "there" / "mine.py").write_text("raise SystemExit('another file')\n")
    mounts = [{"source": str(tmp_path / "out"), "path": "/out"}]
    files, user = ["mine.py", "lib/*.py"], {"run_as_user": 4242}
    keys = {"files": files, "mounts": mounts, "compose": user, "no_python": True}
    project.write(command=["./mine.py"], nodes=1, procs_per_node=1, **keys)
    with monkeypatch.context() as here:
        here.chdir(tmp_path / "here")
        file = project.compose().file.rename(tmp_path / "there" / "job.yaml")
    with Compose(project.docker, file, project.name) as compose:
        compose.up()
    written = tmp_path / "out" / "text"
    assert written.read_text() == FROM_FILES
    assert (written.stat().st_uid, written.stat().st_gid) == (4242, 4242)


def test_jobs_of_one_folder_know_nothing_of_one_another(project: Project, tmp_path: Path) -> None:
    ours = {}
    for name in ("one", "two"):
        project.write(name=f"{project.name[:40]}-{name}", command=["sleep", "1000"], no_python=True, nodes=1)
        spec = yaml.safe_load(project.spec.read_text())
        project.spec.write_text(yaml.safe_dump({**spec, "compose": {}}))
        file = project.compose().file.rename(tmp_path / f"{name}.yaml")
        ours[name] = Compose(project.docker, file, spec["name"])
    with ours["one"] as one, ours["two"] as two:
        assert one.run("up", "--detach").returncode == 0
        assert "orphan" not in two.run("up", "--detach").stdout
        assert two.run("down", "--remove-orphans", "--timeout=0").returncode == 0
        (container,) = one.containers()
        assert project.docker.inspect(container)["State"]["Running"]


def test_memory_limit_counts_swap_and_the_file_says_what_happens_above_it(project: Project) -> None:
    code = ["-c", "import mmap; m = mmap.mmap(-1, 2**30); [m.write(bytes(2**20)) for _ in range(2**10)]"]
    project.write(nodes=1, procs_per_node=1, no_python=True, command=["python3", *code], resources={"memory": "400MiB"})
    with project.compose() as compose:
        done = compose.run("up", "--no-color")
        (container,) = compose.containers()
        found = project.docker.inspect(container)
    assert found["HostConfig"]["MemorySwap"] == found["HostConfig"]["Memory"] == 400 << 20
    assert found["State"]["OOMKilled"]
    (explained,) = [line for line in compose.file.read_text().splitlines() if "kernel kills" in line]
    assert ("exited with code 137" in done.stdout) or ("Signal 9" in done.stdout), done.stdout
    assert "exit code 137" in explained and "Signal 9" in explained


def test_every_node_has_the_gpus_that_the_spec_names_for_it(project: Project) -> None:
    """On an engine of our own, which gives a container their numbers; here are no GPUs."""
    if not project.docker.has("docker", "run", "--rm", "--gpus", '"device=3,1"', project.image, "true"):
        pytest.skip("the engine has no GPUs 1 and 3")
    command = ["sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES > /runs/$(hostname)"]
    gpus = {"device": "cuda", "procs_per_node": 1, "compose": {"gpus": [3, 1]}}
    project.write(command=command, no_python=True, mounts=[RUNS], **gpus)
    with project.compose() as compose:
        compose.up()
        told = [project.docker.read(compose.volume("runs"), project.image, f"job-{node}") for node in (0, 1)]
    assert told == ["3", "1"]


@pytest.mark.slow
def test_elastic_job_goes_on_without_a_killed_node_and_ends_well(
    project: Project, spec_of_training: dict[str, Any]
) -> None:
    project.write(**saving(spec_of_training), nodes={"min": 1, "max": 2}, max_restarts=3)
    said: list[str] = []
    with project.compose() as compose, compose.ends() as ends:
        running = compose.start()
        read_until(running, "step 50/", said)
        project.docker.kill(compose.container("job-1"), project.image)
        read_until(ends, "job-0 ended with 0.", said)
        running.communicate()
        (end,), starts = project.records("end"), project.records("start")
    assert [start["world"]["world_size"] for start in starts] == [4, 2]
    assert end["step"] == STEPS
