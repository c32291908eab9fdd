"""Jobs in containers of podman, in an image made on the spot: Debian, with this machine's Python as a mount."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli import ROOT
from tests.e2e.slurm.cluster import Cluster
from tests.e2e.slurm.specs import losses, run_on_ranks, script

pytestmark = [pytest.mark.timeout(1800), pytest.mark.slow]

_PROGRAMS = ("podman", "crun", "catatonit", "debootstrap")
_IMAGE = "localhost/e2e:1"
# What Python's own modules are linked with, beside libc.
_LIBRARIES = "zlib1g,libffi8,libssl3,libbz2-1.0,liblzma5,libsqlite3-0,libreadline8,libuuid1,libexpat1"
_STORAGE = """\
[storage]
driver = "overlay"
graphroot = "{folder}/images"
runroot = "{folder}/run"
"""
# Nothing of podman outside of the folder and the nodes: no groups of processes (systemd, which would make them, does
# not run on a node of the tests), and locks in files, not in /dev/shm.  Root in a container of CI may not raise limits.
_CONTAINERS = """\
[containers]
cgroups = "disabled"
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "crun"
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
tmp_dir = "{folder}/tmp"
"""
_TRAIN = {"model": "mlp", "max_steps": 30, "lr": 0.1}
_SPEC = """
name: podman
nodes: 2
procs_per_node: 2
device: cpu
image: {image}
train: {{{train}, run_dir: {folder}}}
mounts: [{mounts}]
env: {{PATH: '{path}', PYTHONPATH: {root}}}
resources: {{cpus: 2}}
time_limit: 20m
slurm: {{runtime: podman}}
"""


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> Iterator[dict[str, str]]:
    """Variables with which podman finds its image; all its files lie in a folder of the test's own."""
    if absent := [program for program in _PROGRAMS if shutil.which(program) is None]:
        pytest.skip(f"{', '.join(absent)} not installed: apt-get install {' '.join(_PROGRAMS)}")
    folder = tmp_path_factory.mktemp("podman")
    base = folder / "base"
    # What debootstrap mounts ends with the namespace.
    namespace = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    debootstrap = ["debootstrap", "--variant=minbase", f"--include={_LIBRARIES}", "bookworm", str(base)]
    subprocess.run([*namespace, *debootstrap], check=True, capture_output=True, timeout=900)
    with tarfile.open(folder / "base.tar", "w") as archive:
        archive.add(base, ".")
    shutil.rmtree(base)
    (folder / "storage.conf").write_text(_STORAGE.format(folder=folder))
    (folder / "containers.conf").write_text(_CONTAINERS.format(folder=folder))
    own = {
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        "CONTAINERS_CONF": str(folder / "containers.conf"),
    }
    command = ["unshare", "--mount", "podman", "import", "--quiet", str(folder / "base.tar"), _IMAGE]
    subprocess.run(command, env={**os.environ, **own}, check=True, capture_output=True, timeout=600)
    for machine in cluster.machines.values():
        # crun refuses to look at a mixture of the two generations of control groups, even to make none.
        machine.run("mount", "-t", "tmpfs", "none", "/sys/fs/cgroup")
    yield own
    for machine in cluster.machines.values():
        assert machine.run("ls", "/sys/fs/cgroup") == "", "podman made groups"
        machine.run("umount", "/sys/fs/cgroup")
    assert str(folder) not in Path("/proc/self/mountinfo").read_text(), "podman left a mount"


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_a_job_in_containers_ends_with_the_losses_of_one_without(
    launcher: str, cluster: Cluster, podman: dict[str, str], tmp_path: Path
) -> None:
    run_on_ranks(4, _TRAIN, tmp_path / "expected")
    spec = _SPEC.format(
        image=_IMAGE,
        train=", ".join(f"{key}: {value}" for key, value in _TRAIN.items()),
        folder=tmp_path / "run",
        mounts=", ".join(
            [f"{{source: {path}, path: {path}, read_only: true}}" for path in _python_and_its_packages()]
            + [f"{{source: {tmp_path}, path: {tmp_path}}}"]
        ),
        path=f"{Path(sys.executable).parent}:/usr/bin:/bin",
        root=ROOT,
    )
    text = script(cluster, spec, f"slurm.launcher={launcher}")
    job = cluster.wait_for_end(cluster.submit(text, environ=podman))
    assert job.state == "COMPLETED", cluster.logs()
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "expected"), rel=1e-4)


def _python_and_its_packages() -> list[Path]:
    """Folders without which this Python does not run, none within another."""
    folders = {Path(sys.prefix).resolve(), Path(sys.prefix), Path(sys.base_prefix), ROOT}
    return sorted(folder for folder in folders if not folders & set(folder.parents))
