"""The GPU checks that run pytest: what they count, and what they do without some packages or without enough time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import suite, two_ranks
from benchmarks.gpu.checks import CHECKS
from benchmarks.gpu.outcome import Failed, OutOfTime, Skipped, together
from benchmarks.ranks import ROOT
from tests import cli
from tests.ranks import run_ranks
from train.world.environment import World

_BATCHNORM = {"largest_difference": {"batchnorm: fp32": 0.0}}


def _arguments(folder: Path, text: str) -> list[str]:
    """Arguments with which pytest runs one file of a test, apart from this repository."""
    (folder / "test_some.py").write_text(text)
    return ["-c", "/dev/null", f"--rootdir={folder}", str(folder / "test_some.py")]


def test_tests_are_counted_by_outcome(tmp_path: Path) -> None:
    (tmp_path / "test_missing.py").write_text("raise ModuleNotFoundError(\"No module named 'hypothesis'\")\n")
    text = """import pytest
def test_good(): pass
def test_bad(): assert 0, "for a reason"
@pytest.mark.skip(reason="dark")
def test_no(): pass
@pytest.mark.xfail(reason="known")
def test_known(): assert 0
@pytest.fixture
def broken():
    yield
    assert 0, "too late"
def test_torn_down(broken): pass
"""
    arguments = [*_arguments(tmp_path, text), str(tmp_path / "test_missing.py")]
    with pytest.raises(Failed, match="2 tests failed, 1 tests passed") as failed:
        suite.pytest(arguments, 60)
    record = dict(failed.value.record)
    assert [name.partition("::")[2] for name in record["failed"]] == ["test_bad", "test_torn_down"]
    assert "for a reason" in str(record["failed"])
    assert len(record["not_importable"]) == 1
    assert record["skipped"] == {"dark": 1, "expected to fail: known": 1}
    assert suite.pytest(_arguments(tmp_path, "def test_good(): pass\n"), 60, workers=1)["passed"] == 1


def test_only_packages_on_the_list_may_be_missing(tmp_path: Path) -> None:
    names = {
        "pydantic": "pydantic",
        "train": "train.loop",
        "optional": "jsonschema.validators",
        "own": "no_such_module",
    }
    for file, module in names.items():
        text = f"raise ModuleNotFoundError(\"No module named '{module}'\")\n"
        (tmp_path / f"test_missing_{file}.py").write_text(text)
    arguments = [*_arguments(tmp_path, "def test_good(): pass\n"), str(tmp_path)]
    with pytest.raises(Failed, match="3 tests failed, 1 tests passed") as failed:
        suite.pytest(arguments, 60)
    assert [Path(name).name for name in failed.value.record["not_importable"]] == ["test_missing_optional.py"]


def test_tests_of_one_file_that_share_a_cache_stay_with_one_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(suite, "_workers", lambda: 7)
    with monkeypatch.context() as patched:
        patched.setattr(suite, "pytest", lambda *given, **named: calls.append({"workers": given[2], **named}))
        suite.marked()
    assert calls == [{"workers": 4, "dist": "loadfile"}]
    text = f"""import functools, os, pytest
@functools.cache
def figures(): open({str(tmp_path / "made")!r}, "a").write("x")
@pytest.mark.parametrize("number", range(8))
def test_some(number): figures()
"""
    assert suite.pytest(_arguments(tmp_path, text), 60, 2, "loadfile")["passed"] == 8
    assert (tmp_path / "made").read_text() == "x"


_ENDLESS = """import time
def test_good(): pass
def test_bad(): assert 0
def test_endless(): time.sleep(1000)
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_a_part_that_runs_out_of_time_with_no_failure_has_an_outcome_of_its_own(tmp_path: Path, workers: int) -> None:
    with pytest.raises(OutOfTime, match=r"^ran out of time after 1 tests, none failed$") as late:
        suite.pytest([*_arguments(tmp_path, _ENDLESS), "-k", "not bad"], 8, workers)
    assert [name.partition("::")[2] for name in late.value.record["running_then"]] == ["test_endless"]


def test_a_failure_counts_more_than_the_end_of_the_time(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="1 tests failed, 1 tests passed within 8 s"):
        suite.pytest(_arguments(tmp_path, _ENDLESS), 8)


def test_a_pytest_that_ends_without_any_test_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="pytest ended with exit code 5, 0 tests passed"):
        suite.pytest(_arguments(tmp_path, ""), 60)


