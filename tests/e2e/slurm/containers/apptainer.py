"""apptainer, installed without setuid; the nodes share the image, a .sif file."""

import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.slurm.cluster import Cluster
from tests.e2e.slurm.containers import OWN, Image, absent

_FUSE = Path("/dev/fuse")


def missing() -> str | None:
    return absent(["apptainer"], "apptainer.org/docs/admin/main")


@contextmanager
def ready(cluster: Cluster, root: Path, folder: Path) -> Iterator[Image]:
    variables = root / ".singularity.d/env/90-environment.sh"
    variables.parent.mkdir(parents=True)
    variables.write_text("".join(f"export {name}={shlex.quote(value)}\n" for name, value in OWN.items()))
    file = folder / "image.sif"
    subprocess.run(["apptainer", "build", str(file), str(root)], check=True, capture_output=True)
    machines = cluster.machines.values()
    if _FUSE.exists():  # users mount a .sif file with it; as on a cluster, every user may open it
        device = folder / "fuse"
        os.mknod(device, 0o666 | 0o020000, _FUSE.stat().st_rdev)
        device.chmod(0o666)
        for machine in machines:
            machine.run("mount", "--bind", str(device), str(_FUSE))
    yield Image(str(file))
    for machine in machines if _FUSE.exists() else ():
        machine.run("umount", str(_FUSE))
