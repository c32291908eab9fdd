"""A batch script for Slurm: one task a node with torchrun as the agent, or one task a process without it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from jobspec import agent, runtimes
from jobspec.plan import PORTS, Plan, Rank
from jobspec.plumbing import Setting, common_settings, torchrun_settings
from jobspec.problems import Finding, Path
from jobspec.rules import rule
from jobspec.spec import Job

NOT_USED: dict[str, str] = {}

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


def variables(plan: Plan) -> dict[str, Any]:
    job = plan.job
    runtime = runtimes.load(job.slurm.runtime)
    passed = _passed(plan)
    return {
        "directives": _directives(plan),
        "tasks": _tasks_per_node(job),
        "srun_flags": [*_srun_flags(plan), *runtime.srun_flags(plan, passed)],
        "preflight": job.slurm.preflight and _has_checks(job),
        "task": [*_task(plan), *runtime.start(plan, passed)],
        "words": [part for part in (runtime.words(plan, passed), _environment(plan), _program(plan)) if part],
        "own_log": "output" not in job.slurm.options,
        "ports": PORTS,
        "shm_mib": (job.resources.shm or 0) >> 20,
        # Later than torchrun, which kills its processes itself, and before Slurm's own end.
        "give_up": max(1, job.preemption.grace * 7 // 8) if job.preemption else 0,
    }


def settings(plan: Plan, rank: Rank) -> list[Setting]:
    job = plan.job
    by_torchrun = job.slurm.launcher == "torchrun"
    task, local_task = (rank.node, 0) if by_torchrun else (rank.rank, rank.local_rank)
    by_slurm = {
        "SLURM_JOB_ID": "<number of the job>",
        "SLURM_NODEID": rank.node,
        "SLURM_PROCID": task,
        "SLURM_LOCALID": local_task,
        **({"SLURM_ARRAY_TASK_ID": "<number in the array>"} if job.slurm.array else {}),
    }
    first = [
        *(Setting(name, str(value), "scheduler") for name, value in by_slurm.items()),
        *common_settings(plan),
        *_shutdown_setting(plan),
    ]
    address = "<name of the first node>" if job.nodes.max > 1 else "127.0.0.1"
    if by_torchrun and job.nodes.max == 1:
        port, run_id = "<free port that torchrun picks>", "<random id>"
        return [*first, *torchrun_settings(plan, rank, master_addr=address, master_port=port, run_id=run_id)]
    port = str(job.rendezvous.port) if job.rendezvous.port != "auto" else "<port from the number of the job>"
    by_script = [Setting("MASTER_ADDR", address, "script"), Setting("MASTER_PORT", port, "script")]
    if not by_torchrun:
        numbers = {
            "RANK": rank.rank,
            "LOCAL_RANK": rank.local_rank,
            "NODE_RANK": rank.node,
            "WORLD_SIZE": plan.world_size,
            "LOCAL_WORLD_SIZE": job.procs_per_node,
        }
        return [*first, *by_script, *(Setting(name, str(value), "script") for name, value in numbers.items())]
    run_id = "<number of the job>.<number of its restarts>"
    if plan.backend == "c10d":  # numbers the nodes anew, in the text order of their names
        address, port = "<name of the node with rank 0>", "<free port that torchrun picks>"
        by_script += [
            Setting("PET_RDZV_ENDPOINT", "<name of the first node>:<MASTER_PORT>", "script"),
            Setting("PET_RDZV_CONF", f"is_host={int(rank.node == 0)}", "script"),
            Setting("PET_LOCAL_ADDR", "<name of this node>", "script"),
        ]
    else:
        by_script += [
            Setting("PET_MASTER_ADDR", address, "script"),
            Setting("PET_MASTER_PORT", port, "script"),
            Setting("PET_NODE_RANK", str(rank.node), "script"),
        ]
    by_script += [
        Setting("PET_NNODES", "<number of nodes>" if job.nodes.elastic else str(job.nodes.max), "script"),
        Setting("PET_RDZV_ID", run_id, "script"),
    ]
    return [*first, *by_script, *torchrun_settings(plan, rank, master_addr=address, master_port=port, run_id=run_id)]


@rule("slurm", "image", "mounts")
def runtime_can_run_the_image(job: Job) -> Iterator[Finding]:
    yield from runtimes.problems(job)


@rule("slurm", "nodes", "rendezvous", "max_restarts")
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


@rule("slurm")
def options_do_not_contradict_keys(job: Job) -> Iterator[Finding]:
    for name, value in job.slurm.options.items():
        path = ("slurm", "options", name)
        if name in _OPTIONS_OF_KEYS:
            yield Finding(path, f"slurm.options: {name} is set from {_OPTIONS_OF_KEYS[name]}", on_key=True)
        if name in _NO_JOB:
            yield Finding(path, f"slurm.options: with {name} sbatch does not run this script", on_key=True)
        if name == "gres" and re.match(r"(.*,)?(gres:|gres/)?gpu\b", str(value)):
            message = "slurm.options: GPUs follow from procs_per_node"
            yield Finding(path, message, "for GPUs of one kind use slurm.constraint", on_key=True)


@rule("slurm", "train")
def tasks_of_an_array_keep_apart(job: Job) -> Iterator[Finding]:
    """All tasks of an array have one spec; folders that each of them writes to must not be the same."""
    if job.slurm.array is None or job.train is None:
        return
    for key in ("checkpoint_dir", "run_dir"):
        if getattr(job.train, key) is not None:
            message = f"train.{key} is one folder, but slurm.array starts several jobs that would all write to it"
            hint = "use command with a script that reads SLURM_ARRAY_TASK_ID, as jobs/array.yaml does"
            yield Finding(("train", key), message, hint)


@rule("preemption", "time_limit")
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


@rule("env", "secrets")
def slurms_variables_are_not_set(job: Job) -> Iterator[Finding]:
    names: list[tuple[Path, str]] = [(("env", name), name) for name in job.env]
    secrets: list[tuple[Path, str]] = [(("secrets", number), name) for number, name in enumerate(job.secrets)]
    for path, name in [*names, *secrets]:
        if name.startswith(("SLURM_", "SLURMD_", "SRUN_", "SBATCH_")):
            message = f"{path[0]}: {name} is Slurm's own variable"
            yield Finding(path, message, "options of sbatch belong in slurm.options", on_key=True)


def _tasks_per_node(job: Job) -> int:
    return job.procs_per_node if job.slurm.launcher == "srun" else 1


def _directives(plan: Plan) -> list[tuple[str, str]]:
    """Options of sbatch with their values, "" for a flag."""
    job, slurm = plan.job, plan.job.slurm
    log = f"{job.name}-%A_%a.log" if slurm.array else f"{job.name}-%j.log"
    given = {
        "job-name": job.name,
        "nodes": f"{job.nodes.min}-{job.nodes.max}" if job.nodes.elastic else job.nodes.max,
        "ntasks-per-node": _tasks_per_node(job),
        "cpus-per-task": _cpus_per_task(job),
        "gpus-per-node": job.procs_per_node if job.device == "cuda" else None,
        "mem": f"{job.resources.memory >> 20}M" if job.resources.memory else None,
        "time": _time(job.time_limit) if job.time_limit else None,
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "constraint": slurm.constraint,
        "reservation": slurm.reservation,
        "array": slurm.array,
        "no-kill": "" if job.nodes.elastic else None,
        "signal": f"B:USR1@{job.preemption.grace}" if job.preemption else None,
        "requeue" if job.preemption else "no-requeue": "",
        "output": None if "output" in slurm.options else log,
        "open-mode": "append",
        **{name: "" if value is True else value for name, value in slurm.options.items()},
    }
    return [(name, str(value)) for name, value in given.items() if value is not None]


def _srun_flags(plan: Plan) -> list[str]:
    """Flags of the srun that starts the tasks; srun takes over from sbatch neither the CPUs of a task nor, after
    `sbatch --export=NONE`, the environment of the script."""
    job = plan.job
    tasks = _tasks_per_node(job)
    flags = ["--export=ALL", f"--ntasks-per-node={tasks}", f"--cpus-per-task={_cpus_per_task(job)}"]
    if not job.nodes.elastic:
        flags = [f"--nodes={job.nodes.max}", f"--ntasks={job.nodes.max * tasks}", *flags]
    if job.slurm.launcher == "srun":
        # Ranks fill one node after the other, and each process sees all GPUs of its node: NCCL connects them directly.
        flags += ["--distribution=block", *(["--gpu-bind=none"] if job.device == "cuda" else [])]
    if job.nodes.elastic:
        return [*flags, "--no-kill", "--kill-on-bad-exit=0", "--wait=0"]
    if job.preemption:
        return [*flags, "--kill-on-bad-exit=0", f"--wait={job.preemption.grace}"]
    return [*flags, "--kill-on-bad-exit=1", "--wait=60"]


def _cpus_per_task(job: Job) -> int:
    # Slurm's own default is one CPU a task, which all processes of the node would share.
    return max(1, (job.resources.cpus or job.procs_per_node) // _tasks_per_node(job))


def _has_checks(job: Job) -> bool:
    """Whether the preflight has anything to look at: a job on the CPU of one node has not."""
    meets = job.nodes.max > 1 or job.slurm.launcher == "srun"
    return meets or job.device == "cuda" or job.resources.shm is not None or job.resources.rdma


def _time(seconds: int) -> str:
    """Slurm's days-hours:minutes:seconds."""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{days}-{hour:02}:{minute:02}:{second:02}"


