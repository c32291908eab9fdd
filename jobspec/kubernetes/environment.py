"""Who sets each variable of a process in a pod."""

from __future__ import annotations

from jobspec.environment import Setter, Setting, common_settings, torchrun_settings
from jobspec.kubernetes.pod import pod_env
from jobspec.plan import Plan, Rank

COMPLETION_INDEX = "JOB_COMPLETION_INDEX"


def pod_settings(plan: Plan) -> list[Setting]:
    """The variables that all pods of a job have alike."""
    ours = {name: value for name, value in pod_env(plan).items() if name not in plan.env}
    return [*(Setting(name, value, "script") for name, value in ours.items()), *common_settings(plan)]


def indexed_settings(plan: Plan, rank: Rank) -> list[Setting]:
    """What the Job controller adds to each container of an Indexed Job, unless it is there."""
    if COMPLETION_INDEX in plan.env:
        return []
    return [Setting(COMPLETION_INDEX, str(rank.node), "scheduler")]


def node_settings(
    plan: Plan, rank: Rank, master_addr: str, master_port: int, *, setter: Setter, node_rank: Setter
) -> list[Setting]:
    """What differs between nodes and jobs, as variables for torchrun; `setter` sets all but the node's number."""
    return [
        Setting("PET_NNODES", str(plan.job.nodes.max), setter),
        Setting("PET_NODE_RANK", str(rank.node), node_rank),
        Setting("PET_MASTER_ADDR", master_addr, setter),
        Setting("PET_MASTER_PORT", str(master_port), setter),
    ]


def worker_settings(plan: Plan, rank: Rank, master_addr: str) -> list[Setting]:
    """What torchrun gives to a process after a static rendezvous; pods are restarted, not their processes."""
    port, run_id = str(plan.port), plan.job.name
    return torchrun_settings(plan, rank, master_addr=master_addr, master_port=port, run_id=run_id, max_restarts=0)
