"""Parts that the command lines of docker and podman have in common."""

from collections.abc import Sequence

from jobspec.plan import Plan
from jobspec.runtimes import Runtime, in_shell, is_file


def let_in(names: Sequence[str]) -> str:
    """Return bash that adds flags for these variables to "$@", by name only: values must not be arguments."""
    return f'for name in JOB_PROGRAM {in_shell(names)}; do\n    set -- "$@" "--env=$name"\n  done'


# Bash that puts the UUIDs of the task's GPUs into $gpus, separated by commas or line breaks.  Slurm counts from 0 among
# the GPUs that the task may use or among all GPUs of the node, depending on ConstrainDevices in cgroup.conf.
# nvidia-smi counts in the same way, but docker and CDI do not: they are outside the job.  UUIDs mean the same
# everywhere.  Slurm already gives MIG slices by UUID.
GPUS = [
    "gpus=${CUDA_VISIBLE_DEVICES:?is not set: Slurm gave this task no GPU}",
    '[[ $gpus == *-* ]] || gpus=$(nvidia-smi --id="$gpus" --query-gpu=uuid --format=csv,noheader)',
]


class Oci(Runtime):
    mount = ("--mount=type=bind,source=", ",target=", ",readonly")

    def flags(self, plan: Plan, *own: str) -> list[str]:
        """Return the flags of `run` that are the same on every node, `own` ones too, and the image."""
        # The host's network, because the nodes know each other by host name.  The host's /dev/shm, because NCCL
        # connects the processes of a node through it, even if they are in different containers.
        result = ["--rm", "--network=host", "--ipc=host"]
        if plan.job.resources.rdma:
            result += ["--device=/dev/infiniband", "--cap-add=IPC_LOCK", "--ulimit=memlock=-1:-1"]
        # No entrypoint: the words after the image are the whole command.
        return [*result, *self.mount_flags(plan.job), *own, "--entrypoint=", plan.job.image or ""]

    def image_problem(self, image: str) -> str | None:
        if is_file(image) or "://" in image:
            return "write REGISTRY/NAME:TAG, not a file or a URL"
        return None
