"""What can happen to a job in the middle: with `preemption` it goes on where it was saved."""

from pathlib import Path
from typing import Any

import pytest

from tests.cli import records
from tests.e2e.slurm import long_job
from tests.e2e.slurm.cluster import Cluster
from tests.e2e.slurm.conftest import Start
from tests.e2e.slurm.long_job import FOR_EVER, log

pytestmark = pytest.mark.timeout(2400)


@pytest.mark.parametrize("launcher", ["torchrun", pytest.param("srun", marks=pytest.mark.slow)])
def test_scancel_usr1_saves_requeues_and_resumes_at_the_same_step(
    launcher: str, start: Start, nodes: Cluster, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    number = start(settings=(f"slurm.launcher={launcher}",))
    nodes.command("scancel", "--signal=USR1", "--batch", number)
    job = long_job.ended_as(undisturbed, nodes, number, tmp_path)
    assert job.restarts == 1
    assert long_job.no_step_twice(tmp_path)
    assert "; saved, --resume=auto continues there" in log(nodes, number)
    assert "requeueing the job" in log(nodes, number)
    assert f"resume: {tmp_path}/checkpoints/" in log(nodes, number)


@pytest.mark.slow
def test_a_cancelled_job_does_not_come_back(start: Start, nodes: Cluster) -> None:
    number = start()
    nodes.command("scancel", number)
    job = nodes.wait_for_end(number)
    assert (job.state, job.restarts) == ("CANCELLED", 0)
    assert "CANCELLED" in log(nodes, number)


@pytest.mark.slow
def test_at_the_time_limit_the_job_saves_and_comes_back_for_the_rest(
    start: Start, nodes: Cluster, tmp_path: Path
) -> None:
    # The signal comes 110 s before the end, which is at once.
    number = start("preemption: {grace: 110s}\n", settings=FOR_EVER)
    long_job.lower_limit(nodes, number)
    nodes.wait_for_line(number, f"fault-{number}.log", "requeueing the job")
    nodes.wait_for_state(number, "PENDING")
    nodes.administer("scontrol", "update", f"JobId={number}", "TimeLimit=20")
    long_job.wait_until_resumed(nodes, number, tmp_path)
    nodes.command("scancel", number)
    nodes.wait_for_end(number)
    steps = [record["step"] for record in records(tmp_path, "step")]
    assert steps == [*range(1, len(steps) + 1)]
    assert [start["world"]["world_size"] for start in records(tmp_path, "start")] == [2, 2]


@pytest.mark.slow
def test_a_job_of_higher_priority_sends_it_back_into_the_queue_and_it_resumes(
    start: Start, nodes: Cluster, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    number = start()
    wants_all = "#!/bin/bash\n#SBATCH --partition=high --nodes=3 --exclusive --output=high-%j.log\nhostname\n"
    high = nodes.submit(wants_all)
    assert nodes.wait_for_end(high).state == "COMPLETED"
    job = long_job.ended_as(undisturbed, nodes, number, tmp_path)
    assert job.restarts in (1, 2)  # 24.11 starts the completed job again, which ends at once
    assert long_job.no_step_twice(tmp_path), "it was asked to save, not killed"


@pytest.mark.slow
def test_a_node_that_is_set_down_sends_the_job_back_into_the_queue_and_it_goes_on(
    start: Start, nodes: Cluster, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    number = start()
    nodes.administer("scontrol", "update", "NodeName=n10", "State=DOWN", "Reason=test")
    assert long_job.ended_as(undisturbed, nodes, number, tmp_path).restarts == 1
    assert "Node failure on n10" in log(nodes, number)
    assert f"resume: {tmp_path}/checkpoints/" in log(nodes, number)


@pytest.mark.slow
@pytest.mark.parametrize("node", ["n2", "n10"], ids=["first", "second"])
def test_a_node_that_loses_power_sends_the_job_to_other_nodes_and_it_goes_on(
    node: str, start: Start, nodes: Cluster, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    # srun gives up long before Slurm notices; with the default grace either may come first.
    number = start("preemption: {grace: 10s}\n")
    nodes.power_off(node)
    job = long_job.ended_as(undisturbed, nodes, number, tmp_path)
    assert job.restarts == 1
    assert f"resume: {tmp_path}/checkpoints/" in log(nodes, number)
    assert node not in nodes.command("scontrol", "show", "hostnames", job.fields["NodeList"]).split()


@pytest.mark.slow
def test_a_process_that_is_killed_is_started_again_as_often_as_max_restarts_says(
    start: Start, nodes: Cluster, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    number = start("max_restarts: 1\n")
    long_job.kill_a_process(nodes)
    assert long_job.ended_as(undisturbed, nodes, number, tmp_path).restarts == 0
    assert len(records(tmp_path, "start")) == 2


@pytest.mark.slow
def test_without_preemption_a_process_that_is_killed_ends_the_job(start: Start, nodes: Cluster) -> None:
    number = start("")
    long_job.kill_a_process(nodes)
    assert nodes.wait_for_end(number).state == "FAILED"
    last = log(nodes, number).splitlines()[-1]
    assert last.startswith("first failure: rank 1 on n10 ended with -9 (SIGKILL): ")
