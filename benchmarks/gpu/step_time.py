"""Time of a training step on the device: `benchmarks.ddp --device cuda`, one process."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import ddp, measure
from benchmarks.gpu.outcome import RESULTS, Failed, OutOfTime, require_torchvision

# For all workloads together; the check has half a minute more.
LIMIT_S = 500.0
_KEPT = (
    "ratio",
    "ratio_at_most",
    "ratio_to_bare_at_most",
    "ratio_to_variant",
    "median_step_seconds",
    "losses_agree",
)


def run(device: str, *more: str) -> dict[str, Any]:
    """Return the medians of all variants; the whole record goes to ddp_cuda.json in the folder for results.

    Only losses that differ make the check fail: a slower step is a figure to keep, not an error.  If a workload fails
    or the time is over, the workloads before it are kept.
    """
    require_torchvision()
    with tempfile.TemporaryDirectory() as folder:
        results = Path(os.environ.get(RESULTS, measure.RESULTS)) if device == "cuda" else Path(folder)
        file = results / ("ddp_cuda.json" if device == "cuda" else "ddp_2.json")
        flags = [f"--device={device}", f"--results={results}", "--no-plain", "--memory-rounds=0"]
        started, deadline = time.time(), time.monotonic() + LIMIT_S
        try:
            code = ddp.main([*flags, f"--limit-s={LIMIT_S}", *more])
        except RuntimeError as error:
            kind = OutOfTime if time.monotonic() >= deadline else Failed
            raise kind(str(error), _record(file, started)) from error
        record = _record(file, started)
    if code != 0:
        raise Failed("the losses of the variants differ", record)
    return record


def _record(file: Path, since: float) -> dict[str, Any]:
    """Return the figures in `file` if it was written after that time; otherwise it is from an earlier run."""
    if not file.exists() or file.stat().st_mtime < since - 1:
        return {}
    whole = json.loads(file.read_text())
    return {key: whole[key] for key in _KEPT if key in whole}
