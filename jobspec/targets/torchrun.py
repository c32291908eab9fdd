"""A bash script that starts torchrun: directly for one node; for several, it is run once on each node."""

from typing import Any

from jobspec import torchrun
from jobspec.environment import NODE_0, Variable, common_variables, variables_of_meeting
from jobspec.plan import PROCESSES, Plan, Rank
from jobspec.spec.doubts import without_mounts
from jobspec.spec.keys import keys

USES = (
    PROCESSES
    | keys("setup workdir env secrets resources.cpus max_restarts no_restart_on")
    | keys("backend port timeout", "rendezvous")
)
NOT_USED = {
    **dict.fromkeys(["gpu", "gpus_per_node"], "the machine's GPUs are used"),
    "image": "this script runs in the shell's own environment, not in a container",
    "mounts": "the processes see the paths of the machine",
    "files": "the processes see the folder in which the script is started",
    "resources.memory": "nothing limits the processes",
    "resources.shm": "/dev/shm is the machine's own",
    **dict.fromkeys(["resources.rdma", "resources.devices"], "the machine's devices are used"),
    "time_limit": "torchrun has no time limit",
    "slurm.array": "this is one job, not several",
    "preemption": "no scheduler preempts the job",
}


def template_values(plan: Plan) -> dict[str, Any]:
    notes = [*without_mounts(plan.job), *plan.notes]
    return {
        "notes": notes,
        "flags": torchrun.job_flags(plan),
        "c10d_conf": torchrun.c10d_conf(plan, "$(( NODE_RANK == 0 ))"),
    }


def environment(plan: Plan, rank: Rank) -> list[Variable]:
    node = str(rank.node) if plan.backend == "static" else "<number of the node>"
    by_hand = [Variable("NODE_RANK", node, "person"), Variable("MASTER_ADDR", NODE_0, "person")]
    by_torchrun = variables_of_meeting(plan, rank, NODE_0, str(plan.port), plan.job.name)
    return [*common_variables(plan), *(by_hand if plan.job.nodes.max > 1 else []), *by_torchrun]
