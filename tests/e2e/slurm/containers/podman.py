"""podman, rootless; all its files are in the folder and on the nodes."""

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.slurm.cluster import Cluster
from tests.e2e.slurm.containers import OF_THE_USER, OWN_IN_OCI, Image, absent, tmpfs_on_each

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
    return absent(_PROGRAMS, "apt-get install podman crun catatonit uidmap")


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
    node, groups = folder / "node", Path("/sys/fs/cgroup")
    node.mkdir()
    machines = [cluster.control, *cluster.machines.values()]
    with (
        _queues(),
        # crun refuses to look at a mixture of the two generations of control groups, even to make none.
        tmpfs_on_each(machines, groups, "mode=755"),
        # As /run is: what podman keeps there names processes of this node.  One of them stays, and holds its namespace.
        tmpfs_on_each(machines, node, OF_THE_USER, "--lazy"),
    ):
        podman = ["podman", "import", "--quiet", *OWN_IN_OCI, str(folder / "root.tar"), _IMAGE]
        cluster.command(*podman, environ=own)
        yield Image(_IMAGE, own)
        for machine in machines:
            assert machine.run("ls", str(groups)) == "", "podman made groups"
    assert str(folder) not in Path("/proc/self/mountinfo").read_text(), "podman left a mount"


@contextmanager
def _queues() -> Iterator[None]:
    """podman mounts the host's message queues in containers, but a container of CI may have none."""
    queues = Path("/dev/mqueue")
    if queues.exists():
        yield
        return
    queues.mkdir()
    try:
        yield
    finally:
        queues.rmdir()
