"""Runtimes of containers as a cluster has them: one file each, with the value of `slurm.runtime` as its name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, cast

from tests.e2e.slurm.cluster import Cluster

OWN = {"SET_BY": "the image"}
"""Variables that each image sets."""


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
