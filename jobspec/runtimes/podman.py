"""podman: each task runs its container without a daemon, as the user who submitted the job.

GPUs are named as the NVIDIA Container Toolkit describes them (CDI).
Source: docs.podman.io/en/latest/markdown/podman-run.1.html.
"""

from __future__ import annotations

from collections.abc import Sequence

from jobspec.plan import Plan
from jobspec.runtimes import _oci


def srun_flags(plan: Plan, passed: Sequence[str]) -> list[str]:
    return []


def words(plan: Plan, passed: Sequence[str]) -> list[str]:
    # keep-id: files on the mounts belong to who submitted the job.  SELinux would refuse the mounts, and giving
    # them new labels would lock out other jobs.
    flags = ["--userns=keep-id", "--security-opt=label=disable"]
    return [*_oci.flags(plan, passed), *flags, *_oci.image(plan)]


def start(plan: Plan, passed: Sequence[str]) -> list[str]:
    if plan.job.device == "cpu":
        return ['exec podman run "$@"']
    return [
        "gpus=${SLURM_STEP_GPUS:-${SLURM_JOB_GPUS:?}}",
        'for gpu in $(echo "$gpus" | tr , " "); do set -- "--device=nvidia.com/gpu=$gpu" "$@"; done',
        'exec podman run "$@"',
    ]


def image_problem(image: str) -> str | None:
    return _oci.image_problem(image)
