"""What can happen to a job without `preemption` in the middle: it ends, with the reason in its log, and stays so."""

from pathlib import Path

import pytest

from tests.cli import records
from tests.e2e.slurm import long_job
from tests.e2e.slurm.cluster import Cluster
from tests.e2e.slurm.conftest import Start
from tests.e2e.slurm.long_job import FOR_EVER, log

pytestmark = pytest.mark.timeout(2400)


@pytest.mark.slow
def test_usr1_to_the_processes_of_srun_lets_them_save_and_ends_the_job(
    start: Start, nodes: Cluster, tmp_path: Path
) -> None:
    number = start("", settings=("slurm.launcher=srun",))
    nodes.command("scancel", "--signal=USR1", number)
    assert nodes.wait_for_end(number).state == "FAILED"
    assert "stopped by a signal" in log(nodes, number)
    assert records(tmp_path, "stop")[-1]["saved"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("to", "why"),
    [
        pytest.param("--quiet", "User defined signal 1", id="torchrun"),
        pytest.param("--batch", "FAILED (non-zero exit code or other failure mode)", id="the script"),
    ],
)
def test_usr1_ends_the_job_and_the_log_says_why(to: str, why: str, start: Start, nodes: Cluster) -> None:
    number = start("", settings=FOR_EVER)
    nodes.command("scancel", "--signal=USR1", to, number)
    job = nodes.wait_for_end(number)
    assert (job.state, job.restarts) == ("FAILED", 0)
    assert why in log(nodes, number)


@pytest.mark.slow
def test_at_the_time_limit_the_job_ends_and_the_log_says_why(start: Start, nodes: Cluster) -> None:
    number = start("", settings=FOR_EVER)
    long_job.lower_limit(nodes, number)
    assert nodes.wait_for_end(number).state == "TIMEOUT"
    assert "DUE TO TIME LIMIT" in log(nodes, number)


@pytest.mark.slow
def test_a_job_of_higher_priority_or_a_requeue_does_not_bring_it_back(start: Start, nodes: Cluster) -> None:
    number = start("", settings=FOR_EVER)
    with pytest.raises(RuntimeError, match="Requested operation is presently disabled"):
        nodes.command("scontrol", "requeue", number)
    wants_all = "#!/bin/bash\n#SBATCH --partition=high --nodes=3 --exclusive --output=high-%j.log\nhostname\n"
    assert nodes.wait_for_end(nodes.submit(wants_all)).state == "COMPLETED"
    job = nodes.wait_for_end(number)
    # The processes save and end when Slurm asks for it, before it has to kill them.
    assert (job.state, job.restarts) == ("FAILED", 0)
    assert "stopped by a signal" in log(nodes, number)


@pytest.mark.slow
def test_a_node_that_is_set_down_ends_the_job_and_the_log_says_why(start: Start, nodes: Cluster) -> None:
    number = start("", settings=FOR_EVER)
    nodes.administer("scontrol", "update", "NodeName=n10", "State=DOWN", "Reason=test")
    job = nodes.wait_for_end(number)
    assert (job.state, job.restarts) == ("NODE_FAIL", 0)
    assert "DUE TO NODE FAILURE" in log(nodes, number)


@pytest.mark.slow
def test_a_process_that_is_killed_ends_the_job_with_the_reason_in_the_log(start: Start, nodes: Cluster) -> None:
    number = start("")
    long_job.kill_a_process(nodes)
    job = nodes.wait_for_end(number)
    assert (job.state, job.restarts) == ("FAILED", 0)
    assert "Signal 9 (SIGKILL)" in log(nodes, number)


def test_a_node_that_finds_itself_under_the_name_of_the_first_one_says_so(cluster: Cluster, tmp_path: Path) -> None:
    text = long_job.rendered(cluster, tmp_path, "")
    first_node = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)'
    assert first_node in text
    number = cluster.submit(text.replace(first_node, "localhost"))
    assert cluster.wait_for_end(number).state == "FAILED"
    assert "n10: localhost, the first node, is a loopback address here" in log(cluster, number)
    assert "n2: localhost" not in log(cluster, number)
