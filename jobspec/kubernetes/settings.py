"""Who sets each variable of a process in a pod."""

from __future__ import annotations

from jobspec.kubernetes.pod import SHUTDOWN_TIMEOUT, pod_env
from jobspec.plan import Plan, Rank
from jobspec.plumbing import Setter, Setting, common_settings, torchrun_settings


def pod_settings(plan: Plan) -> list[Setting]:
    """The variables that all pods of a job have alike."""
    common = common_settings(plan)
    if SHUTDOWN_TIMEOUT in plan.env:
        return common
    return [Setting(SHUTDOWN_TIMEOUT, pod_env(plan)[SHUTDOWN_TIMEOUT], "script"), *common]


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
