"""Shell of each task: what it sets, and the command that it starts."""

from jobspec import torchrun
from jobspec.filters import argv, assignments
from jobspec.plan import Plan, for_torchrun


def for_runtime(plan: Plan) -> dict[str, str]:
    """Return variables of the spec that the container runtime and its hooks read before the program starts.

    Sources: enroot, doc/configuration.md and doc/standard-hooks.md; NVIDIA Container Toolkit, "Specialized
    Configurations with Docker".
    """
    if plan.job.slurm.runtime == "none":
        return {}
    return {name: value for name, value in plan.env.items() if name.startswith(("ENROOT_", "MELLANOX_", "NVIDIA_"))}


def launcher(plan: Plan) -> list[str]:
    """Return the words before the program in a task; empty if the task starts the program directly."""
    if plan.job.slurm.launcher == "srun":
        return [] if plan.job.no_python else ["python3"]
    return ["torchrun", *torchrun.flags(plan), *(["--tee=3"] if labels(plan) else [])]


def program(plan: Plan) -> list[str]:
    if plan.job.slurm.launcher == "srun":
        return [*plan.program, *train_timeout(plan)]
    return list(plan.torchrun_program)


def swept_env(plan: Plan) -> list[str]:
    """Return bash for each task of a sweep that sets its variables; empty if all tasks have the same ones."""
    return [f"export {assignments(point.env, 6)}" for point in plan.points if point.env]


def swept_words(plan: Plan) -> list[str]:
    """Return bash for each task of a sweep that puts its words into "$@"; empty if all tasks have the same ones."""
    quoted = for_torchrun if plan.job.slurm.launcher == "torchrun" else tuple
    words = [quoted(point.words) for point in plan.points]
    return [f"set -- {argv(task, 6)}" for task in words] if any(words) else []


def train_timeout(plan: Plan) -> list[str]:
    """Return train's flag for how long it waits for the other nodes without torchrun; empty for train's default."""
    job = plan.job
    if job.train is None or job.rendezvous.timeout is None or "rendezvous_timeout_s" in job.train.model_fields_set:
        return []
    return [f"--rendezvous-timeout-s={plan.rendezvous_timeout_s}"]


def labels(plan: Plan) -> bool:
    """Return True if torchrun must begin each line with its rank: with torchrun, Slurm knows only the nodes."""
    return plan.job.slurm.launcher == "torchrun" and "label" in plan.job.slurm.srun_options
