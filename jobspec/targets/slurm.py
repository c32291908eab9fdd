"""A batch script for Slurm: one task per node with torchrun as the agent, or one task per process without it."""

from collections.abc import Iterator
from typing import Any

from jobspec import runtimes, torchrun
from jobspec.filters import sh
from jobspec.plan import IN_CONTAINERS, Plan
from jobspec.slurm import rules, task
from jobspec.slurm.environment import REMARKS, environment, exports, of_the_program, passed
from jobspec.spec import shell
from jobspec.spec.job import Job
from jobspec.spec.keys import all_of, keys

__all__ = ["NOT_USED", "REMARKS", "RULES", "SWEEPS", "USES", "environment", "template_values"]

USES = IN_CONTAINERS | keys("gpu time_limit preemption.max_requeues preemption.progress") | all_of("slurm")
NOT_USED = {"resources.devices": "only Kubernetes knows these names; on Slurm use slurm.options, such as {gres: nic:1}"}
SWEEPS = "array"
RULES = (*rules.RULES, runtimes.problems)


def hides_the_node(job: Job) -> bool:
    """Return True for docker and podman.  apptainer and pyxis also show what no spec names, such as the home."""
    return job.slurm.runtime in ("docker", "podman")


def template_values(plan: Plan) -> dict[str, Any]:
    job = plan.job
    runtime = runtimes.load(job.slurm.runtime)
    names = passed(plan)
    own_log = "output" not in job.slurm.options
    in_shell = job.slurm.runtime == "none"
    # What each node must have in its PATH; setup may bring it.
    required = runtime.program if not in_shell else None if job.setup else next(iter(task.launcher(plan)), None)
    # Each task starts its own container.
    tasks = runtimes.tasks_per_node(job) if runtime.run else 0
    scratch = tasks * sum(mount.scratch or 0 for mount in job.mounts if mount.empty)
    return {
        "task": task,
        "kept_variables": shell.KEPT_BY_A_BATCH_SCRIPT,
        "runtime": runtime,
        "notes": [*_notes(job), *(torchrun.notes(plan) if job.slurm.launcher == "torchrun" else plan.notes)],
        "own_log": own_log,
        "log_has_progress": own_log and job.train is not None,  # lines of python -m train in that log
        "has_rendezvous": job.nodes.max > 1 or job.slurm.launcher == "srun",
        "job_exports": exports(plan, "job"),
        "required_program": required,
        "program_path": f"PATH={sh(plan.env['PATH'])} " if in_shell and "PATH" in plan.env else "",
        "how_to_get_it": "activate the environment that has it before sbatch" if in_shell else "install it on the node",
        "shm_mib": (job.resources.shm or 0) >> 20,
        "scratch_mib": -(-scratch >> 20),
        "for_runtime": task.for_runtime(plan),
        "env": of_the_program(plan),
        "launcher": task.launcher(plan),
        "swept_env": task.swept_env(plan),
        "swept_words": task.swept_words(plan),
        "task_lines": [*exports(plan, "task"), *runtime.before(plan, names)],
        "tasks_per_node": runtimes.tasks_per_node(job),
        "srun_flags": [*task.srun_flags(plan), *runtime.srun_flags(plan, names)],
        # After torchrun has killed its processes itself, and before Slurm ends the job.
        "kill_after_s": max(1, job.preemption.grace * 7 // 8, job.preemption.grace - 15) if job.preemption else 0,
    }


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
    if job.resources.shm and not slurm.preflight:
        yield "Not used here: resources.shm; without slurm.preflight nothing checks the size of /dev/shm."
    if job.resources.rdma and not slurm.preflight and not hides_the_node(job):
        yield "Not used here: resources.rdma; without slurm.preflight nothing checks the right to lock memory."
    if slurm.launcher == "srun" and job.rendezvous.timeout and job.train is None:
        decides = "the command itself decides how long it waits for the other nodes"
        yield f"Not used here: rendezvous.timeout; slurm.launcher is srun, so {decides}."
    has_scratch = slurm.runtime != "none" and any(mount.empty for mount in job.mounts)
    if has_scratch and (slurm.runtime == "pyxis" or not slurm.preflight):
        yield "Not used here: the size of scratch; nothing limits it."
    if slurm.runtime == "pyxis" and "@" in (job.image or ""):
        yield "An image with a digest needs enroot 4.0 or newer."
    if "error" in slurm.options and "output" not in slurm.options and "error" not in slurm.srun_options:
        yield "slurm.options.error gets what this script says; all that the processes say is in the log below."
    for log in (str(slurm.options.get(name, "")) for name in ("output", "error")):
        if "/" in log:
            yield f"Create the folder of {log} first: without it Slurm ends the job and reports no error."
    if slurm.launcher == "torchrun":
        processes = f"{job.procs_per_node} process{'es' * (job.procs_per_node > 1)}"
        yield f"One task per node: torchrun, which starts the {processes} of its node."
    else:
        yield f"One task per process, {job.procs_per_node} on each node; Slurm starts them all."
        if left := (job.resources.cpus or 0) % job.procs_per_node:
            yield f"Not used here: {left} of {job.resources.cpus} resources.cpus; each task gets the same number."
