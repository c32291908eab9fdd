"""Runtimes of containers as a cluster has them: one file each, with the value of `slurm.runtime` as its name."""

import importlib
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, cast

from tests.e2e.slurm.cluster import Cluster
from tests.e2e.slurm.machine import Machine
from tests.e2e.slurm.user import UID

OWN = {"SET_BY": "the image"}
"""Variables that each image sets."""

OWN_IN_OCI = [f'--change=ENV {name}="{value}"' for name, value in OWN.items()]
"""These variables as flags of `import`, of docker and of podman."""

OF_THE_USER = f"uid={UID},gid={UID},mode=700"
"""Options of a tmpfs that belongs to the user who submits the jobs."""


@dataclass(frozen=True)
class Image:
    """An image that all nodes have.

    `environ` are the variables with which the runtime finds it, in the shell that submits the job.  `scratch` is the
    pattern of the folders that hold the `scratch` mounts of a job.
    """

    name: str
    environ: Mapping[str, str] = field(default_factory=dict)
    scratch: str = "/tmp/scratch-{job}.*"


class Runtime(Protocol):
    """The interface of a file in this folder."""

    def missing(self) -> str | None:
        """Why the runtime cannot be used here, or None."""

    def ready(self, cluster: Cluster, root: Path, folder: Path) -> AbstractContextManager[Image]:
        """Make an image of a root file system known to all nodes; `folder` holds what the runtime keeps."""


def names() -> list[str]:
    return sorted(file.stem for file in Path(__file__).parent.glob("*.py") if not file.stem.startswith("_"))


def load(name: str) -> Runtime:
    return cast(Runtime, importlib.import_module(f"{__name__}.{name}"))


def absent(programs: Iterable[str], remedy: str) -> str | None:
    """Why a runtime that needs these programs cannot be used here, or None."""
    missing = [program for program in programs if shutil.which(program) is None]
    return f"{', '.join(missing)} not installed: {remedy}" if missing else None


@contextmanager
def tmpfs_on_each(machines: Iterable[Machine], folder: Path, options: str, *lazily: str) -> Iterator[None]:
    """Give each machine a content of the folder that no other machine sees."""
    for machine in machines:
        machine.run("mount", "-t", "tmpfs", "-o", options, "none", str(folder))
    yield
    for machine in machines:
        machine.run("umount", *lazily, str(folder))
