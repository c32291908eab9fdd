"""Parts that the command lines of docker and podman have in common."""

from collections.abc import Sequence

from jobspec import runtimes
from jobspec.plan import Plan
from jobspec.runtimes import Runtime, in_shell, is_file
from jobspec.spec.job import Mount

_SOURCE = "--mount=type=bind,source="


def flags(plan: Plan) -> list[str]:
    """Return flags of `run` that are the same on every node."""
    # The host's network, because the nodes know each other by host name.  The host's /dev/shm, because NCCL
    # connects the processes of a node through it, even if they are in different containers.
    result = ["--rm", "--network=host", "--ipc=host"]
    if plan.job.resources.rdma:
        result += ["--device=/dev/infiniband", "--cap-add=IPC_LOCK", "--ulimit=memlock=-1:-1"]
    return [*result, *runtimes.mount_flags(plan.job, _SOURCE, _target)]


def mount_empty(plan: Plan) -> list[str]:
    """Return bash for empty mounts; nothing if there are none."""
    return runtimes.mount_empty(plan.job, _SOURCE, _target)


def let_in(names: Sequence[str]) -> str:
    """Return bash that adds flags for these variables to "$@", by name only: values must not be arguments."""
    return f'for name in JOB_PROGRAM {in_shell(names)}; do\n    set -- "$@" "--env=$name"\n  done'


def gpus() -> list[str]:
    """Return bash that puts the UUIDs of the task's GPUs into $gpus, separated by commas or line breaks.

    Slurm counts from 0 among the GPUs that the task may use or among all GPUs of the node, depending on
    ConstrainDevices in cgroup.conf.  nvidia-smi counts in the same way, but docker and CDI do not: they are outside
    the job.  UUIDs mean the same everywhere.  Slurm already gives MIG slices by UUID.
    """
    return [
        "gpus=${CUDA_VISIBLE_DEVICES:?is not set: Slurm gave this task no GPU}",
        '[[ $gpus == *-* ]] || gpus=$(nvidia-smi --id="$gpus" --query-gpu=uuid --format=csv,noheader)',
    ]


def image(plan: Plan) -> list[str]:
    """Return the image, without its entrypoint: the words after it are the whole command."""
    return ["--entrypoint=", plan.job.image or ""]


class Oci(Runtime):
    """What docker and podman have in common."""

    def image_problem(self, image: str) -> str | None:
        if is_file(image) or "://" in image:
            return "write REGISTRY/NAME:TAG, not a file or a URL"
        return None


def _target(mount: Mount) -> str:
    return f",target={mount.path}" + (",readonly" if mount.read_only else "")
