"""`explain` on every target: each rank once, the variables that any process needs, and who numbers the nodes how."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from jobspec import targets
from jobspec.artifact import load, plans_of, read
from jobspec.explain import as_json, as_table, explain
from jobspec.problems import SpecError

JOBS = sorted((Path(__file__).parents[2] / "jobs").glob("*.yaml"))
BASE = "name: job\nprocs_per_node: 2\ndevice: cpu\nimage: registry.example/train:1\ncommand: [mine.py]\n"

each_target = pytest.mark.parametrize("target", targets.names())


def accepted() -> Iterator[Any]:
    """Each target with each job that it takes."""
    for target in targets.names():
        for job in JOBS:
            with suppress(SpecError):
                load(targets.load(target), str(job))
                yield pytest.param(target, job, id=f"{target}-{job.stem}")


def explained(target: str, spec: Path, *settings: str) -> tuple[dict[str, Any], str]:
    """The JSON and the table."""
    module = targets.load(target)
    plan = load(module, str(spec), settings)
    return json.loads(as_json(explain(plan, module))), as_table(explain(plan, module, whole=False))


def seen_by(told: dict[str, Any], rank: int) -> dict[str, str]:
    """The variables of one process; a later setting of a name replaces an earlier one."""
    settings = [*told["environment"], *told["ranks"][rank]["environment"]]
    return {setting["name"]: setting["value"] for setting in settings}


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(BASE + "nodes: 3\nsecrets: [TOKEN]\nenv: {NOTE: 'two\n\n  lines '}\n")
    return file


@pytest.mark.parametrize(("target", "job"), list(accepted()))
def test_every_process_of_every_job_knows_its_rank_its_world_and_its_master(target: str, job: Path) -> None:
    told, table = explained(target, job)
    assert [rank["rank"] for rank in told["ranks"]] == list(range(told["world_size"]))
    for rank in told["ranks"]:
        assert rank["rank"] == rank["node_rank"] * told["procs_per_node"] + rank["local_rank"]
        seen = seen_by(told, rank["rank"])
        assert seen["RANK"] == str(rank["rank"])
        assert seen["LOCAL_RANK"] == str(rank["local_rank"])
        assert seen["WORLD_SIZE"] == str(told["world_size"])
        assert seen["MASTER_ADDR"]
        assert seen["MASTER_PORT"]
        assert all(name in table for name in seen)


@each_target
def test_values_of_several_lines_stay_on_one_and_secrets_are_only_names(
    target: str, spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "hush-hush")
    told, table = explained(target, spec)
    seen = seen_by(told, 5)
    assert seen["NOTE"] == "two\nlines "
    assert '"two\\nlines "' in table
    assert seen["TOKEN"] == "<secret>"
    assert "hush" not in table


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_variables_that_differ_between_the_tasks_of_a_sweep_are_shown(launcher: str, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    sweep = "sweep: {env.A: [x, y], env.B: [z], env.OMP_NUM_THREADS: ['1', '2']}"
    job.write_text(f"{BASE}nodes: 2\nenv: {{A: w}}\n{sweep}\nslurm: {{launcher: {launcher}}}\n")
    module = targets.load("slurm")
    (plan,) = plans_of(read(str(job)), module)
    told = json.loads(as_json(explain(plan, module)))
    differs = "<value of the combination>"
    assert {one["name"]: one["value"] for one in told["environment"] if one["set_by"] == "spec"} == {
        "A": differs,
        "B": "z",
        "OMP_NUM_THREADS": differs,
    }


@pytest.mark.parametrize("target", ["slurm", "torchrun", "compose"])
def test_only_c10d_numbers_the_nodes_by_the_order_of_their_names(target: str, spec: Path) -> None:
    assert "alphabetical" not in explained(target, spec)[1]
    told, table = explained(target, spec, "nodes={min: 1, max: 11}")
    assert "c10d numbers the nodes in alphabetical order" in table
    number_2 = "job-10" if target == "compose" else "<number 2 in alphabetical order>"
    assert [rank["node"] for rank in told["ranks"] if rank["node_rank"] == 2] == [number_2, number_2]


@pytest.mark.parametrize("target", ["slurm", "torchrun"])
@pytest.mark.parametrize("nodes", ["3", "{min: 1, max: 3}"])
def test_the_nodes_meet_by_the_name_that_rendezvous_host_makes(nodes: str, target: str, spec: Path) -> None:
    told, _ = explained(target, spec, f"nodes={nodes}", "rendezvous.host='{node}-ib'")
    assert seen_by(told, 5)["MASTER_ADDR"].endswith(">-ib")


@each_target
def test_json_has_each_rank_in_full_and_what_is_common_once(target: str, spec: Path) -> None:
    module = targets.load(target)
    plan = load(module, str(spec))
    told, _ = explained(target, spec)
    common = {variable["name"] for variable in told["environment"]}
    for rank in plan.ranks():
        own = {variable["name"] for variable in told["ranks"][rank.rank]["environment"]}
        assert not common & own
        wanted = {setting.name: setting.value for setting in module.environment(plan, rank) if "<" not in setting.value}
        seen = seen_by(told, rank.rank)
        assert wanted == {name: seen[name] for name in wanted}
    assert {"NOTE", "TOKEN", "WORLD_SIZE"} <= common
    assert {"RANK", "LOCAL_RANK"} <= own
    assert told["rendezvous_timeout_s"] == plan.rendezvous_timeout_s


def test_table_of_a_large_job_has_a_row_a_node(spec: Path) -> None:
    _, table = explained("slurm", spec, "nodes=64")
    assert table.splitlines()[1:6] == [
        "Why it waits: squeue --start -j JOB",
        "",
        "RANK     NODE_RANK  LOCAL_RANK  device  node",
        "0-1      0          0-1         cpu     <node 0>",
        "2-3      1          0-1         cpu     <node 1>",
    ]
    _, larger = explained("slurm", spec, "nodes=128")
    assert larger.splitlines()[67:71] == [
        "126-127  63         0-1         cpu     <node 63>",
        "...                                     63 nodes more, which --json shows",
        "254-255  127        0-1         cpu     <node 127>",
        "",
    ]


@pytest.mark.parametrize(
    ("target", "start", "rest"),
    [
        ("slurm", "OMP_NUM_THREADS", "script 1"),
        ("jobset", "OMP_NUM_THREADS", "manifest 1"),
        ("compose", "OMP_NUM_THREADS", "compose file 1"),
        # A later setter replaces an earlier one.
        ("pytorchjob", "RANK ", "operator, then torchrun <RANK above> (from operator: <NODE_RANK above>)"),
    ],
)
def test_row_of_a_variable_says_who_sets_it_and_what_else(target: str, start: str, rest: str, spec: Path) -> None:
    table = explained(target, spec)[1].partition("\nvariable ")[2]
    (row,) = [line for line in table.splitlines() if line.startswith(start)]
    assert row.split()[1:] == rest.split()


def test_variables_of_kubernetes_pod_are_shown(spec: Path) -> None:
    field = "{name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}"
    env = f"kubernetes.pod={{containers: [{{name: node, env: [{{name: HOME, value: /root}}, {field}]}}]}}"
    seen = seen_by(explained("jobset", spec, env)[0], 0)
    assert (seen["HOME"], seen["NODE_NAME"]) == ("/root", "<spec.nodeName of the pod>")


@pytest.mark.parametrize(
    ("keys", "waits"),
    [
        ("command: [mine.py]\nslurm: {launcher: torchrun}", True),
        ("command: [mine.py]\nslurm: {launcher: srun}", False),
        ("train: {model: mlp}\nslurm: {launcher: srun}", False),
        ("train: {model: mlp}\nslurm: {launcher: srun}\nrendezvous: {timeout: 15m}", True),
    ],
)
def test_a_wait_is_shown_only_where_something_waits_so_long(keys: str, waits: bool, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(f"name: job\nnodes: 2\nprocs_per_node: 2\ndevice: cpu\n{keys}\n")
    _, table = explained("slurm", job)
    assert table.splitlines()[0].endswith("static rendezvous within 900 s" if waits else "static rendezvous")


def test_table_of_torchrun(spec: Path, golden: Any) -> None:
    """Read it: this is what people see."""
    _, static = explained("torchrun", spec)
    _, elastic = explained("torchrun", spec, "nodes={min: 1, max: 3}")
    golden(Path(__file__).parent / "explain.out", f"{static}\n{elastic}")
