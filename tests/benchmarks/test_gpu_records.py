"""What is left of the GPU checks when their time is over, when they are killed, and when a package is missing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import ddp, measure
from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import jobs, outcome, step_time
from benchmarks.gpu.checks import CHECKS, Check
from benchmarks.gpu.outcome import Failed, OutOfTime, Skipped, together
from benchmarks.ranks import ROOT
from benchmarks.steps import losses_in_double

_HERE = "tests.benchmarks.test_gpu_records"
_FILE = "GPU_RECORDS_TEST_FILE"

pytestmark = pytest.mark.timeout(300)


def passing(device: str) -> dict[str, Any]:
    return {"folder": os.environ[outcome.RESULTS], "path": os.environ["PYTHONPATH"]}


def skipping(device: str) -> dict[str, Any]:
    print("\n".join(f"line {number}" for number in range(300)))
    raise Skipped("no light")


def endless_second_part(device: str) -> dict[str, Any]:
    """Pass one part; in the other, start a process as a job does, and never end."""
    return together({"first": lambda: {"figure": 1}, "second": _endless})


def _endless() -> dict[str, Any]:
    modules = ("tests.benchmarks.sleeper",)
    with jobs.started("cpu", Path(os.environ[_FILE]).parent, [], modules=modules) as job:
        pids = f"{os.getpid()} {job.processes[0].pid}"
        Path(os.environ[_FILE]).write_text(pids)
        time.sleep(1000)
    return {}


def _record(folder: Path) -> dict[str, Any]:
    checks: dict[str, Any] = json.loads((folder / "gpu_on_cpu.json").read_text())["checks"]
    return checks


def _until(reached: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _runs(pid: int) -> bool:
    """Return True if the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_check_that_no_longer_fits_is_not_started_and_keeps_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = {"short": 40, "long": 1000, "new": 1000, "last": 40}
    monkeypatch.setattr(gpu, "CHECKS", {name: Check(name, f"{_HERE}:passing", s) for name, s in limits.items()})
    assert gpu.main(["long", "--device=cpu", f"--results={tmp_path}"]) == 0
    assert gpu.main(["--device=cpu", f"--results={tmp_path}", "--budget-s=100"]) == 0
    outcomes = {name: record["outcome"] for name, record in _record(tmp_path).items()}
    assert outcomes == {"short": "passed", "long": "passed", "new": "not started", "last": "passed"}
    assert "its limit is 1000 s, and" in _record(tmp_path)["new"]["why"]
    assert capsys.readouterr().out.endswith("for the others: python -m benchmarks.gpu long new --budget-s=100\n")
    # A later run replaces it, and it does not outlive one.
    assert gpu.main(["new", "--device=cpu", f"--results={tmp_path}"]) == 0
    assert _record(tmp_path)["new"]["outcome"] == "passed"


def test_each_check_fits_into_a_command_of_ten_minutes_and_the_first_commands_show_most() -> None:
    assert list(CHECKS)[:3] == ["c", "e", "d"]
    # If (c) and (e) take a quarter of their limits, (d) still fits.
    quarter = (CHECKS["c"].limit_s + CHECKS["e"].limit_s) / 4
    assert 570 - quarter > CHECKS["d"].limit_s >= 230 + 30 + 2 * 80


def test_folders_reach_a_check_and_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    record = gpu.run("a", Check("a", f"{_HERE}:passing", 60), "cpu", tmp_path)
    assert (record["folder"], record["path"]) == (str(tmp_path), f"{ROOT}{os.pathsep}{tmp_path}")
    with jobs.started("cpu", tmp_path, [], modules=("tests.benchmarks.sleeper",)) as job:
        _until(lambda: "PYTHONPATH" in job.text(0))
        assert f"PYTHONPATH={ROOT}{os.pathsep}{tmp_path}\n" in job.text(0)


def test_the_log_of_a_skipped_check_is_kept(tmp_path: Path) -> None:
    record = gpu.run("a", Check("a", f"{_HERE}:skipping", 60), "cpu", tmp_path)
    assert record["outcome"] == "skipped"
    assert record["log"] == [f"line {number}" for number in range(100, 300)]


