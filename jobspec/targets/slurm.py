"""A batch script for Slurm: one task per node with torchrun as the agent, or one task per process without it."""

from collections.abc import Iterator
from typing import Any

from jobspec import runtimes, torchrun
from jobspec.filters import sh
from jobspec.plan import IN_CONTAINERS, RENDEZVOUS_TIMEOUT_S, TOPOLOGY, Plan
from jobspec.runtimes import tasks_per_node
from jobspec.slurm import rules, task
from jobspec.slurm.environment import assigned, environment, passed, port
from jobspec.spec import shell
from jobspec.spec.job import Job
from jobspec.spec.keys import all_of, keys
from jobspec.targets import Target

USES = (
    IN_CONTAINERS | TOPOLOGY | keys("spares gpu time_limit preemption.max_requeues rendezvous.host") | all_of("slurm")
)
NOT_USED = {"resources.devices": "only Kubernetes knows these names; on Slurm use slurm.options, such as {gres: nic:1}"}
RULES = (*rules.RULES, runtimes.problems)


def hides_the_node(job: Job) -> bool:
    """Return True for docker and podman.  apptainer and pyxis also show what no spec names, such as the home."""
    return job.slurm.runtime in ("docker", "podman")


def doubts(job: Job) -> Iterator[str]:
    number_given = job.resources.cpus or {"cpus-per-gpu", "exclusive"} & job.slurm.options.keys()
    if tasks_per_node(job) < job.procs_per_node and not number_given:
        yield (
            f"resources.cpus is not given, so the site decides how many CPUs the {job.procs_per_node} processes of a "
            "node share, perhaps one; give it"
        )


def template_values(plan: Plan) -> dict[str, Any]:
    job = plan.job
    runtime = runtimes.load(job.slurm.runtime)
    names = passed(plan)
    return {
        "task": task,
        "kept_variables": shell.KEPT_BY_A_BATCH_SCRIPT,
        "runtime": runtime,
        "notes": [*_notes(job), *(torchrun.notes(plan) if job.slurm.launcher == "torchrun" else plan.notes)],
        "has_rendezvous": job.nodes.max > 1 or job.slurm.launcher == "srun",
        "port": port(plan)[0],
        "scratch": runtime.starts and any(mount.empty for mount in job.mounts),
        "checks_memlock": job.resources.rdma and not hides_the_node(job),
        "for_runtime": task.for_runtime(plan),
        "variables": assigned(plan),
        "swept_env": any(point.env for point in plan.points),
        "swept_words": any(point.words for point in plan.points),
        "task_lines": runtime.before(plan, names),
        "container": [runtime.command(plan, names), _in_container(plan)] if runtime.starts else [],
        "launcher": task.launcher(plan),
        "check_start": ["srun", "--overlap", *task.check_flags(plan), *runtime.srun_flags(plan, names)],
        "srun_flags": [*task.srun_flags(plan), *runtime.srun_flags(plan, names)],
        # Before Slurm ends the job.
        "kill_after_s": max(1, job.preemption.grace * 7 // 8, job.preemption.grace - 15) if job.preemption else 0,
    }


def _in_container(plan: Plan) -> list[str]:
    """Return the words of bash after the image that set variables and run `setup`."""
    return ["env", *assigned(plan), *map(sh, shell.before([], plan.job.setup))]


def _notes(job: Job) -> Iterator[str]:
    slurm = job.slurm
    if slurm.runtime == "none" and job.image:
        of_shell = "the processes run in the environment of the shell that calls sbatch"
        yield f"Not used here: image; slurm.runtime is none, so {of_shell}."
    if slurm.runtime == "none" and job.mounts:
        yield "Not used here: mounts; slurm.runtime is none, so the processes see the paths of the nodes."
    if job.files:
        folder = job.workdir or "the folder in which you submit"
        inside = "the mounts of the container" if slurm.runtime != "none" else folder
        yield f"Not used here: files; the processes see {inside}."
    if slurm.prologue and hides_the_node(job):
        yield "What slurm.prologue exports does not enter the containers; env and setup do."
    if job.resources.shm:
        yield "Not used here: resources.shm; the processes have the node's /dev/shm."
    if job.topology and job.topology.preferred:
        yield "Slurm waits for nodes of one switch no longer than its max_switch_wait, by default 5 minutes."
    if slurm.launcher == "srun" and job.rendezvous.timeout and job.train is None:
        decides = "the command itself decides how long it waits for the other nodes"
        yield f"Not used here: rendezvous.timeout; slurm.launcher is srun, so {decides}."
    if slurm.runtime != "none" and any(mount.empty for mount in job.mounts):
        yield "Not used here: the size of scratch; nothing limits it."
    for log in (str(slurm.options.get(name, "")) for name in ("output", "error")):
        if "/" in log:
            yield f"Create the folder of {log} first: without it Slurm ends the job and reports no error."


TARGET = Target(
    name="slurm",
    uses=USES,
    not_used=NOT_USED,
    rules=RULES,
    template_values=template_values,
    environment=environment,
    near=lambda job: {f"--{name}": value for name, value in task.near(job).items()},
    reason=lambda job: "squeue --start -j JOB",
    rendezvous_timeout_s=RENDEZVOUS_TIMEOUT_S,
    sweeps="array",
    hides_the_node=hides_the_node,
    doubts=doubts,
)
