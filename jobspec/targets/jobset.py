"""A JobSet: one Indexed Job that is restarted as a whole when a pod fails.

The controller makes the headless Service, with the JobSet's name.
Source: jobset.sigs.k8s.io/docs/concepts and its API reference (v1alpha2).
"""

from functools import partial
from typing import Any

from jobspec.environment import Variable
from jobspec.kubernetes import pod, rules
from jobspec.kubernetes.rules import fixed_size, preemption_needs_restarts
from jobspec.plan import OF_PODS_S, Plan, Rank
from jobspec.spec.job import Job
from jobspec.spec.rules import leaves_room
from jobspec.targets import Target

USES = pod.USES | {"kubernetes.ttl"}
NOT_USED = {**pod.NOT_USED, "kubernetes.runtime": "only a TrainJob has one"}

name_fits = partial(leaves_room, "a pod", lambda job: f"-node-0-{job.nodes.max - 1}-xxxxx")
size_is_fixed = partial(fixed_size, "a JobSet restarts all pods when one fails, so it never continues with fewer nodes")
preemption_restarts = partial(preemption_needs_restarts, "the peers of a preempted pod may fail before the pod ends")
RULES = (
    *(rule for rule in rules.POD if rule is not rules.topology_needs_kueue),
    partial(rules.topology_needs_kueue, of_a_jobset=True),
    name_fits,
    size_is_fixed,
    preemption_restarts,
)


def exclusive(job: Job) -> dict[str, str]:
    """Return the annotation by which JobSet, without Kueue, keeps all pods below one value of a label."""
    if job.topology is None or job.kubernetes.queue is not None:
        return {}
    return {"alpha.jobset.sigs.k8s.io/exclusive-topology": job.topology.required or ""}


def template_values(plan: Plan) -> dict[str, Any]:
    return {**pod.indexed_values(plan, node_name(plan, 0)), "exclusive": exclusive(plan.job)}


def environment(plan: Plan, rank: Rank) -> list[Variable]:
    return pod.indexed_environment(plan, rank, node_name(plan, 0))


def node_name(plan: Plan, node: int) -> str:
    """Return the pod's name in DNS, within the namespace: JobSet, replicated job, its number, the pod's number."""
    return f"{plan.job.name}-node-0-{node}.{plan.job.name}"


TARGET = Target(
    name="jobset",
    uses=USES,
    not_used=NOT_USED,
    rules=RULES,
    template_values=template_values,
    environment=environment,
    near=lambda job: pod.near(job) or exclusive(job),
    reason=pod.reason,
    rendezvous_timeout_s=OF_PODS_S,
    sweeps="objects",
    node_name=node_name,
    hides_the_node=lambda job: True,
)
