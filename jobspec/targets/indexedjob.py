"""A plain Job of Kubernetes with numbered pods, and the headless Service that gives them names.  No operator.

A Job never restarts its pods as a group: each failed pod is replaced individually, and its peers fail too because
their connections break.  So a restart of the job costs one failure for each node.
Source: kubernetes.io/docs/concepts/workloads/controllers/job, "Indexed".
"""

from functools import partial
from typing import Any

from jobspec.environment import Variable
from jobspec.kubernetes import pod, rules
from jobspec.kubernetes.rules import fixed_size, preemption_needs_restarts
from jobspec.plan import OF_PODS_S, Plan, Rank
from jobspec.spec.rules import leaves_room
from jobspec.targets import Target

USES = pod.USES | {"kubernetes.ttl"}
NOT_USED = {**pod.NOT_USED, "kubernetes.runtime": "only a TrainJob has one"}

name_fits = partial(leaves_room, "a pod", lambda job: f"-{job.nodes.max - 1}")
size_is_fixed = partial(fixed_size, "a Job is complete only when each of its pods has completed")
preemption_restarts = partial(preemption_needs_restarts, "when a pod is preempted, the others fail, too")
RULES = (*rules.POD, name_fits, size_is_fixed, preemption_restarts)


def template_values(plan: Plan) -> dict[str, Any]:
    values = pod.indexed_values(plan, node_name(plan, 0), subdomain=plan.job.name)
    return {**values, "backoff_limit": plan.job.max_restarts * plan.job.nodes.max}


def environment(plan: Plan, rank: Rank) -> list[Variable]:
    return pod.indexed_environment(plan, rank, node_name(plan, 0))


def node_name(plan: Plan, node: int) -> str:
    return f"{plan.job.name}-{node}.{plan.job.name}"


TARGET = Target(
    name="indexedjob",
    uses=USES,
    not_used=NOT_USED,
    rules=RULES,
    template_values=template_values,
    environment=environment,
    rendezvous_timeout_s=OF_PODS_S,
    sweeps="objects",
    node_name=node_name,
    hides_the_node=lambda job: True,
)
