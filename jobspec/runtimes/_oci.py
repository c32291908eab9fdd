"""What the command lines of docker and podman have in common."""

from __future__ import annotations

from collections.abc import Sequence

from jobspec.plan import Plan
from jobspec.runtimes import is_file
from jobspec.spec import Mount


def flags(plan: Plan, passed: Sequence[str]) -> list[str]:
    """Flags of `run`; variables are passed by name, so that no value is seen in a list of processes."""
    # The host's network: the nodes know each other by the names of their hosts.  The host's /dev/shm: NCCL
    # connects the processes of a node through it, also those in containers of their own.  An init: it passes
    # signals on and clears away ended processes.
    result = ["--rm", "--init", "--network=host", "--ipc=host"]
    if plan.job.resources.rdma:
        result += ["--device=/dev/infiniband", "--cap-add=IPC_LOCK", "--ulimit=memlock=-1:-1"]
    result += [_mount(mount) for mount in plan.job.mounts]
    return result + [f"--env={name}" for name in passed]


def image(plan: Plan) -> list[str]:
    """The image, without what it would start by itself: the words after it are the whole command."""
    return ["--entrypoint=", plan.job.image or ""]


def image_problem(image: str) -> str | None:
    if is_file(image) or "://" in image:
        return "it runs images by registry and name only"
    return None


def _mount(mount: Mount) -> str:
    return f"--mount=type=bind,source={mount.source},target={mount.path}" + (",readonly" if mount.read_only else "")
