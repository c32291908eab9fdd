"""The host must not wait for the GPU while it prepares a batch or trains a step, or the GPU runs out of work."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.gpu.jobs import BASE_FLAGS
from benchmarks.gpu.outcome import Failed, together
from train import sync
from train.__main__ import main
from train.data.batches import Batches
from train.ddp.wrapper import CustomDDP
from train.loop.step import Step
from train.strategies import Context, Wrapped, custom_ddp, replicated

STEPS = 20
_WARM_UP = 5
# fp16 is not among them: its scaler must read after each step whether a gradient overflowed.  So must
# --on-nonfinite=stop and skip, before they let the optimizer use the gradient.  A process that trains alone uses the
# bare model; CustomDDP is put around it for the last two.
CASES = [(input, precision, False) for input in ("memory", "loader") for precision in ("fp32", "bf16")]
CASES += [("memory", "fp32", True), ("loader", "bf16", True)]
# Calls of the CUDA runtime in which the host waits.
_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")
# Names of the watched ranges in a profile.
_STEP, _BATCH = "watched step", "watched batch"


def run(device: str, cases: Sequence[tuple[str, str, bool]] = CASES, steps: int = STEPS) -> dict[str, Any]:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        os.environ.pop(name, None)
    parts = {
        ", ".join([input, precision, *["CustomDDP"] * wrapped]): partial(case, device, input, precision, wrapped, steps)
        for input, precision, wrapped in cases
    }
    return {"steps": steps, **together(parts)}


def case(device: str, input: str, precision: str, wrapped: bool, steps: int) -> dict[str, Any]:
    """Train twice: with an error at each call in which the host waits, then with a profile that may have no such call.

    Raises Failed if a run does not end well, or has not all steps: nothing would have been watched.
    """
    flags = [f"--device={device}", f"--input={input}", f"--precision={precision}", "--model=mnist_cnn", *BASE_FLAGS]
    flags += ["--batch-size=100", f"--max-steps={_WARM_UP + steps}", "--on-nonfinite=stop_late", "--bucket-mib=0.5"]
    record: dict[str, Any] = {}
    for how in (_Errors(device), _Profile(device)):
        try:
            with _wrapped(always=wrapped) as made, _watched(how, steps):
                code = main(flags)
        finally:
            if dist.is_initialized():  # after an error: the next run makes its own groups
                dist.destroy_process_group()
        record |= how.found()
        name = type(how).__name__.strip("_").lower()
        if code != 0 or how.steps != steps:
            message = f"{name}: ended with {code} after {how.steps} of {steps} watched steps"
            raise Failed(f"{message}; the log has the place where the host waits", record)
        if wrapped and not made:
            raise Failed("CustomDDP was not used", record)
    if device == "cuda" and not record["events_on_the_device"]:
        raise Failed("the profile has no event of the device, so it would not show a wait either", record)
    if record["waits_in_profile"]:
        raise Failed(f"the profile has calls in which the host waits: {record['waits_in_profile']}", record)
    return record


@dataclass
class _Errors:
    """Makes torch raise an error in each call in which the host waits."""

    device: str
    steps: int = 0

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        if self.device == "cuda":
            torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            if self.device == "cuda":
                torch.cuda.set_sync_debug_mode("default")

    def stop(self) -> None:
        pass

    def found(self) -> dict[str, Any]:
        return {}


@dataclass
class _Profile:
    """Writes one profile from the first watched range to stop()."""

    device: str
    steps: int = 0
    profiled: profile | None = field(default=None, init=False)
    stopped: bool = field(default=False, init=False)

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        if self.profiled is None:
            activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (self.device == "cuda")
            self.profiled = profile(activities=activities)
            self.profiled.start()
        with record_function(name):
            yield

    def stop(self) -> None:
        # torch waits for the device here, within the profile but outside of the ranges.
        if self.profiled is not None and not self.stopped:
            self.stopped = True
            self.profiled.stop()

    def found(self) -> dict[str, Any]:
        events = list(self.profiled.events() or ()) if self.profiled is not None else []
        return {
            "waits_in_profile": waits(events),
            "events_on_the_device": sum(event.device_type == DeviceType.CUDA for event in events),
        }


def waits(events: Sequence[Any]) -> dict[str, int]:
    """Return how often the host waits within a watched range, by call; in any thread, as backward has its own."""
    on_host = [event for event in events if event.device_type == DeviceType.CPU]
    ranges = [event.time_range for event in on_host if event.name in (_STEP, _BATCH)]
    found = Counter(
        event.name
        for event in on_host
        if event.name in _WAITS and any(part.start <= event.time_range.start <= part.end for part in ranges)
    )
    return dict(found)


@contextmanager
def _watched(how: _Errors | _Profile, steps: int) -> Iterator[None]:
    """Watch the steps after the warm-up, and the batches that are prepared between the first and the last of them."""
    run, prepare, seen = Step.run, Batches._prepare_on, 0

    def is_watched() -> bool:
        return _WARM_UP <= seen < _WARM_UP + steps

    def watched_run(self: Step, *arguments: Any) -> Any:
        nonlocal seen
        if is_watched():
            with how.range(_STEP):
                result = run(self, *arguments)
            how.steps += 1
        else:
            result = run(self, *arguments)
        seen += 1
        if seen == _WARM_UP + steps:
            how.stop()
        return result

    def watched_prepare(self: Batches, *arguments: Any) -> Any:
        if not is_watched():
            return prepare(self, *arguments)
        with how.range(_BATCH):
            return prepare(self, *arguments)

    Step.run = watched_run  # type: ignore[method-assign, assignment]
    Batches._prepare_on = watched_prepare  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Step.run, Batches._prepare_on = run, prepare  # type: ignore[method-assign]
        how.stop()


@contextmanager
def _wrapped(always: bool) -> Iterator[list[CustomDDP]]:
    """If `always`, put CustomDDP around the model even in a process that trains alone; yield what was made."""
    original: Any = custom_ddp.wrap
    made: list[CustomDDP] = []

    def wrap(model: nn.Module, context: Context) -> Wrapped:
        make = sync.named(context.sync)
        wrapped = CustomDDP(model, sync=make, bucket_mib=context.bucket_mib, process_group=context.group)
        made.append(wrapped)
        return replicated(model, wrapped, wrapped.no_sync)

    custom_ddp.wrap = wrap if always else original
    try:
        yield made
    finally:
        custom_ddp.wrap = original
