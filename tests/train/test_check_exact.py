"""`python -m train --check-exact` says whether the bits are the same, and where they first differ."""

import re
from pathlib import Path

import pytest

from tests.cli import environment, train
from train.records.slices import first_difference, log_slice, read_slices

_FLAGS = ("--check-exact", "--model=mlp", "--dataset=synthetic", "--logical-world=4", "--batch-size=32")
# What a fault of a model or a machine may do: rank 1 computes in another way.
_OTHER_ON_RANK_1 = """
import os, torch
linear = torch.nn.Linear.forward
def other(self, x):
    out = linear(self, x)
    {change}
    return out
if os.environ.get("RANK") == "1":
    torch.nn.Linear.forward = other
"""


def test_first_difference_of_two_logs_is_named_and_the_newest_line_counts(tmp_path: Path) -> None:
    def log(name: str, rank: int, number: int, loss: float, **hashes: str) -> None:
        log_slice(str(tmp_path / name), rank, (1, 0, 0, number), loss, hashes)

    def said() -> str:
        return first_difference(read_slices(tmp_path / "a"), read_slices(tmp_path / "b"))

    log("a", 0, 0, 1.5, w="x")
    log("b", 1, 0, 9.0, w="z")
    log("b", 0, 0, 1.5, w="x")
    assert said() == "all 1 slices have the same losses and gradients"
    log("b", 1, 1, 2.5, w="y")
    assert said().endswith("step 1 of epoch 1, slice 1: only one of the runs has logged it")
    log("a", 0, 1, 2.5, w="y")
    log("b", 0, 0, 1.5, w="x", v="x")
    assert said().endswith("step 1 of epoch 1, slice 0: the gradients of v")
    with (tmp_path / "a" / "slices-0.jsonl").open("a") as cut_off:
        cut_off.write("[1.0, [1, 0,")
    assert said().endswith("slice 0: the gradients of v")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("out = out * 1.001", r"step 1 of epoch 1, slice 2: the sum of its losses is [\d.]+ and [\d.]+"),
        (
            "out.requires_grad and out.register_hook(lambda grad: grad * 1.001)",
            r"step 1 of epoch 1, slice 2: the gradients of [\w.]+bias and [35] more",
        ),
    ],
    ids=["forward", "backward"],
)
def test_first_slice_and_tensor_that_differ_are_named(change: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(_OTHER_ON_RANK_1.format(change=change))
    path = f"{tmp_path}:{environment()['PYTHONPATH']}"
    # So small a rate that neither fault reaches the weights.
    ended = train(1, *_FLAGS, "--lr=1e-30", PYTHONPATH=path)
    assert ended.returncode == 1, ended.stderr
    assert re.search(f"^slices first differ at {said}$", ended.stdout, re.M), ended.stdout
    assert "the bits are not the same" in ended.stdout


@pytest.mark.slow
def test_three_processes_have_the_bits_of_one() -> None:
    ended = train(1, *_FLAGS, "--procs=3")
    assert ended.returncode == 0, ended.stderr
    assert "all 20 slices have the same losses and gradients" in ended.stdout
    assert ended.stdout.endswith("the bits are the same\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--logical-world=4 --run-dir=never", "leave out --run-dir"),
        ("--batch-size=8", "a --logical-world of at least as many"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_runs(flags: str, said: str) -> None:
    ended = train(1, "--check-exact", *flags.split())
    assert ended.returncode == 1
    assert said in ended.stderr
    assert ended.stdout == ""
