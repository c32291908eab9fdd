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
    # SELinux would refuse the mounts, and giving them new labels would lock out other jobs.
    return [*_oci.flags(plan, passed), "--security-opt=label=disable", *_oci.image(plan)]


def start(plan: Plan, passed: Sequence[str]) -> list[str]:
    # Files on the mounts belong to who submitted the job; for root they do so anyway, and podman refuses the flag.
    keep_id = 'if [ "$(id -u)" != 0 ]; then set -- --userns=keep-id "$@"; fi'
    if plan.job.device == "cpu":
        return [keep_id, 'exec podman run "$@"']
    return [
        keep_id,
        "gpus=${SLURM_STEP_GPUS:-${SLURM_JOB_GPUS:?}}",
        'for gpu in $(echo "$gpus" | tr , " "); do set -- "--device=nvidia.com/gpu=$gpu" "$@"; done',
        'exec podman run "$@"',
    ]


def image_problem(image: str) -> str | None:
    return _oci.image_problem(image)
