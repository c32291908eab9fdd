"""Variables of a process in a pod, and who sets each."""

from typing import Any

from jobspec.environment import SetBy, Variable, common_variables, torchrun_variables
from jobspec.kubernetes.pod import pod_env, template_values
from jobspec.plan import Plan, Rank
from jobspec.torchrun import pod_flags


def pod_variables(plan: Plan) -> list[Variable]:
    """List the variables that are the same in all pods of a job."""
    ours = {name: value for name, value in pod_env(plan).items() if name not in plan.env}
    return [*(Variable(name, value, "script") for name, value in ours.items()), *common_variables(plan)]


def node_variables(plan: Plan, rank: Rank, master_addr: str, master_port: int, set_by: SetBy) -> list[Variable]:
    """List torchrun's variables that differ between nodes and jobs; the script's node numbers are the scheduler's."""
    return [
        Variable("PET_NNODES", str(plan.job.nodes.max), set_by),
        Variable("PET_NODE_RANK", str(rank.node), "scheduler" if set_by == "script" else set_by),
        Variable("PET_MASTER_ADDR", master_addr, set_by),
        Variable("PET_MASTER_PORT", str(master_port), set_by),
    ]


def worker_variables(plan: Plan, rank: Rank, master_addr: str) -> list[Variable]:
    """List what torchrun sets for a process after a static rendezvous; pods are restarted, not their processes."""
    return torchrun_variables(plan, rank, master_addr, str(plan.port), plan.job.name, max_restarts=0)


def indexed_environment(plan: Plan, rank: Rank, master_addr: str, operators_port: int = 0) -> list[Variable]:
    """List every variable of a process in a pod that the Job controller numbers.

    operators_port: the port that an operator gives torchrun; 0 if the script sets torchrun's variables.
    """
    numbers = node_variables(plan, rank, master_addr, plan.port, set_by="script")
    if operators_port:
        per_node = Variable("PET_NPROC_PER_NODE", str(plan.job.procs_per_node), "operator")
        numbers = [per_node, *node_variables(plan, rank, master_addr, operators_port, set_by="operator")]
    if "JOB_COMPLETION_INDEX" not in plan.env:  # the Job controller leaves the spec's
        numbers.append(Variable("JOB_COMPLETION_INDEX", str(rank.node), "scheduler"))
    return [*pod_variables(plan), *numbers, *worker_variables(plan, rank, master_addr)]


def indexed_values(plan: Plan, master_addr: str, subdomain: str | None = None) -> dict[str, Any]:
    """Return the values for the templates of pods that the Job controller numbers; see `pod.template_values`."""
    nodes, port = str(plan.job.nodes.max), str(plan.port)
    values = template_values(plan, container="node", torchrun=["torchrun", *pod_flags(plan)])
    return {
        **values,
        "env": {**values["env"], "PET_NNODES": nodes, "PET_MASTER_ADDR": master_addr, "PET_MASTER_PORT": port},
        "fields": {"PET_NODE_RANK": "metadata.annotations['batch.kubernetes.io/job-completion-index']"},
        "subdomain": subdomain,
        "restart_policy": "Never",
    }
