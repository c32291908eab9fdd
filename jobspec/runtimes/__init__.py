"""Runtimes, which run the image on a Slurm node: one file for each value of `slurm.runtime` but `none`.

A task of Slurm is a shell that runs the runtime's command, or with pyxis a shell in the container.
"""

import importlib
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import cast

from jobspec.filters import sh
from jobspec.plan import Plan
from jobspec.problems import Finding
from jobspec.spec.job import Job, Mount
from jobspec.spec.mounts import empty_mounts_have_no_folders, normal
from jobspec.spec.rules import image_runs


class Runtime:
    """How a runtime runs the image.  The defaults here mean no container; the class of a file overrides them.

    Below, `passed` are names of variables that the processes must see with the values from the task's shell.
    """

    starts = False
    """True if each task starts its own container, with `command`."""
    stop: str | None = None
    """Bash that asks the containers of a node to stop; None if they get the signals that Slurm sends."""
    mount = ("", ":", ":ro")
    """What stands in the flag of a mount before its source, before its path, and at the end if it is read-only."""
    wrong_image = ("", "")
    """Pattern of images that this runtime cannot run, and what to write instead."""

    def srun_flags(self, plan: Plan, passed: Sequence[str]) -> list[str]:
        """Return flags of the srun that starts the tasks."""
        return []

    def before(self, plan: Plan, passed: Sequence[str]) -> list[str]:
        """Return lines for a task's shell before the command."""
        return []

    def command(self, plan: Plan, passed: Sequence[str]) -> list[str]:
        """Return the words of bash that start a container, with its image; what runs in it follows them."""
        return []

    def mounts(self, job: Job) -> list[str]:
        """Return words of bash for the mounts; `scratch` says where the empty ones are."""
        words = []
        for number, mount in enumerate(job.mounts):
            source = f'"$scratch"/{number}' if mount.empty else sh(mount.folder or "")
            words.append(f"{self.mount[0]}{source}{sh(self.target(mount))}")
        return words

    def scratch(self, job: Job) -> list[str]:
        """Return bash that makes a folder on the node's disk for each empty mount; the batch script removes them."""
        folders = [f'"$scratch"/{number}' for number, mount in enumerate(job.mounts) if mount.empty]
        make = 'scratch=$(mktemp -d "${SLURM_TMPDIR:-/tmp}/scratch-$SLURM_JOB_ID.XXXXXX")'
        return [make, f"mkdir {' '.join(folders)}"] if folders else []

    def target(self, mount: Mount) -> str:
        """Return what follows the source in the flag of a mount."""
        return f"{self.mount[1]}{mount.path}{self.mount[2] if mount.read_only else ''}"


def load(name: str) -> Runtime:
    """Return the runtime whose class has the name of its file, such as Docker in docker.py."""
    if name == "none":
        return Runtime()
    return cast(Runtime, getattr(importlib.import_module(f"{__name__}.{name}"), name.capitalize())())


def tasks_per_node(job: Job) -> int:
    """Return how many tasks Slurm starts on a node; each has its own container."""
    return job.procs_per_node if job.slurm.launcher == "srun" else 1


def problems(job: Job) -> Iterator[Finding]:
    """Yield why the job's runtime cannot run its image and mounts; nothing without a container."""
    runtime = job.slurm.runtime
    if runtime == "none":
        return
    yield from empty_mounts_have_no_folders(job)
    yield from image_runs(f"slurm.runtime {runtime}", job, load(runtime).wrong_image, ("slurm", "runtime"))
    for number, mount in enumerate(job.mounts):
        others = [normal(other.path) for other in job.mounts if other is not mount]
        inside = any(PurePosixPath(normal(mount.path)).is_relative_to(path) for path in others)
        if mount.empty and not load(runtime).starts and inside:
            message = f"mounts[{number}].path is inside another mount, where {runtime} cannot mount scratch"
            yield Finding(("mounts", number, "path"), message, "choose a path outside the other mounts")
        elif mount.source is None and mount.volume is not None and not mount.empty:
            message = f"mounts[{number}].{mount.volume}: Slurm has no volumes; its nodes have folders"
            yield Finding(("mounts", number, mount.volume), message, "write source: PATH, a folder that every node has")


def is_file(image: str) -> bool:
    """Return True if an image is given as the path of a file, not as a name in a registry."""
    return image.startswith(("/", "."))
