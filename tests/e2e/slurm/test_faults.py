"""What can happen to a job in the middle: it goes on where it was saved, or ends with the reason in its log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli import records
from tests.e2e.slurm.cluster import Cluster, Job
from tests.e2e.slurm.specs import end_record, run_on_ranks, script

pytestmark = pytest.mark.timeout(2400)

# Two processes on two nodes, on the CPU, for long enough to be caught in the middle.
_STEPS = 160
_TRAIN = {
    "model": "mnist_cnn",
    "batch_size": 100,
    "epochs": 9,
    "max_steps": _STEPS,
    "log_every": 2,
    "optimizer": "sgd",
    "momentum": 0.9,
}
_SPEC = """
name: fault
nodes: 2
procs_per_node: 1
device: cpu
train: {{{train}, run_dir: {folder}, checkpoint_dir: {folder}/checkpoints, checkpoint_every: 20, resume: auto}}
resources: {{cpus: 1, memory: 1GiB}}
time_limit: 20m
"""
_PREEMPTION = "preemption: {grace: 60s}\n"

Start = Callable[..., str]


@pytest.fixture
def start(nodes: Cluster, tmp_path: Path) -> Start:
    """`start(keys, flags…)`: submit a job and wait until it trains; its number.  The nodes are whole afterwards."""

    def submit(keys: str = _PREEMPTION, *flags: str, settings: tuple[str, ...] = ()) -> str:
        train = ", ".join(f"{key}: {value}" for key, value in _TRAIN.items())
        text = script(nodes, _SPEC.format(train=train, folder=tmp_path) + keys, *settings)
        number = nodes.submit(text, *flags)
        nodes.wait_for_line(f"fault-{number}-r0.log", "epoch 1/9  step")
        return number

    return submit


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The last record of the same training without a fault, and without Slurm."""
    return run_on_ranks(2, _TRAIN, tmp_path_factory.mktemp("undisturbed"))


def _ended_as_undisturbed(cluster: Cluster, number: str, run_dir: Path, undisturbed: dict[str, Any]) -> Job:
    job = cluster.wait_for_end(number)
    assert job.state == "COMPLETED", cluster.logs()
    assert end_record(run_dir) == undisturbed
    assert all(start["world"]["world_size"] == 2 for start in records(run_dir, "start")), "a world of its own"
    return job


def _no_step_twice(run_dir: Path) -> bool:
    return [record["step"] for record in records(run_dir, "step")] == [*range(1, _STEPS + 1)]


