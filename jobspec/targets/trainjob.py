"""A TrainJob of Kubeflow Trainer, and before it the TrainingRuntime of its own that it refers to.

The operator makes a JobSet of both.  It gives torchrun its settings as PET_ variables, in the container `node`
only, and only because the TrainJob has a `trainer`.
Source: pkg/runtime/framework/plugins/torch/torch.go of kubeflow/trainer 2.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jobspec.kubernetes import pod, rules
from jobspec.kubernetes.settings import node_settings, pod_settings, worker_settings
from jobspec.kubernetes.torchrun import static_flags
from jobspec.plan import Plan, Rank
from jobspec.plumbing import Setting
from jobspec.spec import Job

NOT_USED: Mapping[str, str] = {}

POD_RULES = rules.POD
name_fits = rules.name_fits(lambda job: f"-node-0-{job.nodes.max - 1}-xxxxx")
fixed_size = rules.fixed_size("the operator of TrainJob tells torchrun one number of nodes, not a range")
preemption_needs_restarts = rules.preemption_needs_restarts("the peers of a pod that is taken back may fail first")

_OPERATORS_PORT = 29500
REMARKS = {"PET_MASTER_PORT": "the operator's for all jobs; torchrun's flag --master-port wins"}


def variables(plan: Plan) -> dict[str, Any]:
    # The operator's port is the same for all jobs; a flag wins over its PET_MASTER_PORT.
    port = f"--master-port={plan.port}"
    shared = pod.variables(
        plan, container="node", torchrun=["torchrun", *static_flags(plan), port], restart_policy="Never"
    )
    return {**shared, "notes": [*shared["notes"], *_notes(plan.job)]}


def settings(plan: Plan, rank: Rank) -> list[Setting]:
    theirs = node_settings(plan, rank, _master(plan), _OPERATORS_PORT, setter="operator", node_rank="operator")
    per_node = Setting("PET_NPROC_PER_NODE", str(plan.job.procs_per_node), "operator")
    return [*pod_settings(plan), per_node, *theirs, *worker_settings(plan, rank, _master(plan))]


def node_name(plan: Plan, node: int) -> str:
    """The pod's name in DNS, within the namespace: that of the JobSet which the operator makes."""
    return f"{plan.job.name}-node-0-{node}.{plan.job.name}"


def _notes(job: Job) -> Iterator[str]:
    if job.kubernetes.scheduler == "volcano" and job.kubernetes.priority_class is not None:
        yield "Trainer 2.3 reads the priority class, but its own role does not let it: without the permission to"
        yield "get, list and watch priorityclasses its webhook refuses the TrainJob after 10 s."


def _master(plan: Plan) -> str:
    return node_name(plan, 0)
