"""With `preemption`: after a signal each task has the time to save, and a task that fails requeues nothing."""

from pathlib import Path

import pytest

from tests.e2e.slurm import sleeper
from tests.e2e.slurm.cluster import Cluster

pytestmark = pytest.mark.timeout(1200)


@pytest.mark.parametrize("launcher", ["srun", "torchrun"])
def test_a_task_that_fails_without_a_signal_ends_the_others_and_is_not_requeued(
    launcher: str, cluster: Cluster, tmp_path: Path
) -> None:
    settings = (f"slurm.launcher={launcher}", "env.FAILS='1'", "preemption.grace=10s")
    number = cluster.submit(sleeper.rendered(cluster, tmp_path, *settings, nodes=2, seconds=900))
    job = cluster.wait_for_end(number)
    assert (job.state, job.restarts) == ("FAILED", 0), cluster.logs()


def test_after_a_signal_a_task_that_saves_is_not_cut_short_by_one_that_has_ended(
    cluster: Cluster, tmp_path: Path
) -> None:
    number = cluster.submit(sleeper.rendered(cluster, tmp_path, "env.SLOW='1'", nodes=2, seconds=900))
    sleeper.up(cluster, tmp_path, number)
    cluster.command("scancel", "--signal=USR1", "--batch", number)
    cluster.wait_for_line(number, f"sleeps-{number}.log", "rank 1 saved")

    def over() -> bool:  # Slurm drops a scancel that meets a job which it is requeueing
        cluster.command("scancel", number)
        return cluster.job(number).state in ("CANCELLED", "FAILED")

    cluster.wait_for("the end", over)


def test_a_line_of_the_epilogue_that_fails_does_not_prevent_the_requeue(cluster: Cluster, tmp_path: Path) -> None:
    epilogue = "slurm.epilogue=['echo first line', 'ls no-such-file', 'echo third line']"
    number = cluster.submit(sleeper.rendered(cluster, tmp_path, epilogue, seconds=900))
    sleeper.up(cluster, tmp_path, number)
    cluster.command("scancel", "--signal=USR1", "--batch", number)
    cluster.wait_for("back", lambda: cluster.job(number).restarts == 1 or cluster.job(number).state == "FAILED")
    said = (cluster.folder / f"sleeps-{number}.log").read_text()
    assert "slurm.epilogue: this line failed: ls no-such-file" in said and "third line" not in said
    assert said.count("first line") == 1 and "requeueing the job" in said, said
    cluster.command("scancel", number)
    assert (cluster.wait_for_end(number)).restarts == 1


def test_a_preempted_job_that_completes_runs_nothing_more(cluster: Cluster, tmp_path: Path) -> None:
    """Slurm 24.11 starts it once more."""
    number = cluster.submit(sleeper.rendered(cluster, tmp_path, nodes=2, seconds=5))
    sleeper.up(cluster, tmp_path, number)
    high = "#!/bin/bash\n#SBATCH --partition=high --nodes=3 --exclusive --output=high-%j.log\nhostname\n"
    assert cluster.wait_for_end(cluster.submit(high)).state == "COMPLETED"
    assert cluster.wait_for_end(number).state == "COMPLETED", cluster.logs()
    assert (cluster.folder / f"sleeps-{number}.log").read_text().count("up\n") == 4
