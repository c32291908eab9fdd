"""The host must not wait for the GPU inside a training step, or the GPU runs out of work."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.jobs import BASE_FLAGS
from benchmarks.gpu.outcome import Failed
from train.__main__ import main
from train.loop.step import Step

STEPS = 20
_WARM_UP = 5
# fp16 is not among them: its scaler must read after each step whether a gradient overflowed.  So must
# --on-nonfinite=stop and skip, before they let the optimizer use the gradient.
CASES = [(input, precision) for input in ("memory", "loader") for precision in ("fp32", "bf16")]
# Calls of the CUDA runtime in which the host waits.
_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")


def run(device: str, cases: list[tuple[str, str]] = CASES, steps: int = STEPS) -> dict[str, Any]:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        os.environ.pop(name, None)
    waits: dict[str, dict[str, int]] = {}
    for input, precision in cases:
        flags = [f"--device={device}", f"--input={input}", f"--precision={precision}", "--model=mnist_cnn", *BASE_FLAGS]
        flags += ["--batch-size=100", f"--max-steps={_WARM_UP + steps}", "--on-nonfinite=stop_late"]
        with _watched_steps(device, steps, "error") as watched:
            code = main(flags)
        if code != 0 or watched["steps"] != steps:
            message = f"--input={input} --precision={precision}: ended with {code} after {watched['steps']} of {steps}"
            raise Failed(f"{message} watched steps; the log has the place where the host waits", {"waits": waits})
        with _watched_steps(device, steps, "profile") as watched:
            main(flags)
        waits[f"{input}, {precision}"] = watched["waits"]
    found = {case: calls for case, calls in waits.items() if calls}
    record = {"steps": steps, "waits_in_profile": waits}
    if found:
        raise Failed(f"the profile has calls in which the host waits: {found}", record)
    return record


@contextmanager
def _watched_steps(device: str, steps: int, how: str) -> Iterator[dict[str, Any]]:
    """Watch the training steps after the warm-up: an error or a profile of each call in which the host waits."""
    watched: dict[str, Any] = {"steps": 0, "waits": {}}
    original, seen, calls = Step.run, 0, Counter[str]()
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == "cuda")

    def watched_run(self: Step, *arguments: Any) -> Any:
        nonlocal seen
        seen += 1
        if not _WARM_UP < seen <= _WARM_UP + steps:
            return original(self, *arguments)
        if how == "profile":
            with profile(activities=activities) as profiled:
                result = original(self, *arguments)
            calls.update(event.name for event in profiled.events() if event.name in _WAITS)
        else:
            if device == "cuda":
                torch.cuda.set_sync_debug_mode("error")
            try:
                result = original(self, *arguments)
            finally:
                if device == "cuda":
                    torch.cuda.set_sync_debug_mode("default")
        watched["steps"] += 1
        return result

    Step.run = watched_run  # type: ignore[method-assign, assignment]
    try:
        yield watched
    finally:
        Step.run = original  # type: ignore[method-assign]
        watched["waits"] = dict(calls)
