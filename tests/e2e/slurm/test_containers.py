"""Jobs in containers, in an image made on the spot: Debian, with this machine's Python as a mount."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobspec import filters
from tests import hostile
from tests.cli import ROOT
from tests.e2e.slurm import containers
from tests.e2e.slurm.cluster import Cluster
from tests.e2e.slurm.containers import Image
from tests.e2e.slurm.machine import HERE
from tests.e2e.slurm.specs import losses, run_on_ranks, script
from tests.e2e.slurm.user import give

pytestmark = [pytest.mark.timeout(1800), pytest.mark.slow]

# What Python's own modules are linked with, beside libc.
_LIBRARIES = "zlib1g,libffi8,libssl3,libbz2-1.0,liblzma5,libsqlite3-0,libreadline8,libuuid1,libexpat1"
_TRAIN = {"model": "mlp", "max_steps": 30, "lr": 0.1}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root file system."""
    if shutil.which("debootstrap") is None:
        pytest.skip("debootstrap not installed: apt-get install debootstrap")
    folder = tmp_path_factory.mktemp("root") / "root"
    # What debootstrap mounts ends with the namespace.
    namespace = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    debootstrap = ["debootstrap", "--variant=minbase", f"--include={_LIBRARIES}", "bookworm", str(folder)]
    subprocess.run([*namespace, *debootstrap], check=True, capture_output=True)
    (folder / "root").chmod(0o755)  # where this Python may be
    shutil.rmtree(folder / "dev")  # images from a registry have no devices
    (folder / "dev").mkdir()
    return folder


@pytest.fixture(scope="module", params=containers.names())
def runtime(request: pytest.FixtureRequest, cluster: Cluster) -> str:
    if cluster.release != HERE:
        pytest.skip("the container runtimes are this machine's; they run under its own Slurm")
    if reason := containers.load(request.param).missing():
        pytest.skip(reason)
    return str(request.param)


