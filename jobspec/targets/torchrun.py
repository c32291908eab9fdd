"""A bash script that starts torchrun: directly for one node; for several, it is run once on each node."""

from typing import Any

from jobspec import torchrun
from jobspec.environment import (
    FREE_PORT,
    NODE_0,
    NODE_OF_RANK_0,
    RANDOM_ID,
    Variable,
    common_variables,
    torchrun_variables,
)
from jobspec.plan import PROCESSES, Plan, Rank
from jobspec.spec.keys import keys

USES = (
    PROCESSES
    | keys("setup workdir env secrets resources.cpus max_restarts no_restart_on")
    | keys("backend port timeout", "rendezvous")
)
NOT_USED = {
    "gpu": "the machine's GPUs are used",
    "gpus_per_node": "the machine's GPUs are used",
    "image": "this script runs in the shell's own environment, not in a container",
    "mounts": "the processes see the paths of the machine",
    "files": "the processes see the folder in which the script is started",
    "resources.memory": "nothing limits the processes",
    "resources.shm": "/dev/shm is the machine's own",
    "resources.rdma": "the machine's devices are used",
    "resources.devices": "the machine's devices are used",
    "time_limit": "torchrun has no time limit",
    "slurm.array": "this is one job, not several",
    "preemption": "no scheduler preempts the job",
}


def template_values(plan: Plan) -> dict[str, Any]:
    return {"flags": _flags(plan), "c10d_conf": torchrun.c10d_conf(plan, "$(( NODE_RANK == 0 ))")}


def environment(plan: Plan, rank: Rank) -> list[Variable]:
    common = common_variables(plan)
    if plan.job.nodes.max == 1:
        address, port, run_id = "127.0.0.1", FREE_PORT, RANDOM_ID
        return [*common, *torchrun_variables(plan, rank, master_addr=address, master_port=port, run_id=run_id)]
    if plan.backend == "static":
        node, address, port = str(rank.node), NODE_0, str(plan.port)
    else:  # c10d renumbers the nodes by address, in text order
        node, address, port = "<number of the node>", NODE_OF_RANK_0, FREE_PORT
    by_hand = Variable("NODE_RANK", node, "person"), Variable("MASTER_ADDR", NODE_0, "person")
    by_torchrun = torchrun_variables(plan, rank, master_addr=address, master_port=port, run_id=plan.job.name)
    return [*common, *by_hand, *by_torchrun]


def _flags(plan: Plan) -> list[str]:
    """torchrun's flags that are the same on every node; the template adds those that differ."""
    if plan.job.nodes.max == 1:
        return torchrun.flags(plan)
    return [f"--nnodes={torchrun.nnodes(plan)}", *torchrun.flags(plan), f"--rdzv-id={plan.job.name}"]
