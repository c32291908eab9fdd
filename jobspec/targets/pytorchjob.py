"""A PyTorchJob of Kubeflow's training operator: a Master and Workers, or Workers only for an elastic job.

The operator adds its variables after ours, so its values win.  RANK and WORLD_SIZE there are those of the pod;
torchrun gives each process its own.
Source: pkg/controller.v1/pytorch of kubeflow/training-operator 1.9 (envvar.go, elastic.go, initcontainer.go).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jobspec.kubernetes import pod, rules
from jobspec.kubernetes.settings import node_settings, pod_settings, worker_settings
from jobspec.kubernetes.torchrun import c10d_flags, static_flags
from jobspec.plan import Plan, Rank
from jobspec.plumbing import NODE_OF_RANK_0, THIS_NODE, Setting, torchrun_settings
from jobspec.spec import Job

NOT_USED: Mapping[str, str] = {}

POD_RULES = rules.POD
preemption_needs_restarts = rules.preemption_needs_restarts(
    "a pod that is taken back counts as failed", of_one_node=True
)

# Node 0 hosts the rendezvous.  torchrun is told so: its own guess compares host names and is often wrong.
# The operator gives all pods the same variables, so the pod's number is read here; exec keeps torchrun first.
_C10D_START = 'exec torchrun --rdzv-conf="is_host=$((PET_REPLICA_INDEX == 0))" "$@"'

# The kubelet starts a container again at once, when its peers have not noticed yet that it is gone.  torchrun would
# meet what is left of the failed attempt, take its ranks and then wait for ever, as node 0 of the next one does.
# What is in /dev/shm outlives the container.
_STATIC_START = (
    "if ! mkdir /dev/shm/started 2>/dev/null; then trap 'exit 143' TERM; sleep 20 & wait $!; fi; exec torchrun \"$@\""
)


def _workers_only(job: Job) -> bool:
    """Whether the nodes meet by c10d, which the operator does for Workers without a Master."""
    return job.nodes.elastic or job.rendezvous.backend == "c10d"


@rules.name_fits
def name_fits(job: Job) -> str:
    workers = job.nodes.max if _workers_only(job) else job.nodes.max - 1
    return f"-worker-{max(0, workers - 1)}"


def variables(plan: Plan) -> dict[str, Any]:
    job = plan.job
    workers_only = plan.backend == "c10d"
    waits = job.max_restarts > 0 and job.nodes.max > 1 and not workers_only
    torchrun = [*(["sh", "-c", _STATIC_START] if waits else []), "torchrun", *static_flags(plan)]
    fields: dict[str, str] = {}
    if workers_only:
        torchrun = ["sh", "-c", _C10D_START, "torchrun", *c10d_flags(plan)]
        fields = {
            "PET_REPLICA_INDEX": "metadata.labels['training.kubeflow.org/replica-index']",
            # Its address, because not every cluster can look the name of a node up.
            "PET_LOCAL_ADDR": "status.podIP",
        }
    shared = pod.variables(
        plan,
        container="pytorch",
        torchrun=torchrun,
        waits=waits,
        port_name="pytorchjob-port",
        fields=fields,
        # A pod that ends by its own deadline stays ended only if it is not restarted.
        deadline_s=job.time_limit if job.max_restarts == 0 else None,
    )
    return {
        **shared,
        "notes": [*shared["notes"], *_notes(job)],
        "workers_only": workers_only,
        "workers": job.nodes.max if workers_only else job.nodes.max - 1,
        "replica_policy": "OnFailure" if job.max_restarts else "Never",
        "backoff_limit": _backoff_limit(job),
    }


def settings(plan: Plan, rank: Rank) -> list[Setting]:
    common = [
        *pod_settings(plan),
        Setting("PYTHONUNBUFFERED", "1", "operator"),
        Setting("PET_NPROC_PER_NODE", str(plan.job.procs_per_node), "operator"),
    ]
    if plan.backend == "c10d":
        return [*common, *_c10d_settings(plan, rank)]
    master = _master(plan)
    theirs = [
        Setting("MASTER_ADDR", master, "operator"),
        Setting("MASTER_PORT", str(plan.port), "operator"),
        Setting("WORLD_SIZE", str(plan.world_size), "operator"),
        Setting("RANK", str(rank.node), "operator"),
        *node_settings(plan, rank, master, plan.port, setter="operator", node_rank="operator"),
    ]
    return [*common, *theirs, *worker_settings(plan, rank, master)]


def node_name(plan: Plan, node: int) -> str | None:
    """The pod's name, which is its Service's name too; c10d numbers the pods by their addresses, which nobody knows."""
    if plan.backend == "c10d":
        return None
    return _master(plan) if node == 0 else f"{plan.job.name}-worker-{node - 1}"


def _master(plan: Plan) -> str:
    return f"{plan.job.name}-master-0"


def _c10d_settings(plan: Plan, rank: Rank) -> list[Setting]:
    nodes = plan.job.nodes
    return [
        Setting("PET_REPLICA_INDEX", "<number of the pod>", "operator"),
        Setting("PET_LOCAL_ADDR", THIS_NODE, "scheduler"),
        Setting("PET_RDZV_ENDPOINT", f"{plan.job.name}-worker-0:{plan.port}", "operator"),
        Setting("PET_RDZV_BACKEND", "c10d", "operator"),
        Setting("PET_NNODES", f"{nodes.min}:{nodes.max}", "operator"),
        *torchrun_settings(
            plan,
            rank,
            master_addr=NODE_OF_RANK_0,
            master_port="<free port that torchrun picks>",
            run_id=plan.job.name,
        ),
    ]


def _notes(job: Job) -> Iterator[str]:
    if job.kubernetes.security == "restricted" and job.nodes.max > 1 and not _workers_only(job):
        yield "The operator adds an init container (alpine:3.10) to Workers that does not meet restricted:"
        yield "a namespace that enforces the standard refuses them."
    if job.kubernetes.queue is not None:
        yield "Kueue knows PyTorchJobs only where kubeflow.org/pytorchjob is among its integrations; by default not."


def _backoff_limit(job: Job) -> int:
    """The operator ends the job when its containers have restarted so often, in all pods together.

    When one node fails its peers do: a restart of the job counts once for each.
    """
    return job.max_restarts * job.nodes.max + 1 if job.max_restarts else 0
