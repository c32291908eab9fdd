"""Variables of a process under Slurm: each once, for the script, for what enters a container, and for `explain`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from jobspec import torchrun
from jobspec.environment import NODE_0, THIS_NODE, Variable, variables_of_meeting
from jobspec.plan import PORTS, Plan, Rank
from jobspec.slurm.task import for_runtime, labels

When = Literal["given", "job", "task", "program"]
_SCALES = "changes with sbatch --nodes=N"
REMARKS = {"WORLD_SIZE": _SCALES, "PET_NNODES": _SCALES, "GROUP_WORLD_SIZE": _SCALES, "ROLE_WORLD_SIZE": _SCALES}
_RUN_ID = "<job ID>.<number of restarts>"


@dataclass(frozen=True)
class _Variable(Variable):
    """A variable with its value in words, and what the script must know of it.

    `when` is "given" if the script finds it, "job" if the batch script sets it for all tasks, "task" if the shell of
    each task does, and "program" if it is set where the program runs, so that no image's value wins.
    `shell` is the value in bash; it is empty if the template assigns it, and not quoted for a program.
    """

    shell: str
    when: When


def environment(plan: Plan, rank: Rank) -> list[Variable]:
    job = plan.job
    start: list[Variable] = list(_variables(plan, rank))
    # docker and podman renumber the GPUs that they are given, and set no variable.
    if job.device == "cuda" and job.slurm.runtime not in ("docker", "podman"):
        gpus = f"<numbers of the job's {job.gpus} GPUs on the node>"
        start.insert(0, Variable("CUDA_VISIBLE_DEVICES", gpus, "scheduler"))
    # Their names are the same in all tasks of a sweep.
    swept = plan.points[0].env if plan.points else ()
    start += [Variable(name, "<value of the combination>", "spec") for name in swept]
    if job.slurm.launcher == "srun":
        return start
    return [*start, *variables_of_meeting(plan, rank, NODE_0, _port(plan)[1], _RUN_ID)]


def exports(plan: Plan, when: When) -> list[str]:
    """Return bash that sets the variables of the job or of a task; of the spec it holds only numbers."""
    chosen = [variable for variable in _variables(plan) if variable.when == when]
    return [f"export {variable.name}" + (f"={variable.shell}" if variable.shell else "") for variable in chosen]


def of_the_program(plan: Plan) -> dict[str, str]:
    """Return variables of the processes; none of the image's may win.

    srun and the container runtime may see only the variables of `for_runtime`, and not PATH or LD_LIBRARY_PATH.
    """
    return {variable.name: variable.shell for variable in _variables(plan) if variable.when == "program"}


def passed(plan: Plan) -> list[str]:
    """List variables of a task's shell that the processes must see, even if a container has its own variables."""
    names = [variable.name for variable in _variables(plan) if variable.when != "program"]
    return list(dict.fromkeys([*names, "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", *for_runtime(plan)]))


def _variables(plan: Plan, of: Rank | None = None) -> Iterator[_Variable]:
    """Yield everything that is set before torchrun starts, or without it the program; of rank 0 unless given."""
    rank = of or next(plan.ranks())
    yield from _given(plan, rank)
    yield from _in_the_program(plan)
    several, srun = plan.job.nodes.max > 1, plan.job.slurm.launcher == "srun"
    if several or srun:
        yield _of_job("MASTER_ADDR", "", NODE_0 if several else "127.0.0.1")
        yield _of_job("MASTER_PORT", *_port(plan))
        yield from _numbers(plan, rank) if srun else _flags_of_torchrun(plan, rank)


