"""A script that is submitted with flags that its spec does not have."""

import sys
from pathlib import Path

import pytest

from tests.e2e.slurm import observer, sleeper
from tests.e2e.slurm.cluster import Cluster
from tests.e2e.slurm.specs import script

pytestmark = pytest.mark.timeout(1200)


@pytest.mark.parametrize("launcher", ["srun", pytest.param("torchrun", marks=pytest.mark.slow)])
def test_more_nodes_on_the_command_line_are_more_nodes_in_the_job(
    launcher: str, cluster: Cluster, tmp_path: Path
) -> None:
    number = cluster.submit(observer.rendered(cluster, tmp_path, f"slurm.launcher={launcher}"), "--nodes=3")
    assert cluster.wait_for_end(number).state == "COMPLETED", cluster.logs()
    ranks = observer.seen(tmp_path, number)
    assert {rank: (process["host"], process["WORLD_SIZE"]) for rank, process in ranks.items()} == {
        rank: (node, "6") for rank, node in enumerate(["n2", "n2", "n10", "n10", "n11", "n11"])
    }


def test_of_an_array_from_the_command_line_a_signal_requeues_one_task(cluster: Cluster, tmp_path: Path) -> None:
    array = cluster.submit(sleeper.rendered(cluster, tmp_path), "--array=0-1")
    tasks = [f"{array}_{task}" for task in range(2)]
    cluster.wait_for("two processes a task", lambda: len([*tmp_path.glob("*.[01]")]) == 4)
    assert cluster.job(tasks[1]).fields["JobId"] == array, "the number of the array means all tasks"
    cluster.command("scancel", "--batch", "--signal=USR1", tasks[1])
    ends = [cluster.wait_for_end(task) for task in tasks]
    assert [(job.state, job.restarts) for job in ends] == [("COMPLETED", 0), ("COMPLETED", 1)], cluster.logs()


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_after_sbatch_export_none_the_processes_have_a_path(launcher: str, cluster: Cluster) -> None:
    bin_folder = Path(sys.executable).parent
    spec = "name: bare\nnodes: 1\nprocs_per_node: 1\ndevice: cpu\ncommand: [env]\nno_python: true\n"
    prologue = f"slurm.prologue=['export PATH={bin_folder}:$PATH']"
    number = cluster.submit(script(cluster, spec, f"slurm.launcher={launcher}", prologue), "--export=NONE")
    assert cluster.wait_for_end(number).state == "COMPLETED", cluster.logs()
    assert f"PATH={bin_folder}:" in (cluster.folder / f"bare-{number}.log").read_text()


def test_in_salloc_nodes_that_would_get_different_numbers_of_tasks_are_refused(
    cluster: Cluster, tmp_path: Path
) -> None:
    (cluster.folder / "here.sh").write_text(observer.rendered(cluster, tmp_path, "resources={memory: 1GiB}"))
    with pytest.raises(RuntimeError, match="3,1 tasks on the nodes, not 2 on each: allocate them by"):
        cluster.command("salloc", "--quiet", "--nodes=2", "--ntasks=4", "--distribution=cyclic", "bash", "here.sh")
    cluster.command("salloc", "--quiet", "--nodes=2", "--ntasks-per-node=2", "bash", "here.sh")
