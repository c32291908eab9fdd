"""Nodes that are near one another, as the key topology asks for them."""

from collections.abc import Iterator

import pytest

from tests.e2e.go_modules import CannotBuildError
from tests.e2e.slurm import releases
from tests.e2e.slurm.cluster import Cluster
from tests.e2e.slurm.specs import script

pytestmark = pytest.mark.timeout(2400)

_SPEC = """
name: near
nodes: 4
procs_per_node: 1
device: cpu
command: [sh, -c, 'echo "rank $RANK is on $(hostname)"']
no_python: true
time_limit: 20m
topology: {required: block, segment: 2}
slurm: {launcher: srun}
"""


@pytest.fixture(scope="module", params=[pytest.param("trixie", marks=pytest.mark.slow), "forky"])
def blocks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two blocks of three nodes.  Left alone, Slurm gives a job of four nodes the first one and the second block."""
    try:
        release = releases.find(request.param)
    except CannotBuildError as reason:
        pytest.skip(f"no Slurm of {request.param}: {reason}")
    tmp_path_factory.getbasetemp().chmod(0o711)
    names = [f"n{number}" for number in range(1, 7)]
    folder = tmp_path_factory.mktemp("blocks")
    with Cluster(folder, names, release=release, blocks=["n[1-3]", "n[4-6]"]) as running:
        yield running


@pytest.mark.parametrize(
    ("settings", "nodes"),
    [
        ([], ["n1", "n2", "n4", "n5"]),
        (["topology="], ["n1", "n4", "n5", "n6"]),
        (["nodes=3", "topology.segment="], ["n4", "n5", "n6"]),
    ],
    ids=["segments", "no topology", "one block"],
)
def test_each_segment_of_ranks_is_in_one_block(settings: list[str], nodes: list[str], blocks: Cluster) -> None:
    exclusive = "slurm.options={exclusive: true}"
    number = blocks.submit(script(blocks, _SPEC, exclusive, *settings))
    assert blocks.wait_for_end(number).state == "COMPLETED", blocks.logs()
    said = (blocks.folder / f"near-{number}.log").read_text()
    assert sorted(said.splitlines()) == [f"rank {rank} is on {node}" for rank, node in enumerate(nodes)]


def test_slurm_rejects_a_segment_that_blocks_cannot_give(blocks: Cluster) -> None:
    # The controller of 24.11 says so, and sbatch itself since 26.05.
    with pytest.raises(RuntimeError, match=r"topology configuration is not available|does not fit the job size"):
        blocks.submit(script(blocks, _SPEC), "--segment=3")


def test_segments_are_refused_where_slurm_has_no_blocks(cluster: Cluster) -> None:
    text = script(cluster, _SPEC, "nodes=2")
    try:
        number = cluster.submit(text)
    except RuntimeError as refused:
        assert "unrecognized option '--segment=2'" in str(refused)
    else:
        assert cluster.wait_for_end(number).state == "FAILED", cluster.logs()
        said = (cluster.folder / f"near-{number}.log").read_text()
        assert "n2: this Slurm has no blocks (topology/block), so --segment had no effect" in said
        assert "rank" not in said
