"""What Slurm demands of a job, and what only one of its launchers and runtimes can do."""

from __future__ import annotations

import re
from collections.abc import Iterator

from jobspec import runtimes
from jobspec.filters import sh
from jobspec.problems import Finding
from jobspec.slurm.options import tasks_per_node
from jobspec.spec.job import Job
from jobspec.spec.rules import Rule, variables

_MAX_GRACE = 65535  # seconds; sbatch takes no more in --signal

_LONGEST_TASK = 120 * 1024  # bytes; Linux takes 128 KiB in one variable, and some is for the rest of the function

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
    "tasks-per-node": "procs_per_node and slurm.launcher",
    "tres-per-task": "procs_per_node and resources.cpus; it would hide the other GPUs from each process",
    "time": "time_limit",
    "signal": "preemption",
    "requeue": "preemption",
    "no-requeue": "preemption",
    "no-kill": "nodes, as a range",
    "open-mode": "preemption",
    **{key: f"slurm.{key}" for key in ("partition", "account", "qos", "constraint", "reservation", "array")},
}
# Options of sbatch that may stand for a key which is left out, and the key beside which they are refused.
_OPTIONS_INSTEAD_OF_KEYS = {
    "cpus-per-gpu": "cpus",
    "mem": "memory",
    "mem-per-cpu": "memory",
    "mem-per-gpu": "memory",
}
# Options with which sbatch does not run the script at all.
_NO_JOB = {"help", "usage", "version", "test-only", "wrap"}


# Options of sbatch that take no value, and those that take one; of others, which plugins define, nothing is known.
_FLAGS = {
    "contiguous",
    "hold",
    "ignore-pbs",
    "overcommit",
    "oversubscribe",
    "parsable",
    "quiet",
    "reboot",
    "spread-job",
}
_FLAGS |= {"use-min-nodes", "verbose", "wait"}
_WITH_VALUE = set(
    [
        "acctg-freq",
        "batch",
        "bb",
        "bbf",
        "begin",
        "chdir",
        "cluster-constraint",
        "clusters",
        "comment",
        "container",
        "core-spec",
        "cores-per-socket",
        "cpu-freq",
        "cpus-per-gpu",
        "deadline",
        "delay-boot",
        "dependency",
        "error",
        "exclude",
        "export",
        "export-file",
        "extra-node-info",
        "gid",
        "gpu-bind",
        "gpu-freq",
        "gpus-per-socket",
        "gres",
        "gres-flags",
        "hint",
        "input",
        "kill-on-invalid-dep",
        "licenses",
        "mail-type",
        "mail-user",
        "mcs-label",
        "mem-bind",
        "mem-per-cpu",
        "mem-per-gpu",
        "mincpus",
        "network",
        "nodefile",
        "nodelist",
        "ntasks-per-core",
        "ntasks-per-socket",
        "output",
        "power",
        "prefer",
        "priority",
        "profile",
        "sockets-per-node",
        "switches",
        "thread-spec",
        "threads-per-core",
        "time-min",
        "tmp",
        "uid",
        "wait-all-nodes",
        "wckey",
    ]
)
_EXCLUSIVE = (True, "user", "mcs", "topo")

# Options of srun that the script sets itself.
_SRUN_OPTIONS_OF_SCRIPT = {
    "cpus-per-task": "resources.cpus",
    "distribution": "slurm.launcher",
    "export": "env and secrets",
    "jobid": "Slurm",
    "kill-on-bad-exit": "nodes and preemption",
    "nodes": "nodes",
    "no-kill": "nodes, as a range",
    "ntasks": "nodes, procs_per_node and slurm.launcher",
    "ntasks-per-node": "procs_per_node and slurm.launcher",
    "open-mode": "preemption",
    "tasks-per-node": "procs_per_node and slurm.launcher",
    "output": "name; slurm.options.output names one log for all",
    "wait": "preemption",
}
_SRUN_OPTIONS_FOR_PYXIS = {"container-image": "image", "container-mounts": "mounts", "container-env": "env and secrets"}


# Variables that the script itself sets.
VARIABLES_OF_SCRIPT = set(
    [
        "JOB_PROGRAM",
        "address",
        "before",
        "failed",
        "gpu",
        "gpus",
        "hosts",
        "is_host",
        "job",
        "listens",
        "log",
        "name",
        "record",
        "restart",
        "shm",
        "state",
        "status",
        "step",
        "uuids",
        "wait_s",
    ]
)


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
        if name == "mem" and job.resources.memory is None and str(value) != "0":
            message = "slurm.options: mem is set from resources.memory"
            yield Finding(path, message, "mem: 0 asks for all memory of a node", on_key=True)
        if name == "overcommit":
            message = "slurm.options: overcommit does not reach the tasks: the script drops SLURM_OVERCOMMIT"
            yield Finding(path, message, "slurm: {srun_options: {overcommit: true}}", on_key=True)
        if name == "gres" and re.match(r"(.*,)?(gres:|gres/)?gpu\b", str(value)):
            message = "slurm.options: GPUs follow from procs_per_node"
            yield Finding(path, message, "for GPUs of one kind use slurm.constraint", on_key=True)


