"""pyxis and enroot; each node unpacks images in a folder that no other node sees."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.slurm.cluster import PYXIS, Cluster
from tests.e2e.slurm.containers import OWN, Image
from tests.e2e.slurm.user import UID


def missing() -> str | None:
    if not PYXIS.exists():
        return f"{PYXIS} not installed: github.com/NVIDIA/pyxis"
    absent = [program for program in ("enroot", "mksquashfs") if shutil.which(program) is None]
    return f"{', '.join(absent)} not installed: github.com/NVIDIA/enroot" if absent else None


@contextmanager
def ready(cluster: Cluster, root: Path, folder: Path) -> Iterator[Image]:
    (root / "etc/environment").write_text("".join(f"{name}={value}\n" for name, value in OWN.items()))
    file = folder / "image.sqsh"
    command = ["mksquashfs", str(root), str(file), "-all-root", "-no-progress"]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    node = folder / "node"
    node.mkdir()
    machines = cluster.machines.values()
    for machine in machines:
        machine.run("mount", "-t", "tmpfs", "-o", f"uid={UID},gid={UID},mode=700", "none", str(node))
    # pyxis keeps enroot's own variables of a job from enroot, but not these, on which enroot's defaults build.
    places = {f"XDG_{use}": str(node / use) for use in ("DATA_HOME", "CACHE_HOME", "RUNTIME_DIR")}
    yield Image(str(file), places, scratch=f"{node}/DATA_HOME/enroot/pyxis_{{job}}.*")
    for machine in machines:
        machine.run("umount", str(node))
