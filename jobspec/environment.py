"""Who sets each variable that a process sees, and to what.

Each target says what it sets itself; what torchrun then sets for its workers is the same on all targets and
stands here.  Source: torch/distributed/elastic/agent/server/local_elastic_agent.py, `_start_workers`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jobspec.plan import Plan, Rank

# Nodes whose names only the running job knows; `explain` puts them in where a person or the target gives them.
NODE_0 = "<name or address of node 0>"
NODE_OF_RANK_0 = "<name or address of the node with rank 0>"
THIS_NODE = "<name or address of this node>"
# What torchrun itself makes up for a job of one node, and the port also under c10d.
FREE_PORT, RANDOM_ID = "<free port that torchrun picks>", "<random id>"

SetBy = Literal["spec", "script", "person", "scheduler", "operator", "torchrun"]


@dataclass(frozen=True)
class Variable:
    """One variable of one process.  A value known only when the job runs is in words, between < and >.

    Of the setters, "script" is the artifact itself, and "person" whoever submits it.
    """

    name: str
    value: str
    set_by: SetBy


def common_variables(plan: Plan) -> list[Variable]:
    """The variables of the plan, the same for every process: from the spec, or ours."""
    env: list[Variable] = [
        Variable(name, value, "spec" if name in plan.job.env else "script") for name, value in plan.env.items()
    ]
    return [*env, *(Variable(name, "<secret>", "person") for name in plan.job.secrets)]


def torchrun_variables(
    plan: Plan, rank: Rank, *, master_addr: str, master_port: str, run_id: str, max_restarts: int | None = None
) -> list[Variable]:
    """What torchrun sets for one worker, once the rendezvous has ended with these values.

    max_restarts: torchrun's own, where it is not the job's because something else restarts it.
    """
    per_node, world = plan.job.procs_per_node, plan.world_size
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
