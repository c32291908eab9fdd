"""`--profile FIRST:LAST`: torch.profiler around a window of steps, as a trace for Chrome and a summary in words."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from train.collectives.waiting import range_name
from train.config import TrainConfig, setting
from train.errors import naming_failures
from train.records.observer import Observer, StepRecord
from train.records.progress import say

_TOP = 5
_STEP = "step"
# How the recorded names of collectives begin: gloo's on the host, NCCL's kernels on the device.
_COLLECTIVES = ("gloo:", "nccl:", "ncclDevKernel", "ncclKernel")


def without_effect(config: TrainConfig, first_step: int, last_step: int | None) -> str | None:
    """Return why `profile` has no effect in a start that makes these steps, or None; last_step: None if unknown."""
    if config.profile is None:
        return None
    first, last = map(int, config.profile.split(":"))
    fits = first_step < first and (last_step is None or last <= last_step)  # the step before is needed, too
    is_done = first_step > 1 and any(Path(str(config.run_dir)).glob("profile/rank-*.txt"))
    if is_done or fits:
        return None
    can = f"steps from {first_step + 1} on" if last_step is None else f"steps {first_step + 1} to {last_step}"
    return f"{setting('profile', config.profile)} profiles nothing: this start can profile {can}"


class Profile(Observer):
    """The observer that profiles the steps FIRST to LAST of rank 0.

    It writes RUN_DIR/profile/rank-0.pt.trace.json, which chrome://tracing, ui.perfetto.dev and TensorBoard's profile
    plugin read, and rank-0.txt with the summary, which it prints, too.
    Raises UserError if the folder cannot be written.
    """

    def __init__(self, steps: str, run_dir: str, device: torch.device) -> None:
        first, _, last = steps.partition(":")
        self._first, self._last, self._device = int(first), int(last), device
        self._file = Path(run_dir) / "profile" / "rank-0.pt.trace.json"
        self._failure = f"{setting('run_dir')}: cannot write {self._file.parent}"
        with naming_failures(self._failure):
            self._file.parent.mkdir(parents=True, exist_ok=True)
        self._running: profile | None = None
        self._mark = record_function("")

    def step_ended(self, step: int, known: Sequence[StepRecord]) -> None:
        if self._running is None and step == self._first - 1:
            activities = [ProfilerActivity.CPU]
            if self._device.type == "cuda":
                activities.append(ProfilerActivity.CUDA)
            self._running = profile(activities=activities)
            self._running.start()
        elif self._running is not None:
            self._mark.__exit__(None, None, None)
            if step == self._last:
                self._finish(self._running)
                self._running = None
        if self._running is not None:
            self._mark = record_function(f"{_STEP} {step + 1}")
            self._mark.__enter__()

    def _finish(self, running: profile) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        running.stop()
        running.export_chrome_trace(str(self._file))
        text = in_words(summarize(running), self._last - self._first + 1)
        with naming_failures(self._failure):
            self._file.with_name("rank-0.txt").write_text(text + "\n")
        say(f"{text}\ntrace for chrome://tracing and ui.perfetto.dev: {self._file}")


@dataclass(frozen=True)
class Summary:
    """The result of a profile, in seconds.

    total: from the first event to the last.  input_wait: while the host waited for a batch.
    hidden, exposed: communication while the device computed, and while it did not.
    top: the operators with the most self time, and that time.
    """

    total: float
    input_wait: float
    hidden: float
    exposed: float
    top: Sequence[tuple[str, float]]


def summarize(recorded: profile) -> Summary:
    """Return the summary of a profile that has been stopped.

    On CUDA the kernels count; on a CPU the operators, except those that ran while the host waited for other ranks.
    Of a collective through shared memory (train/cpu), only the waiting shows.
    """
    events = list(recorded.events() or [])
    # The ranges of record_function appear among the kernels, too, and would count as computing.
    kernels = [event for event in events if event.device_type == DeviceType.CUDA and not event.is_user_annotation]
    on_host = [event for event in events if event.device_type == DeviceType.CPU]
    waits = [event for event in on_host if event.name == range_name("communication") and not kernels]
    communication = [event for event in kernels or on_host if event.name.startswith(_COLLECTIVES)] + waits
    computing = [event for event in kernels if not event.name.startswith(_COLLECTIVES)]
    computing += [event for event in on_host if event.name.startswith("aten::") and not kernels]
    # Time in A but not in B is the time in either minus the time in B.
    exposed = _seconds(communication + computing) - (_seconds(computing + waits) - _seconds(waits))
    times = [time for event in events for time in (event.time_range.start, event.time_range.end)]
    own = "self_device_time_total" if kernels else "self_cpu_time_total"
    operators = [(str(event.key), float(getattr(event, own)) / 1e6) for event in recorded.key_averages()]
    ranges = (range_name("input"), range_name("communication"), f"{_STEP} ")
    return Summary(
        total=(max(times) - min(times)) / 1e6,
        input_wait=_seconds([event for event in on_host if event.name == range_name("input")]),
        hidden=max(0.0, _seconds(communication) - exposed),
        exposed=max(0.0, exposed),
        top=sorted((each for each in operators if not each[0].startswith(ranges)), key=lambda each: -each[1])[:_TOP],
    )


def _seconds(events: Iterable[Any]) -> float:
    """Return for how long at least one of the events ran."""
    covered, until = 0.0, -math.inf
    for start, end in sorted((event.time_range.start, event.time_range.end) for event in events):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered / 1e6


def in_words(summary: Summary, num_steps: int) -> str:
    def part(seconds: float) -> str:
        return f"{seconds * 1e3 / num_steps:.2f} ms a step, {seconds / summary.total:.1%}"

    lines = [
        f"profile of {num_steps} steps: {summary.total * 1e3 / num_steps:.2f} ms a step, with the profiler's own time",
        f"  waiting for input: {part(summary.input_wait)}",
        f"  communication not hidden behind computing: {part(summary.exposed)}",
        f"  communication hidden behind computing: {part(summary.hidden)}",
        "  operators with the most self time:",
        *[f"    {name}: {part(seconds)}" for name, seconds in summary.top],
    ]
    return "\n".join(lines)
