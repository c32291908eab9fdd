"""The learning rate of each step is that of torch's schedulers, without their state."""

from collections.abc import Callable
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn, optim
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, OneCycleLR, SequentialLR, StepLR

from train.config import TrainConfig
from train.errors import UserError
from train.loop.optimizers import lr_of_step, refuse_impossible_schedule

Name = Literal["none", "step", "cosine", "one_cycle"]


def _ours(config: TrainConfig, steps_per_epoch: int) -> list[float]:
    return [lr_of_step(config, step, steps_per_epoch) for step in range(config.epochs * steps_per_epoch)]


def _torchs(lr: float, steps: int, make: Callable[[optim.Optimizer], LRScheduler]) -> list[float]:
    optimizer = optim.SGD([nn.Parameter()], lr=lr)
    scheduler = make(optimizer)
    rates = []
    for _ in range(steps):
        rates.append(float(scheduler.get_last_lr()[0]))
        optimizer.step()
        scheduler.step()
    return rates


@given(lr=st.floats(1e-6, 10), epochs=st.integers(1, 12), steps=st.integers(1, 9))
def test_each_schedule_equals_torchs(lr: float, epochs: int, steps: int) -> None:
    total = epochs * steps
    theirs: dict[Name, list[float]] = {
        "none": [lr] * total,
        "step": _torchs(lr, total, lambda optimizer: StepLR(optimizer, steps, 0.7)),
        "cosine": _torchs(lr, total, lambda optimizer: CosineAnnealingLR(optimizer, total)),
    }
    if total > 4:  # torch's one cycle divides by zero where it has no rising step
        theirs["one_cycle"] = _torchs(lr, total, lambda optimizer: OneCycleLR(optimizer, lr, total))
    for name, rates in theirs.items():
        config = TrainConfig(lr=lr, epochs=epochs, scheduler=name)
        assert _ours(config, steps) == pytest.approx(rates, rel=1e-6, abs=1e-12 * lr)


@given(lr=st.floats(1e-6, 10), epochs=st.integers(1, 12), warmup=st.integers(2, 9))
def test_warm_up_and_cosine_equal_torchs_two_schedulers_in_sequence(lr: float, epochs: int, warmup: int) -> None:
    steps = 10
    total = epochs * steps

    def torchs(optimizer: optim.Optimizer) -> LRScheduler:
        rising = LinearLR(optimizer, start_factor=1 / warmup, total_iters=warmup - 1)
        return SequentialLR(optimizer, [rising, CosineAnnealingLR(optimizer, total - warmup)], [warmup])

    config = TrainConfig(lr=lr, epochs=epochs, scheduler="cosine", warmup_steps=warmup)
    assert _ours(config, steps) == pytest.approx(_torchs(lr, total, torchs), rel=1e-6, abs=1e-12 * lr)


@pytest.mark.parametrize("name", ["cosine", "one_cycle"])
def test_a_schedule_ends_at_max_steps(name: Name) -> None:
    cut, whole = TrainConfig(epochs=9, max_steps=30, scheduler=name), TrainConfig(epochs=3, scheduler=name)
    assert [lr_of_step(cut, step, 10) for step in range(30)] == _ours(whole, 10)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"warmup_steps": 21}, "--warmup-steps is 21, but the run has only 20 steps"),
        ({"warmup_steps": 6, "max_steps": 5}, "but the run has only 5 steps"),
        ({"scheduler": "one_cycle", "max_steps": 1}, "one_cycle needs two steps or more"),
    ],
)
def test_a_run_too_short_for_its_schedule_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        refuse_impossible_schedule(TrainConfig(epochs=2, **settings), 10)
    refuse_impossible_schedule(TrainConfig(epochs=2, warmup_steps=20), 10)


def test_one_cycle_rises_on_the_warm_up_steps() -> None:
    config = TrainConfig(lr=0.5, epochs=2, scheduler="one_cycle", warmup_steps=5)
    theirs = _torchs(0.5, 20, lambda optimizer: OneCycleLR(optimizer, 0.5, 20, pct_start=5 / 20))
    assert _ours(config, 10) == pytest.approx(theirs, rel=1e-6)
