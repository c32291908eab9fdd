"""A PyTorchJob of Kubeflow's training operator: a Master and Workers, or Workers only for an elastic job.

The operator adds its variables after ours, so its values win.  Its RANK is the number of the pod; torchrun then gives
each process its own RANK.
Source: pkg/controller.v1/pytorch of kubeflow/training-operator 1.9 (envvar.go, elastic.go, initcontainer.go).
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from jobspec.environment import Variable, torchrun_variables
from jobspec.kubernetes import pod, rules
from jobspec.kubernetes.rules import preemption_needs_restarts
from jobspec.plan import OF_PODS_S, Plan, Rank
from jobspec.problems import Finding
from jobspec.spec.job import Job
from jobspec.spec.rules import leaves_room
from jobspec.targets import Target
from jobspec.torchrun import pod_flags, run_id

USES = pod.USES | {"kubernetes.ttl"}
NOT_USED = {**pod.NOT_USED, "kubernetes.runtime": "only a TrainJob has one"}

_NUMBER = "PET_REPLICA_INDEX"
_MANY_NODES = 256  # for which the operator needs half a minute
_UNBUFFERED = "PYTHONUNBUFFERED"  # the operator adds it to every container

# The kubelet restarts a container at once, when its peers have not yet noticed that it is gone.  torchrun would join
# what is left of the failed attempt, take its ranks and then wait forever, and so would node 0 of the next attempt.
# Files in /dev/shm outlive the container.
_STATIC_START = (
    "if ! mkdir /dev/shm/started 2>/dev/null; then trap 'exit 143' TERM; sleep 20 & wait $!; fi; exec torchrun \"$@\""
)


def _workers_only(job: Job) -> bool:
    """Return True if the nodes meet by c10d, which the operator uses for Workers without a Master."""
    return job.nodes.elastic or job.rendezvous.backend == "c10d"


def output_is_unbuffered(job: Job) -> Iterator[Finding]:
    if job.env.get(_UNBUFFERED, "1") != "1":
        message = f"env.{_UNBUFFERED} has no effect: the operator of PyTorchJob sets it to 1"
        yield Finding(("env", _UNBUFFERED), message, "leave it out", on_key=True)


def segments_need_one_set_of_pods(job: Job) -> Iterator[Finding]:
    if job.segment < job.nodes.max and not _workers_only(job):
        message = "topology.segment is given, but Kueue sees the Master and the Workers apart"
        yield Finding(("topology", "segment"), message, "use the target jobset, trainjob or indexedjob", on_key=True)


RULES = (
    *rules.POD,
    partial(leaves_room, "a pod", lambda job: f"-worker-{max(0, job.nodes.max - 2 + _workers_only(job))}"),
    partial(preemption_needs_restarts, "a preempted pod counts as failed", of_one_node=True),
    output_is_unbuffered,
    segments_need_one_set_of_pods,
)


def template_values(plan: Plan) -> dict[str, Any]:
    job = plan.job
    workers_only = plan.backend == "c10d"
    waits = job.max_restarts > 0 and job.nodes.max > 1 and not workers_only
    torchrun = [*(["sh", "-c", _STATIC_START] if waits else []), "torchrun", *pod_flags(plan)]
    fields: dict[str, str] = {}
    if workers_only:
        # The operator gives all pods the same variables, so the command reads the pod's number.
        torchrun = pod.elastic_start(plan, _NUMBER)
        fields = {_NUMBER: "metadata.labels['training.kubeflow.org/replica-index']", **pod.OWN_ADDRESS}
    shared = pod.template_values(plan, container="pytorch", torchrun=torchrun)
    if job.topology is not None and not workers_only and job.nodes.max > 1:
        # For Kueue the Master and the Workers are two sets of pods; of one group, they are placed together.
        shared["annotations"]["kueue.x-k8s.io/podset-group-name"] = "nodes"
    return {
        **shared,
        "waits": waits,
        "waits_for": f"{job.name}-master-0" if job.nodes.max > 1 and not workers_only else None,
        # As those of the processes, so that a quota or a LimitRange that takes these takes both; no devices.
        "limits_of_waiting": {name: shared["limits"][name] for name in ("cpu", "memory") if name in shared["limits"]},
        "port_name": "pytorchjob-port",  # the operator looks for this name
        "fields": fields,
        # The operator looks at the job's own deadline only when something happens: this pod's end (trainer#3358).
        "deadline_s": job.time_limit,
        "env": {name: value for name, value in shared["env"].items() if name != _UNBUFFERED},
        "notes": [*shared["notes"], *_notes(job)],
        "workers_only": workers_only,
        "workers": job.nodes.max if workers_only else job.nodes.max - 1,
        "replica_policy": "OnFailure" if job.max_restarts else "Never",
        # When one node fails, its peers do too, so a restart of the job counts once for each node.
        "backoff_limit": job.max_restarts * job.nodes.max + 1 if job.max_restarts else 0,
    }


def environment(plan: Plan, rank: Rank) -> list[Variable]:
    common = [
        *(variable for variable in pod.pod_variables(plan) if variable.name != _UNBUFFERED),
        Variable(_UNBUFFERED, "1", "operator"),
        Variable("PET_NPROC_PER_NODE", str(plan.job.procs_per_node), "operator"),
    ]
    if plan.backend == "c10d":
        return [*common, *pod.elastic_environment(plan, rank, f"{plan.job.name}-worker-0", _NUMBER, "operator")]
    master = f"{plan.job.name}-master-0"
    theirs = [
        Variable("MASTER_ADDR", master, "operator"),
        Variable("MASTER_PORT", str(plan.port), "operator"),
        Variable("WORLD_SIZE", str(plan.job.world_size), "operator"),
        Variable("RANK", str(rank.node), "operator"),
        *pod.node_variables(plan, rank, master, plan.port, set_by="operator"),
        *torchrun_variables(plan, rank, master, str(plan.port), run_id(plan), max_restarts=0),
    ]
    return [*common, *theirs]


def node_name(plan: Plan, node: int) -> str | None:
    """Return the name of the pod and its Service; None under c10d, which numbers pods by addresses not known yet."""
    if plan.backend == "c10d":
        return None
    return f"{plan.job.name}-master-0" if node == 0 else f"{plan.job.name}-worker-{node - 1}"


def _notes(job: Job) -> Iterator[str]:
    yield "A PyTorchJob takes a changed manifest while it runs, and pods made later then run something else:"
    yield "delete the job before you apply another version of it."
    if job.nodes.max > 1 and not _workers_only(job):
        yield "The operator adds an init container (alpine:3.10, with limits of its own) to each Worker.  If a policy"
        yield "refuses it (Pod Security restricted, registries, digests, LimitRange), the Master waits in vain: use a"
        yield "JobSet, or the operator's --pytorch-init-container-image and --pytorch-init-container-template-file."
    if job.nodes.max >= _MANY_NODES:
        yield "The operator needs about 2 minutes for 1,000 pods, and starts no other job meanwhile; JobSet needs 30 s."
    if job.kubernetes.queue is not None:
        yield "Kueue 0.19 and later manages PyTorchJobs only if its configuration names kubeflow.org/pytorchjob."


TARGET = Target(
    name="pytorchjob",
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
