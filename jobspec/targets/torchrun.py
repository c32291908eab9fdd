"""A bash script that starts torchrun: directly for one node; for several, it is run once on each node."""

from collections.abc import Iterator
from typing import Any

from jobspec import torchrun
from jobspec.environment import NODE_0, Variable, common_variables, variables_of_meeting
from jobspec.plan import PROCESSES, RENDEZVOUS_TIMEOUT_S, Plan, Rank
from jobspec.problems import Finding
from jobspec.spec.job import Job
from jobspec.spec.rules import names_in_env
from jobspec.targets import Target

USES = PROCESSES | {"rendezvous.host", "resources.rdma"}
NOT_USED = {
    **dict.fromkeys(["gpu", "gpus_per_node"], "the machine's GPUs are used"),
    "image": "this script runs in the shell's own environment, not in a container",
    "mounts": "the processes see the paths of the machine",
    "files": "the processes see workdir, or the folder in which the script is started",
    "resources.memory": "nothing limits the processes",
    "resources.shm": "/dev/shm is the machine's own",
    "resources.devices": "the machine's devices are used",
    "topology": "you choose the machines",
    "time_limit": "torchrun has no time limit",
    "slurm.array": "this is one job, not several",
    "preemption": "no scheduler preempts the job",
}

# Variables that a script for several nodes has of its own.
OF_SCRIPT = ("address", "interface", "node", "own")
# Variables that `render-job ssh` sets on a node before it starts the script there.
OF_SSH = ("OTHER_NODE", "RENDER_JOB_START", "folder", "name", "script", "start")


def variables_are_not_those_of_the_script(job: Job) -> Iterator[Finding]:
    for path, name in names_in_env(job):
        owner = "the script" if name in OF_SCRIPT else "`render-job ssh`" if name in OF_SSH else ""
        if job.nodes.max > 1 and owner and (path[0] == "secrets" or name in OF_SCRIPT):
            message = f"{path[0]}: {owner} has its own variable {name}, which would replace this one"
            yield Finding(path, message, "choose another name", on_key=True)


RULES = (variables_are_not_those_of_the_script,)


def template_values(plan: Plan) -> dict[str, Any]:
    return {
        "notes": torchrun.notes(plan),
        "flags": torchrun.job_flags(plan),
        "c10d_conf": torchrun.c10d_conf(plan, "$(( NODE_RANK == 0 ))"),
        "chooses_interface": "GLOO_SOCKET_IFNAME" not in plan.env,
    }


def environment(plan: Plan, rank: Rank) -> list[Variable]:
    node = str(rank.node) if plan.backend == "static" else "<number of the node>"
    node_0 = plan.job.rendezvous.name_of(NODE_0)
    by_hand = [Variable("NODE_RANK", node, "person"), Variable("MASTER_ADDR", node_0, "person")]
    by_torchrun = variables_of_meeting(plan, rank, node_0, str(plan.port), torchrun.run_id(plan))
    return [*common_variables(plan), *(by_hand if plan.job.nodes.max > 1 else []), *by_torchrun]


TARGET = Target(
    name="torchrun",
    uses=USES,
    not_used=NOT_USED,
    rules=RULES,
    template_values=template_values,
    environment=environment,
    rendezvous_timeout_s=RENDEZVOUS_TIMEOUT_S,
)
