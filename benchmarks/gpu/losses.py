"""Compare losses of the first steps on the device, in each precision, with the losses of the CPU in fp32."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu import jobs
from benchmarks.gpu.outcome import Failed, require_torchvision, together

MODELS = ("mlp", "mnist_cnn", "resnet18")
# The largest difference of a loss, as a share of the CPU's.  In fp32, sums are in another order, and ten steps
# multiply the difference.  bf16 has 8 bits and fp16 11; both round each layer's output.
TOLERANCES = {"fp32": 1e-3, "bf16": 5e-2, "fp16": 2e-2}
STEPS = 10
_TIMEOUT_S = 250.0


def run(device: str, models: tuple[str, ...] = MODELS, steps: int = STEPS) -> dict[str, Any]:
    parts = together({model: partial(compared, device, model, steps) for model in models})
    return {**parts, "tolerances": TOLERANCES, "steps": steps}


def compared(device: str, model: str, steps: int) -> dict[str, Any]:
    """Return the largest difference of a loss for each precision.  Raises Failed if one is too large."""
    if model == "resnet18":
        require_torchvision()
    expected = losses_of("cpu", model, "fp32", steps)
    if not expected[-1] < expected[0]:
        raise Failed(f"it learns nothing in {steps} steps on the CPU, so equal losses would mean little")
    differences: dict[str, float] = {}
    wrong = []
    for precision, tolerance in TOLERANCES.items():
        if precision == "fp16" and device == "cpu":
            continue  # train rejects it there
        losses = losses_of(device, model, precision, steps)
        largest = max(abs(ours / theirs - 1) for ours, theirs in zip(losses, expected, strict=True))
        differences[precision] = largest
        if not largest <= tolerance:
            wrong.append(f"{precision} differs by {largest:.2g}, more than {tolerance:g}")
    if wrong:
        raise Failed("; ".join(wrong), {"largest_difference": differences})
    return {"largest_difference": differences}


def losses_of(device: str, model: str, precision: str, steps: int) -> list[float]:
    flags = [f"--model={model}", f"--precision={precision}", f"--max-steps={steps}", "--batch-size=64", "--lr=0.02"]
    with tempfile.TemporaryDirectory() as folder, jobs.started(device, Path(folder), flags) as job:
        job.finish(_TIMEOUT_S)
        return [record["loss"] for record in job.records("step")]