def test_without_pytest_all_missing_packages_are_named_and_the_other_half_of_d_still_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(suite, "find_spec", lambda name: None if name != "xdist" else object())
    monkeypatch.setattr(two_ranks, "_compared", lambda *_: _BATCHNORM)
    missing = "pytest, pytest-timeout, hypothesis are not installed: pip install pytest pytest-timeout hypothesis"
    with pytest.raises(Skipped) as skipped:
        suite.fast("cuda")
    assert str(skipped.value) == missing
    with pytest.raises(Skipped) as skipped:
        two_ranks.marked_tests("cuda")
    assert str(skipped.value) == f"tests: {missing}; batchnorm: passed"
    assert skipped.value.record["batchnorm"] == {"outcome": "passed", **_BATCHNORM}


def test_batchnorm_on_nccl_is_checked_even_if_a_sync_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def compared(device: str, backend: str, kinds: Sequence[str]) -> dict[str, Any]:
        if "syncs" in kinds:
            raise RuntimeError("rank 1 of 2 failed")
        return _BATCHNORM

    monkeypatch.setattr(two_ranks, "run_ranks", lambda *_, **__: [3.0, 3.0])
    monkeypatch.setattr(two_ranks, "_compared", compared)
    with pytest.raises(Failed, match="syncs: RuntimeError: rank 1 of 2 failed; batchnorm: passed") as failed:
        two_ranks.over_nccl("cuda")
    assert failed.value.record["batchnorm"] == {"outcome": "passed", **_BATCHNORM}


def test_tests_run_with_pytest_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file of this repository, with its conftest.py, where no plugin and no hypothesis can be imported."""
    for module in ("hypothesis", "xdist", "pytest_timeout"):
        (tmp_path / f"{module}.py").write_text(f"raise ModuleNotFoundError(\"No module named '{module}'\")\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setattr(suite, "find_spec", lambda name: object() if name == "pytest" else None)
    files = ["tests/jobspec/test_files.py", "tests/jobspec/test_mounts.py"]
    record = suite.pytest(files, 100)
    assert record["passed"] > 0
    assert record["not_importable"] == files[:1]
    assert record["not_installed"] == ["pytest-xdist", "pytest-timeout", "hypothesis"]


def test_the_whole_suite_but_for_long_tests_is_cut_into_parts_that_end_before_their_checks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[Sequence[str], float]] = []

    def pytest_(arguments: Sequence[str], limit_s: float, workers: int = 0, dist: str = "") -> dict[str, Any]:
        calls.append((arguments, limit_s))
        return {}

    monkeypatch.setattr(suite, "pytest", pytest_)
    parts = [CHECKS["a1"], CHECKS["a2"]]
    records = [part.load()("cuda") for part in parts]
    assert [arguments[1] for arguments, _ in calls] == ["not slow", "slow and not long"]
    assert "long" in CHECKS["a2"].title and "long" in records[1]["left_out"]
    for part, (_, limit_s) in zip(parts, calls, strict=True):
        assert limit_s + suite.END_S < part.limit_s


def test_each_part_of_a_check_runs_and_the_worst_outcome_counts() -> None:
    def raising(outcome: Exception) -> Any:
        def part() -> dict[str, Any]:
            raise outcome

        return part

    parts = {
        "dark": raising(Skipped("no light")),
        "late": raising(OutOfTime("too late", {"figure": 1})),
        "good": lambda: {"figure": 2},
    }
    with pytest.raises(OutOfTime, match=r"^dark: no light; late: too late; good: passed$") as late:
        together(parts)
    assert late.value.record["late"] == {"outcome": "out of time", "why": "too late", "figure": 1}
    with pytest.raises(Failed) as failed:
        together({**parts, "wrong": raising(RuntimeError("bad"))})
    assert failed.value.record["wrong"]["why"] == "RuntimeError: bad"
    assert together({"good": parts["good"]}) == {"good": {"outcome": "passed", "figure": 2}}


def test_only_tests_marked_cuda_see_gpus() -> None:
    """With one GPU, `auto` would give all ranks the same one. train refuses that, so these tests would fail."""
    assert cli.environment()["CUDA_VISIBLE_DEVICES"] == ""
    assert run_ranks(2, _visible_gpus) == ["", ""]


def _visible_gpus(world: World) -> str:
    return os.environ["CUDA_VISIBLE_DEVICES"]


def test_the_order_of_collectives_of_a_rank_without_samples_is_checked_on_cuda_too() -> None:
    files = ["tests/train/ddp/test_order_of_collectives.py", "tests/train/collectives/test_sync_batchnorm.py"]
    options = ["-o", "addopts=--import-mode=importlib", "-q", "--collect-only", "-m", "cuda"]  # xdist may be missing
    command = [sys.executable, "-m", "pytest", *options, *files]
    found = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout
    for test in ("one_by_one[ours in resnet18-cuda]", "under_autocast", "test_running_statistics_keep"):
        assert test in found
