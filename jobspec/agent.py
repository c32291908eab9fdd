"""torchrun as the agent of a node: the flags of its command that are the same on every node.

What differs from node to node, or is known only when the job runs, each target adds in its own way.
"""

from __future__ import annotations

from jobspec.plan import Plan


def flags(plan: Plan, max_restarts: int | None = None) -> list[str]:
    """Flags before the program, less --nnodes, the address and the number of the node.

    max_restarts: torchrun's own, where it is not the job's because something else restarts it.
    """
    job = plan.job
    restarts = job.max_restarts if max_restarts is None else max_restarts
    processes = [f"--nproc-per-node={job.procs_per_node}", f"--max-restarts={restarts}"]
    if job.nodes.max == 1:
        # Without an address torchrun publishes the host's full name, which a laptop often cannot resolve.
        return ["--standalone", "--local-addr=127.0.0.1", *processes]
    return [*processes, f"--rdzv-backend={plan.backend}"]


def nnodes(plan: Plan) -> str:
    """The value of --nnodes: a number, or min:max of an elastic job."""
    nodes = plan.job.nodes
    return f"{nodes.min}:{nodes.max}" if nodes.elastic else str(nodes.max)


def shutdown_timeout(grace: int) -> int:
    """Seconds between a SIGTERM to torchrun and its SIGKILL to the processes, of the `grace` before its own.

    A quarter stays for the end of torchrun and for what the artifact does after it.
    """
    return max(1, grace * 3 // 4)
