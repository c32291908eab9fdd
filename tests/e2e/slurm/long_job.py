"""A job of two processes on two nodes, on the CPU, that is long enough for something to happen to it in the middle."""

from pathlib import Path
from typing import Any

from tests.cli import records
from tests.e2e.slurm.cluster import Cluster, Job
from tests.e2e.slurm.specs import end_record, script

STEPS = 160
TRAIN = {
    "model": "mnist_cnn",
    "batch_size": 100,
    "epochs": 9,
    "max_steps": STEPS,
    "log_every": 2,
    "optimizer": "sgd",
    "momentum": 0.9,
}
SPEC = """
name: fault
nodes: 2
procs_per_node: 1
device: cpu
train: {{{train}, run_dir: {folder}, checkpoint_dir: {folder}/checkpoints, checkpoint_every: 4, resume: auto}}
resources: {{cpus: 1, memory: 1GiB}}
time_limit: 20m
"""
PREEMPTION = "preemption: {grace: 60s}\n"
# Settings of a job that somebody else has to end.
FOR_EVER = ("train.max_steps=100000", "train.epochs=1000")


def rendered(cluster: Cluster, run_dir: Path, keys: str, *settings: str) -> str:
    """The batch script of the job with more keys in its spec."""
    train = ", ".join(f"{key}: {value}" for key, value in TRAIN.items())
    return script(cluster, SPEC.format(train=train, folder=run_dir) + keys, *settings)


def ended_as(undisturbed: dict[str, Any], cluster: Cluster, number: str, run_dir: Path) -> Job:
    """Wait until the job has ended, and check that it ended with the weights of the undisturbed one."""
    job = cluster.wait_for_end(number)
    assert job.state == "COMPLETED", cluster.logs()
    assert end_record(run_dir) == undisturbed
    assert all(start["world"]["world_size"] == 2 for start in records(run_dir, "start")), "a world of its own"
    return job


def no_step_twice(run_dir: Path) -> bool:
    return [record["step"] for record in records(run_dir, "step")] == [*range(1, STEPS + 1)]


def log(cluster: Cluster, number: str) -> str:
    """What the script and the processes of all starts wrote."""
    return (cluster.folder / f"fault-{number}.log").read_text()


def wait_until_resumed(cluster: Cluster, number: str, run_dir: Path) -> None:
    """Wait until a later start trains on from a checkpoint."""
    resumed = f"resume: {run_dir}/checkpoints/"
    cluster.wait_for("a step", lambda: "epoch " in log(cluster, number).partition(resumed)[2])


def lower_limit(cluster: Cluster, number: str) -> None:
    """Let a running job end in one or two minutes: Slurm counts limits in minutes."""
    hours, minutes, _ = map(int, cluster.job(number).fields["RunTime"].split(":"))
    cluster.command("scontrol", "update", f"JobId={number}", f"TimeLimit={60 * hours + minutes + 2}")


def kill_a_process(cluster: Cluster) -> None:
    """Kill the process of the second node, and not its torchrun."""
    cluster.machines["n10"].run("pkill", "-KILL", "-f", "--", "-u -m train --device=cpu --model=mnist_cnn")
