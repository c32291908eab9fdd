"""What a batch script takes from Slurm and from the shell that called sbatch, and what it refuses."""

import itertools
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from jobspec.artifact import render
from jobspec.problems import SpecError
from jobspec.slurm import rules
from tests.cli import ROOT
from tests.slurm import RUNTIMES, TWO_NODES, Cluster, directives, rendered, run


@pytest.fixture
def cluster(own_cluster: Cluster) -> Cluster:
    return own_cluster


def test_srun_sees_no_variable_of_another_job(cluster: Cluster) -> None:
    variables = yaml.safe_load((ROOT / "tests/e2e/slurm/input_variables.yaml").read_text())["srun"]
    left_over = {name for name in variables if not name.startswith(("SLURM_JOB", "SLURMD", "PMI_"))}
    left_over |= {"SLURM_HINT", "SLURM_TRES_PER_TASK", "PET_NNODES", "TORCHELASTIC_USE_AGENT_STORE"}
    run(cluster, TWO_NODES, **dict.fromkeys(left_over, "9"), SLURM_CONF="/of/the/site")
    seen = (cluster.folder / "environment-of-srun").read_text().splitlines()
    assert [line for line in seen if line.partition("=")[0] in left_over] == []
    assert "SLURM_CONF=/of/the/site" in seen


def test_the_number_of_nodes_is_what_slurm_gave_and_one_where_the_script_is_for_one(cluster: Cluster) -> None:
    cluster.nodes = ("n1", "n2", "n3", "n4")
    run(cluster, TWO_NODES)
    assert {call.argv[1] for call in cluster.calls().values()} == {"--nnodes=4"}
    run(cluster, TWO_NODES, "nodes=1")
    assert cluster.calls().keys() == {(0, 0)}
    cluster.install_recorder("python3")
    run(cluster, TWO_NODES + "slurm: {launcher: srun}\n")
    assert {call.env["WORLD_SIZE"] for call in cluster.calls().values()} == {"8"}


def test_outside_slurm_the_script_says_so(tmp_path: Path, cluster: Cluster) -> None:
    (tmp_path / "job.sh").write_text(rendered(cluster, TWO_NODES))
    done = subprocess.run(["bash", "job.sh"], cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, capture_output=True)
    assert done.returncode != 0
    assert done.stderr.decode().count("\n") == 1
    assert b"submit this script with sbatch" in done.stderr


@pytest.mark.parametrize("address", ["127.0.1.1", "::1"])
def test_a_node_that_finds_itself_under_the_name_of_the_first_one_says_so(address: str, cluster: Cluster) -> None:
    cluster.install("getent", f"print('{address} STREAM n1')")
    status, out = cluster.run(rendered(cluster, TWO_NODES))
    assert status != 0
    assert "n2: n1, the first node, is a loopback address here: see /etc/hosts" in out
    assert "n1: n1" not in out


def test_rdma_needs_the_right_to_lock_memory(cluster: Cluster) -> None:
    script = rendered(cluster, TWO_NODES + "resources: {rdma: true}\n").replace("set -euo", "ulimit -l 64; set -euo")
    status, out = cluster.run(script)
    assert status != 0
    assert ": RDMA needs unlimited locked memory" in out
    assert cluster.calls() == {}


@pytest.mark.parametrize(
    ("node", "changed", "message"),
    [
        ("", {}, ""),
        ("n2", {"hca_1/ports/1/state": "1: DOWN"}, "> hca_1/ports/1/state:1: DOWN"),
        ("n2", {"hca_1/ports/1/rate": "100 Gb/sec (4X EDR)"}, "> hca_1/ports/1/rate:100 Gb/sec (4X EDR)"),
        ("n2", {"hca_1/ports/1/gids/0": "0000:0000:0000"}, "< hca_1/ports/1/gids/0"),
        ("n2", dict.fromkeys(["hca_0/ports/1/state", "hca_1/ports/1/state"], "1: DOWN"), "n2: no port in "),
    ],
)
def test_rdma_ports_of_all_nodes_are_active_and_alike(
    node: str, changed: dict[str, str], message: str, cluster: Cluster, tmp_path: Path
) -> None:
    port = {"state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)", "gids/0": "fe80:0000:0001"}
    ports = {f"hca_{card}/ports/1/{name}": value for card in (0, 1) for name, value in port.items()}
    for each in cluster.nodes:
        for name, value in {**ports, **(changed if each == node else {})}.items():
            file = tmp_path / each / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{value}\n")
    text = rendered(cluster, TWO_NODES + "resources: {rdma: true}\n").replace("$(ulimit -l)", "unlimited")
    text = text.replace("/sys/class/infiniband", f'"{tmp_path}/${{SLURMD_NODENAME-n1}}"')
    status, out = cluster.run(text)
    assert (status == 0, message in out) == (not message, True), out
    assert "n1: " not in out


