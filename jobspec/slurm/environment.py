"""Variables of a process under Slurm, and who sets each."""

from __future__ import annotations

from jobspec import torchrun
from jobspec.environment import (
    FREE_PORT,
    NODE_0,
    NODE_OF_RANK_0,
    RANDOM_ID,
    THIS_NODE,
    Variable,
    common_variables,
    torchrun_variables,
)
from jobspec.plan import Plan, Rank
from jobspec.slurm.task import agent_variables

_SCALES = "changes with sbatch --nodes=N"
REMARKS = {"WORLD_SIZE": _SCALES, "PET_NNODES": _SCALES, "GROUP_WORLD_SIZE": _SCALES, "ROLE_WORLD_SIZE": _SCALES}


def environment(plan: Plan, rank: Rank) -> list[Variable]:
    """List every variable of the process at `rank`, in the order in which they are set."""
    start = [*_by_slurm(plan, rank), *common_variables(plan), *_swept(plan), *agent_variables(plan)]
    if plan.job.slurm.launcher == "srun":
        return [*start, *_meeting_point(plan), *_numbers(plan, rank)]
    if plan.job.nodes.max == 1:
        address, port, run_id = "127.0.0.1", FREE_PORT, RANDOM_ID
        return [*start, *torchrun_variables(plan, rank, master_addr=address, master_port=port, run_id=run_id)]
    address, port = NODE_0, _port(plan)
    if plan.backend == "c10d":
        address, port = NODE_OF_RANK_0, FREE_PORT
    run_id = "<job ID>.<number of restarts>"
    workers = torchrun_variables(plan, rank, master_addr=address, master_port=port, run_id=run_id)
    return [*start, *_meeting_point(plan), *_flags_of_torchrun(plan, rank, run_id), *workers]


def _by_slurm(plan: Plan, rank: Rank) -> list[Variable]:
    """List Slurm's own variables.  With the launcher srun a task is a process, with torchrun a node."""
    node, task, number_on_node = str(rank.node), str(rank.node), "0"
    if plan.job.slurm.launcher == "srun":
        task, number_on_node = str(rank.rank), str(rank.local_rank)
    if plan.backend == "c10d":  # renumbers the nodes by name, in text order
        node = task = "<Slurm's node ID>"
    values = {
        "SLURM_JOB_ID": "<job ID>",
        "SLURM_NODEID": node,
        "SLURM_PROCID": task,
        "SLURM_LOCALID": number_on_node,
    }
    if plan.points or plan.job.slurm.array is not None:
        values["SLURM_ARRAY_TASK_ID"] = "<array task ID>"
    # docker and podman renumber the GPUs that they are given, and set no variable.
    if plan.job.device == "cuda" and plan.job.slurm.runtime not in ("docker", "podman"):
        values["CUDA_VISIBLE_DEVICES"] = f"<numbers of the job's {plan.job.gpus} GPUs on the node>"
    return [Variable(name, value, "scheduler") for name, value in values.items()]


def _swept(plan: Plan) -> list[Variable]:
    """List the variables that differ between the tasks of a sweep; their names are the same in all tasks."""
    names = plan.points[0].env if plan.points else ()
    return [Variable(name, "<value of the combination>", "spec") for name in names]


def _meeting_point(plan: Plan) -> list[Variable]:
    address = NODE_0 if plan.job.nodes.max > 1 else "127.0.0.1"
    return [Variable("MASTER_ADDR", address, "script"), Variable("MASTER_PORT", _port(plan), "script")]


def _port(plan: Plan) -> str:
    port = plan.job.rendezvous.port
    return "<port derived from the job ID>" if port == "auto" else str(port)


def _numbers(plan: Plan, rank: Rank) -> list[Variable]:
    values = {
        "RANK": rank.rank,
        "LOCAL_RANK": rank.local_rank,
        "NODE_RANK": rank.node,
        "WORLD_SIZE": plan.world_size,
        "LOCAL_WORLD_SIZE": plan.job.procs_per_node,
    }
    return [Variable(name, str(value), "script") for name, value in values.items()]


def _flags_of_torchrun(plan: Plan, rank: Rank, run_id: str) -> list[Variable]:
    nodes = plan.job.nodes
    values = {"PET_NNODES": "<number of nodes>" if nodes.elastic else str(nodes.max), "PET_RDZV_ID": run_id}
    if plan.backend == "static":
        values["PET_MASTER_ADDR"] = NODE_0
        values["PET_MASTER_PORT"] = _port(plan)
        values["PET_NODE_RANK"] = str(rank.node)
    else:
        values["PET_RDZV_ENDPOINT"] = f"{NODE_0}:<MASTER_PORT>"
        values["PET_RDZV_CONF"] = f"<{torchrun.c10d_conf(plan, '1')} on Slurm's first node, is_host=0 elsewhere>"
        values["PET_LOCAL_ADDR"] = THIS_NODE
    return [Variable(name, value, "script") for name, value in values.items()]
