"""Variables of a process under Slurm: each once, for the script, for what enters a container, and for `explain`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from jobspec import torchrun
from jobspec.environment import NODE_0, Variable, variables_of_meeting
from jobspec.filters import sh
from jobspec.plan import PORTS, Plan, Rank
from jobspec.slurm.task import for_runtime, labels


@dataclass(frozen=True)
class _Variable(Variable):
    """A variable with its value in words, and as a word of bash; "" if the shell of a task already has it."""

    word: str = ""


def environment(plan: Plan, rank: Rank) -> list[Variable]:
    job = plan.job
    start: list[Variable] = list(_variables(plan, rank))
    # docker and podman renumber the GPUs that they are given, and set no variable.
    if job.device == "cuda" and job.slurm.runtime not in ("docker", "podman"):
        gpus = f"<numbers of the job's {job.gpus} GPUs on the node>"
        start.insert(0, Variable("CUDA_VISIBLE_DEVICES", gpus, "scheduler"))
    # Their names are the same in all tasks of a sweep.
    start += [Variable(name, "<value of the combination>", "spec") for name in _swept(plan)]
    if job.slurm.launcher == "srun":
        return start
    run_id = "<job ID>" if plan.backend == "c10d" else "none"
    return [*start, *variables_of_meeting(plan, rank, job.rendezvous.name_of(NODE_0), port(plan)[1], run_id)]


def assigned(plan: Plan) -> list[str]:
    """Return words of bash, `NAME=value` each, for the variables that a task sets for its processes."""
    return [f"{one.name}={one.word}" for one in _variables(plan) if one.word]


def passed(plan: Plan) -> list[str]:
    """List variables of a task's shell that the processes must see, even if a container has its own variables."""
    names = [one.name for one in _variables(plan) if not one.word]
    return list(dict.fromkeys([*names, *_swept(plan), *for_runtime(plan)]))


def port(plan: Plan) -> tuple[str, str]:
    """Return the port in bash and in words.  Jobs that share a node get different ones."""
    number = plan.job.rendezvous.port
    if number == "auto":
        return f"$(( {PORTS.start} + SLURM_JOB_ID % {len(PORTS)} ))", "<port derived from the job ID>"
    return str(number), str(number)


def _swept(plan: Plan) -> Iterable[str]:
    return plan.points[0].env if plan.points else ()


def _variables(plan: Plan, of: Rank | None = None) -> Iterator[_Variable]:
    """Yield everything that is set before torchrun starts, or without it the program; of rank 0 unless given."""
    rank = of or next(plan.ranks())
    yield from _given(plan, rank)
    if plan.job.slurm.launcher == "srun":
        several = plan.job.nodes.max > 1
        yield _Variable("MASTER_ADDR", plan.job.rendezvous.name_of(NODE_0) if several else "127.0.0.1", "script")
        yield _Variable("MASTER_PORT", port(plan)[1], "script")
        yield from _numbers(plan, rank)
    for name, value in {**_of_torchrun(plan), **plan.env}.items():
        yield _Variable(name, value, "spec" if name in plan.job.env else "script", sh(value))


def _given(plan: Plan, rank: Rank) -> Iterator[_Variable]:
    """Yield Slurm's own variables, and secrets.  With the launcher srun a task is a process, with torchrun a node."""
    node, task, number_on_node = str(rank.node), str(rank.node), "0"
    if plan.job.slurm.launcher == "srun":
        task, number_on_node = str(rank.rank), str(rank.local_rank)
    if plan.backend == "c10d":  # renumbers the nodes by name, in text order
        node = task = "<Slurm's node ID>"
    values = {"JOB_ID": "<job ID>", "NODEID": node, "PROCID": task, "LOCALID": number_on_node}
    if plan.points or plan.job.slurm.array is not None:
        values |= {"ARRAY_JOB_ID": "<job ID of the array>", "ARRAY_TASK_ID": "<array task ID>"}
    yield from (_Variable(f"SLURM_{name}", value, "scheduler") for name, value in values.items())
    yield from (_Variable(name, "<secret>", "person") for name in plan.job.secrets)


def _numbers(plan: Plan, rank: Rank) -> Iterator[_Variable]:
    per_node = plan.job.procs_per_node
    yield _Variable("RANK", str(rank.rank), "script", '"$SLURM_PROCID"')
    yield _Variable("LOCAL_RANK", str(rank.local_rank), "script", '"$SLURM_LOCALID"')
    yield _Variable("NODE_RANK", str(rank.node), "script", '"$SLURM_NODEID"')
    yield _Variable("WORLD_SIZE", str(plan.job.world_size), "script", '"$SLURM_NTASKS"')
    yield _Variable("LOCAL_WORLD_SIZE", str(per_node), "script", str(per_node))


def _of_torchrun(plan: Plan) -> dict[str, str]:
    """Return how torchrun marks lines and handles signals: it gives its processes 30 s, too few for a large save."""
    variables: dict[str, str] = {}
    if plan.job.preemption is not None and plan.job.slurm.launcher == "torchrun":
        variables[torchrun.SHUTDOWN_TIMEOUT] = str(torchrun.shutdown_timeout_s(plan.job.preemption.grace))
    if labels(plan):
        variables["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] = "${rank}: "
    return variables
