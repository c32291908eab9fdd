"""The GPU check that the host does not wait, on the CPU: what it watches, and what it does not pass."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType, profiler
from torch.profiler import record_function

from benchmarks.gpu import synchronisations
from benchmarks.gpu.outcome import Failed
from train.__main__ import main
from train.data.batches import Batches
from train.loop.losses import PendingLosses
from train.loop.step import Step

pytestmark = [pytest.mark.timeout(580), pytest.mark.slow]
_WAIT = "cudaStreamSynchronize"


def _with_a_wait(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that leaves the event of a wait in a profile, as CUDA's runtime would, before the original."""

    def function(*arguments: Any) -> Any:
        with record_function(_WAIT):
            return original(*arguments)

    return function


@pytest.fixture
def batches_on_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepare batches as on CUDA: each by one call of _prepare_on, ahead of the step that uses it."""

    def iterate(self: Batches) -> Any:
        raw = iter(self._raw_batches)
        while (batch := self._prepare_on(None, raw)) is not None:  # type: ignore[arg-type]
            yield batch

    def prepare_on(self: Batches, _: None, raw: Any) -> Any:
        batch = next(raw, None)
        return None if batch is None else self._prepare(*batch)

    monkeypatch.setattr(Batches, "__iter__", iterate)
    monkeypatch.setattr(Batches, "_prepare_on", prepare_on)


def test_all_steps_are_watched_with_the_bare_model_and_with_custom_ddp() -> None:
    found = synchronisations.run("cpu", [("loader", "bf16", False), ("memory", "fp32", True)], steps=3)
    figures = {"outcome": "passed", "waits_in_profile": {}, "events_on_the_device": 0}
    assert found == {"steps": 3, "loader, bf16": figures, "memory, fp32, CustomDDP": figures}


def test_what_torch_and_the_trainer_wait_for_between_two_steps_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PendingLosses, "reduce", _with_a_wait(PendingLosses.reduce))
    # torch waits for the device at the end of each profile, before it stops recording.
    monkeypatch.setattr(profiler.profile, "__exit__", _with_a_wait(profiler.profile.__exit__))
    synchronisations.run("cpu", [("memory", "fp32", False)], steps=3)


def test_a_wait_in_a_step_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Step, "_losses", _with_a_wait(Step._losses))
    with pytest.raises(Failed, match=r"has calls in which the host waits: {'cudaStreamSynchronize': 3}"):
        synchronisations.run("cpu", [("memory", "fp32", False)], steps=3)


def test_a_wait_for_a_batch_fails(batches_on_a_stream: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Batches, "_prepare", _with_a_wait(Batches._prepare))
    with pytest.raises(Failed, match=r"has calls in which the host waits: {'cudaStreamSynchronize': \d}"):
        synchronisations.run("cpu", [("memory", "fp32", False)], steps=3)


def test_a_second_run_that_fails_or_stops_early_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def twice(flags: list[str]) -> int:
        nonlocal calls
        calls += 1
        return main(flags if calls == 1 else [*flags, "--max-steps=6"])

    monkeypatch.setattr(synchronisations, "main", twice)
    with pytest.raises(Failed, match="profile: ended with 0 after 1 of 3 watched steps"):
        synchronisations.run("cpu", [("memory", "fp32", False)], steps=3)
    monkeypatch.setattr(synchronisations, "main", lambda _: 1)
    with pytest.raises(Failed, match="errors: ended with 1 after 0 of 3 watched steps"):
        synchronisations.run("cpu", [("memory", "fp32", False)], steps=3)


def test_a_profile_without_any_event_of_the_device_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synchronisations, "main", lambda flags: main(["--device=cpu", *flags[1:]]))
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda _: None)
    with pytest.raises(Failed, match="no event of the device"):
        synchronisations.run("cuda", [("memory", "fp32", False)], steps=3)


def test_only_waits_that_start_in_a_range_on_the_host_count() -> None:
    def event(name: str, start: float, end: float, device: DeviceType = DeviceType.CPU) -> Any:
        return SimpleNamespace(name=name, time_range=SimpleNamespace(start=start, end=end), device_type=device)

    events = [
        event("watched step", 10, 20),
        event("watched step", 30, 60, DeviceType.CUDA),  # the same range as the device saw it, later
        event("watched batch", 70, 80),
        event(_WAIT, 15, 16),
        event(_WAIT, 40, 41),
        event("cudaDeviceSynchronize", 75, 90),
        event("cudaDeviceSynchronize", 90, 95),  # as torch ends a profile
    ]
    assert synchronisations.waits(events) == {_WAIT: 1, "cudaDeviceSynchronize": 1}
