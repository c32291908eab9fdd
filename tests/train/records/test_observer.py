"""Observers in the Trainer's list hear of each step at once, of its loss when it is known, and of the end."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.ranks import make_trainer, run_ranks
from train.errors import SharedError
from train.records.observer import EpochRecord, Observer, RunEnd, StepRecord
from train.world.environment import World

_FLAGS = ["--model=mlp", "--dataset=synthetic", "--device=cpu", "--batch-size=1000", "--lr=0.1"]
_STEPS_PER_EPOCH = 10


class _Recorder(Observer):
    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.records: list[StepRecord] = []

    def run_started(self, start: dict[str, Any]) -> None:
        self.heard.append(("start", start["arithmetic"]["steps_per_epoch"]))

    def step_ended(self, step: int, known: Sequence[StepRecord]) -> None:
        self.heard.append((step, [record.step for record in known]))
        self.records += known

    def incident(self, step: int, kind: str, text: str) -> None:
        self.heard.append((kind, step))

    def epoch_ended(self, record: EpochRecord) -> None:
        self.heard.append(("epoch", record.epoch, record.step, record.samples))

    def run_ended(self, end: RunEnd) -> None:
        self.heard.append(("end", end.epoch, end.step, end.weights_sha256 is None))


def _observed(world: World, *flags: str) -> _Recorder:
    """What an observer of this rank hears of a run with these flags."""
    recorder = _Recorder()
    make_trainer(world, *_FLAGS, *flags, observers=[recorder]).fit()
    return recorder


def test_each_rank_hears_of_each_step_at_once_and_of_its_loss_when_it_is_read() -> None:
    for recorder in run_ranks(2, _observed, "--epochs=2", "--max-steps=13", "--log-every=4"):
        assert recorder.heard == [
            ("start", _STEPS_PER_EPOCH),
            *[(1, []), (2, []), (3, []), (4, [1, 2, 3, 4])],
            *[(5, []), (6, []), (7, []), (8, [5, 6, 7, 8])],
            *[(9, []), (10, [9, 10])],
            ("epoch", 1, 10, 10_000),
            *[(11, []), (12, []), (13, [11, 12, 13])],
            ("epoch", 2, 13, 3_000),
            ("end", 2, 13, False),
        ]


def _diverged(world: World) -> _Recorder:
    recorder = _Recorder()
    with pytest.raises(SharedError, match=r"^step \d+: .* (is|are) not finite.*--lr"):
        make_trainer(world, *_FLAGS, "--lr=1e30", observers=[recorder]).fit()
    return recorder


def test_a_loss_that_is_not_finite_ends_the_run_at_that_step() -> None:
    (recorder,) = run_ranks(1, _diverged)
    finite = [record.step for record in recorder.records]
    assert finite == [*range(1, len(finite) + 1)]
    assert 1 <= len(finite) < _STEPS_PER_EPOCH
    assert recorder.heard[-1] == (len(finite), finite)


@pytest.mark.slow
def test_the_norm_of_the_gradient_is_that_of_one_process_whether_it_is_clipped_or_not() -> None:
    """tests/train/test_run.py compares it with the gradient."""
    alone: list[StepRecord] = []
    for world_size in (1, 2):
        clipped, plain = (
            run_ranks(world_size, _observed, "--max-steps=3", *more)[0].records for more in (["--clip-norm=100"], [])
        )
        # 100 clips nothing.
        assert [(each.loss, each.grad_norm) for each in clipped] == [(each.loss, each.grad_norm) for each in plain]
        alone = alone or plain
        assert [each.grad_norm for each in plain] == pytest.approx([each.grad_norm for each in alone], rel=1e-4)


def test_rates_are_those_of_the_steps_that_are_read_together() -> None:
    (recorder,) = run_ranks(1, _observed, "--max-steps=4", "--log-every=2")
    first, second, third, fourth = recorder.records
    assert first.seconds_per_step == second.seconds_per_step != third.seconds_per_step == fourth.seconds_per_step
    for record in recorder.records:
        assert record.samples_per_second == pytest.approx(1000 / record.seconds_per_step, rel=1e-3)
