"""A job kept apart from its site ends with the same weights here as anywhere; a sweep is as many runs."""

from pathlib import Path

import pytest

from jobspec.artifact import render
from tests.cli import records
from tests.e2e import two_sites
from tests.e2e.slurm import observer
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
_ASKS = """
name: asks
nodes: 1
procs_per_node: 1
command: [train.py]
time_limit: 2d
slurm: {options: {output: "%x_%A_%a.out", error: "%x-%j.err"}}
"""
# What headers of public batch scripts ask for.
_HEADERS = {
    "GPUs of one process": "gpus_per_node=2 resources.cpus=6 slurm.options={mem-per-cpu:100M,nodelist:n2}",
    "a share of the node for each GPU": "procs_per_node=2 slurm.options={cpus-per-gpu:3,mem-per-gpu:1G,exclude:n10}",
    "a limited array, one after the other": "slurm.array=0-31%10 preemption={} slurm.options.dependency=singleton",
    "whole nodes": "nodes=3 procs_per_node=2 slurm.launcher=srun slurm.options={exclusive:true,mem:0,overcommit:true}",
    "one thread a core": "slurm.partition=low,high slurm.options={hint:nomultithread,get-user-env:true,nice:1}",
    "a signal and no requeue": "preemption={grace:300s,max_requeues:0} slurm.options={mail-type:END,network:job_vni}",
}


@pytest.mark.parametrize("header", _HEADERS)
def test_what_public_scripts_ask_for_is_accepted(header: str, cluster: Cluster) -> None:
    file = cluster.folder / "asks.sh"
    file.write_text(script(cluster, _ASKS, *(word.replace(":", ": ") for word in _HEADERS[header].split())))
    cluster.command("sbatch", "--test-only", str(file))


def test_an_option_that_sbatch_hands_on_in_a_variable_holds_for_the_step(cluster: Cluster, tmp_path: Path) -> None:
    text = observer.rendered(cluster, tmp_path, "slurm.options={cpu-freq: high}")
    assert observer.outcome(cluster, tmp_path, cluster.submit(text))["step: CPU_max_freq"] == "High", cluster.logs()


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
