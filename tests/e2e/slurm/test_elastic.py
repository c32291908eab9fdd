"""A job on a range of nodes: it gets as many as are free, and what the loss of one means."""

import time
from pathlib import Path

import pytest

from tests.cli import records
from tests.e2e.slurm import long_job
from tests.e2e.slurm.cluster import Cluster
from tests.e2e.slurm.conftest import Start
from tests.e2e.slurm.long_job import FOR_EVER, log
from tests.e2e.slurm.specs import script

pytestmark = pytest.mark.timeout(1800)

_HOSTS = """
name: hosts
nodes: {min: 1, max: 3}
procs_per_node: 1
device: cpu
command: [sh, -c, 'echo "$GROUP_WORLD_SIZE nodes"; sleep 1']
no_python: true
time_limit: 20m
"""
_RESOURCES = ("device=cuda", "procs_per_node=2", "resources={cpus: 6, memory: 1GiB}")


@pytest.mark.parametrize(
    ("settings", "busy", "given"),
    [
        pytest.param((), [], 3, id="one task a node"),
        pytest.param(("nodes={min: 1, max: 2}",), [], 2, id="fewer than are idle"),
        pytest.param(_RESOURCES, [], 3, id="with CPUs, GPUs and memory"),
        pytest.param(_RESOURCES, ["--ntasks=5"], 2, id="where one has too few free CPUs"),
        pytest.param(_RESOURCES, ["--gpus=1"], 2, id="where one has too few free GPUs"),
    ],
)
def test_a_range_of_nodes_gets_as_many_as_have_what_a_node_needs(
    settings: tuple[str, ...], busy: list[str], given: int, cluster: Cluster
) -> None:
    if busy:
        other = cluster.submit("#!/bin/bash\nsleep 3600\n", "--nodes=1", "--nodelist=n2", *busy)
        cluster.wait_for_state(other, "RUNNING")
    number = cluster.submit(script(cluster, _HOSTS, *settings))
    job = cluster.wait_for_end(number)
    if busy:
        cluster.command("scancel", other)
    assert job.state == "COMPLETED", cluster.logs()
    assert job.fields["NumNodes"] == str(given)
    assert f"{given} nodes" in (cluster.folder / f"hosts-{number}.log").read_text()


_ELASTIC = (*FOR_EVER, "nodes={min: 1, max: 3}", "max_restarts=3")


@pytest.mark.slow
@pytest.mark.parametrize("node", ["n2", "n10"], ids=["first", "second"])
def test_with_preemption_the_loss_of_any_node_requeues_the_job_which_goes_on_from_its_last_checkpoint(
    node: str, start: Start, nodes: Cluster, tmp_path: Path
) -> None:
    number = start(settings=_ELASTIC)
    nodes.power_off(node)
    nodes.wait_for("Slurm to notice", lambda: nodes.states()[node].startswith("down"))
    noticed = time.monotonic()
    long_job.wait_until_resumed(nodes, number, tmp_path)
    print(f"running {time.monotonic() - noticed:.0f} s after Slurm noticed")
    assert nodes.job(number).fields["NumNodes"] == "2"
    assert records(tmp_path, "start")[-1]["world"]["world_size"] == 2


@pytest.mark.slow
def test_without_preemption_the_job_goes_on_after_the_loss_of_a_node_that_is_not_its_first(
    start: Start, nodes: Cluster, tmp_path: Path
) -> None:
    number = start("", settings=_ELASTIC)
    nodes.power_off("n10")
    nodes.wait_for("two processes", lambda: records(tmp_path, "start")[-1]["world"]["world_size"] == 2)
    nodes.wait_for(
        "steps of the two", lambda: records(tmp_path, "step")[-1]["time"] > records(tmp_path, "start")[-1]["time"]
    )
    nodes.wait_for("Slurm to notice", lambda: nodes.job(number).fields["NumNodes"] == "2")
    assert nodes.job(number).state == "RUNNING", log(nodes, number)


@pytest.mark.slow
def test_without_preemption_the_loss_of_the_first_node_ends_the_job(nodes: Cluster) -> None:
    """With it goes the batch script, and Slurm keeps the allocation: the other nodes end the job."""
    number = nodes.submit(script(nodes, _HOSTS.replace("sleep 1", "sleep 100000")))
    log = nodes.folder / f"hosts-{number}.log"
    nodes.wait_for("all nodes", lambda: log.exists() and log.read_text().count("3 nodes") == 3)
    nodes.power_off("n2")
    assert nodes.wait_for_end(number).state == "CANCELLED", nodes.logs()
