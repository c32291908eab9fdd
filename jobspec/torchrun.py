"""Flags of torchrun, as the agent of a node, that are the same on every node and not its defaults.

Each target adds in its own way what differs from node to node or is known only when the job runs.
"""

from jobspec.plan import RENDEZVOUS_TIMEOUT_S, Plan

# Variable with the seconds between the SIGTERM that torchrun passes on and its SIGKILL.
SHUTDOWN_TIMEOUT = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"


def notes(plan: Plan, own_port: bool = True) -> list[str]:
    """Return the plan's notes, and what torchrun does without on the only node; with own_port it chooses the port."""
    given = plan.job.rendezvous.model_dump(exclude_defaults=True)
    unused = [f"rendezvous.{key}" for key in given if plan.job.nodes.max == 1 and (own_port or key != "port")]
    return [*plan.notes, *([f"Not used here: {', '.join(unused)}; one node meets no other."] if unused else [])]


def flags(plan: Plan, max_restarts: int | None = None) -> list[str]:
    """Return the flags before the program, without --nnodes, the address and the number of the node."""
    job = plan.job
    restarts = job.max_restarts if max_restarts is None else max_restarts
    processes = [f"--nproc-per-node={job.procs_per_node}", *([f"--max-restarts={restarts}"] if restarts else [])]
    if job.nodes.max == 1:
        # Without an address torchrun publishes the host's full name, which a laptop often cannot resolve.
        return ["--standalone", "--local-addr=127.0.0.1", *processes]
    return [*processes, *(_static_conf(plan) if plan.backend == "static" else ["--rdzv-backend=c10d"])]


def job_flags(plan: Plan, max_restarts: int | None = None) -> list[str]:
    """Return these flags with --nnodes and the name of the rendezvous, for nodes that get both from nowhere else."""
    nodes, common = plan.job.nodes, flags(plan, max_restarts)
    number = f"{nodes.min}:{nodes.max}" if nodes.elastic else nodes.max
    name = [f"--rdzv-id={run_id(plan)}"] if plan.backend == "c10d" else []
    return common if nodes.max == 1 else [f"--nnodes={number}", *common, *name]


def pod_flags(plan: Plan, static: bool = True) -> list[str]:
    """Return the flags of a pod; what differs between the pods comes from the environment.

    static: True for a fixed number of pods, which restart together, so torchrun restarts nothing; False for pods that
        come and go, where torchrun restarts the processes with the pods that are left.
    """
    processes = f"--nproc-per-node={plan.job.procs_per_node}"
    if not static:
        return [processes, f"--rdzv-id={run_id(plan)}", f"--max-restarts={plan.job.max_restarts}"]
    return [processes, *(_static_conf(plan) if plan.job.nodes.max > 1 else [])]


def run_id(plan: Plan) -> str:
    """Return the name of the rendezvous, by which c10d keeps two jobs apart; else torchrun's default."""
    return plan.job.name if plan.backend == "c10d" else "none"


def _static_conf(plan: Plan) -> list[str]:
    """Return the flag for how long nodes wait; torch/distributed/elastic/rendezvous/static_tcp_rendezvous.py."""
    is_default = plan.rendezvous_timeout_s == RENDEZVOUS_TIMEOUT_S
    return [] if is_default else [f"--rdzv-conf=timeout={plan.rendezvous_timeout_s}"]


def c10d_conf(plan: Plan, is_host: str) -> str:
    """Return the value of --rdzv-conf under c10d; `is_host` is 1 on the node that hosts the rendezvous, 0 elsewhere.

    torchrun would guess the host by comparing names, and is often wrong.  read_timeout is how long a node waits for
    the host, join_timeout how long all wait for the last node.
    Source: c10d_rendezvous_backend.py and dynamic_rendezvous.py in torch/distributed/elastic/rendezvous.
    """
    timeout_s = plan.rendezvous_timeout_s
    return f"is_host={is_host},join_timeout={timeout_s},read_timeout={timeout_s}"


def shutdown_timeout_s(grace_s: int) -> int:
    """Return the seconds between a SIGTERM to torchrun and its SIGKILL to the processes, on all targets.

    A quarter of grace_s, at most 30 s, is left for torchrun to end and for what the artifact does afterwards.
    """
    return max(1, grace_s * 3 // 4, grace_s - 30)
