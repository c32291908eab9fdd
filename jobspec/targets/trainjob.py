"""A TrainJob of Kubeflow Trainer, and before it the TrainingRuntime that it refers to, unless the cluster has one.

With `kubernetes.runtime` the TrainJob itself says what runs (`trainer`), and patches the runtime's pods where the
operator lets it (`runtimePatches`).  The runtime decides the rest, above all the restarts.

The operator makes a JobSet from both.  It gives torchrun its settings as PET_ variables, in the container `node`
only, and only because the TrainJob has a `trainer`.
Source: pkg/runtime/framework/plugins/torch/torch.go of kubeflow/trainer 2.3.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from jobspec.environment import Variable
from jobspec.kubernetes import pod, rules
from jobspec.kubernetes.rules import fixed_size
from jobspec.plan import OF_PODS_S, Plan, Rank
from jobspec.problems import Finding
from jobspec.spec.job import Job
from jobspec.spec.keys import given, keys
from jobspec.spec.rules import Rule
from jobspec.targets import Target, jobset
from jobspec.torchrun import pod_flags

USES = pod.USES | {"kubernetes.runtime"}
NOT_USED = {
    **pod.NOT_USED,
    # trainer#3779, fixed by #3891: Trainer forgets that the job has failed, and makes the JobSet again and again.
    "kubernetes.ttl": "Trainer 2.3 runs a failed job again and again once its JobSet is deleted (trainer#3779)",
}

node_name = jobset.node_name

# Keys that a TrainJob cannot change in a runtime of the cluster.
_OF_PODS = keys("gpu_claim image_pull_policy pod priority_class scheduler", "kubernetes")
_OF_RUNTIMES = _OF_PODS | keys("max_restarts preemption")


def _without_runtime(rule: Rule, job: Job) -> Iterator[Finding]:
    yield from rule(job) if job.kubernetes.runtime is None else ()


def runtime_of_the_cluster_decides(job: Job) -> Iterator[Finding]:
    for key in given(job) if job.kubernetes.runtime is not None else ():
        if key in _OF_RUNTIMES:
            message = f"{key} and kubernetes.runtime are both given, but a TrainJob cannot change {key} in a runtime"
            hint = "leave one of them out; without kubernetes.runtime the manifest brings a runtime along"
            yield Finding(tuple(key.split(".")), message, hint, on_key=True)


RULES = (
    *(rule for rule in rules.POD if rule is not rules.image_is_given),
    partial(_without_runtime, rules.image_is_given),
    partial(_without_runtime, jobset.preemption_restarts),
    jobset.name_fits,
    partial(fixed_size, "the operator of TrainJob tells torchrun one number of nodes, not a range"),
    runtime_of_the_cluster_decides,
)

_OPERATORS_PORT = 29500


def template_values(plan: Plan) -> dict[str, Any]:
    runtime = plan.job.kubernetes.runtime
    patch = runtime is not None
    # The flag wins over PET_MASTER_PORT, to which the operator gives one value for all jobs.
    torchrun = ["torchrun", *pod_flags(plan), f"--master-port={plan.port}"]
    shared = pod.template_values(plan, container="node", torchrun=torchrun, patch=patch)
    # The operator reads Volcano's queue in the JobSet's annotations, to which it passes on none of the TrainJob's own.
    volcano = plan.job.kubernetes.volcano_queue
    queue = {"scheduling.volcano.sh/queue-name": volcano} if volcano else {}
    return {
        **shared,
        "runtime": runtime or f"TrainingRuntime/{plan.job.name}",
        "restart_policy": None if patch else "Never",
        "notes": [*shared["notes"], *_notes(plan.job)],
        "jobset_annotations": {**plan.job.kubernetes.annotations, **queue},
    }


def environment(plan: Plan, rank: Rank) -> list[Variable]:
    return pod.indexed_environment(plan, rank, node_name(plan, 0), _OPERATORS_PORT)


def _notes(job: Job) -> Iterator[str]:
    yield "A changed manifest is taken while the job runs, but changes nothing: delete the job before you apply it."
    if job.kubernetes.runtime is not None:
        kind, _, name = job.kubernetes.runtime.rpartition("/")
        yield f"Needed beforehand: {kind or 'ClusterTrainingRuntime'} {name} for torch, with a job and a"
        yield "container that are both called node.  The runtime decides whether the job restarts after a failure."
    if job.kubernetes.scheduler == "volcano" and job.kubernetes.priority_class is not None:
        yield "Trainer 2.3 must get, list and watch priorityclasses, but its own role does not permit this."
        yield "Without this permission its webhook refuses the TrainJob after 10 s."


TARGET = Target(
    name="trainjob",
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
