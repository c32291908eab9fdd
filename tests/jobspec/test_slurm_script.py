"""What a batch script takes from Slurm and from the shell that called sbatch, and what it refuses."""

import importlib.util
import itertools
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from jobspec.artifact import render
from jobspec.problems import SpecError
from jobspec.slurm import rules
from tests.cli import ROOT
from tests.slurm import BASE, RUNTIMES, TWO_NODES, Cluster, directives, rendered, run


@pytest.fixture
def cluster(own_cluster: Cluster) -> Cluster:
    return own_cluster


def test_srun_sees_no_variable_of_another_job(cluster: Cluster) -> None:
    variables = yaml.safe_load((ROOT / "tests/e2e/slurm/input_variables.yaml").read_text())["srun"]
    left_over = {name for name in variables if not name.startswith(("SLURM_JOB", "PMI_"))}  # these change nothing
    left_over |= {"SLURM_HINT", "SLURM_TRES_PER_TASK", "PET_NNODES"}
    run(cluster, TWO_NODES, **dict.fromkeys(left_over, "9"), SLURM_CONF="/of/the/site")
    seen = (cluster.folder / "environment-of-srun").read_text().splitlines()
    assert [line for line in seen if line.partition("=")[0] in left_over] == ["PET_NNODES=2"]
    assert "SLURM_CONF=/of/the/site" in seen


def test_srun_sees_nothing_that_torchrun_sets_for_the_rank_that_submits(cluster: Cluster) -> None:
    torch = importlib.util.find_spec("torch")
    assert torch is not None and torch.origin is not None
    elastic = Path(torch.origin).parent / "distributed" / "elastic"
    files = ("agent/server/local_elastic_agent.py", "multiprocessing/api.py")
    source = "".join((elastic / file).read_text() for file in files)
    names = {*re.findall(r'"([A-Z_]+)": |env\w*(?:\[\w+\])?\["([A-Z_]+)"\] = ', source)}
    devices = {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}  # Slurm sets them, too
    torchruns = {first or second for first, second in names} - devices
    assert {"GROUP_RANK", "LOCAL_RANK", "OMP_NUM_THREADS", "TORCHELASTIC_ERROR_FILE"} < torchruns
    spec = "name: job\nnodes: 1\nprocs_per_node: 1\ndevice: cpu\ncommand: [mine.py]\n"
    cluster.nodes = ("n1",)
    run(cluster, spec, **dict.fromkeys({*torchruns, "NODE_RANK"}, "9"))
    seen = (cluster.folder / "environment-of-srun").read_text().splitlines()
    assert [line for line in seen if line.partition("=")[0] in {*torchruns, "NODE_RANK"}] == []
    run(cluster, spec, OMP_NUM_THREADS="9")
    assert "OMP_NUM_THREADS=9" in (cluster.folder / "environment-of-srun").read_text().splitlines()


def test_the_number_of_nodes_is_what_slurm_gave(cluster: Cluster) -> None:
    cluster.nodes = ("n1", "n2", "n3", "n4")
    run(cluster, TWO_NODES)
    assert len(cluster.calls()) == 4
    assert {call.env["PET_NNODES"] for call in cluster.calls().values()} == {"4"}
    cluster.install_recorder("python3")
    run(cluster, TWO_NODES + "slurm: {launcher: srun}\n")
    assert {call.env["WORLD_SIZE"] for call in cluster.calls().values()} == {"8"}


def test_a_script_for_one_node_refuses_two(cluster: Cluster) -> None:
    status, out = cluster.run(rendered(cluster, BASE + "nodes: 1\ncommand: [mine.py]\n"))
    assert status == 1
    assert "rendered for one node, not 2" in out


def test_outside_slurm_the_script_says_so(tmp_path: Path, cluster: Cluster) -> None:
    (tmp_path / "job.sh").write_text(rendered(cluster, TWO_NODES))
    done = subprocess.run(["bash", "job.sh"], cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, capture_output=True)
    assert done.returncode != 0
    assert done.stderr.decode().count("\n") == 1
    assert b"submit this script with sbatch" in done.stderr


def test_a_job_from_within_an_array_is_not_that_array(cluster: Cluster) -> None:
    """Slurm says so: the variables are those of the shell that called sbatch."""
    cluster.install("scontrol", (cluster.folder / "bin/scontrol").read_text().replace("SLURM_ARRAY_JOB_ID:+", "NONE:+"))
    run(cluster, TWO_NODES, SLURM_ARRAY_JOB_ID="99", SLURM_ARRAY_TASK_ID="1")
    assert [log.name for log in cluster.folder.glob("*.log")] == ["job-70123-r0.log"]
    assert "SLURM_ARRAY_TASK_ID" not in cluster.calls()[0, 0].env


