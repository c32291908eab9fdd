"""One node more than the job needs: each node measures itself, and a bad one gets no rank."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from tests.e2e.slurm.cluster import Cluster
from tests.e2e.slurm.machine import Machine
from tests.e2e.slurm.specs import script

pytestmark = pytest.mark.timeout(2400)

_SPEC = """
name: spare
nodes: 2
spares: 1
procs_per_node: 1
device: cpu
command: [sh, -c, 'echo "rank $RANK of $WORLD_SIZE is on $(hostname), the first one is $MASTER_ADDR"']
no_python: true
env: {TMPDIR: /media}
resources: {cpus: 2}
time_limit: 40m
"""


@contextmanager
def full_disk(node: Machine) -> Iterator[None]:
    node.run("mount", "-t", "tmpfs", "-o", "size=64k,mode=1777", "none", "/media")
    yield
    node.run("umount", "/media")


@contextmanager
def slow_link(node: Machine) -> Iterator[None]:
    node.run("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "2mbit", "burst", "32k", "latency", "50ms")
    yield
    node.run("tc", "qdisc", "delete", "dev", "eth0", "root")


@contextmanager
def wrong_name(node: Machine) -> Iterator[None]:
    node.run("sh", "-c", "cp /etc/hosts /etc/whole; sed 's/.* n2 .*/127.0.0.1 n2/' /etc/whole > /etc/hosts")
    yield
    node.run("sh", "-c", "cat /etc/whole > /etc/hosts")


@contextmanager
def sound(node: Machine) -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    ("broken", "name", "why"),
    [
        (sound, "n2", ""),
        (full_disk, "n2", "OSError [Errno 28] No space left on device"),
        pytest.param(slow_link, "n10", "link ", marks=pytest.mark.slow),
        pytest.param(wrong_name, "n10", "AssertionError n2 is a loopback address here", marks=pytest.mark.slow),
    ],
)
def test_a_bad_node_is_named_and_gets_no_rank(
    broken: Callable[[Machine], AbstractContextManager[None]], name: str, why: str, cluster: Cluster
) -> None:
    """On a busy machine a sound node may be slow, too, and is then named as well."""
    with broken(cluster.machines[name]):
        number = cluster.submit(script(cluster, _SPEC))
        state = cluster.wait_for_end(number).state
    said = (cluster.folder / f"spare-{number}.log").read_text()
    left_out = dict(re.findall("^(n[0-9]+) is left out: (.*)$", said, re.MULTILINE))
    assert not why or why in left_out[name], said
    good = [node for node in cluster.names if node not in left_out]
    ranks = [f"rank {rank} of 2 is on {node}, the first one is {good[0]}" for rank, node in enumerate(good[:2])]
    if len(good) < 2:
        assert (state, f"not started: {len(good)} good nodes, not 2" in said) == ("FAILED", True), cluster.logs()
    else:
        assert state == "COMPLETED", cluster.logs()
        assert sorted(line for line in said.splitlines() if line.startswith("rank")) == ranks