@pytest.mark.parametrize("limit", ["-Sn 300", "-n 300"], ids=["soft", "hard"])
def test_a_large_job_has_enough_open_files_or_is_refused(limit: str, cluster: Cluster) -> None:
    cluster.install("torchrun", "#!/bin/bash\necho files: $(ulimit -n)\n")
    text = rendered(cluster, TWO_NODES.replace("nodes: 2", "nodes: 200"))
    status, out = cluster.run(text.replace("set -euo", f"ulimit {limit}; set -euo"))
    if limit.startswith("-S"):
        assert (status, out.count("files: 1056")) == (0, 2), out
    else:
        assert status != 0 and ": the job needs 1056 open files, which ulimit -Hn does not allow" in out
    assert "ulimit" not in rendered(cluster, TWO_NODES)


def test_lines_begin_with_the_rank_if_asked(cluster: Cluster) -> None:
    run(cluster, TWO_NODES + "slurm: {srun_options: {label: true, mpi: pmix}}\n")
    assert "--mpi=pmix" in cluster.sruns()[-1] and "--label" not in cluster.sruns()[-1]
    call = cluster.calls()[0, 0]
    assert "--tee=3" in call.argv
    assert call.env["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] == "${rank}: "


@pytest.mark.parametrize("value", ["0", "'0'"])
def test_all_memory_of_a_node_may_be_asked_for(value: str, cluster: Cluster) -> None:
    script = rendered(cluster, f"{TWO_NODES}slurm: {{options: {{mem: {value}, overcommit: true}}}}\n")
    assert directives(script)["mem"] == "0"
    assert cluster.run(script)[0] == 0
    assert "--overcommit" in cluster.sruns()[-1]


def test_options_that_sbatch_hands_on_in_variables_reach_srun_as_flags(cluster: Cluster) -> None:
    options = "{options: {hint: nomultithread, gpu-freq: low, nice: 1}, srun_options: {gpu-freq: high}}"
    run(cluster, f"{TWO_NODES}slurm: {options}\n")
    flags = cluster.sruns()[-1]
    assert "--hint=nomultithread" in flags and "--gpu-freq=high" in flags
    assert not {"--gpu-freq=low", "--nice=1"} & {*flags}


def test_a_secret_is_no_variable_of_the_script(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    scripts = []
    for runtime, launcher in itertools.product(RUNTIMES, ("torchrun", "srun")):
        job.write_text(
            "name: job\nimage: a/b:1\nnodes: 2\nspares: 1\nprocs_per_node: 2\nresources: {rdma: true}\n"
            "train: {model: mlp, checkpoint_dir: /c, resume: auto}\npreemption: {grace: 60s}\n"
            "mounts: [{scratch: 1GiB, path: /scratch}, {source: /c, path: /c}]\n"
            f"slurm: {{runtime: {runtime}, launcher: {launcher}}}\n"
        )
        # Without the Python and awk of spares.
        text = re.sub(r"(<<'END'|awk ).*?\n(END|[^\n]*}')\n", "<\n", render("slurm", str(job)), flags=re.DOTALL)
        scripts.append(text)
    code = [line for text in scripts for line in text.splitlines() if not line.startswith("#")]
    set_in_bash = re.compile(r"(?:^|[ ;({])([a-z]\w*)\+?=|\bfor (\w+) in|\b(?:read|mapfile) .* (\w+)(?: <|;)")
    found = {name for line in code for name in set_in_bash.findall(line)}
    names = {next(filter(None, one)) for one in found} - {"type"}  # of a mount
    assert names == rules.VARIABLES_OF_SCRIPT
    job.write_text(f"{TWO_NODES}secrets: [TOKEN, {', '.join(sorted(names))}]\n")
    with pytest.raises(SpecError) as error:
        render("slurm", str(job))
    assert len(error.value.problems) == len(names)


def test_nodes_that_get_different_numbers_of_tasks_are_refused(own_cluster: Cluster) -> None:
    own_cluster.install_recorder("python3")
    script = rendered(own_cluster, TWO_NODES + "slurm: {launcher: srun}\n")
    status, out = own_cluster.run(script, STEP_LAYOUT="3,1")
    assert status != 0 and own_cluster.calls() == {}
    assert "3,1 tasks on the nodes, not 2 on each: allocate them by --ntasks-per-node=2" in out


@pytest.mark.parametrize("keys", ["", "preemption: {grace: 20s}\n"], ids=["plain", "preemption"])
def test_what_render_job_finds_is_the_last_line_of_a_job_that_fails(keys: str, cluster: Cluster) -> None:
    cluster.install("torchrun", "#!/bin/bash\necho nan >&2; exit 7\n")
    cluster.install("render-job", '#!/bin/bash\necho "$* read $(tail -n 1)"\n')
    script = rendered(cluster, TWO_NODES + keys, "nodes=1").replace("set -euo", "exec >log 2>&1; set -euo")
    assert cluster.run(script)[0] == 7
    assert (cluster.folder / "log").read_text().splitlines()[-1] == "why - read nan"
