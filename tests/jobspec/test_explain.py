"""`explain` on every target: each rank once, the variables that any process needs, and who numbers the nodes how."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jobspec import targets
from jobspec.artifact import load
from jobspec.explain import as_json, as_table, explain
from jobspec.problems import SpecError

JOBS = sorted((Path(__file__).parents[2] / "jobs").glob("*.yaml"))
BASE = "name: job\nprocs_per_node: 2\ndevice: cpu\nimage: registry.example/train:1\ncommand: [mine.py]\n"

each_target = pytest.mark.parametrize("target", targets.names())


def explained(target: str, spec: Path, *settings: str, hosts: str = "") -> tuple[dict[str, Any], str]:
    """The JSON and the table."""
    module = targets.load(target)
    explanation = explain(load(module, str(spec), settings), module, hosts)
    return json.loads(as_json(explanation)), as_table(explanation)


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(BASE + "nodes: 3\nsecrets: [TOKEN]\nenv: {NOTE: 'two\n\n  lines '}\n")
    return file


@each_target
@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.stem)
def test_every_process_of_every_job_knows_its_rank_its_world_and_its_master(target: str, job: Path) -> None:
    try:
        told, table = explained(target, job)
    except SpecError:
        pytest.skip("the target refuses this job; its golden says why")
    assert [rank["rank"] for rank in told["ranks"]] == list(range(told["world_size"]))
    for rank in told["ranks"]:
        assert rank["rank"] == rank["node_rank"] * told["procs_per_node"] + rank["local_rank"]
        seen = {variable["name"]: variable["value"] for variable in rank["variables"]}
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
    seen = {variable["name"]: variable["value"] for variable in told["ranks"][5]["variables"]}
    assert seen["NOTE"] == "two\nlines "
    assert '"two\\nlines "' in table
    assert seen["TOKEN"] == "<secret>"
    assert "hush" not in table


@each_target
def test_hosts_are_numbered_as_given_and_by_c10d_in_the_order_of_their_text(target: str, spec: Path) -> None:
    told, table = explained(target, spec, hosts="gpu2,gpu10,gpu1")
    assert [rank["node"] for rank in told["ranks"][::2]] == ["gpu2", "gpu10", "gpu1"]
    assert told["c10d_order"] == ["gpu1", "gpu10", "gpu2"]
    assert "c10d would number the nodes" in table


def test_ranks_of_a_c10d_job_follow_the_text_of_the_names(spec: Path) -> None:
    told, _ = explained("torchrun", spec, "nodes={min: 2, max: 3}", hosts="gpu2,gpu10,gpu1")
    assert told["backend"] == "c10d"
    assert [rank["node"] for rank in told["ranks"][::2]] == ["gpu1", "gpu10", "gpu2"]


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        ("a", "as many names as nodes are needed: 3, not 1"),
        ("a,b,a", "each node needs a name of its own"),
        ("a,,b", "each node needs a name of its own"),
    ],
)
def test_wrong_hosts_are_refused(spec: Path, hosts: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        explained("torchrun", spec, hosts=hosts)


def test_table_of_torchrun(spec: Path, golden: Any) -> None:
    """Read it: this is what people see."""
    _, static = explained("torchrun", spec)
    _, elastic = explained("torchrun", spec, "nodes={min: 1, max: 3}", hosts="gpu2,gpu10,gpu1")
    golden(Path(__file__).parent / "explain.out", f"{static}\n{elastic}")
