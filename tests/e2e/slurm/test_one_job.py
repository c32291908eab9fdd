"""A job kept apart from its site ends with the same weights here as anywhere; a sweep is as many runs."""

from pathlib import Path

import pytest

from jobspec.artifact import render
from tests.cli import records
from tests.e2e import two_sites
from tests.e2e.slurm.cluster import Cluster
from tests.e2e.slurm.specs import script

pytestmark = pytest.mark.timeout(2400)

_SWEEP = """
name: sweep
nodes: 1
procs_per_node: 2
device: cpu
train: {{model: mlp, dataset: synthetic, max_steps: 5, run_dir: {folder}/runs}}
sweep: {sweep}
time_limit: 20m
"""
_VALUES = """
name: values
nodes: 1
procs_per_node: 1
device: cpu
setup: [export SEEN=$LEVEL, export LEVEL=of-setup]
command: [sh, -c, 'echo "$0 $SEEN $LEVEL"', word]
no_python: true
sweep: {env.LEVEL: [low, high]}
slurm: {launcher: srun}
"""


def test_a_job_with_this_site_has_the_weights_of_a_run_alone(cluster: Cluster, tmp_path: Path) -> None:
    two_sites.write_data(tmp_path / "data")
    site = tmp_path / "site.yaml"
    site.write_text((two_sites.FOLDER / "slurm.yaml").read_text().replace("FOLDER", str(tmp_path)))
    job = cluster.wait_for_end(cluster.submit(render("slurm", [str(two_sites.JOB), str(site)])))
    assert job.state == "COMPLETED", cluster.logs()
    (end,) = records(tmp_path / "run", "end")
    (tmp_path / "alone").mkdir()
    assert (end["step"], end["weights_sha256"]) == (40, two_sites.weights_alone(tmp_path / "alone"))


def test_a_sweep_of_six_is_six_runs_with_a_folder_and_a_result_of_its_own_each(
    cluster: Cluster, tmp_path: Path
) -> None:
    number = cluster.submit(script(cluster, _SWEEP.format(folder=tmp_path, sweep=two_sites.SWEEP)))
    states = [cluster.wait_for_end(f"{number}_{task}").state for task in range(6)]
    assert states == ["COMPLETED"] * 6, cluster.logs()
    two_sites.check_sweep(tmp_path / "runs")


def test_setup_sees_the_values_of_a_sweep_and_wins_over_them(cluster: Cluster) -> None:
    number = cluster.submit(script(cluster, _VALUES))
    for task, level in enumerate(["low", "high"]):
        assert cluster.wait_for_end(f"{number}_{task}").state == "COMPLETED", cluster.logs()
        assert f"word {level} of-setup" in (cluster.folder / f"values-{number}_{task}.log").read_text()
