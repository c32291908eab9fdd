"""Rules of Slurm for a job, and rules for what only one of its launchers and runtimes can do."""

import math
import re
from collections.abc import Iterable, Iterator

from jobspec.filters import sh
from jobspec.problems import Finding
from jobspec.runtimes import tasks_per_node
from jobspec.spec.job import Job
from jobspec.spec.keys import given
from jobspec.spec.rules import Rule, names_in_env

_MAX_GRACE = 65535  # seconds; sbatch takes no more in --signal

_LONGEST_TASK = 120 * 1024  # bytes; Linux allows 128 KiB in one variable, and the rest of the function needs some

# Variables that the script itself sets.
VARIABLES_OF_SCRIPT = {
    *("JOB_PROGRAM", "address", "asked", "before", "disk", "failed", "free", "gpu", "gpus"),
    *("job", "log", "name", "record", "restart", "scratch", "shm", "state", "status", "step", "wait_s"),
}


@Rule
def what_only_torchrun_does(job: Job) -> Iterator[Finding]:
    if job.slurm.launcher == "torchrun":
        return
    if job.nodes.elastic:
        message = "slurm.launcher is srun, but only torchrun continues when nodes come and go (nodes is a range)"
        yield Finding(("slurm", "launcher"), message, "launcher: torchrun")
    elif job.rendezvous.backend == "c10d":
        message = "slurm.launcher is srun, but only torchrun has rendezvous.backend c10d"
        yield Finding(("slurm", "launcher"), message, "leave rendezvous.backend out")
    if "max_restarts" in given(job):
        message = f"max_restarts is {job.max_restarts}, but slurm.launcher is srun: nothing restarts processes"
        hint = "write slurm: {launcher: torchrun}; or set preemption, which requeues the whole job"
        yield Finding(("max_restarts",), message, hint)


@Rule
def values_fit_into_one_variable(job: Job) -> Iterator[Finding]:
    """Limit the program and its variables: they reach the tasks as one variable, so that srun gets no value."""
    swept: list[str] = []
    number = math.prod(map(len, job.sweep.values()))
    for key, values in job.sweep.items():
        swept += [f"--{key}={value}" for value in values] * (number // len(values))
    sizes = {
        "command": _shell_bytes(job.command or ()),
        "setup": _shell_bytes(job.setup),
        # Swept variables count under "sweep", once for each combination.
        "env": _shell_bytes(f"{name}={value}" for name, value in job.env.items() if f"env.{name}" not in job.sweep),
        "sweep": _shell_bytes(swept),
    }
    size = sum(sizes.values())
    if size > _LONGEST_TASK:
        message = f"command, setup, env and sweep take {size} bytes as shell text; at most {_LONGEST_TASK} are allowed"
        largest = max(sizes, key=lambda key: sizes[key])
        yield Finding((largest,), message, "put long values in a file", on_key=True)


def _shell_bytes(words: Iterable[str]) -> int:
    return sum(len(sh(word).encode()) + word.count("$") + 16 for word in words)  # 16: what bash writes around a word


@Rule
def arrays_are_possible(job: Job) -> Iterator[Finding]:
    if job.sweep and job.slurm.array is not None:
        message = "slurm.array is given, but the sweep already makes an array"
        yield Finding(("slurm", "array"), message, "leave slurm.array out", on_key=True)
    if job.slurm.array_limit is not None and not job.sweep and (job.slurm.array is None or "%" in job.slurm.array):
        other = "slurm.array has a limit, too" if job.slurm.array else "there is neither a sweep nor slurm.array"
        message = f"slurm.array_limit is given, but {other}"
        yield Finding(("slurm", "array_limit"), message, "leave one of them out", on_key=True)
    for first, last in re.findall(r"([0-9]+)-([0-9]+)", job.slurm.array or ""):
        if int(last) < int(first):
            message = f"slurm.array: {first}-{last} counts down; a range must count up"
            yield Finding(("slurm", "array"), message, f"write {last}-{first}")


@Rule
def each_task_has_a_cpu(job: Job) -> Iterator[Finding]:
    tasks = tasks_per_node(job)
    if job.resources.cpus is not None and job.resources.cpus < tasks:
        message = f"resources.cpus is {job.resources.cpus}, but slurm.launcher srun starts {tasks} tasks on each node"
        yield Finding(("resources", "cpus"), message, f"cpus: {tasks}, or more")


@Rule
def tasks_of_an_array_keep_apart(job: Job) -> Iterator[Finding]:
    """Check that the tasks of an array, which all have one spec, do not write to the same path."""
    if job.slurm.array is None or job.train is None:
        return
    for key, what in (("checkpoint_dir", "folder"), ("run_dir", "folder"), ("export", "file")):
        if getattr(job.train, key) is not None:
            message = f"train.{key} is one {what}, but slurm.array starts several jobs that would all write to it"
            hint = f"use sweep instead of slurm.array: it gives each run its own values and {what}"
            yield Finding(("train", key), message, hint)


@Rule
def grace_fits(job: Job) -> Iterator[Finding]:
    grace = job.preemption.grace if job.preemption else 0
    if grace > _MAX_GRACE:
        message = f"preemption.grace is {grace} s; Slurm can signal at most {_MAX_GRACE} s before the end"
        yield Finding(("preemption", "grace"), message)
    elif job.time_limit is not None and grace >= job.time_limit:
        limit = f"time_limit ({job.time_limit} s)"
        message = f"preemption.grace ({grace} s) must be below {limit}: no time is left to train"
        yield Finding(("preemption", "grace"), message)


@Rule
def variables_are_not_those_of_slurm_or_the_script(job: Job) -> Iterator[Finding]:
    for path, name in names_in_env(job):
        if path[0] == "secrets" and name in VARIABLES_OF_SCRIPT:
            message = f"secrets: the batch script has its own variable {name}, which would replace the secret"
            yield Finding(path, message, "choose another name")
        if name.startswith(("SLURM_", "SLURMD_", "SRUN_", "SBATCH_")):
            message = f"{path[0]}: {name} is Slurm's own variable"
            yield Finding(path, message, "leave it out; set sbatch options in slurm.options", on_key=True)
