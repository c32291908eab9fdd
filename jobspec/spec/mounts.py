"""Where mounts are, and rules for mounts that several targets have."""

import posixpath
from collections.abc import Iterator

from jobspec.problems import Finding
from jobspec.spec.job import Job


def normal(path: str) -> str:
    return posixpath.normpath("/" + path.lstrip("/"))  # normpath keeps two slashes at the start


def empty_mounts_have_no_folders(job: Job) -> Iterator[Finding]:
    """Yield each `sub_path` of a mount for which a target with folders makes an empty one."""
    for number, mount in enumerate(job.mounts):
        if mount.empty and mount.sub_path is not None:
            message = f"mounts[{number}].sub_path: a mount with scratch starts empty; leave sub_path out"
            yield Finding(("mounts", number, "sub_path"), message)


def mounts_over_shm(job: Job) -> Iterator[Finding]:
    """Yield each mount over shared memory, which pods and services have there."""
    for number, mount in enumerate(job.mounts):
        if normal(mount.path) == "/dev/shm":
            message = f"mounts[{number}].path: /dev/shm is shared memory, not a place for mounts"
            yield Finding(("mounts", number, "path"), message, "resources.shm sets its size")
