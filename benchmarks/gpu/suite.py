"""Run pytest with CUDA visible and count the outcomes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.gpu.outcome import Failed
from benchmarks.ranks import ROOT

# The error in an image without the development tools, where the tests that need them cannot be imported.
_MISSING = "No module named"


def whole(device: str) -> dict[str, Any]:
    """Run every test; tests that need a missing package are listed, not counted as failures."""
    workers = max(1, (len(os.sched_getaffinity(0)) - 2) // 2)
    return pytest(["-n", str(workers), "--dist=worksteal", "--timeout=300", "tests"])


def pytest(arguments: list[str], limit_s: float = 540.0) -> dict[str, Any]:
    """Return the numbers of tests by outcome, the reasons for skipped tests, and the failed tests.

    Raises Failed if a test fails, if none ran, or if some did not start within `limit_s`.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
        command += [f"--junitxml={report}", f"--session-timeout={limit_s:g}", *arguments]
        output = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, errors="replace").stdout
        print(output, flush=True)
        if not report.exists():
            raise Failed("pytest wrote no report; its last lines are in the log")
        record = _count(report)
    if record["failed"] or record["passed"] == 0:
        raise Failed(f"{len(record['failed'])} tests failed, {record['passed']} passed", record)
    if "session-timeout:" in output:
        raise Failed(f"only {record['passed']} tests passed within {limit_s:g} s; the others did not start", record)
    return record


def _count(report: Path) -> dict[str, Any]:
    passed = 0
    failed: list[str] = []
    not_importable: list[str] = []
    skipped: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        problem = next((part for kind in ("failure", "error") for part in case.findall(kind)), None)
        skip = case.find("skipped")
        if problem is not None:
            text = f"{problem.get('message')} {problem.text}"
            (not_importable if _MISSING in text and problem.tag == "error" else failed).append(name)
        elif skip is not None:
            skipped[str(skip.get("message"))] += 1
        else:
            passed += 1
    return {"passed": passed, "failed": failed, "not_importable": not_importable, "skipped": dict(skipped)}