@Rule
def options_have_the_values_that_sbatch_reads(job: Job) -> Iterator[Finding]:
    for name, value in job.slurm.options.items():
        path = ("slurm", "options", name)
        if name == "exclusive" and value not in _EXCLUSIVE:
            message = f"slurm.options: exclusive is {value}, which sbatch does not know"
            yield Finding(path, message, "true, user, mcs or topo; leave it out to share nodes")
        elif name in _FLAGS and value is not True:
            yield Finding(path, f"slurm.options: {name} takes no value, not even {value}", "true, or leave it out")
        elif name in _WITH_VALUE and value is True:
            yield Finding(path, f"slurm.options: {name} is true, but sbatch wants a value for it")
        key = _OPTIONS_INSTEAD_OF_KEYS.get(name)
        if key is not None and getattr(job.resources, key) is not None:
            message = f"slurm.options: {name} is given, and resources.{key} too; Slurm takes only one of them"
            yield Finding(path, message, "leave one of them out", on_key=True)


@Rule
def values_fit_into_one_variable(job: Job) -> Iterator[Finding]:
    """The program and its variables reach the tasks as one variable, so that no value is an argument of srun."""
    words = [*(job.command or ()), *(f"{name}={value}" for name, value in job.env.items())]
    size = sum(len(sh(word).encode()) + word.count("$") + 16 for word in words)  # 16: what bash writes around a word
    if size > _LONGEST_TASK:
        message = f"command and env take {size} bytes as shell text; on Slurm they have {_LONGEST_TASK}"
        yield Finding(("env",) if job.env else ("command",), message, "put long values in a file", on_key=True)


@Rule
def srun_options_do_not_contradict_the_script(job: Job) -> Iterator[Finding]:
    for name, value in job.slurm.srun_options.items():
        path = ("slurm", "srun_options", name)
        if name in _SRUN_OPTIONS_OF_SCRIPT:
            message = f"slurm.srun_options: {name} is set from {_SRUN_OPTIONS_OF_SCRIPT[name]}"
            yield Finding(path, message, "leave it out", on_key=True)
        elif name in _SRUN_OPTIONS_FOR_PYXIS and job.slurm.runtime == "pyxis":
            message = f"slurm.srun_options: {name} is set from {_SRUN_OPTIONS_FOR_PYXIS[name]}"
            yield Finding(path, message, "leave it out", on_key=True)
        elif name == "label" and value is not True:
            yield Finding(path, f"slurm.srun_options: label takes no value, not even {value}", "true, or leave it out")


@Rule
def array_counts_up(job: Job) -> Iterator[Finding]:
    for first, last, step in re.findall(r"([0-9]+)-([0-9]+)(?::([0-9]+))?", job.slurm.array or ""):
        if int(last) < int(first):
            message = f"slurm.array: {first}-{last} ends below its beginning"
            yield Finding(("slurm", "array"), message, f"{last}-{first}")
        if step and int(step) == 0:
            yield Finding(("slurm", "array"), f"slurm.array: a step of {step} never ends", f"{first}-{last}")


@Rule
def each_task_has_a_cpu(job: Job) -> Iterator[Finding]:
    tasks = tasks_per_node(job)
    if job.resources.cpus is not None and job.resources.cpus < tasks:
        message = f"resources.cpus is {job.resources.cpus}, but slurm.launcher srun starts {tasks} tasks on each node"
        yield Finding(("resources", "cpus"), message, f"cpus: {tasks}, or more")


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
def secrets_are_not_the_scripts_variables(job: Job) -> Iterator[Finding]:
    """The value comes from the shell that calls sbatch, and the script would put its own over it."""
    for number, name in enumerate(job.secrets):
        if name in VARIABLES_OF_SCRIPT:
            message = f"secrets: {name} is a variable of the batch script, which would replace its value"
            yield Finding(("secrets", number), message, "choose another name")


@Rule
def slurms_variables_are_not_set(job: Job) -> Iterator[Finding]:
    for path, name in variables(job):
        if name.startswith(("SLURM_", "SLURMD_", "SRUN_", "SBATCH_")):
            message = f"{path[0]}: {name} is Slurm's own variable"
            yield Finding(path, message, "options of sbatch belong in slurm.options", on_key=True)
