"""Each optimizer is torch's own with the config's settings."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, get_args

import pytest
import torch
from torch import nn, optim

from train.config import TrainConfig
from train.loop.optimizers import make_optimizer

NAMES = get_args(TrainConfig.model_fields["optimizer"].annotation)
Make = Callable[[Iterable[nn.Parameter]], optim.Optimizer]
# torch's class; its settings with lr alone; with every setting.
TORCHS: dict[str, tuple[Any, dict[str, float], dict[str, float]]] = {
    "sgd": (optim.SGD, {}, {"momentum": 0.9, "weight_decay": 0.01}),
    "adam": (optim.Adam, {}, {"weight_decay": 0.01}),
    # Ours decays by weight_decay, which is 0 unless given; torch's own default is 0.01.
    "adamw": (optim.AdamW, {"weight_decay": 0.0}, {"weight_decay": 0.01}),
    "adadelta": (optim.Adadelta, {}, {"weight_decay": 0.01}),
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


@pytest.mark.parametrize("name", NAMES)
def test_three_steps_equal_torchs_own(name: str) -> None:
    plain = TrainConfig(optimizer=name, lr=0.1)
    momentum = 0.9 if name == "sgd" else 0.0  # refused elsewhere
    full = TrainConfig(optimizer=name, lr=0.1, momentum=momentum, weight_decay=0.01)
    start = weights_after_three_steps(lambda params: optim.SGD(params, lr=0.0))
    make, *settings = TORCHS[name]
    ours = [weights_after_three_steps(partial(make_optimizer, config)) for config in (plain, full)]
    for weights, given in zip(ours, settings, strict=True):
        assert torch.equal(weights, weights_after_three_steps(partial(make, lr=0.1, **given)))
    assert not torch.equal(ours[0], start) and not torch.equal(*ours), "three steps and the settings change something"
