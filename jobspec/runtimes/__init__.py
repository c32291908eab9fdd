"""What runs the image on a Slurm node: one file each here; the file's name is the value of `slurm.runtime`.

A task of Slurm is a shell that sets the variables of its process and then ends in the runtime's command.  The program
and its variables reach the container as text in the variable JOB_PROGRAM, which the runtime lets in.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, cast

from jobspec.plan import Plan
from jobspec.problems import Finding
from jobspec.spec.job import Job
from jobspec.spec.rules import missing_image

_PREFIXES = ("MASTER_", "PET_", "SLURM_")


class Runtime(Protocol):
    """What a file in this folder defines.

    Below, `passed` are names of variables that the processes must see as the task's shell has them.
    """

    @property
    def PROGRAM(self) -> str | None:
        """The runtime's own program, which each node must have, if there is one."""

    @property
    def RUN(self) -> str | None:
        """The command that starts a container; None where the task's shell is already where the processes run."""

    def srun_flags(self, plan: Plan, passed: Sequence[str]) -> list[str]:
        """Flags of the srun that starts the tasks."""

    def before(self, plan: Plan, passed: Sequence[str]) -> list[str]:
        """Lines of a task's shell before the command, with no value of the spec; they may fill "$@"."""

    def words(self, plan: Plan, passed: Sequence[str]) -> list[str]:
        """What stands between RUN with "$@" and the command in the container."""

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
        if mount.source is None and mount.volume is not None:
            message = f"mounts[{number}].{mount.volume}: Slurm has no volumes; its nodes have folders"
            yield Finding(
                ("mounts", number, mount.volume), message, "add source, the folder on every node, to this mount"
            )


def in_shell(passed: Sequence[str]) -> str:
    """The same names as words of bash, all those with the launchers' prefixes among them that are set."""
    prefixes = {name[: name.index("_") + 1] for name in passed if name.startswith(_PREFIXES)}
    plain = [name for name in passed if not name.startswith(_PREFIXES)]
    return " ".join([*plain, *(f'"${{!{prefix}@}}"' for prefix in sorted(prefixes))])


def is_file(image: str) -> bool:
    """Whether an image is given as the path of a file, not as a name in a registry."""
    return image.startswith(("/", "."))
