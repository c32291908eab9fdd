"""pyxis and enroot; each node unpacks images in a folder that no other node sees."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.slurm.cluster import PYXIS, Cluster
from tests.e2e.slurm.containers import OF_THE_USER, OWN, Image, absent, tmpfs_on_each


def missing() -> str | None:
    if not PYXIS.exists():
        return f"{PYXIS} not installed: github.com/NVIDIA/pyxis"
    return absent(["enroot", "mksquashfs"], "github.com/NVIDIA/enroot")


@contextmanager
def ready(cluster: Cluster, root: Path, folder: Path) -> Iterator[Image]:
    (root / "etc/environment").write_text("".join(f"{name}={value}\n" for name, value in OWN.items()))
    file = folder / "image.sqsh"
    command = ["mksquashfs", str(root), str(file), "-all-root", "-no-progress"]
    subprocess.run(command, check=True, capture_output=True)
    node = folder / "node"
    node.mkdir()
    # pyxis keeps enroot's own variables of a job from enroot, but not these, on which enroot's defaults build.
    places = {f"XDG_{use}": str(node / use) for use in ("DATA_HOME", "CACHE_HOME", "RUNTIME_DIR")}
    with tmpfs_on_each(cluster.machines.values(), node, OF_THE_USER):
        yield Image(str(file), places, scratch=f"{node}/DATA_HOME/enroot/pyxis_{{job}}.*")
