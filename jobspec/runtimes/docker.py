"""docker: each task runs its container through the node's daemon.

The daemon is outside the job: Slurm's limits do not reach the container, so CPUs, memory and GPUs are given here.
Source: docs.docker.com/reference/cli/docker/container/run.
"""

from __future__ import annotations

from collections.abc import Sequence

from jobspec.plan import Plan
from jobspec.runtimes import _oci


def srun_flags(plan: Plan, passed: Sequence[str]) -> list[str]:
    return []


def words(plan: Plan, passed: Sequence[str]) -> list[str]:
    job = plan.job
    flags = _oci.flags(plan, passed)
    tasks = job.procs_per_node if job.slurm.launcher == "srun" else 1
    if job.resources.cpus is not None:
        flags.append(f"--cpus={max(1, job.resources.cpus // tasks)}")
    if job.resources.memory is not None:
        flags.append(f"--memory={job.resources.memory // tasks}b")
    # torch asks for the user's name, and the container has no user of this number.
    return [*flags, "--env=USER", *_oci.image(plan)]


def start(plan: Plan, passed: Sequence[str]) -> list[str]:
    # Files on the mounts belong to who submitted the job, not to root.
    lines = ['set -- --user="$(id -u):$(id -g)" "$@"']
    if plan.job.device == "cuda":
        # Slurm's own numbers of the GPUs: in CUDA_VISIBLE_DEVICES they count from 0 in each job.
        lines.append('set -- --gpus="\\"device=${SLURM_STEP_GPUS:-${SLURM_JOB_GPUS:?}}\\"" "$@"')
    return [*lines, 'exec docker run "$@"']


def image_problem(image: str) -> str | None:
    return _oci.image_problem(image)
