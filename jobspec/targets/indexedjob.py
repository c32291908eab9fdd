"""A plain Job of Kubernetes with numbered pods, and the headless Service that gives them names.  No operator.

A Job never restarts its pods as a group: each failed pod is replaced individually, and its peers fail too because
their connections break.  So a restart of the job costs one failure for each node.  With a range of nodes torchrun
restarts the processes instead, and the number of pods may change while the job runs.
Source: kubernetes.io/docs/concepts/workloads/controllers/job, "Indexed".
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from jobspec.environment import Variable
from jobspec.kubernetes import pod, rules
from jobspec.kubernetes.rules import preemption_needs_restarts
from jobspec.plan import OF_PODS_S, Plan, Rank
from jobspec.spec.job import Job
from jobspec.spec.rules import leaves_room
from jobspec.spec.shell import before
from jobspec.targets import Target

USES = pod.USES | {"kubernetes.ttl"}
NOT_USED = {**pod.NOT_USED, "kubernetes.runtime": "only a TrainJob has one"}

_NUMBER = "PET_NODE_RANK"
_KAI_GANG = "kai.scheduler/batch-min-member"

name_fits = partial(leaves_room, "a pod", lambda job: f"-{job.nodes.max - 1}")
preemption_restarts = partial(preemption_needs_restarts, "when a pod is preempted, the others fail, too")
RULES = (*rules.POD, name_fits, preemption_restarts)


def template_values(plan: Plan) -> dict[str, Any]:
    job = plan.job
    values = pod.indexed_values(plan, _pod_name(job, 0), subdomain=job.name)
    if plan.backend == "c10d":
        ours = {"PET_NNODES": f"{job.nodes.min}:{job.nodes.max}", "PET_RDZV_BACKEND": "c10d"}
        values |= {
            "torchrun": before(pod.elastic_start(plan, _NUMBER), job.setup),
            "env": {**pod.pod_env(plan), **ours, "PET_RDZV_ENDPOINT": f"{_pod_name(job, 0)}:{plan.port}"},
            "fields": {**values["fields"], **pod.OWN_ADDRESS},
        }
    notes = [*values["notes"], *_notes(job)]
    return {**values, "notes": notes, "backoff_limit": job.max_restarts * job.nodes.max}


def environment(plan: Plan, rank: Rank) -> list[Variable]:
    node_0 = _pod_name(plan.job, 0)
    if plan.backend == "c10d":
        elastic = pod.elastic_environment(plan, rank, node_0, _NUMBER, "script")
        return [*pod.pod_variables(plan), *pod.completion_index(plan, "<number of the pod>"), *elastic]
    return pod.indexed_environment(plan, rank, node_0)


def _pod_name(job: Job, node: int) -> str:
    return f"{job.name}-{node}.{job.name}"


def node_name(plan: Plan, node: int) -> str | None:
    """Return the pod's name in DNS; None under c10d, which numbers pods by addresses not known yet."""
    return None if plan.backend == "c10d" else _pod_name(plan.job, node)


def _notes(job: Job) -> Iterator[str]:
    if job.kubernetes.scheduler == "kai-scheduler" and _KAI_GANG not in job.kubernetes.annotations:
        gang = f'{_KAI_GANG}: "{job.nodes.min}"'
        yield f"KAI starts the pods of a Job one by one, unless kubernetes.annotations has {gang}."
    if job.nodes.elastic:
        namespace = f" -n {job.kubernetes.namespace}" if job.kubernetes.namespace else ""
        patch = """'{"spec": {"parallelism": N, "completions": N}}'"""
        yield f"Change the number of nodes while the job runs, from {job.nodes.min} to {job.nodes.max}; node 0 stays:"
        if job.kubernetes.queue is not None:
            yield "Kueue then stops the job and admits it again, so it continues from its last checkpoint:"
        yield f"kubectl patch{namespace} job/{job.name} --type=merge -p {patch}"


TARGET = Target(
    name="indexedjob",
    uses=USES,
    not_used=NOT_USED,
    rules=RULES,
    template_values=template_values,
    environment=environment,
    near=pod.near,
    reason=pod.reason,
    rendezvous_timeout_s=OF_PODS_S,
    sweeps="objects",
    node_name=node_name,
    hides_the_node=lambda job: True,
)
