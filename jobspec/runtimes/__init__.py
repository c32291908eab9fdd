"""What runs the image on a Slurm node: one file each here; the file's name is the value of `slurm.runtime`.

A task of Slurm is a shell that sets the variables of its process and then ends in the runtime's command.  The
plan's own words reach that command as "$@", so that no shell reads them twice.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, cast

from jobspec.plan import Plan
from jobspec.problems import Finding
from jobspec.rules import missing_image
from jobspec.spec import Job


class Runtime(Protocol):
    """What a file in this folder defines."""

    def srun_flags(self, plan: Plan, passed: Sequence[str]) -> list[str]:
        """Flags of the srun that starts the tasks.

        Here and below `passed` are names of variables that the processes must see as the task's shell has them.
        """

    def words(self, plan: Plan, passed: Sequence[str]) -> list[str]:
        """What comes before the program in the "$@" of a task's shell."""

    def start(self, plan: Plan, passed: Sequence[str]) -> list[str]:
        """The last lines of a task's shell, which run "$@"; POSIX, with no single quote and no value of the spec."""

    def image_problem(self, image: str) -> str | None:
        """Why this runtime cannot run an image of this name, or None."""


def names() -> list[str]:
    """All runtimes, sorted."""
    return sorted(file.stem for file in Path(__file__).parent.glob("*.py") if not file.stem.startswith("_"))


def load(name: str) -> Runtime:
    """The runtime of a name from `names()`."""
    return cast(Runtime, importlib.import_module(f"{__name__}.{name}"))


def problems(job: Job) -> Iterable[Finding]:
    """Why the job's runtime cannot run its image and mounts; without a container there is nothing to run."""
    runtime = job.slurm.runtime
    if runtime == "none":
        return
    if job.image is None:
        yield missing_image(f"slurm.runtime {runtime}", ("slurm", "runtime"))
    elif problem := load(runtime).image_problem(job.image):
        yield Finding(("image",), f'slurm.runtime {runtime} cannot run image "{job.image}": {problem}')
    for number, mount in enumerate(job.mounts):
        if mount.claim is not None:
            message = f"mounts[{number}].claim: Slurm has no claims; its nodes have folders"
            yield Finding(("mounts", number, "claim"), message, "source: the folder on every node")


def is_file(image: str) -> bool:
    """Whether an image is given as the path of a file, not as a name in a registry."""
    return image.startswith(("/", "."))
