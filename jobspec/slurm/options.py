"""What the job asks of sbatch and srun: nodes, tasks, limits, and what happens when a task fails."""

from __future__ import annotations

from jobspec.plan import Plan
from jobspec.spec import Job


def directives(plan: Plan) -> list[tuple[str, str]]:
    """Options of sbatch with their values, "" for a flag."""
    job, slurm = plan.job, plan.job.slurm
    log = f"{job.name}-%A_%a.log" if slurm.array else f"{job.name}-%j.log"
    given = {
        "job-name": job.name,
        "nodes": f"{job.nodes.min}-{job.nodes.max}" if job.nodes.elastic else job.nodes.max,
        "ntasks-per-node": _tasks_per_node(job),
        "cpus-per-task": _cpus_per_task(job),
        "gpus-per-node": job.procs_per_node if job.device == "cuda" else None,
        "mem": f"{job.resources.memory >> 20}M" if job.resources.memory else None,
        "time": _time(job.time_limit) if job.time_limit else None,
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "constraint": slurm.constraint,
        "reservation": slurm.reservation,
        "array": slurm.array,
        "no-kill": "" if job.nodes.elastic else None,
        "signal": f"B:USR1@{job.preemption.grace}" if job.preemption else None,
        "requeue" if job.preemption else "no-requeue": "",
        "output": None if "output" in slurm.options else log,
        "open-mode": "append",
        **{name: "" if value is True else value for name, value in slurm.options.items()},
    }
    return [(name, str(value)) for name, value in given.items() if value is not None]


def srun_flags(plan: Plan) -> list[str]:
    """Flags of the srun that starts the tasks; srun takes over from sbatch neither the CPUs of a task nor, after
    `sbatch --export=NONE`, the environment of the script."""
    job = plan.job
    tasks = _tasks_per_node(job)
    flags = ["--export=ALL", f"--ntasks-per-node={tasks}", f"--cpus-per-task={_cpus_per_task(job)}"]
    if not job.nodes.elastic:
        flags = [f"--nodes={job.nodes.max}", f"--ntasks={job.nodes.max * tasks}", *flags]
    if job.slurm.launcher == "srun":
        # Ranks fill one node after the other.  Without --gpu-bind each process sees all GPUs of its node, and NCCL
        # connects them directly; --gpu-bind=none would leave CUDA_VISIBLE_DEVICES unset and show those of other jobs.
        flags.append("--distribution=block")
    if job.nodes.elastic:
        return [*flags, "--no-kill", "--kill-on-bad-exit=0", "--wait=0"]
    if job.preemption:
        return [*flags, "--kill-on-bad-exit=0", f"--wait={job.preemption.grace}"]
    return [*flags, "--kill-on-bad-exit=1", "--wait=60"]


def _cpus_per_task(job: Job) -> int:
    # Slurm's own default is one CPU a task, which all processes of the node would share.
    return max(1, (job.resources.cpus or job.procs_per_node) // _tasks_per_node(job))


def has_checks(job: Job) -> bool:
    """Whether the preflight has anything to look at: a job on the CPU of one node has not."""
    meets = job.nodes.max > 1 or job.slurm.launcher == "srun"
    return meets or job.device == "cuda" or job.resources.shm is not None or job.resources.rdma


def _time(seconds: int) -> str:
    """Slurm's days-hours:minutes:seconds."""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{days}-{hour:02}:{minute:02}:{second:02}"


def _tasks_per_node(job: Job) -> int:
    return job.procs_per_node if job.slurm.launcher == "srun" else 1
