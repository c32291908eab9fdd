"""A pytest plugin that writes the outcome of each test to a file at once, so that a pytest that is killed leaves it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ranks import end_with_parent

# The environment variable with the name of the file, of which each line is one JSON object.
FILE = "GPU_CHECKS_PROGRESS"


class Progress:
    """Writes when a test starts, when it ends, and when pytest ends."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("a", buffering=1)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(event="start", test=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown" or not report.passed:
            self._report(report, str(report.when))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self._report(report, "collect")

    def pytest_sessionfinish(self) -> None:
        self._write(event="finish")

    def _report(self, report: pytest.TestReport | pytest.CollectReport, when: str) -> None:
        self._write(event="report", test=report.nodeid, when=when, outcome=report.outcome, reason=_reason(report))

    def _write(self, **record: Any) -> None:
        self._file.write(json.dumps(record) + "\n")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return why a test was skipped, or the message with which it or its import failed."""
    if hasattr(report, "wasxfail"):
        return f"expected to fail: {report.wasxfail}"
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr or "")


def pytest_configure(config: pytest.Config) -> None:
    """Write in the process that gets all reports, and not in the workers of pytest-xdist, which that process ends."""
    if hasattr(config, "workerinput"):
        end_with_parent()
    else:
        config.pluginmanager.register(Progress(Path(os.environ[FILE])))
