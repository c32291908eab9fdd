"""`--profile FIRST:LAST`: torch.profiler around a window of steps, as a trace and as a table of operators."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from train.config import setting
from train.errors import naming_failures
from train.records.observer import Observer, RunEnd, StepRecord
from train.records.progress import say

_ROWS = 15


class Profile(Observer):
    """The observer that profiles the steps FIRST to LAST of rank 0; RUN_DIR/profile then holds two files.

    rank-0.pt.trace.json is for chrome://tracing, ui.perfetto.dev and TensorBoard's profile plugin; rank-0.txt has the
    operators that took most time, and the waits for input and other ranks.
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
            self._mark = record_function(f"step {step + 1}")
            self._mark.__enter__()

    def run_ended(self, end: RunEnd) -> None:
        if not self._file.exists():
            steps = f"{self._first}:{self._last}"
            why = "a start has to make the step before FIRST and all up to LAST"
            say(f"{setting('profile', steps)} has profiled nothing: {why}")

    def _finish(self, running: profile) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        running.stop()
        running.export_chrome_trace(str(self._file))
        by = "self_cuda_time_total" if self._device.type == "cuda" else "self_cpu_time_total"
        table = self._file.with_name("rank-0.txt")
        with naming_failures(self._failure):
            table.write_text(running.key_averages().table(sort_by=by, row_limit=_ROWS) + "\n")
        say(f"profiled steps {self._first} to {self._last}: {table} has the operators, {self._file.name} the trace")
