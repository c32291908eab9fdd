"""The learning rate of each step is that of torch's schedulers, without their state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn, optim
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, OneCycleLR, SequentialLR, StepLR

from train.config import TrainConfig
from train.loop.schedules import lr_of_step

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


@given(lr=st.floats(1e-6, 10), gamma=st.floats(0.01, 1), epochs=st.integers(1, 12), steps=st.integers(1, 9))
def test_each_schedule_equals_torchs(lr: float, gamma: float, epochs: int, steps: int) -> None:
    total = epochs * steps
    theirs: dict[Name, list[float]] = {
        "none": [lr] * total,
        "step": _torchs(lr, total, lambda optimizer: StepLR(optimizer, steps, gamma)),
        "cosine": _torchs(lr, total, lambda optimizer: CosineAnnealingLR(optimizer, total)),
    }
    if total > 4:  # torch's one cycle divides by zero where it has no rising step
        theirs["one_cycle"] = _torchs(lr, total, lambda optimizer: OneCycleLR(optimizer, lr, total))
    for name, rates in theirs.items():
        config = TrainConfig(lr=lr, lr_gamma=gamma, epochs=epochs, scheduler=name)
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


def test_one_cycle_rises_on_the_warm_up_steps() -> None:
    config = TrainConfig(lr=0.5, epochs=2, scheduler="one_cycle", warmup_steps=5)
    theirs = _torchs(0.5, 20, lambda optimizer: OneCycleLR(optimizer, 0.5, 20, pct_start=5 / 20))
    assert _ours(config, 10) == pytest.approx(theirs, rel=1e-6)
