"""One cluster for all tests of this folder, and the jobs that they submit."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.go_modules import CannotBuildError
from tests.e2e.slurm import long_job, releases
from tests.e2e.slurm.cluster import Cluster
from tests.e2e.slurm.specs import run_on_ranks
from tests.e2e.slurm.user import give

# n10 is behind n2 in the order of numbers, which is Slurm's, and before it in the order of text, which is c10d's.
NODES = ["n2", "n10", "n11"]

Start = Callable[..., str]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: not in `make e2e-slurm QUICK=1`")


# The Slurm of this machine's own Debian, of trixie (24.11) and of forky (26.05).
_OLDER = [pytest.param(release, marks=pytest.mark.slow) for release in ("here", "trixie")]


@pytest.fixture(scope="session", params=[*_OLDER, "forky"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    try:
        release = releases.find(request.param)
    except CannotBuildError as reason:
        pytest.skip(f"no Slurm of {request.param}: {reason}")
    base = tmp_path_factory.getbasetemp()
    base.chmod(0o711)  # pytest closes it to all but its own user
    with Cluster(tmp_path_factory.mktemp("slurm"), NODES, opened=[base], release=release) as running:
        yield running


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """A folder of the user who submits the jobs, which write there."""
    return give(tmp_path)


@pytest.fixture
def nodes(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, for a test that breaks nodes: they are whole again after it."""
    yield cluster
    cluster.repair()


@pytest.fixture
def start(nodes: Cluster, tmp_path: Path) -> Start:
    """`start(keys, settings=…)`: submit the long job and wait until it trains and has saved; its number."""

    def submit(keys: str = long_job.PREEMPTION, settings: tuple[str, ...] = ()) -> str:
        number = nodes.submit(long_job.rendered(nodes, tmp_path, keys, *settings))
        nodes.wait_for_line(number, f"fault-{number}.log", "epoch 1/")
        saved = (tmp_path / "checkpoints").glob
        nodes.wait_for("the first checkpoint", lambda: any(saved("step-*/manifest.json")))
        return number

    return submit


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The last record of the long job without a fault, and without Slurm."""
    return run_on_ranks(2, long_job.TRAIN, tmp_path_factory.mktemp("undisturbed"))
