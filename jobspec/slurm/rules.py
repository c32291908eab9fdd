"""What Slurm demands of a job, and what only one of its launchers and runtimes can do."""

from __future__ import annotations

import re
from collections.abc import Iterator

from jobspec import runtimes
from jobspec.problems import Finding
from jobspec.rules import Rule, variables
from jobspec.spec import Job

_MAX_GRACE = 65535  # seconds; sbatch takes no more in --signal

# Options of sbatch that follow from keys of the spec: given a second time, one of the two would be lost.
_OPTIONS_OF_KEYS = {
    "job-name": "name",
    "nodes": "nodes",
    "ntasks": "nodes, procs_per_node and slurm.launcher",
    "ntasks-per-node": "procs_per_node and slurm.launcher",
    "ntasks-per-gpu": "procs_per_node and slurm.launcher",
    "cpus-per-task": "resources.cpus",
    "gpus": "nodes and procs_per_node",
    "gpus-per-node": "procs_per_node",
    "gpus-per-task": "procs_per_node; it would hide the other GPUs from each process",
    "mem": "resources.memory",
    "time": "time_limit",
    "signal": "preemption",
    "requeue": "preemption",
    "no-requeue": "preemption",
    "no-kill": "nodes, as a range",
    "open-mode": "preemption",
    **{key: f"slurm.{key}" for key in ("partition", "account", "qos", "constraint", "reservation", "array")},
}
# Options with which sbatch does not run the script at all.
_NO_JOB = {"help", "usage", "version", "test-only", "wrap"}


@Rule
def runtime_can_run_the_image(job: Job) -> Iterator[Finding]:
    yield from runtimes.problems(job)


@Rule
def what_only_torchrun_does(job: Job) -> Iterator[Finding]:
    if job.slurm.launcher == "torchrun":
        return
    if job.nodes.elastic:
        message = "slurm.launcher is srun, but only torchrun goes on when nodes come and go (nodes is a range)"
        yield Finding(("slurm", "launcher"), message, "launcher: torchrun")
    elif job.rendezvous.backend == "c10d":
        message = "slurm.launcher is srun, but rendezvous.backend c10d is torchrun's"
        yield Finding(("slurm", "launcher"), message, "leave rendezvous.backend out")
    if job.max_restarts:
        message = f"max_restarts is {job.max_restarts}, but slurm.launcher is srun: nothing starts processes again"
        yield Finding(("max_restarts",), message, "launcher: torchrun, or preemption for a requeue of the whole job")


@Rule
def options_do_not_contradict_keys(job: Job) -> Iterator[Finding]:
    for name, value in job.slurm.options.items():
        path = ("slurm", "options", name)
        if name in _OPTIONS_OF_KEYS:
            message = f"slurm.options: {name} is set from {_OPTIONS_OF_KEYS[name]}"
            yield Finding(path, message, "leave it out", on_key=True)
        if name in _NO_JOB:
            message = f"slurm.options: with {name} sbatch does not run this script"
            yield Finding(path, message, "give it to sbatch by hand", on_key=True)
        if name == "gres" and re.match(r"(.*,)?(gres:|gres/)?gpu\b", str(value)):
            message = "slurm.options: GPUs follow from procs_per_node"
            yield Finding(path, message, "for GPUs of one kind use slurm.constraint", on_key=True)


@Rule
def tasks_of_an_array_keep_apart(job: Job) -> Iterator[Finding]:
    """All tasks of an array have one spec; folders that each of them writes to must not be the same."""
    if job.slurm.array is None or job.train is None:
        return
    for key in ("checkpoint_dir", "run_dir"):
        if getattr(job.train, key) is not None:
            message = f"train.{key} is one folder, but slurm.array starts several jobs that would all write to it"
            hint = "use command with a script that reads SLURM_ARRAY_TASK_ID, as jobs/array.yaml does"
            yield Finding(("train", key), message, hint)


@Rule
def grace_fits(job: Job) -> Iterator[Finding]:
    if job.preemption is None:
        return
    grace = job.preemption.grace
    if grace > _MAX_GRACE:
        message = f"preemption.grace is {grace} s; Slurm signals at most {_MAX_GRACE} s before the end"
        yield Finding(("preemption", "grace"), message)
    elif job.time_limit is not None and grace >= job.time_limit:
        message = f"preemption.grace is {grace} s of a time_limit of {job.time_limit} s: nothing is left to train in"
        yield Finding(("preemption", "grace"), message)


@Rule
def slurms_variables_are_not_set(job: Job) -> Iterator[Finding]:
    for path, name in variables(job):
        if name.startswith(("SLURM_", "SLURMD_", "SRUN_", "SBATCH_")):
            message = f"{path[0]}: {name} is Slurm's own variable"
            yield Finding(path, message, "options of sbatch belong in slurm.options", on_key=True)
