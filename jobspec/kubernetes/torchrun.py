"""The start of the torchrun command in a pod; what differs between the nodes comes from the environment."""

from __future__ import annotations

from jobspec.plan import Plan


def static_flags(plan: Plan) -> list[str]:
    """For a fixed number of nodes.  After a failure the pods start again, together, so torchrun does not."""
    return [*_flags(plan), "--max-restarts=0", "--rdzv-backend=static"]


def c10d_flags(plan: Plan) -> list[str]:
    """For nodes that come and go: torchrun starts the processes again with those that are left."""
    return [*_flags(plan), f"--max-restarts={plan.job.max_restarts}"]


def _flags(plan: Plan) -> list[str]:
    return [f"--nproc-per-node={plan.job.procs_per_node}", f"--rdzv-id={plan.job.name}"]
