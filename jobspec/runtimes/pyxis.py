"""pyxis: srun itself starts the tasks in a container of enroot.

Source: pyxis, "Usage" (github.com/NVIDIA/pyxis/wiki/Usage), and enroot, doc/cmd/import.md.
"""

from collections.abc import Sequence

from jobspec.filters import sh
from jobspec.plan import Plan
from jobspec.runtimes import Runtime, is_file


class Pyxis(Runtime):
    wrong_image = (r".*://.*", "write REGISTRY/NAME:TAG, without docker:// before it")

    def srun_flags(self, plan: Plan, passed: Sequence[str]) -> list[str]:
        flags = [f"--container-image={_image(plan.job.image or '')}"]
        if mounts := [f"{mount.folder}{self.target(mount)}" for mount in plan.job.mounts if not mount.empty]:
            flags.append(f"--container-mounts={','.join(mounts)}")
        if any(mount.empty for mount in plan.job.mounts):
            flags.append("--container-writable")
        # If the image sets a variable too, the image's value wins unless the variable is named here (pyxis#124).
        own = [name for name in passed if not name.startswith("SLURM_")]
        return [*flags, *([f"--container-env={','.join(own)}"] if own else [])]

    def before(self, plan: Plan, passed: Sequence[str]) -> list[str]:
        # Folders of the container itself, which enroot unpacks on the node's disk and pyxis removes after the job.  The
        # tasks of a node share them, as they share the container.
        paths = [mount.path for mount in plan.job.mounts if mount.empty]
        return [f"mkdir -p {' '.join(map(sh, paths))}"] if paths else []


def _image(image: str) -> str:
    """Return an image as enroot writes it, with "#" between registry and name.

    Only a first part with a dot or a port, or localhost, is a registry; other images are on Docker Hub.
    """
    registry, slash, name = image.partition("/")
    if is_file(image) or not slash or not ("." in registry or ":" in registry or registry == "localhost"):
        return image
    return f"{registry}#{name}"
