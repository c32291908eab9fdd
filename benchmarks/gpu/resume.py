"""Compare the weights of a run that was stopped in the middle and resumed with the weights of an unbroken run."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu import jobs
from benchmarks.gpu.outcome import Failed, require_torchvision, together

_TIMEOUT_S = 100.0
STEPS = 20
_PLAIN, _STRICT = "without_deterministic", "with_deterministic"


def run(device: str, steps: int = STEPS, model: str = "resnet18") -> dict[str, Any]:
    if model == "resnet18":
        require_torchvision()
    return {"steps": steps, **together({name: partial(same, device, steps, model, name) for name in (_PLAIN, _STRICT)})}


def same(device: str, steps: int, model: str, name: str) -> dict[str, Any]:
    """Return whether both runs end with the same weights.  With --deterministic, raises Failed if they do not."""
    flags = ["--deterministic"] * (name == _STRICT)
    with tempfile.TemporaryDirectory() as folder:
        whole, resumed = hashes(device, Path(folder), steps, model, *flags)
    record = {"same_weights": whole == resumed}
    if name == _STRICT and whole != resumed:
        raise Failed("the weights after a resume are not those of an uninterrupted run", record)
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
