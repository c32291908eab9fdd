"""Each optimizer is torch's own with the config's settings; the learning rate is a function of the epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn, optim

from train.config import TrainConfig
from train.loop.optimizers import lr_of_epoch, make_optimizer

NAMES = get_args(TrainConfig.model_fields["optimizer"].annotation)
Make = Callable[[Iterable[nn.Parameter]], optim.Optimizer]
TORCHS: dict[str, tuple[Make, Make]] = {  # with lr alone; with every setting
    "sgd": (
        lambda params: optim.SGD(params, lr=0.1),
        lambda params: optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.01),
    ),
    "adam": (
        lambda params: optim.Adam(params, lr=0.1),
        lambda params: optim.Adam(params, lr=0.1, weight_decay=0.01),
    ),
    "adamw": (
        # Ours decays by weight_decay, which is 0 unless given; torch's own default is 0.01.
        lambda params: optim.AdamW(params, lr=0.1, weight_decay=0.0),
        lambda params: optim.AdamW(params, lr=0.1, weight_decay=0.01),
    ),
    "adadelta": (
        lambda params: optim.Adadelta(params, lr=0.1),
        lambda params: optim.Adadelta(params, lr=0.1, weight_decay=0.01),
    ),
}


def weights_after_three_steps(make: Make) -> torch.Tensor:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 30), nn.Tanh(), nn.Linear(30, 3))
    optimizer = make(model.parameters())
    for step in range(3):
        optimizer.zero_grad()
        inputs = torch.randn(4, 5, generator=torch.Generator().manual_seed(step))
        model(inputs).square().sum().backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def test_every_optimizer_of_the_config_is_compared() -> None:
    assert set(TORCHS) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_three_steps_equal_torchs_own(name: str) -> None:
    plain = TrainConfig(optimizer=name, lr=0.1)
    full = TrainConfig(optimizer=name, lr=0.1, momentum=0.9, weight_decay=0.01)
    start = weights_after_three_steps(lambda params: optim.SGD(params, lr=0.0))
    for config, torchs in zip((plain, full), TORCHS[name], strict=True):
        ours = weights_after_three_steps(lambda params, config=config: make_optimizer(config, params))  # type: ignore[misc]
        assert torch.equal(ours, weights_after_three_steps(torchs))
        assert not torch.equal(ours, start), "three steps change something"


@pytest.mark.parametrize("name", NAMES)
def test_weight_decay_is_not_ignored(name: str) -> None:
    without, with_decay = (
        weights_after_three_steps(lambda params, c=c: make_optimizer(c, params))  # type: ignore[misc]
        for c in (TrainConfig(optimizer=name, lr=0.1), TrainConfig(optimizer=name, lr=0.1, weight_decay=0.1))
    )
    assert not torch.equal(without, with_decay)


@pytest.mark.parametrize(
    ("scheduler", "rates"),
    [
        ("none", [0.5, 0.5, 0.5, 0.5]),
        ("step", [0.5, 0.35, 0.245, 0.1715]),
        ("cosine", [0.5, 0.25 * (1 + math.sqrt(0.5)), 0.25, 0.25 * (1 - math.sqrt(0.5))]),
    ],
)
def test_learning_rate_of_each_epoch(scheduler: str, rates: list[float]) -> None:
    config = TrainConfig(lr=0.5, lr_gamma=0.7, epochs=4, scheduler=scheduler)
    assert [lr_of_epoch(config, epoch) for epoch in (1, 2, 3, 4)] == pytest.approx(rates)


@given(lr=st.floats(1e-6, 10), gamma=st.floats(0.1, 1), epochs=st.integers(1, 30))
def test_learning_rates_equal_those_of_torchs_schedulers(lr: float, gamma: float, epochs: int) -> None:
    def torchs(make: Callable[[optim.Optimizer], optim.lr_scheduler.LRScheduler]) -> list[float]:
        optimizer = optim.SGD([nn.Parameter(torch.zeros(1))], lr=lr)
        scheduler = make(optimizer)
        rates: list[float] = []
        for _ in range(epochs):
            rates.append(float(scheduler.get_last_lr()[0]))
            optimizer.step()
            scheduler.step()
        return rates

    theirs = {
        "step": torchs(lambda optimizer: optim.lr_scheduler.StepLR(optimizer, 1, gamma)),
        "cosine": torchs(lambda optimizer: optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)),
        "none": [lr] * epochs,
    }
    for name, rates in theirs.items():
        config = TrainConfig(lr=lr, lr_gamma=gamma, epochs=epochs, scheduler=name)
        ours = [lr_of_epoch(config, epoch) for epoch in range(1, epochs + 1)]
        assert ours == pytest.approx(rates, rel=1e-6, abs=1e-12 * lr)