@pytest.mark.parametrize(
    ("launcher", "to"),
    [
        pytest.param("torchrun", "--batch", id="torchrun, to the script"),
        pytest.param("srun", "--quiet", id="srun, to the processes", marks=pytest.mark.slow),
        pytest.param("torchrun", "--quiet", id="torchrun, to the processes", marks=pytest.mark.slow),
        pytest.param("srun", "--batch", id="srun, to the script", marks=pytest.mark.slow),
    ],
)
def test_scancel_usr1_saves_requeues_and_resumes_at_the_same_step(
    launcher: str, to: str, start: Start, nodes: Cluster, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    number = start(settings=(f"slurm.launcher={launcher}",))
    nodes.command("scancel", "--signal=USR1", to, number)
    job = _ended_as_undisturbed(nodes, number, tmp_path, undisturbed)
    assert job.restarts == 1
    assert _no_step_twice(tmp_path)
    assert "; saved, --resume=auto continues there" in (nodes.folder / f"fault-{number}-r0.log").read_text()
    assert "back into the queue" in (nodes.folder / f"fault-{number}.log").read_text()
    assert "resume: " in (nodes.folder / f"fault-{number}-r1.log").read_text()


@pytest.mark.slow
def test_usr1_without_preemption_in_the_spec_saves_and_ends_the_job(
    start: Start, nodes: Cluster, tmp_path: Path
) -> None:
    number = start("", settings=("slurm.launcher=srun",))
    nodes.command("scancel", "--signal=USR1", number)
    assert nodes.wait_for_end(number).state == "FAILED"
    assert "stopped by a signal" in (nodes.folder / f"fault-{number}-r0.log").read_text()
    assert records(tmp_path, "stop")[-1]["saved"]


@pytest.mark.slow
def test_a_cancelled_job_does_not_come_back(start: Start, nodes: Cluster) -> None:
    number = start()
    nodes.command("scancel", number)
    job = nodes.wait_for_end(number)
    assert (job.state, job.restarts) == ("CANCELLED", 0)
    log = (nodes.folder / f"fault-{number}.log").read_text() + (nodes.folder / f"fault-{number}-r0.log").read_text()
    assert "CANCELLED" in log


@pytest.mark.slow
def test_at_the_time_limit_the_job_saves_and_comes_back_for_the_rest(
    start: Start, nodes: Cluster, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    # Slurm counts limits in minutes; the signal comes 50 s before the end, and the rest gets a limit of its own.
    number = start("preemption: {grace: 50s}\n", "--time=1")
    nodes.wait_for_line(f"fault-{number}.log", "back into the queue")
    nodes.command("scontrol", "update", f"JobId={number}", "TimeLimit=20")
    job = _ended_as_undisturbed(nodes, number, tmp_path, undisturbed)
    assert job.restarts >= 1
    assert _no_step_twice(tmp_path)


@pytest.mark.slow
def test_at_the_time_limit_without_preemption_the_job_ends_and_the_log_says_why(start: Start, nodes: Cluster) -> None:
    number = start("", "--time=1", settings=("train.max_steps=100000", "train.epochs=1000"))
    assert nodes.wait_for_end(number).state == "TIMEOUT"
    log = (nodes.folder / f"fault-{number}.log").read_text() + (nodes.folder / f"fault-{number}-r0.log").read_text()
    assert "DUE TO TIME LIMIT" in log


@pytest.mark.slow
def test_a_job_of_higher_priority_sends_it_back_into_the_queue_and_it_resumes(
    start: Start, nodes: Cluster, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    number = start()
    wants_all = "#!/bin/bash\n#SBATCH --partition=high --nodes=3 --exclusive --output=high-%j.log\nhostname\n"
    high = nodes.submit(wants_all)
    assert nodes.wait_for_end(high).state == "COMPLETED"
    job = _ended_as_undisturbed(nodes, number, tmp_path, undisturbed)
    assert job.restarts == 1
    assert _no_step_twice(tmp_path), "it was asked to save, not killed"


@pytest.mark.slow
def test_scontrol_requeue_goes_on_from_the_last_checkpoint(
    start: Start, nodes: Cluster, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    number = start()
    nodes.command("scontrol", "requeue", number)
    assert _ended_as_undisturbed(nodes, number, tmp_path, undisturbed).restarts == 1


@pytest.mark.slow
def test_a_node_that_is_set_down_sends_the_job_back_into_the_queue_and_it_goes_on(
    start: Start, nodes: Cluster, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    number = start()
    nodes.command("scontrol", "update", "NodeName=n10", "State=DOWN", "Reason=test")
    assert _ended_as_undisturbed(nodes, number, tmp_path, undisturbed).restarts == 1
    assert "Node failure on n10" in (nodes.folder / f"fault-{number}.log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("node", ["n2", "n10"], ids=["first", "second"])
def test_a_node_that_loses_power_ends_the_job_or_sends_it_to_other_nodes_and_never_hangs(
    node: str, start: Start, nodes: Cluster, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    number = start()
    nodes.power_off(node)
    job = nodes.wait_for_end(number)
    said = "".join(log.read_text() for log in nodes.folder.glob(f"fault-{number}*.log"))
    if job.state == "COMPLETED":
        assert end_record(tmp_path) == undisturbed
        assert node not in nodes.command("scontrol", "show", "hostnames", job.fields["NodeList"]).split()
    else:
        assert job.state in ("FAILED", "NODE_FAIL")
        assert "Connection" in said or "NODE FAILURE" in said, said


@pytest.mark.slow
def test_a_slurmd_that_dies_does_not_disturb_the_job(
    start: Start, nodes: Cluster, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    number = start()
    nodes.kill_slurmd("n10")
    nodes.wait_for_line(f"fault-{number}-r0.log", f"epoch {_STEPS // 100 + 1}/9  step")
    nodes.start_slurmd("n10")
    assert _ended_as_undisturbed(nodes, number, tmp_path, undisturbed).restarts == 0
    assert _no_step_twice(tmp_path)


@pytest.mark.slow
def test_a_process_that_is_killed_ends_the_job_with_the_reason_in_the_log(start: Start, nodes: Cluster) -> None:
    number = start()
    nodes.machines["n10"].run("pkill", "-KILL", "-f", "train --device=cpu --model=mnist_cnn")
    job = nodes.wait_for_end(number)
    assert (job.state, job.restarts) == ("FAILED", 0)
    log = (nodes.folder / f"fault-{number}-r0.log").read_text()
    assert "exitcode  : -9" in log or "exitcode: -9" in log


def test_names_that_do_not_resolve_fail_in_the_preflight(cluster: Cluster, tmp_path: Path) -> None:
    train = ", ".join(f"{key}: {value}" for key, value in _TRAIN.items())
    text = script(cluster, _SPEC.format(train=train, folder=tmp_path))
    number = cluster.submit(text.replace("export MASTER_ADDR=${hosts%%$'\\n'*}", "export MASTER_ADDR=no-such-node"))
    assert cluster.wait_for_end(number).state == "FAILED"
    log = (cluster.folder / f"fault-{number}.log").read_text()
    for node in ("n2", "n10"):
        assert f"preflight: {node}: the name of the first node, no-such-node, does not resolve" in log
