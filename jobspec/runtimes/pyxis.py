"""pyxis: srun itself starts the tasks in a container of enroot.

Source: pyxis, "Usage" (github.com/NVIDIA/pyxis/wiki/Usage), and enroot, doc/cmd/import.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from jobspec.plan import Plan
from jobspec.runtimes import is_file
from jobspec.spec.job import Mount

PROGRAM = None  # pyxis is a plugin of srun
RUN = None


def srun_flags(plan: Plan, passed: Sequence[str]) -> list[str]:
    flags = [f"--container-image={_image(plan.job.image or '')}"]
    if plan.job.mounts:
        flags.append("--container-mounts=" + ",".join(map(_mount, plan.job.mounts)))
    # If the image sets a variable too, the image's value wins unless the variable is named here (pyxis#124).
    return [*flags, f"--container-env={','.join(passed)}"]


def before(plan: Plan, passed: Sequence[str]) -> list[str]:
    return []


def words(plan: Plan, passed: Sequence[str]) -> list[str]:
    return []


def image_problem(image: str) -> str | None:
    if "://" in image:
        return "enroot knows images by registry and name, without docker://"
    return None


def _image(image: str) -> str:
    """Return an image as enroot writes it, with "#" between registry and name.

    Only a first part with a dot or a port, or localhost, is a registry; other images are on Docker Hub.
    """
    registry, slash, name = image.partition("/")
    if is_file(image) or not slash or not ("." in registry or ":" in registry or registry == "localhost"):
        return image
    return f"{registry}#{name}"


def _mount(mount: Mount) -> str:
    return f"{mount.folder}:{mount.path}" + (":ro" if mount.read_only else "")
