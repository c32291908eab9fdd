"""What sbatch and srun are asked for: nodes, tasks, limits; what each task starts; and what happens when one fails."""

import time

from jobspec import torchrun
from jobspec.filters import argv, assignments
from jobspec.plan import Plan, for_torchrun
from jobspec.runtimes import tasks_per_node
from jobspec.spec.job import Job

# Options that sbatch hands on to srun only in SLURM_ variables, which the script unsets.
_FOR_SRUN = {"acctg-freq", "cpu-freq", "gpu-freq", "hint", "mem-bind", "network", "oom-kill-step", "overcommit"}
_FOR_SRUN |= {"ntasks-per-core", "ntasks-per-socket", "profile", "threads-per-core"}


def directives(plan: Plan) -> list[tuple[str, str]]:
    """Return the options of sbatch with their values, "" for a flag."""
    job, slurm, limit = plan.job, plan.job.slurm, plan.job.time_limit
    array = f"0-{len(plan.points) - 1}" if plan.points else slurm.array
    if array and slurm.array_limit:
        array = f"{array}%{slurm.array_limit}"
    log = f"{job.name}-%A_%a.log" if array else f"{job.name}-%j.log"
    given = {
        "job-name": job.name,
        "nodes": f"{job.nodes.min}-{job.nodes.max}" if job.nodes.elastic else job.nodes.max + job.spares,
        # Of a range, Slurm would give no more nodes than there are tasks on the fewest.
        "ntasks-per-node": None if job.nodes.elastic else tasks_per_node(job),
        "cpus-per-task": _cpus_per_task(job),
        "gpus-per-node": f"{job.gpu}:{job.gpus}" if job.gpu else job.gpus or None,
        "mem": f"{job.resources.memory >> 20}M" if job.resources.memory else None,
        "time": f"{limit // 86400}-{time.strftime('%H:%M:%S', time.gmtime(limit))}" if limit else None,
        **{key: getattr(slurm, key) for key in ("partition", "account", "qos", "constraint", "reservation")},
        **near(job),
        "array": array,
        "no-kill": "" if survives_lost_nodes(job) else None,
        "signal": f"B:USR1@{job.preemption.grace}" if job.preemption else None,
        "requeue" if job.preemption else "no-requeue": "",
        "output": None if "output" in slurm.options else log,
        "open-mode": "append" if job.preemption else None,
        **{name: "" if value is True else value for name, value in slurm.options.items()},
    }
    return [(name, str(value)) for name, value in given.items() if value is not None]


def near(job: Job) -> dict[str, str]:
    """Return the options of sbatch for nodes that are near one another."""
    if job.topology is None:
        return {}
    segment = job.segment if job.segment < job.nodes.max else job.nodes.max + job.spares
    return {"segment": str(segment)} if job.topology.required else {"switches": "1"}


def srun_flags(plan: Plan) -> list[str]:
    """Return flags of the srun that starts the tasks; it does not inherit the CPUs of a task from sbatch."""
    job = plan.job
    flags = [f"--ntasks-per-node={tasks_per_node(job)}"]
    if job.nodes.max == 1:
        flags.insert(0, "--nodes=1")
    if cpus := _cpus_per_task(job):
        flags.append(f"--cpus-per-task={cpus}")
    if job.nodes.elastic:
        flags += [*(["--no-kill"] if survives_lost_nodes(job) else []), "--kill-on-bad-exit=0", "--wait=0"]
    elif job.preemption:
        flags += ["--kill-on-bad-exit=0", f"--wait={job.preemption.grace}"]
    else:
        flags.append("--kill-on-bad-exit=1")
    handed_on = {name: value for name, value in job.slurm.options.items() if name in _FOR_SRUN}
    for name, value in {**handed_on, **job.slurm.srun_options}.items():
        if name != "label" or job.slurm.launcher == "srun":  # torchrun marks the lines of its ranks itself
            flags.append(f"--{name}" if value is True else f"--{name}={value}")
    return flags


def check_flags(plan: Plan) -> list[str]:
    """Return flags of the srun that measures each node, with all CPUs that the job has there."""
    cpus = plan.job.resources.cpus
    given = [f"--cpus-per-task={cpus}"] if cpus else []
    return ["--ntasks-per-node=1", *given, "--kill-on-bad-exit=0", "--wait=0"]


