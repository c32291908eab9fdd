"""Jobs in containers of podman, in an image made on the spot: Debian, with this machine's Python as a mount."""

from __future__ import annotations

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
from tests.e2e.slurm.user import UID, give

pytestmark = [pytest.mark.timeout(1800), pytest.mark.slow]

_PROGRAMS = ("podman", "crun", "catatonit", "debootstrap", "newuidmap")
_PACKAGES = "podman crun catatonit debootstrap uidmap"
_IMAGE = "localhost/e2e:1"
# What Python's own modules are linked with, beside libc.
_LIBRARIES = "zlib1g,libffi8,libssl3,libbz2-1.0,liblzma5,libsqlite3-0,libreadline8,libuuid1,libexpat1"
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
def podman(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, cluster: Cluster
) -> Iterator[dict[str, str]]:
    """Variables with which podman finds its image; all its files lie in a folder of the test's own."""
    if absent := [program for program in _PROGRAMS if shutil.which(program) is None]:
        pytest.skip(f"{', '.join(absent)} not installed: apt-get install {_PACKAGES}")
    folder = tmp_path_factory.mktemp("podman")
    base = folder / "base"
    # What debootstrap mounts ends with the namespace.
    namespace = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    debootstrap = ["debootstrap", "--variant=minbase", f"--include={_LIBRARIES}", "bookworm", str(base)]
    subprocess.run([*namespace, *debootstrap], check=True, capture_output=True, timeout=900)
    (base / "root").chmod(0o755)  # where this Python may be
    with tarfile.open(folder / "base.tar", "w") as archive:
        archive.add(base, ".")
    shutil.rmtree(base)
    (folder / "storage.conf").write_text(_STORAGE.format(folder=folder))
    (folder / "containers.conf").write_text(_CONTAINERS.format(folder=folder))
    own = {
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        "CONTAINERS_CONF": str(folder / "containers.conf"),
    }
    (folder / "node").mkdir()
    give(folder)
    queues = Path("/dev/mqueue")  # that of the host is mounted in containers, but a container of CI may have none
    if not queues.exists():
        queues.mkdir()
        request.addfinalizer(queues.rmdir)
    machines = [cluster.control, *cluster.machines.values()]
    for machine in machines:
        # crun refuses to look at a mixture of the two generations of control groups, even to make none.
        machine.run("mount", "-t", "tmpfs", "none", "/sys/fs/cgroup")
        # As /run is: what podman keeps there names processes of this node.
        machine.run("mount", "-t", "tmpfs", "-o", f"uid={UID},gid={UID},mode=700", "none", str(folder / "node"))
    command = ["podman", "import", "--quiet", str(folder / "base.tar"), _IMAGE]
    cluster.command(*command, environ=own, timeout_s=600.0)
    yield own
    for machine in machines:
        assert machine.run("ls", "/sys/fs/cgroup") == "", "podman made groups"
        machine.run("umount", "/sys/fs/cgroup")
        machine.run("umount", "--lazy", str(folder / "node"))  # a process of podman stays, which holds its namespace
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


# Says which files it finds, writes one, and stays until a signal, at which it says whether its file is still there.
_KEEPER = """
import os, signal, sys
print("found", os.listdir("/cache"), flush=True)
open("/cache/one", "w").close()
def stop(*_):
    print("at the end", os.listdir("/cache"), flush=True)
    sys.exit(3)
signal.signal(signal.SIGTERM, stop)
print("wrote", flush=True)
if sys.argv[1] == "fail" and os.environ["RANK"] == "0":
    sys.exit(7)
signal.pause()
"""


@pytest.mark.parametrize("how", ["preempted", "fail"])
def test_scratch_ends_with_each_start_and_not_before_the_containers_have_saved(
    how: str, cluster: Cluster, podman: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "keeper.py").write_text(_KEEPER)
    sources = [*_python_and_its_packages(), tmp_path]
    spec = _SPEC.format(
        image=_IMAGE,
        train="model: mlp",
        folder=tmp_path,
        mounts=", ".join([f"{{source: {path}, path: {path}}}" for path in sources] + ["{scratch: 1MiB, path: /cache}"]),
        path=f"{Path(sys.executable).parent}:/usr/bin:/bin",
        root=ROOT,
    )
    lines = [line for line in spec.splitlines() if not line.startswith("train:")]
    more = [
        f"command: [{tmp_path / 'keeper.py'}, {how}]",
        *(["preemption: {grace: 60s}"] if how == "preempted" else []),
    ]
    job = cluster.submit(script(cluster, "\n".join([*lines, *more]), "slurm.launcher=srun"), environ=podman)

    def said(start: int) -> str:
        log = cluster.folder / f"podman-{job}-r{start}.log"
        return log.read_text() if log.exists() else ""

    def folders() -> list[Path]:
        return list(Path("/tmp").glob(f"scratch-{job}.*"))

    if how == "preempted":
        cluster.wait_for("all wrote", lambda: said(0).count("wrote") == 4)
        assert len(folders()) == 4
        cluster.command("scancel", "--batch", "--signal=USR1", job)
        cluster.wait_for("back", lambda: cluster.job(job).restarts == 1 or cluster.job(job).state == "FAILED")
        assert said(0).count("at the end ['one']") == 4, cluster.logs()
        cluster.wait_for("no folder left", lambda: not folders())
        cluster.command("scancel", job)
    else:
        assert cluster.wait_for_end(job).state == "FAILED", cluster.logs()
        assert "found []" in said(0), cluster.logs()
        cluster.wait_for("no folder left", lambda: not folders())


def _python_and_its_packages() -> list[Path]:
    """Folders without which this Python does not run, none within another."""
    folders = {Path(sys.prefix).resolve(), Path(sys.prefix), Path(sys.base_prefix), ROOT}
    return sorted(folder for folder in folders if not folders & set(folder.parents))
