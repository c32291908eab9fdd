"""A Slurm of stand-ins for tests that change it, and machines that are reached over ssh."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import ssh
from tests.e2e.slurm.user import give
from tests.slurm import Cluster
from tests.ssh_script import Nodes


@pytest.fixture
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The path of a file that holds the SPEC of the test's module."""
    (tmp_path / "job.yaml").write_text(request.module.SPEC)
    return str(tmp_path / "job.yaml")


@pytest.fixture
def own_cluster(tmp_path: Path) -> Cluster:
    """Two nodes for a test that installs programs of its own."""
    cluster = Cluster(tmp_path)
    cluster.install_recorder("torchrun")
    return cluster


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ssh.Lab]:
    tmp_path_factory.getbasetemp().chmod(0o711)  # pytest closes it to all but its own user
    with ssh.started(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@pytest.fixture
def new_nodes(lab: ssh.Lab, tmp_path: Path) -> Iterator[Callable[[str], Nodes]]:
    """`new_nodes(torchrun)`: at the end of the test nothing that it started may be left on any machine."""
    with ExitStack() as stack:

        def make(torchrun: str) -> Nodes:
            folder = tmp_path / "job"
            folder.mkdir(exist_ok=True)
            give(tmp_path)
            nodes = Nodes(lab, give(folder), stack)
            if torchrun:
                nodes.install("torchrun", torchrun)
            return nodes

        yield make
        lab.wait_until_nothing_runs()
