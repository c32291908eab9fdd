"""Shell of each task: what it sets, and the command that it starts."""

from __future__ import annotations

from collections.abc import Mapping

from jobspec import torchrun
from jobspec.environment import Variable
from jobspec.filters import argv, assignments
from jobspec.plan import Plan, for_torchrun


def agent(plan: Plan) -> list[str]:
    """Return what the batch script sets for torchrun on all nodes: torchrun reads a flag from each PET_ variable."""
    nodes = plan.job.nodes
    if plan.job.slurm.launcher == "srun" or nodes.max == 1:
        return []
    least = f"{nodes.min}:" if nodes.elastic else ""
    if plan.backend == "static":
        address = "PET_MASTER_ADDR=$MASTER_ADDR PET_MASTER_PORT=$MASTER_PORT"
    else:
        address = "PET_RDZV_ENDPOINT=$MASTER_ADDR:$MASTER_PORT"
    return [f"export PET_NNODES={least}$SLURM_JOB_NUM_NODES PET_RDZV_ID=$SLURM_JOB_ID.$restart {address}"]


def lines(plan: Plan) -> list[str]:
    """Return the lines that set what differs from task to task; the only variables in them are Slurm's."""
    job = plan.job
    if job.slurm.launcher == "srun":
        return [
            "export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID NODE_RANK=$SLURM_NODEID "
            f"WORLD_SIZE=$SLURM_NTASKS LOCAL_WORLD_SIZE={job.procs_per_node}"
        ]
    if job.nodes.max == 1:
        return []
    if plan.backend == "static":
        return ["export PET_NODE_RANK=$SLURM_NODEID"]
    return [
        "is_host=$(( SLURM_NODEID == 0 ))",
        f"export PET_LOCAL_ADDR=$SLURMD_NODENAME PET_RDZV_CONF={torchrun.c10d_conf(plan, '$is_host')}",
    ]


def for_runtime(plan: Plan) -> dict[str, str]:
    """Return variables of the spec that the container runtime and its hooks read before the program starts.

    Sources: enroot, doc/configuration.md and doc/standard-hooks.md; NVIDIA Container Toolkit, "Specialized
    Configurations with Docker".
    """
    if plan.job.slurm.runtime == "none":
        return {}
    return {name: value for name, value in plan.env.items() if name.startswith(("ENROOT_", "MELLANOX_", "NVIDIA_"))}


def passed(plan: Plan) -> list[str]:
    """List variables of a task's shell that the processes must see, even if a container has its own variables."""
    job = plan.job
    names: list[str] = [*job.secrets]
    if job.slurm.launcher == "srun":
        names += ["MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"]
    elif job.nodes.max > 1:
        names += ["MASTER_ADDR", "MASTER_PORT", "PET_NNODES", "PET_RDZV_ID"]
        static = ["PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_NODE_RANK"]
        names += static if plan.backend == "static" else ["PET_RDZV_ENDPOINT", "PET_RDZV_CONF", "PET_LOCAL_ADDR"]
    names += ["SLURM_JOB_ID", "SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID"]
    return [*names, "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", *for_runtime(plan)]


def environment(plan: Plan) -> Mapping[str, str]:
    """Return variables of the processes; none of the image's may win.

    srun and the container runtime may see only the variables of `for_runtime`, and not PATH or LD_LIBRARY_PATH.
    """
    return {variable.name: variable.value for variable in agent_variables(plan)} | dict(plan.env)


def launcher(plan: Plan) -> list[str]:
    """Return the words before the program in a task; empty if the task starts the program directly."""
    if plan.job.slurm.launcher == "srun":
        return [] if plan.job.no_python else ["python3"]
    return ["torchrun", *torchrun.flags(plan), *(["--tee=3"] if labels(plan) else [])]


def program(plan: Plan) -> list[str]:
    if plan.job.slurm.launcher == "srun":
        return [*plan.program, *train_timeout(plan)]
    return list(plan.torchrun_program)


def swept_env(plan: Plan) -> list[str]:
    """Return bash for each task of a sweep that sets its variables; empty if all tasks have the same ones."""
    return [f"export {assignments(point.env, 6)}" for point in plan.points if point.env]


def swept_words(plan: Plan) -> list[str]:
    """Return bash for each task of a sweep that puts its words into "$@"; empty if all tasks have the same ones."""
    quoted = for_torchrun if plan.job.slurm.launcher == "torchrun" else tuple
    words = [quoted(point.words) for point in plan.points]
    return [f"set -- {argv(task, 6)}" for task in words] if any(words) else []


def train_timeout(plan: Plan) -> list[str]:
    """Return train's flag for how long it waits for the other nodes without torchrun; empty for train's default."""
    job = plan.job
    if job.train is None or job.rendezvous.timeout is None or "rendezvous_timeout_s" in job.train.model_fields_set:
        return []
    return [f"--rendezvous-timeout-s={plan.rendezvous_timeout_s}"]


def labels(plan: Plan) -> bool:
    """Return True if torchrun must begin each line with its rank: with torchrun, Slurm knows only the nodes."""
    return plan.job.slurm.launcher == "torchrun" and "label" in plan.job.slurm.srun_options


def agent_variables(plan: Plan) -> list[Variable]:
    """Return variables for how torchrun handles signals and marks lines.

    By default it dies of SIGUSR1, and after a SIGTERM it gives its processes 30 s, too few for a large checkpoint.
    """
    values: dict[str, str] = {}
    if plan.job.preemption is not None and plan.job.slurm.launcher == "torchrun":
        values[torchrun.SHUTDOWN_TIMEOUT] = str(torchrun.shutdown_timeout_s(plan.job.preemption.grace))
        values["PET_SIGNALS_TO_HANDLE"] = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"
    if labels(plan):
        values["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] = "${rank}: "
    return [Variable(name, value, "script") for name, value in values.items() if name not in plan.env]
