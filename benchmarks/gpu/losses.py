"""Compare losses of the first steps on the device, in each precision, with the losses of the CPU in fp32."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu import jobs
from benchmarks.gpu.differences import largest_difference
from benchmarks.gpu.outcome import Failed, require_torchvision, together

# By model and precision: how many steps are compared, and the largest difference of a loss as a share of the CPU's.
# Sums in another order are the difference in fp32.  bf16 and fp16 differ by up to 3.2e-4 on a CPU; weights that never
# change differ by 2.7e-2.
_TEN = {"fp32": (10, 1e-3), "bf16": (10, 3e-3), "fp16": (10, 3e-3)}
# resnet18 multiplies a rounding error by a hundred in each step: fp32 differs from fp64 by 1e-7, 3e-5 and 1e-3 in the
# first three steps, and bf16 by 4e-4 and 3e-2 in the first two.  In fp16, the first gradient overflows with the scale
# 65536 with which GradScaler starts.  The scaler skips this step, so all later losses lag by one step.
LIMITS = {"mlp": _TEN, "mnist_cnn": _TEN, "resnet18": {"fp32": (2, 1e-3), "bf16": (1, 3e-3), "fp16": (1, 3e-3)}}
_TIMEOUT_S = 100.0


def run(device: str, models: tuple[str, ...] = tuple(LIMITS)) -> dict[str, Any]:
    parts = together({model: partial(compared, device, model) for model in models})
    limits = {
        model: {
            precision: {"steps": steps, "tolerance": tolerance} for precision, (steps, tolerance) in of_model.items()
        }
        for model, of_model in LIMITS.items()
    }
    return {**parts, "limits": limits}


def compared(device: str, model: str) -> dict[str, Any]:
    """Return the largest difference of a loss for each precision.  Raises Failed if one is too large."""
    if model == "resnet18":
        require_torchvision()
    most = max(steps for steps, _ in LIMITS[model].values())
    expected = losses_of("cpu", model, "fp32", most)
    if not expected[-1] < expected[0]:
        raise Failed(f"the model learns nothing in {most} steps on the CPU, so equal losses would mean little")
    differences: dict[str, float] = {}
    wrong = []
    for precision, (steps, tolerance) in LIMITS[model].items():
        try:
            losses = losses_of(device, model, precision, steps)
        except Failed as error:
            wrong.append(f"{precision}: {error}")
            continue
        differences[precision] = largest = largest_difference(losses, expected[:steps])
        if not largest <= tolerance:
            wrong.append(f"{precision} differs by {largest:.2g}, more than {tolerance:g}")
    if wrong:
        raise Failed("; ".join(wrong), {"largest_difference": differences})
    return {"largest_difference": differences}


def losses_of(device: str, model: str, precision: str, steps: int, *more: str) -> list[float]:
    flags = [f"--model={model}", f"--precision={precision}", f"--max-steps={steps}", "--batch-size=64", "--lr=0.02"]
    with tempfile.TemporaryDirectory() as folder, jobs.started(device, Path(folder), [*flags, *more]) as job:
        job.finish(_TIMEOUT_S)
        return [record["loss"] for record in job.records("step")]