def test_sbatch_array_on_a_script_without_one_is_an_array(cluster: Cluster) -> None:
    run(cluster, TWO_NODES, SLURM_ARRAY_JOB_ID="70120", SLURM_ARRAY_TASK_ID="1")
    assert [log.name for log in cluster.folder.glob("*.log")] == ["job-70120_1-r0.log"]


def test_a_node_without_the_program_is_named(own_cluster: Cluster) -> None:
    (own_cluster.folder / "bin" / "torchrun").unlink()
    env = {"PATH": f"{own_cluster.folder / 'bin'}:/usr/bin:/bin"}
    status, out = own_cluster.run(rendered(own_cluster, TWO_NODES), **env)
    assert status == 1
    assert "preflight: n2: torchrun is not found" in out


def test_lines_begin_with_the_rank_if_asked(cluster: Cluster) -> None:
    run(cluster, TWO_NODES + "slurm: {srun_options: {label: true, mpi: pmix}}\n")
    assert "--mpi=pmix" in cluster.sruns()[-1] and "--label" not in cluster.sruns()[-1]
    call = cluster.calls()[0, 0]
    assert "--tee=3" in call.argv
    assert call.env["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] == "${rank}: "


@pytest.mark.parametrize("value", ["0", "'0'"])
def test_all_memory_of_a_node_may_be_asked_for(value: str, cluster: Cluster) -> None:
    script = rendered(cluster, f"{TWO_NODES}slurm: {{options: {{mem: {value}}}, srun_options: {{overcommit: true}}}}\n")
    assert directives(script)["mem"] == "0"
    assert cluster.run(script)[0] == 0
    assert "--overcommit" in cluster.sruns()[-1]


def test_a_secret_is_no_variable_of_the_script(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    scripts = []
    for runtime, launcher, size in itertools.product(
        RUNTIMES, ("torchrun", "srun"), ("nodes: 2", "nodes: {min: 1, max: 2}")
    ):
        if launcher == "srun" and "min" in size:
            continue
        job.write_text(
            f"name: job\nimage: a/b:1\nprocs_per_node: 2\n{size}\nresources: {{shm: 1GiB, rdma: true}}\n"
            "train: {model: mlp, checkpoint_dir: /c, resume: auto}\npreemption: {grace: 60s}\n"
            "mounts: [{scratch: 1GiB, path: /scratch}]\n"
            f"slurm: {{runtime: {runtime}, launcher: {launcher}}}\n"
        )
        scripts.append(render("slurm", str(job)))
    code = [line for text in scripts for line in text.splitlines() if not line.startswith("#")]
    found = {name for line in code for name in re.findall(r"(?:^|[ ;({])([a-z]\w*|JOB_\w+)\+?=|\bfor (\w+) in", line)}
    names = {one or other for one, other in found} | {"JOB_BEFORE"}  # of a command
    assert names == rules.VARIABLES_OF_SCRIPT
    job.write_text(f"{TWO_NODES}secrets: [TOKEN, {', '.join(sorted(names))}]\n")
    with pytest.raises(SpecError) as error:
        render("slurm", str(job))
    assert len(error.value.problems) == len(names)


def test_values_that_together_fit_into_no_variable_are_refused(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(f"{TWO_NODES}env: {{A: {'a' * 70000}, B: {'b' * 70000}}}\n")
    with pytest.raises(SpecError, match="command, setup, env and sweep take 14"):
        render("slurm", str(tmp_path / "job.yaml"))


@pytest.mark.skipif(
    shutil.which("shellcheck") is None, reason="shellcheck is not installed (Debian package shellcheck)"
)
def test_shellcheck_sees_the_preflight(cluster: Cluster) -> None:
    script = rendered(cluster, TWO_NODES)
    broken = script.replace('getent ahosts "$MASTER_ADDR"', "getent ahosts $MASTER_ADDR")
    found = [_shellcheck(text) for text in (script, broken)]
    assert "SC2086" not in found[0]
    assert "SC2086" in found[1]


def _shellcheck(script: str) -> str:
    return subprocess.run(["shellcheck", "-"], input=script, capture_output=True, text=True).stdout
