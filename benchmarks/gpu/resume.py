"""Compare the weights of a run that was stopped in the middle and resumed with the weights of an unbroken run."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.gpu import jobs
from benchmarks.gpu.outcome import Failed, require_torchvision

_TIMEOUT_S = 100.0
STEPS = 20


def run(device: str, steps: int = STEPS, model: str = "resnet18") -> dict[str, Any]:
    if model == "resnet18":
        require_torchvision()
    with tempfile.TemporaryDirectory() as folder:
        plain = hashes(device, Path(folder) / "plain", steps, model)
        record: dict[str, Any] = {"same_without_deterministic": plain[0] == plain[1], "steps": steps}
        strict = hashes(device, Path(folder) / "strict", steps, model, "--deterministic")
    record["same_with_deterministic"] = strict[0] == strict[1]
    if not record["same_with_deterministic"]:
        raise Failed("with --deterministic the weights after a resume are not those of an uninterrupted run", record)
    return record


def hashes(device: str, folder: Path, steps: int, model: str, *more: str) -> tuple[str, str]:
    """Return the SHA-256 of the weights without and with an interruption after half of the steps."""
    flags = (f"--model={model}", "--precision=bf16", "--batch-size=64", "--momentum=0.9", *more)
    with jobs.started(device, folder / "whole", [*flags, f"--max-steps={steps}"]) as job:
        whole = job.finish(_TIMEOUT_S)
    saved = [f"--checkpoint-dir={folder / 'checkpoints'}", "--resume=auto"]
    for number, end in enumerate((steps // 2, steps)):
        with jobs.started(device, folder / f"part-{number}", [*flags, *saved, f"--max-steps={end}"]) as job:
            resumed = job.finish(_TIMEOUT_S)
            first = job.records("step")[0]["step"]
            if first != number * (steps // 2) + 1:
                raise Failed(f"part {number + 1} began with step {first}: nothing was resumed")
    return whole, resumed
