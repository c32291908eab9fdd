"""Variables that a process sees: who sets each, and to what value.

Each target lists the variables that it sets itself.  Those that torchrun then sets for its workers are the same on all
targets, so they are here.  Source: torch/distributed/elastic/agent/server/local_elastic_agent.py, `_start_workers`.
"""

from dataclasses import dataclass
from typing import Literal

from jobspec.plan import Plan, Rank

# Placeholders for nodes whose names only the running job knows.
NODE_0 = "<name or address of node 0>"
NODE_OF_RANK_0 = "<name or address of the node with rank 0>"
THIS_NODE = "<name or address of this node>"
# Values that torchrun picks itself: both for a job of one node, and the port also under c10d.
FREE_PORT, RANDOM_ID = "<free port that torchrun picks>", "<random id>"

SetBy = Literal["spec", "script", "person", "scheduler", "operator", "torchrun"]


@dataclass(frozen=True)
class Variable:
    """One variable of one process.  A value known only when the job runs is in words, between < and >.

    In `set_by`, "script" is the artifact itself, and "person" is whoever submits it.
    """

    name: str
    value: str
    set_by: SetBy


def common_variables(plan: Plan) -> list[Variable]:
    """List the plan's variables and secrets, which are the same for every process."""
    env = [Variable(name, value, "spec" if name in plan.job.env else "script") for name, value in plan.env.items()]
    return [*env, *(Variable(name, "<secret>", "person") for name in plan.job.secrets)]


def torchrun_variables(
    plan: Plan, rank: Rank, master_addr: str, master_port: str, run_id: str, max_restarts: int | None = None
) -> list[Variable]:
    """List what torchrun sets for one worker after a rendezvous that ended with these values.

    max_restarts: torchrun's limit; by default the job's.  It differs where something else restarts the job.
    """
    per_node, world = plan.job.procs_per_node, plan.job.world_size
    values = {
        "MASTER_ADDR": master_addr,
        "MASTER_PORT": master_port,
        "RANK": rank.rank,
        "LOCAL_RANK": rank.local_rank,
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": per_node,
        "GROUP_RANK": rank.node,
        "GROUP_WORLD_SIZE": plan.job.nodes.max,
        "ROLE_NAME": "default",
        "ROLE_RANK": rank.rank,
        "ROLE_WORLD_SIZE": world,
        "TORCHELASTIC_MAX_RESTARTS": plan.job.max_restarts if max_restarts is None else max_restarts,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_RUN_ID": run_id,
    }
    return [Variable(name, str(value), "torchrun") for name, value in values.items()]


def variables_of_meeting(
    plan: Plan, rank: Rank, node_0: str, port: str, run_id: str, max_restarts: int | None = None
) -> list[Variable]:
    """List what torchrun sets for one worker when the nodes have met at `port` of `node_0`, or one node is alone."""
    if plan.job.nodes.max == 1:
        node_0, port, run_id = "127.0.0.1", FREE_PORT, RANDOM_ID
    elif plan.backend == "c10d":  # renumbers the nodes by name, in text order
        node_0, port = node_0.replace(NODE_0, NODE_OF_RANK_0), FREE_PORT
    return torchrun_variables(plan, rank, node_0, port, run_id, max_restarts)
