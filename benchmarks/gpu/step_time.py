"""Time of a training step on the device: `benchmarks.ddp --device cuda`, one process."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import ddp, measure
from benchmarks.gpu.outcome import Failed, require_torchvision


def run(device: str, *more: str) -> dict[str, Any]:
    """Return the medians of all variants; the whole record goes to results/ddp_cuda.json.

    Only losses that differ make the check fail: a slower step is a figure to keep, not an error.
    """
    require_torchvision()
    with tempfile.TemporaryDirectory() as folder:
        results = measure.RESULTS if device == "cuda" else Path(folder)
        code = ddp.main([f"--device={device}", f"--results={results}", "--no-plain", "--memory-rounds=0", *more])
        name = "ddp_cuda" if device == "cuda" else "ddp_2"
        whole = json.loads((results / f"{name}.json").read_text())
    kept = (
        "ratio",
        "ratio_at_most",
        "ratio_to_bare_at_most",
        "ratio_to_variant",
        "median_step_seconds",
        "losses_agree",
    )
    record = {key: whole[key] for key in kept if key in whole}
    if code != 0:
        raise Failed("the losses of the variants differ", record)
    return record