def _given(plan: Plan, rank: Rank) -> Iterator[_Variable]:
    """Yield Slurm's own variables, and secrets.  With the launcher srun a task is a process, with torchrun a node."""
    node, task, number_on_node = str(rank.node), str(rank.node), "0"
    if plan.job.slurm.launcher == "srun":
        task, number_on_node = str(rank.rank), str(rank.local_rank)
    if plan.backend == "c10d":  # renumbers the nodes by name, in text order
        node = task = "<Slurm's node ID>"
    values = {"JOB_ID": "<job ID>", "NODEID": node, "PROCID": task, "LOCALID": number_on_node}
    if plan.points or plan.job.slurm.array is not None:
        values["ARRAY_TASK_ID"] = "<array task ID>"
    yield from (_Variable(f"SLURM_{name}", value, "scheduler", "", "given") for name, value in values.items())
    yield from (_Variable(name, "<secret>", "person", "", "given") for name in plan.job.secrets)


def _in_the_program(plan: Plan) -> Iterator[_Variable]:
    """Yield how torchrun handles signals and marks lines, and the variables of the plan.

    By default torchrun dies of SIGUSR1, and after a SIGTERM gives its processes 30 s, too few for a large save.
    """
    agent: dict[str, str] = {}
    if plan.job.preemption is not None and plan.job.slurm.launcher == "torchrun":
        agent[torchrun.SHUTDOWN_TIMEOUT] = str(torchrun.shutdown_timeout_s(plan.job.preemption.grace))
        agent["PET_SIGNALS_TO_HANDLE"] = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"
    if labels(plan):
        agent["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] = "${rank}: "
    for name, value in {**agent, **plan.env}.items():
        yield _Variable(name, value, "spec" if name in plan.job.env else "script", value, "program")


def _numbers(plan: Plan, rank: Rank) -> Iterator[_Variable]:
    per_node = plan.job.procs_per_node
    yield _of_task("RANK", "$SLURM_PROCID", rank.rank)
    yield _of_task("LOCAL_RANK", "$SLURM_LOCALID", rank.local_rank)
    yield _of_task("NODE_RANK", "$SLURM_NODEID", rank.node)
    yield _of_task("WORLD_SIZE", "$SLURM_NTASKS", plan.job.world_size)
    yield _of_task("LOCAL_WORLD_SIZE", per_node, per_node)


def _flags_of_torchrun(plan: Plan, rank: Rank) -> Iterator[_Variable]:
    """Yield torchrun's flags that differ between jobs or nodes: it reads one from each PET_ variable."""
    nodes = plan.job.nodes
    least, number = (f"{nodes.min}:", "<number of nodes>") if nodes.elastic else ("", nodes.max)
    yield _of_job("PET_NNODES", f"{least}$SLURM_JOB_NUM_NODES", number)
    yield _of_job("PET_RDZV_ID", "$SLURM_JOB_ID.$JOB_RESTART", _RUN_ID)
    if plan.backend == "static":
        yield _of_job("PET_MASTER_ADDR", "$MASTER_ADDR", NODE_0)
        yield _of_job("PET_MASTER_PORT", "$MASTER_PORT", _port(plan)[1])
        yield _of_task("PET_NODE_RANK", "$SLURM_NODEID", rank.node)
        return
    yield _of_job("PET_RDZV_ENDPOINT", "$MASTER_ADDR:$MASTER_PORT", f"{NODE_0}:<MASTER_PORT>")
    in_words = f"<{torchrun.c10d_conf(plan, '1')} on Slurm's first node, is_host=0 elsewhere>"
    yield _of_task("PET_RDZV_CONF", torchrun.c10d_conf(plan, "$(( SLURM_NODEID == 0 ))"), in_words)
    yield _of_task("PET_LOCAL_ADDR", "$SLURMD_NODENAME", THIS_NODE)


def _port(plan: Plan) -> tuple[str, str]:
    """Return the port in bash and in words.  Jobs that share a node get different ones."""
    port = plan.job.rendezvous.port
    if port == "auto":
        return f"$(( {PORTS.start} + SLURM_JOB_ID % {len(PORTS)} ))", "<port derived from the job ID>"
    return str(port), str(port)


def _of_job(name: str, shell: str, words: str | int) -> _Variable:
    return _Variable(name, str(words), "script", shell, "job")


def _of_task(name: str, shell: str | int, words: str | int) -> _Variable:
    return _Variable(name, str(words), "script", str(shell), "task")
