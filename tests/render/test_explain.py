"""render.py explain: a table or JSON, and where each value comes from."""

import json
from pathlib import Path

import pytest

from tests.render.command import QUICKSTART, command_line


def test_explain_says_where_each_value_comes_from(site: Path) -> None:
    words = ["explain", QUICKSTART, str(site), "--target", "slurm", "--origin", "--set", "train.lr=1"]
    told = json.loads(command_line(*words, "--json").stdout)["spec"]
    value_and_origin = {entry["key"]: (entry["value"], entry["origin"]) for entry in told}
    assert value_and_origin["nodes"] == (1, f"{QUICKSTART}:4")
    assert value_and_origin["slurm.partition"] == ("gpu", f"{site}:1")
    assert value_and_origin["env.NOTE"] == ("ours", f"{site}:2")
    assert value_and_origin["secrets.0"] == ("TOKEN", f"{site}:3")
    assert value_and_origin["train.lr"] == (1, "--set")
    assert value_and_origin["train.seed"] == (0, "default")
    assert value_and_origin["slurm.launcher"] == ("torchrun", "default")
    words_of_nothing = [*words, "--set", "gpu=", "--set", "train=", "--set", "env.NOTE=", "--json"]
    told = json.loads(command_line(*words_of_nothing, "--set", "command=[a]").stdout)["spec"]
    value_and_origin = {entry["key"]: (entry["value"], entry["origin"]) for entry in told}
    assert value_and_origin["gpu"] == (None, "--set")
    rows = [line.split() for line in command_line(*words).stdout.decode().splitlines()]
    assert ["slurm.partition", f"{site}:1", "gpu"] in rows
    assert ["train.lr", "--set", "1"] in rows
    assert ["key", "from", "value"] not in [
        line.split() for line in command_line(*words[:5]).stdout.decode().splitlines()
    ]


@pytest.mark.parametrize(
    ("words", "name", "run_dir", "rate", "letter"),
    [
        (["slurm"], "job", "runs/0", 0.1, "x"),
        (["slurm", "--sweep-index", "3"], "job-3", "runs/3", 0.2, "y"),
        (["jobset"], "job-0", "runs/0", 0.1, "x"),
        (["compose", "--sweep-index", "1"], "job-1", "runs/1", 0.1, "y"),
    ],
)
def test_origins_of_a_sweep_are_those_of_the_combination_that_is_explained(
    words: list[str], name: str, run_dir: str, rate: float, letter: str, tmp_path: Path
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "name: job\nnodes: 2\nprocs_per_node: 1\ndevice: cpu\nimage: a/b\ntrain: {run_dir: runs}\n"
        "sweep: {train.lr: [0.1, 0.2], env.A: [x, y]}\n"
    )
    done = command_line("explain", str(job), "--origin", "--target", *words)
    rows = [line.split() for line in done.stdout.decode().splitlines()]
    for row in (
        ["name", f"{job}:1", name],
        ["train.run_dir", f"{job}:6", run_dir],
        ["train.lr", f"{job}:7", str(rate)],
        ["env.A", f"{job}:7", letter],
    ):
        assert row in rows
    assert (b"values of the first task." in done.stdout) == (words == ["slurm"])
