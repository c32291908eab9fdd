"""Jobs in containers, in an image made on the spot: Debian, with this machine's Python as a mount."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli import ROOT
from tests.e2e.slurm import containers
from tests.e2e.slurm.cluster import Cluster
from tests.e2e.slurm.containers import Image
from tests.e2e.slurm.specs import losses, run_on_ranks, script
from tests.e2e.slurm.user import give

pytestmark = [pytest.mark.timeout(1800), pytest.mark.slow]

# What Python's own modules are linked with, beside libc.
_LIBRARIES = "zlib1g,libffi8,libssl3,libbz2-1.0,liblzma5,libsqlite3-0,libreadline8,libuuid1,libexpat1"
_TRAIN = {"model": "mlp", "max_steps": 30, "lr": 0.1}
_SPEC = """
name: {runtime}
nodes: 2
procs_per_node: 2
device: cpu
image: {image}
train: {{{train}, run_dir: {folder}}}
mounts: [{mounts}]
env: {{PATH: '{path}', PYTHONPATH: {root}}}
resources: {{cpus: 2}}
time_limit: 20m
slurm: {{runtime: {runtime}}}
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root file system."""
    if shutil.which("debootstrap") is None:
        pytest.skip("debootstrap not installed: apt-get install debootstrap")
    folder = tmp_path_factory.mktemp("root") / "root"
    # What debootstrap mounts ends with the namespace.
    namespace = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    debootstrap = ["debootstrap", "--variant=minbase", f"--include={_LIBRARIES}", "bookworm", str(folder)]
    subprocess.run([*namespace, *debootstrap], check=True, capture_output=True, timeout=900)
    (folder / "root").chmod(0o755)  # where this Python may be
    shutil.rmtree(folder / "dev")  # images from a registry have no devices
    (folder / "dev").mkdir()
    return folder


@pytest.fixture(scope="module", params=containers.names())
def runtime(request: pytest.FixtureRequest) -> str:
    if reason := containers.load(request.param).missing():
        pytest.skip(reason)
    return str(request.param)


@pytest.fixture(scope="module")
def image(runtime: str, cluster: Cluster, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    with containers.load(runtime).ready(cluster, root, give(tmp_path_factory.mktemp(runtime))) as image:
        yield image


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_a_job_in_containers_ends_with_the_losses_of_one_without(
    launcher: str, cluster: Cluster, runtime: str, image: Image, tmp_path: Path
) -> None:
    run_on_ranks(4, _TRAIN, tmp_path / "expected")
    spec = _SPEC.format(
        runtime=runtime,
        image=image.name,
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
    job = cluster.wait_for_end(cluster.submit(text, environ=image.environ))
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


@pytest.mark.parametrize("how", ["preempted", "cancelled", "fail"])
def test_scratch_ends_with_each_start_and_not_before_the_containers_have_saved(
    how: str, cluster: Cluster, runtime: str, image: Image, tmp_path: Path
) -> None:
    if (runtime, how) == ("podman", "cancelled"):
        pytest.xfail("rootless podman ends at Slurm's own SIGTERM and leaves its container behind (docs/slurm.md)")
    (tmp_path / "keeper.py").write_text(_KEEPER)
    sources = [*_python_and_its_packages(), tmp_path]
    spec = _SPEC.format(
        runtime=runtime,
        image=image.name,
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
    job = cluster.submit(script(cluster, "\n".join([*lines, *more]), "slurm.launcher=srun"), environ=image.environ)

    def said(start: int) -> str:
        log = cluster.folder / f"{runtime}-{job}-r{start}.log"
        return log.read_text() if log.exists() else ""

    def folders() -> str:
        pattern = image.scratch.format(job=job)
        return "".join(
            machine.run("bash", "-c", f"compgen -G {pattern} || true") for machine in cluster.machines.values()
        )

    if how != "fail":
        cluster.wait_for("all wrote", lambda: said(0).count("wrote") == 4)
        assert folders()
    if how == "preempted":
        cluster.command("scancel", "--batch", "--signal=USR1", job)
        cluster.wait_for("back", lambda: cluster.job(job).restarts == 1 or cluster.job(job).state == "FAILED")
        assert said(0).count("at the end ['one']") == 4, cluster.logs()
        cluster.wait_for("no folder left", lambda: not folders())
        cluster.command("scancel", job)
    elif how == "cancelled":
        cluster.command("scancel", job)
        assert cluster.wait_for_end(job).state == "CANCELLED", cluster.logs()
        assert said(0).count("at the end ['one']") == 4, cluster.logs()
        cluster.wait_for("no folder left", lambda: not folders())
    else:
        assert cluster.wait_for_end(job).state == "FAILED", cluster.logs()
        assert "found []" in said(0), cluster.logs()
        cluster.wait_for("no folder left", lambda: not folders())


def _python_and_its_packages() -> list[Path]:
    """Folders without which this Python does not run, none within another."""
    folders = {Path(sys.prefix).resolve(), Path(sys.prefix), Path(sys.base_prefix), ROOT}
    return sorted(folder for folder in folders if not folders & set(folder.parents))