def survives_lost_nodes(job: Job) -> bool:
    """Return True if the job keeps its other nodes when one is lost, and False if it ends or is requeued."""
    return job.nodes.elastic and job.preemption is None


def failure_policy(job: Job) -> str:
    """Say in words what srun_flags do about a task that ends or fails."""
    if survives_lost_nodes(job):
        return "If a node is lost, the others continue."
    if job.nodes.elastic:
        return "If a node is lost, the others continue until Slurm requeues the job."
    if job.preemption:
        grace = f"{job.preemption.grace} s (preemption.grace)"
        return f"Once the task of one node has ended, with success or not, the others have {grace}."
    return "If a node fails, srun ends the others: they would only wait for it."


def _cpus_per_task(job: Job) -> int | None:
    """Return the CPUs of a task; None leaves the number to Slurm: sites have defaults such as DefCpuPerGPU."""
    if job.resources.cpus is None:
        return None
    return max(1, job.resources.cpus // tasks_per_node(job))


def for_runtime(plan: Plan) -> dict[str, str]:
    """Return variables of the spec that the container runtime and its hooks read before the program starts.

    Sources: enroot, doc/configuration.md and doc/standard-hooks.md; NVIDIA Container Toolkit, "Specialized
    Configurations with Docker".
    """
    if plan.job.slurm.runtime == "none":
        return {}
    return {name: value for name, value in plan.env.items() if name.startswith(("ENROOT_", "MELLANOX_", "NVIDIA_"))}


def launcher(plan: Plan) -> list[str]:
    """Return the words of bash before the program in a task; empty if the task starts the program directly."""
    job, nodes = plan.job, plan.job.nodes
    if job.slurm.launcher == "srun":
        return [] if job.no_python else ["python3"]
    if nodes.max == 1:
        meeting = []
    elif plan.backend == "c10d":
        number = f"{nodes.min}:$SLURM_NNODES" if nodes.elastic else "$SLURM_NNODES"
        conf = torchrun.c10d_conf(plan, "$(( SLURM_NODEID == 0 ))")
        meeting = [f'--nnodes="{number}"', '--rdzv-id="$SLURM_JOB_ID"', '--rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT"']
        own = job.rendezvous.name_of("${SLURMD_NODENAME}")
        meeting += [f'--rdzv-conf="{conf}"', f'--local-addr="{own}"']
    else:
        meeting = ['--nnodes="$SLURM_NNODES"', '--node-rank="$SLURM_NODEID"']
        meeting += ['--master-addr="$MASTER_ADDR"', '--master-port="$MASTER_PORT"']
    return ["torchrun", *meeting, *torchrun.flags(plan), *(["--tee=3"] if labels(plan) else [])]


def program(plan: Plan) -> list[str]:
    if plan.job.slurm.launcher == "srun":
        return [*plan.program, *train_timeout(plan)]
    return list(plan.torchrun_program)


def swept(plan: Plan) -> list[str]:
    """Return bash for each task of a sweep: a function that sets its variables, and its words as the script's own."""
    quoted = for_torchrun if plan.job.slurm.launcher == "torchrun" else tuple
    branches = []
    for point in plan.points:
        variables = [f"swept() {{ export {assignments(point.env, 4)}; }}"] if point.env else []
        words = [f"set -- {argv(quoted(point.words), 4)}"] if point.words else []
        branches.append("; ".join([*variables, *words]))
    return branches


def train_timeout(plan: Plan) -> list[str]:
    """Return train's flag for how long it waits for the other nodes without torchrun; empty for train's default."""
    job = plan.job
    if job.train is None or job.rendezvous.timeout is None or "rendezvous_timeout_s" in job.train.model_fields_set:
        return []
    return [f"--rendezvous-timeout-s={plan.rendezvous_timeout_s}"]


def labels(plan: Plan) -> bool:
    """Return True if torchrun must begin each line with its rank: with torchrun, Slurm knows only the nodes."""
    return plan.job.slurm.launcher == "torchrun" and "label" in plan.job.slurm.srun_options
