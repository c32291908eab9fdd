"""Time of a training step in fp32, tf32 and bf16, compiled and not, through `python -m train`."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gpu import jobs
from benchmarks.gpu.outcome import Failed, Outcome, Skipped, require_torchvision
from benchmarks.measure import median_ratio

PRECISIONS = ("fp32", "tf32", "bf16")
ROUNDS = 2
STEPS = 80  # in all; the second half is timed
LIMIT_S = 500.0  # for all runs together; the check has half a minute more
# The words of train, Triton and Inductor for: there is no C compiler, or no Python.h for it.
_NO_COMPILER = ("--compile needs", "Failed to find C compiler", "InvalidCxxCompiler", "Python.h")


def run(
    device: str,
    precisions: Sequence[str] = PRECISIONS,
    model: str = "resnet18",
    batch_size: int = 2500,
    steps: int = STEPS,
    rounds: int = ROUNDS,
) -> dict[str, Any]:
    """Return seconds per step, and the ratio to fp32 of the same round, as the median over the rounds.

    In a round each variant runs once, in a new process.  A slower step is a figure to keep, not an error.
    Raises Skipped if nothing can be compiled here, with the figures of the steps that are not compiled.
    """
    if model == "resnet18":
        require_torchvision()
    flags = [f"--model={model}", "--dataset=synthetic", f"--batch-size={batch_size}", "--epochs=100000"]
    deadline = time.monotonic() + LIMIT_S
    seconds: dict[str, list[float]] = {}
    refusal = None
    try:
        for _ in range(rounds):
            for compiled in (False, True):
                for precision in precisions:
                    if compiled and refusal:
                        continue
                    more = [f"--precision={precision}", f"--max-steps={steps}", *["--compile"] * compiled]
                    try:
                        taken = seconds_per_step(device, [*flags, *more], steps, deadline - time.monotonic())
                    except Failed as error:
                        refusal = _refusal(str(error)) if compiled else None
                        if refusal is None:
                            raise
                        continue
                    seconds.setdefault(precision + ", compiled" * compiled, []).append(taken)
    except Outcome as outcome:
        outcome.record = _record(seconds, model, batch_size)
        raise
    record = _record(seconds, model, batch_size)
    if refusal:
        raise Skipped(f"compiled: {refusal}", record)
    return record


def seconds_per_step(device: str, flags: Sequence[str], steps: int, limit_s: float) -> float:
    """Return the median over the second half of the steps, each of which has the mean of those read with it."""
    with tempfile.TemporaryDirectory() as folder, jobs.started(device, Path(folder), flags, base=()) as job:
        job.finish_in_time(limit_s)
        late = [record for record in job.records("step") if record["step"] > steps // 2]
        return float(median(record["seconds_per_step"] for record in late))


def _record(seconds: dict[str, list[float]], model: str, batch_size: int) -> dict[str, Any]:
    in_fp32 = seconds.get("fp32", [])
    complete = {name: values for name, values in seconds.items() if len(values) == len(in_fp32)}
    return {
        "model": model,
        "batch_size": batch_size,
        "seconds_per_step": seconds,
        "ratio_to_fp32": {name: median_ratio(values, in_fp32) for name, values in complete.items()},
    }


def _refusal(output: str) -> str | None:
    """Return the line that says that there is no compiler; None if the output has none."""
    return next((line.strip() for line in output.splitlines() if any(word in line for word in _NO_COMPILER)), None)
