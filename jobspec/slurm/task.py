"""What the shell of each task sets, and the command it starts."""

from __future__ import annotations

from jobspec import agent
from jobspec.plan import Plan
from jobspec.plumbing import Setting


def lines(plan: Plan) -> list[str]:
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


def passed(plan: Plan) -> list[str]:
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


def environment(plan: Plan) -> list[str]:
    """`env` sets the variables of the processes, so that none of them (PATH, LD_LIBRARY_PATH …) reaches srun or the
    container runtime, and none of the image's wins."""
    env = {setting.name: setting.value for setting in shutdown_setting(plan)} | dict(plan.env)
    return ["env", *(f"{name}={value}" for name, value in env.items())]


def program(plan: Plan) -> list[str]:
    if plan.job.slurm.launcher == "srun":
        return ["python3", *plan.program]
    return ["torchrun", *agent.flags(plan), *plan.torchrun_program]


def shutdown_setting(plan: Plan) -> list[Setting]:
    """How torchrun takes a signal: by itself it dies of SIGUSR1, and after a SIGTERM it leaves its processes 30 s, too
    few for a large checkpoint."""
    if plan.job.preemption is None or plan.job.slurm.launcher == "srun":
        return []
    values = {
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(agent.shutdown_timeout(plan.job.preemption.grace)),
        "PET_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1",
    }
    return [Setting(name, value, "script") for name, value in values.items() if name not in plan.env]
