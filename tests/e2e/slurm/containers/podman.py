"""podman, rootless; all its files are in the folder and on the nodes."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.slurm.cluster import Cluster
from tests.e2e.slurm.containers import OWN, Image
from tests.e2e.slurm.user import UID

_PROGRAMS = ("podman", "crun", "catatonit", "newuidmap")
_IMAGE = "localhost/e2e:1"
_STORAGE = """\
[storage]
driver = "overlay"
graphroot = "{folder}/images"
rootless_storage_path = "{folder}/images"
runroot = "{folder}/node/run"
"""
# Nothing of podman outside of the folder and the nodes: no groups of processes (systemd, which would make them, does
# not run on a node of the tests), and locks in files, not in /dev/shm.  Nobody in a container of CI may raise limits.
_CONTAINERS = """\
[containers]
cgroups = "disabled"
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "crun"
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
tmp_dir = "{folder}/node/tmp"
"""


def missing() -> str | None:
    absent = [program for program in _PROGRAMS if shutil.which(program) is None]
    return f"{', '.join(absent)} not installed: apt-get install podman crun catatonit uidmap" if absent else None


@contextmanager
def ready(cluster: Cluster, root: Path, folder: Path) -> Iterator[Image]:
    with tarfile.open(folder / "root.tar", "w") as archive:
        archive.add(root, ".")
    (folder / "storage.conf").write_text(_STORAGE.format(folder=folder))
    (folder / "containers.conf").write_text(_CONTAINERS.format(folder=folder))
    own = {
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        "CONTAINERS_CONF": str(folder / "containers.conf"),
    }
    (folder / "node").mkdir()
    queues = Path("/dev/mqueue")  # that of the host is mounted in containers, but a container of CI may have none
    made = not queues.exists()
    queues.mkdir(exist_ok=True)
    machines = [cluster.control, *cluster.machines.values()]
    for machine in machines:
        # crun refuses to look at a mixture of the two generations of control groups, even to make none.
        machine.run("mount", "-t", "tmpfs", "none", "/sys/fs/cgroup")
        # As /run is: what podman keeps there names processes of this node.
        machine.run("mount", "-t", "tmpfs", "-o", f"uid={UID},gid={UID},mode=700", "none", str(folder / "node"))
    changes = [f"--change=ENV {name}={value!r}" for name, value in OWN.items()]
    podman = ["podman", "import", "--quiet", *changes, str(folder / "root.tar"), _IMAGE]
    cluster.command(*podman, environ=own, timeout_s=600.0)
    yield Image(_IMAGE, own)
    for machine in machines:
        assert machine.run("ls", "/sys/fs/cgroup") == "", "podman made groups"
        machine.run("umount", "/sys/fs/cgroup")
        machine.run("umount", "--lazy", str(folder / "node"))  # a process of podman stays, which holds its namespace
    if made:
        queues.rmdir()
    assert str(folder) not in Path("/proc/self/mountinfo").read_text(), "podman left a mount"
