"""What follows from a job: ranks, port, program, environment."""

from pathlib import Path
from typing import Any

import pytest

from jobspec.artifact import render
from jobspec.environment import torchrun_variables
from jobspec.plan import Plan, make_plan
from jobspec.spec.job import Job


def plan_of(**keys: Any) -> Plan:
    required = {"name": "job", "nodes": 1, "procs_per_node": 2, "device": "cpu"}
    return make_plan(Job.model_validate({**required, "command": ["mine.py"], **keys}, strict=True))


def test_ranks_fill_one_node_after_the_other() -> None:
    ranks = list(plan_of(nodes=2, procs_per_node=3, device="cuda").ranks())
    assert [(rank.rank, rank.node, rank.local_rank) for rank in ranks] == [
        (0, 0, 0),
        (1, 0, 1),
        (2, 0, 2),
        (3, 1, 0),
        (4, 1, 1),
        (5, 1, 2),
    ]
    assert [rank.device for rank in ranks] == ["cuda:0", "cuda:1", "cuda:2"] * 2
    assert [rank.device for rank in plan_of(procs_per_node=2).ranks()] == ["cpu", "cpu"]


def test_port_follows_from_the_name_and_is_below_the_ephemeral_range() -> None:
    ports = {name: plan_of(name=name).port for name in (f"job-{number}" for number in range(500))}
    assert ports["job-7"] == plan_of(name="job-7", nodes=5).port
    assert all(20000 <= port < 30000 for port in ports.values())
    assert len(set(ports.values())) > 450
    assert plan_of(rendezvous={"port": 29400}).port == 29400
    assert [plan_of(name=name).port for name in ("job", "quickstart")] == [22683, 21716], "as it was in every version"


def test_program_is_the_command_or_train_with_only_the_keys_given() -> None:
    assert plan_of(command=["mine.py", "--lr", "0.1"]).program == ("mine.py", "--lr", "0.1")
    words = plan_of(command=None, train={"model": "mlp", "sync_batchnorm": False}).program
    assert words == ("-m", "train", "--device=cpu", "--model=mlp", "--no-sync-batchnorm")
    assert plan_of(command=None, train={"device": "auto"}).program == ("-m", "train", "--device=auto")


@pytest.mark.parametrize(
    ("keys", "threads"),
    [
        ({"procs_per_node": 1}, None),
        ({"procs_per_node": 2}, "1"),
        ({"procs_per_node": 4, "resources": {"cpus": 30}}, "7"),
        ({"procs_per_node": 4, "resources": {"cpus": 2}}, "1"),
        ({"procs_per_node": 4, "env": {"OMP_NUM_THREADS": "3"}}, "3"),
    ],
)
def test_threads_are_each_process_share_of_the_cpus(keys: dict[str, Any], threads: str | None) -> None:
    assert plan_of(**keys).env.get("OMP_NUM_THREADS") == threads


@pytest.mark.parametrize(("given", "expected"), [(None, "3"), (0, "0")])
def test_torchruns_limit_of_restarts_is_the_jobs_unless_something_else_restarts_it(
    given: int | None, expected: str
) -> None:
    plan = plan_of(max_restarts=3)
    rank = next(iter(plan.ranks()))
    found = torchrun_variables(plan, rank, master_addr="a", master_port="1", run_id="none", max_restarts=given)
    assert {one.name: one.value for one in found}["TORCHELASTIC_MAX_RESTARTS"] == expected


@pytest.mark.parametrize("target", ["slurm", "torchrun", "compose", "pytorchjob"])
def test_job_with_a_range_of_nodes_survives_a_lost_node_by_default_and_says_so(target: str, tmp_path: Path) -> None:
    spec = tmp_path / "job.yaml"
    spec.write_text("name: job\nnodes: {min: 1, max: 2}\nprocs_per_node: 1\nimage: a/b:1\ncommand: [mine.py]\n")
    note = "# max_restarts is 3, its default where nodes is a range"
    text = render(target, str(spec))
    assert "--max-restarts=3" in text
    assert note in text
    text = render(target, str(spec), ["max_restarts=0"])
    assert "--max-restarts=0" in text or (target != "pytorchjob" and "--max-restarts" not in text)
    assert note not in text


@pytest.mark.parametrize(
    ("target", "part"),
    [
        ("slurm", "#SBATCH --gpus-per-node=h100:8\n"),
        ("compose", 'device_ids: ["8", "9", "10", "11", "12", "13", "14", "15"]'),
        ("jobset", 'nvidia.com/gpu: "8"'),
    ],
)
def test_gpus_per_node_is_apart_from_the_processes(target: str, part: str, tmp_path: Path) -> None:
    spec = tmp_path / "job.yaml"
    spec.write_text("name: job\nnodes: 2\nprocs_per_node: 1\ngpu: h100\nimage: a/b:1\ncommand: [mine.py]\n")
    types = "kubernetes.gpu_types={h100: {a: b}}"
    text = render(target, str(spec), ["gpus_per_node=8", types])
    assert part in text
    assert part not in render(target, str(spec), [types])
    assert "--nproc-per-node=1" in text
