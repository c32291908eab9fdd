"""Runtimes, which run the image on a Slurm node: one file for each value of `slurm.runtime` but `none`.

A task of Slurm is a shell that sets the variables of its process and then runs the runtime's command.  The program and
its variables reach the container as text in the variable JOB_PROGRAM, which the runtime passes on.
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

_PREFIXES = ("MASTER_", "PET_", "SLURM_")


class Runtime:
    """How a runtime runs the image.  The defaults here mean no container; the class of a file overrides them.

    Below, `passed` are names of variables that the processes must see with the values from the task's shell.
    """

    program: str | None = None
    """The runtime's own program, which each node must have; None if there is no such program."""
    stop: str | None = None
    """Bash that asks the containers of a node to stop; None if they get the signals that Slurm sends."""
    run: str | None = None
    """The command that starts a container; None if the task's shell already is where the processes run."""
    mount = ("", ":", ":ro")
    """What stands in the flag of a mount before its source, before its path, and at the end if it is read-only."""
    wrong_image = ("", "")
    """Pattern of images that this runtime cannot run, and what to write instead."""

    def srun_flags(self, plan: Plan, passed: Sequence[str]) -> list[str]:
        """Return flags of the srun that starts the tasks."""
        return []

    def before(self, plan: Plan, passed: Sequence[str]) -> list[str]:
        """Return lines for a task's shell before the command.  They may fill "$@"; of the spec they hold only paths."""
        return []

    def words(self, plan: Plan) -> list[str]:
        """Return the words between `run` with "$@" and the command in the container."""
        return []

    def mount_flags(self, job: Job) -> list[str]:
        """Return flags for all mounts; none if one is empty, because `mount_empty` then adds all of them."""
        if any(mount.empty for mount in job.mounts):
            return []
        return [f"{self.mount[0]}{mount.folder}{self.target(mount)}" for mount in job.mounts]

    def mount_empty(self, job: Job) -> list[str]:
        """Return bash that makes a folder on the node's disk for each empty mount; the batch script removes them.

        For runtimes that start a container for each task.  One mount may be in another, so the flags of all mounts are
        added to "$@" in the order of the spec.
        """
        folders = {number: f'"$scratch/{number}"' for number, mount in enumerate(job.mounts) if mount.empty}
        if not folders:
            return []
        sources = [folders.get(number) or sh(mount.folder or "") for number, mount in enumerate(job.mounts)]
        return [
            'scratch=$(mktemp -d "$disk/scratch-$SLURM_JOB_ID.XXXXXX")',
            f"mkdir {' '.join(folders.values())}",
            *(
                f'set -- "$@" {self.mount[0]}{source}{sh(self.target(mount))}'
                for source, mount in zip(sources, job.mounts, strict=True)
            ),
        ]

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
    yield from _progress_in_containers(job)
    for number, mount in enumerate(job.mounts):
        others = [normal(other.path) for other in job.mounts if other is not mount]
        inside = any(PurePosixPath(normal(mount.path)).is_relative_to(path) for path in others)
        if mount.empty and load(runtime).run is None and inside:
            message = f"mounts[{number}].path is inside another mount, where {runtime} cannot mount scratch"
            yield Finding(("mounts", number, "path"), message, "choose a path outside the other mounts")
        elif mount.source is None and mount.volume is not None and not mount.empty:
            message = f"mounts[{number}].{mount.volume}: Slurm has no volumes; its nodes have folders"
            yield Finding(("mounts", number, mount.volume), message, "write source: PATH, a folder that every node has")


def _progress_in_containers(job: Job) -> Iterator[Finding]:
    progress = PurePosixPath((job.preemption and job.preemption.progress) or "/")
    around = [mount for mount in job.mounts if progress.is_relative_to(normal(mount.path))]
    for mount in sorted(around, key=lambda mount: len(mount.path))[-1:]:
        if normal(mount.folder or "") != normal(mount.path):
            message = f"preemption.progress is looked up on the nodes, and {mount.path} is in the containers only"
            on_node = PurePosixPath(mount.folder or "/PATH", progress.relative_to(normal(mount.path)))
            yield Finding(("preemption", "progress"), message, f"write {on_node}")


def in_shell(passed: Sequence[str]) -> str:
    """Write the names as words of bash; one with a launcher's prefix becomes all set variables with that prefix."""
    prefixes = {name[: name.index("_") + 1] for name in passed if name.startswith(_PREFIXES)}
    plain = [name for name in passed if not name.startswith(_PREFIXES)]
    return " ".join([*plain, *(f'"${{!{prefix}@}}"' for prefix in sorted(prefixes))])


def is_file(image: str) -> bool:
    """Return True if an image is given as the path of a file, not as a name in a registry."""
    return image.startswith(("/", "."))