def test_parts_that_ended_before_the_limit_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_FILE, str(tmp_path / "pids"))
    record = gpu.run("a", Check("a", f"{_HERE}:endless_second_part", 20), "cpu", tmp_path)
    assert (record["outcome"], record["why"]) == ("failed", "not done within 20 s")
    assert record["first"] == {"outcome": "passed", "figure": 1}


def test_what_ranks_wrote_is_printed_when_a_part_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Failed), jobs.started("cpu", tmp_path, [], modules=("tests.benchmarks.sleeper",)) as job:
        _until(lambda: "PYTHONPATH" in job.text(0))
        raise Failed("a wrong figure")
    assert "last lines of rank 0:\nPYTHONPATH=" in capsys.readouterr().out


def test_after_a_kill_nothing_runs_on_and_the_records_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(_FILE, str(tmp_path / "pids"))
    code = f"""
from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu.checks import Check
gpu.CHECKS = {{name: Check(name, "{_HERE}:" + name, 200) for name in ("passing", "endless_second_part")}}
gpu.main(["--device=cpu", "--results={tmp_path}"])
"""
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.DEVNULL)
    _until(lambda: (tmp_path / "pids").exists() and len((tmp_path / "pids").read_text().split()) == 2)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert all(map(_runs, pids))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    try:
        _until(lambda: not any(map(_runs, pids)), 10)
    finally:
        for pid in filter(_runs, pids):
            os.kill(pid, signal.SIGKILL)
    assert _record(tmp_path)["passing"]["outcome"] == "passed"


def test_a_record_is_replaced_at_once_and_one_that_cannot_be_read_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure.write_result(tmp_path, "gpu_on_cpu", {"first": 1})

    def killed(self: Path, text: str) -> int:
        with self.open("w") as file:
            file.write(text[:5])
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "write_text", killed)
        measure.write_result(tmp_path, "gpu_on_cpu", {"second": 2})
    assert json.loads((tmp_path / "gpu_on_cpu.json").read_text()) == {"first": 1}

    (tmp_path / "gpu_on_cpu.json").write_text('{"checks": {')
    gpu.keep(tmp_path, {"c": {"outcome": "passed"}}, "cpu")
    assert _record(tmp_path) == {"c": {"outcome": "passed"}}


def test_a_missing_package_is_named_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "find_spec", lambda name: None if name in ("pydantic", "yaml") else object())
    assert gpu.main([f"--results={tmp_path}"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("not installed: PyYAML, pydantic; install them")
    assert "pip install --target FOLDER PyYAML pydantic" in message and message.count("\n") == 1


def test_step_times_are_kept_workload_by_workload_and_end_within_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeouts: list[float] = []

    def run_ranks(function: Callable[..., Any], _: Any, timeout_s: float, **arguments: Any) -> list[Any]:
        timeouts.append(timeout_s)
        if arguments["workload"] == "mlp":
            raise RuntimeError("1 ranks were not done within 5 s")
        values = {variant: [1.0, 1.0] for variant in arguments["variants"]}
        return [values if function is losses_in_double else {"step_seconds": values}]

    monkeypatch.setattr(ddp, "run_ranks", run_ranks)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(step_time, "require_torchvision", lambda: None)
    monkeypatch.setenv(outcome.RESULTS, str(tmp_path))
    with pytest.raises(Failed, match="not done within") as failed:
        step_time.run("cuda")
    assert failed.value.record["losses_agree"] == {"resnet18": True}
    assert json.loads((tmp_path / "ddp_cuda.json").read_text())["losses_agree"] == {"resnet18": True}
    assert max(timeouts) <= step_time.LIMIT_S < CHECKS["i"].limit_s - 20
    monkeypatch.setattr(step_time, "LIMIT_S", -1.0)
    with pytest.raises(OutOfTime):
        step_time.run("cuda")