@pytest.fixture(scope="module")
def image(runtime: str, cluster: Cluster, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    with containers.load(runtime).ready(cluster, root, give(tmp_path_factory.mktemp(runtime))) as image:
        yield image


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of the same training without containers and without Slurm."""
    folder = tmp_path_factory.mktemp("expected")
    run_on_ranks(4, _TRAIN, folder)
    return losses(folder)


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_a_job_in_containers_ends_with_the_losses_of_one_without(
    launcher: str, cluster: Cluster, runtime: str, image: Image, expected: list[float], tmp_path: Path
) -> None:
    keys = {"train": _TRAIN | {"run_dir": str(tmp_path / "run")}}
    job = cluster.wait_for_end(_submit(cluster, runtime, image, tmp_path, keys, launcher))
    assert job.state == "COMPLETED", cluster.logs()
    assert losses(tmp_path / "run") == pytest.approx(expected, rel=1e-4)


_WRITE_WHAT_ARRIVED = """
import json, os, pathlib, sys
pathlib.Path(__file__).with_name(os.environ["RANK"]).write_text(json.dumps([sys.argv[1:], dict(os.environ)]))
"""


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_hostile_values_arrive_in_containers_and_win_over_those_of_the_image(
    launcher: str, cluster: Cluster, runtime: str, image: Image, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(_WRITE_WHAT_ARRIVED)
    values = {f"TEXT_{number}": text for number, text in enumerate(hostile.ARGUMENTS)}
    values |= dict.fromkeys(containers.OWN, "the spec")
    keys = {"command": [str(tmp_path / "mine.py"), *hostile.ARGUMENTS], "env": values}
    job = cluster.wait_for_end(_submit(cluster, runtime, image, tmp_path, keys, launcher))
    assert job.state == "COMPLETED", cluster.logs()
    for rank in range(4):
        arguments, environment = json.loads((tmp_path / str(rank)).read_text())
        assert arguments == hostile.ARGUMENTS
        assert {name: environment.get(name) for name in values} == values
    assert not [*cluster.folder.rglob(hostile.CANARY), *tmp_path.rglob(hostile.CANARY)]


# Says which files it finds, writes one, and stays until a signal, at which it says whether its file is still there.
# The signal may come twice: from Slurm, which reaches all processes of a step, and from apptainer, which passes it on.
_KEEPER = """
import os, signal, sys
print("found", os.listdir("/cache"), flush=True)
open("/cache/one", "w").close()
stopped = []
def stop(*_):
    if not stopped:
        stopped.append(True)
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
    how: str, cluster: Cluster, runtime: str, image: Image, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if (runtime, how) == ("podman", "cancelled"):
        pytest.skip("rootless podman mostly ends at Slurm's own SIGTERM and leaves its container (docs/slurm.md)")
    (tmp_path / "keeper.py").write_text(_KEEPER)
    keys = {"command": [str(tmp_path / "keeper.py"), how], "mounts": [{"scratch": "1MiB", "path": "/cache"}]}
    if how == "preempted":
        keys["preemption"] = {"grace": "60s"}
    job = _submit(cluster, runtime, image, tmp_path, keys, "srun")

    def said() -> str:
        log = cluster.folder / f"{runtime}-{job}.log"
        return log.read_text() if log.exists() else ""

    def folders() -> str:
        pattern = image.scratch.format(job=job)
        return "".join(
            machine.run("bash", "-c", f"compgen -G {pattern} || true") for machine in cluster.machines.values()
        )

    @request.addfinalizer
    def remove_what_stays_after_scancel() -> None:  # docs/slurm.md
        cluster.command("scancel", job)
        cluster.wait_for_end(job)
        for machine in cluster.machines.values():
            machine.run("bash", "-c", f"rm -rf {image.scratch.format(job=job)}")

    if how == "fail":
        assert cluster.wait_for_end(job).state == "FAILED", cluster.logs()
        assert "found []" in said(), cluster.logs()
        cluster.wait_for("no folder left", lambda: not folders())
        return
    cluster.wait_for("all wrote", lambda: said().count("wrote") == 4)
    assert folders()
    if how == "preempted":
        cluster.command("scancel", "--batch", "--signal=USR1", job)
        cluster.wait_for("back", lambda: cluster.job(job).restarts == 1 or cluster.job(job).state == "FAILED")
    else:
        cluster.command("scancel", job)
        assert cluster.wait_for_end(job).state == "CANCELLED", cluster.logs()
    assert said().count("at the end ['one']") == 4, cluster.logs()
    if how == "preempted" or runtime == "pyxis":
        cluster.wait_for("no folder left", lambda: not folders())


def test_a_training_in_containers_saves_at_each_signal_and_resumes_at_the_same_step(
    cluster: Cluster, runtime: str, image: Image, tmp_path: Path
) -> None:
    places = {"run_dir": str(tmp_path / "run"), "checkpoint_dir": str(tmp_path / "checkpoints")}
    train = _TRAIN | places | {"max_steps": 10**6, "epochs": 10**4, "resume": "auto"}
    job = _submit(cluster, runtime, image, tmp_path, {"train": train, "preemption": {"grace": "60s"}}, "torchrun")

    log = cluster.folder / f"{runtime}-{job}.log"

    def saved_step(start: int) -> str:
        step = re.findall(r"stopped by a signal at epoch \d+, step (\d+); saved", log.read_text())[start]
        return f"{tmp_path}/checkpoints/step-{int(step):08d}"

    cluster.wait_for_line(job, log.name, "epoch 1/")
    cluster.command("scancel", "--batch", "--signal=USR1", job)
    cluster.wait_for("a step", lambda: "epoch " in log.read_text().partition(f"resume: {tmp_path}")[2])
    assert f"resume: {saved_step(0)}\n" in log.read_text()
    cluster.command("scancel", job)
    assert cluster.wait_for_end(job).state == "CANCELLED", cluster.logs()
    if runtime != "podman":  # docs/slurm.md
        assert Path(saved_step(1)).is_dir()


_DEAF = """
import os, pathlib, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(__file__).with_name("here-" + os.environ["RANK"]).touch()
while True:
    signal.pause()
"""


@pytest.mark.parametrize("runtime", ["docker"], indirect=True)
def test_a_container_that_docker_leaves_behind_is_found_by_the_number_of_the_job(
    cluster: Cluster, runtime: str, image: Image, tmp_path: Path
) -> None:
    (tmp_path / "deaf.py").write_text(_DEAF)
    keys = {"command": [str(tmp_path / "deaf.py")], "nodes": 1}
    job = _submit(cluster, runtime, image, tmp_path, keys, "srun")
    cluster.wait_for("two processes", lambda: len([*tmp_path.glob("here-*")]) == 2)
    cluster.command("scancel", job)
    assert cluster.wait_for_end(job).state == "CANCELLED", cluster.logs()
    docker = f"docker --host={image.environ['DOCKER_HOST']}"
    remove = f"{docker} ps --quiet --filter name=slurm-{job}. | xargs --no-run-if-empty {docker} rm --force"  # docs
    left = [machine.run("sh", "-c", remove) for machine in cluster.machines.values()]
    assert len("".join(left).split()) == 2, cluster.logs()  # one a process


def _submit(cluster: Cluster, runtime: str, image: Image, folder: Path, keys: dict[str, Any], launcher: str) -> str:
    """The number of a job of two nodes in containers, with this Python and with `folder` as mounts."""
    sources = [*_python_and_its_packages(), folder]
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    spec = {
        "name": runtime,
        "nodes": 2,
        "procs_per_node": 2,
        "device": "cpu",
        "image": image.name,
        "resources": {"cpus": 2},
        "time_limit": "20m",
        "slurm": {"runtime": runtime, "launcher": launcher},
        **keys,
        "env": {"PATH": path, "PYTHONPATH": str(ROOT), **keys.get("env", {})},
        "mounts": [*({"source": str(source), "path": str(source)} for source in sources), *keys.get("mounts", [])],
    }
    return cluster.submit(script(cluster, filters.yaml(spec)), environ=image.environ)


def _python_and_its_packages() -> list[Path]:
    """Folders without which this Python does not run, none within another."""
    folders = {Path(sys.prefix).resolve(), Path(sys.prefix), Path(sys.base_prefix), ROOT}
    return sorted(folder for folder in folders if not folders & set(folder.parents))
