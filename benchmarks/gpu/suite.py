"""Run pytest with CUDA visible and count the outcomes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu import progress
from benchmarks.gpu.outcome import Failed, OutOfTime, Skipped
from benchmarks.ranks import ROOT, end_with_parent

# Modules of the tests, and what installs them.  Only pytest must be there.  Without xdist the tests run one by one,
# without pytest_timeout only the part's own limit ends a test that hangs, and files that import hypothesis are listed.
_PACKAGES = {
    "pytest": "pytest",
    "xdist": "pytest-xdist",
    "pytest_timeout": "pytest-timeout",
    "hypothesis": "hypothesis",
}
# An image for training may lack these: development tools, what only rendering needs, and optional parts of `train`.
# Test files that cannot be imported without them are listed.  Any other module that is missing is a failure.
_OPTIONAL = {
    *("hypothesis", "jsonschema", "kubernetes_validate", "expecttest", "nemo_run"),
    *("jinja2", "torchvision", "tqdm", "safetensors", "tensorboard", "matplotlib"),
}
_MISSING = re.compile(r"No module named '?([A-Za-z_]\w*)")
_LEFT_OUT = "tests marked long: they train for minutes"
_TEST_LIMIT_S = 300
# Characters of an error that are recorded for each failed test.
_REASON_LENGTH = 300
# Time to end a pytest that is interrupted.  The limits of the checks leave room for it.
END_S = 30.0


def fast(device: str) -> dict[str, Any]:
    """Run the tests that `make test` runs."""
    return pytest(["-m", "not slow", "tests"], 400, _workers())


def slow(device: str) -> dict[str, Any]:
    """Run the slow tests that are not `long`."""
    return {"left_out": _LEFT_OUT, **pytest(["-m", "slow and not long", "tests"], 490, _workers())}


def marked() -> dict[str, Any]:
    """Run the tests marked for CUDA, those marked long among them."""
    # Some share figures within a process, so each file stays with one worker; and all share the GPU's memory.
    return pytest(["-m", "cuda", "tests/train"], 230, min(4, _workers()), dist="loadfile")


def absent() -> list[str]:
    """Return the modules of the tests that are not installed."""
    return [module for module in _PACKAGES if find_spec(module) is None]


def pytest(arguments: Sequence[str], limit_s: float, workers: int = 0, dist: str = "worksteal") -> dict[str, Any]:
    """Return the number of tests that passed, the reasons for skipped tests, and what could not be imported.

    Raises Skipped without pytest, Failed if a test fails or none passes, OutOfTime if `limit_s` was too short.
    """
    missing = absent()
    packages = [_PACKAGES[module] for module in missing]
    if "pytest" in missing:
        verb = "is" if len(packages) == 1 else "are"
        raise Skipped(f"{', '.join(packages)} {verb} not installed: pip install {' '.join(packages)}")
    # In place of addopts in pyproject.toml, which names options of plugins that may be missing.
    options = ["-o", "addopts=--import-mode=importlib", "-p", "no:cacheprovider", "-p", progress.__name__]
    options += [] if "xdist" in missing else ["-n", str(workers), f"--dist={dist}"]
    options += [] if "pytest_timeout" in missing else [f"--timeout={_TEST_LIMIT_S}"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "progress"
        command = [sys.executable, "-m", "pytest", "-q", "--continue-on-collection-errors", *options, *arguments]
        code, late = _run(command, file, limit_s)
        events = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    record = {**_count(events), "not_installed": packages}
    passed = f"{record['passed']} tests passed" + f" within {limit_s:g} s" * late
    if record["failed"]:
        raise Failed(f"{len(record['failed'])} tests failed, {passed}", record)
    if late:
        running = {"running_then": _unfinished(events)}
        raise OutOfTime(f"ran out of time after {record['passed']} tests, none failed", record | running)
    if record["passed"] == 0 or not any(event["event"] == "finish" for event in events):
        raise Failed(f"pytest ended with exit code {code}, {passed}; its last lines are in the log", record)
    return record


def _run(command: Sequence[str], file: Path, limit_s: float) -> tuple[int, bool]:
    """Return the exit code and whether the limit was reached; pytest is then interrupted and, after that, killed."""
    process = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | {progress.FILE: str(file)}, preexec_fn=end_with_parent
    )
    for wait_s, end in ((limit_s, signal.SIGINT), (END_S, signal.SIGKILL)):
        try:
            return process.wait(wait_s), end == signal.SIGKILL
        except subprocess.TimeoutExpired:
            process.send_signal(end)
    return process.wait(), True


def _count(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    reports = [event for event in events if event["event"] == "report"]
    failed: dict[str, str] = {}
    not_importable: dict[str, str] = {}
    skipped: dict[str, str] = {}
    ended = {report["test"] for report in reports if report["when"] == "teardown"}
    for report in reports:
        test, reason = report["test"], report["reason"]
        if report["outcome"] == "failed":
            absent = set(_MISSING.findall(reason))
            unimportable = absent and absent <= _OPTIONAL and report["when"] in ("collect", "setup")
            (not_importable if unimportable else failed)[test] = _shortened(reason)
        elif report["outcome"] == "skipped":
            skipped[test] = reason
    return {
        "passed": len(ended - failed.keys() - not_importable.keys() - skipped.keys()),
        "failed": failed,
        "not_importable": list(not_importable),
        "skipped": dict(Counter(skipped.values())),
    }


def _shortened(reason: str) -> str:
    half = _REASON_LENGTH // 2
    return reason if len(reason) <= 2 * half else f"{reason[:half]} … {reason[-half:]}"


def _unfinished(events: Sequence[dict[str, Any]]) -> list[str]:
    ended = {event["test"] for event in events if event["event"] == "report"}
    return [event["test"] for event in events if event["event"] == "start" and event["test"] not in ended]


def _workers() -> int:
    """Return how many tests run at a time: most of them start two processes."""
    return max(1, (len(os.sched_getaffinity(0)) - 2) // 2)
