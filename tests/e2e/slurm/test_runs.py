"""What Slurm runs from a rendered script ends as it does without Slurm."""

import re
from pathlib import Path

import pytest

from tests.cli import ROOT
from tests.e2e.slurm.cluster import Cluster
from tests.e2e.slurm.specs import script

pytestmark = pytest.mark.timeout(2400)

_OWN = """
name: own
nodes: 2
procs_per_node: 2
device: cpu
command: [{script}, --steps, "20"]
time_limit: 20m
"""
# Rank 0 submits the next job of the chain.
_CHAIN = """
import subprocess, sys, torch
from torch import distributed
distributed.init_process_group("gloo")
total = torch.tensor(distributed.get_rank())
distributed.all_reduce(total)
if distributed.get_rank() == 0:
    print(f"sum over {distributed.get_world_size()} ranks: {total}", flush=True)
    subprocess.run(["sbatch", "--parsable", f"chain{sys.argv[2]}.sh"], check=True)
distributed.destroy_process_group()
"""


@pytest.mark.parametrize("launcher", [pytest.param("torchrun", marks=pytest.mark.slow), "srun"])
def test_a_script_that_knows_nothing_of_us_runs_unchanged(launcher: str, cluster: Cluster) -> None:
    spec = _OWN.format(script=ROOT / "jobs" / "scripts" / "own.py")
    job = cluster.wait_for_end(cluster.submit(script(cluster, spec, f"slurm.launcher={launcher}")))
    log = (cluster.folder / f"own-{job.number}.log").read_text()
    assert job.state == "COMPLETED", cluster.logs()
    assert re.search(r"step 10: loss 0\.\d+ on rank 0 of 4", log), log


@pytest.mark.slow
def test_two_jobs_on_the_same_nodes_at_the_same_time_do_not_meet(cluster: Cluster) -> None:
    spec = _OWN.format(script=ROOT / "jobs" / "scripts" / "own.py")
    rendered = script(cluster, spec.replace('"20"', '"2000"'))
    numbers = [cluster.submit(rendered, "--nodelist=n2,n10") for _ in range(2)]
    for number in numbers:
        cluster.wait_for_line(number, f"own-{number}.log", "step 0: ")
    assert {cluster.job(number).state for number in numbers} == {"RUNNING"}
    for number in numbers:
        assert cluster.wait_for_end(number).state == "COMPLETED", cluster.logs()
        said = (cluster.folder / f"own-{number}.log").read_text()
        assert said.count("step 0: ") == 1 and "rank 0 of 4" in said


@pytest.mark.slow
def test_jobs_that_a_rank_of_the_last_one_submits_have_nodes_and_ranks_of_their_own_with_either_launcher(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "chain.py").write_text(_CHAIN)
    launchers = ["torchrun", "srun", "torchrun", "srun"]
    for link, launcher in enumerate(launchers):
        spec = (
            _OWN.format(script=tmp_path / "chain.py")
            .replace('"20"', f'"{link + 1}"')
            .replace("name: own", f"name: chain{link}")
        )
        settings = (f"slurm.launcher={launcher}", "resources={memory: 1GiB}")
        (cluster.folder / f"chain{link}.sh").write_text(script(cluster, spec, *settings))
    (cluster.folder / f"chain{len(launchers)}.sh").write_text("#!/bin/bash\n")
    outer = (
        "#!/bin/bash\n#SBATCH --nodes=1 --ntasks=3 --cpus-per-task=2 --gpus-per-node=1 --mem-per-cpu=100M\n"
        "export PET_NNODES=7 PET_NODE_RANK=3 OMP_NUM_THREADS=3\nsrun --ntasks=1 sbatch --parsable chain0.sh\n"
    )
    number = cluster.submit(outer, "--output=chain-%j.log")
    said = cluster.folder / f"chain-{number}.log"
    for link in range(len(launchers)):
        assert cluster.wait_for_end(number).state == "COMPLETED", cluster.logs()
        number = [line for line in said.read_text().splitlines() if line.isdigit()][-1]  # torch may say more
        said = cluster.folder / f"chain{link}-{number}.log"
    assert cluster.wait_for_end(number).state == "COMPLETED", cluster.logs()
    assert "sum over 4 ranks: 6" in said.read_text()