def _task(plan: Plan) -> list[str]:
    """What the shell of each task sets: all that differs from task to task, and only Slurm's variables in it."""
    job = plan.job
    if job.slurm.launcher == "srun":
        return [
            "export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID NODE_RANK=$SLURM_NODEID",
            f"export WORLD_SIZE={plan.world_size} LOCAL_WORLD_SIZE={job.procs_per_node}",
        ]
    if job.nodes.max == 1:
        return []
    if plan.backend == "static":
        return ["export PET_NODE_RANK=$SLURM_NODEID"]
    return [
        "export PET_LOCAL_ADDR=$SLURMD_NODENAME PET_RDZV_CONF=is_host=0",
        'if [ "$SLURM_NODEID" = 0 ]; then PET_RDZV_CONF=is_host=1; fi',
    ]


def _passed(plan: Plan) -> list[str]:
    """Variables of a task's shell that a container must let in, secrets first."""
    job = plan.job
    names = [*job.secrets]
    if job.slurm.launcher == "srun":
        names += ["MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"]
    elif job.nodes.max > 1:
        names += ["MASTER_ADDR", "MASTER_PORT", "PET_NNODES", "PET_RDZV_ID"]
        static = ["PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_NODE_RANK"]
        names += static if plan.backend == "static" else ["PET_RDZV_ENDPOINT", "PET_RDZV_CONF", "PET_LOCAL_ADDR"]
    names += ["SLURM_JOB_ID", "SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID"]
    return names + (["SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"] if job.slurm.array else [])


def _environment(plan: Plan) -> list[str]:
    """`env` sets the variables of the processes, so that none of them (PATH, LD_LIBRARY_PATH …) reaches srun or the
    container runtime, and none of the image's wins."""
    env = {setting.name: setting.value for setting in _shutdown_setting(plan)} | dict(plan.env)
    return ["env", *(f"{name}={value}" for name, value in env.items())]


def _program(plan: Plan) -> list[str]:
    if plan.job.slurm.launcher == "srun":
        return ["python3", *plan.program]
    return ["torchrun", *agent.flags(plan), *plan.torchrun_program]


def _shutdown_setting(plan: Plan) -> list[Setting]:
    """How long torchrun waits for its processes after SIGTERM: its own 30 s are too short for a large checkpoint."""
    name = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
    if plan.job.preemption is None or plan.job.slurm.launcher == "srun" or name in plan.env:
        return []
    return [Setting(name, str(agent.shutdown_timeout(plan.job.preemption.grace)), "script")]
