"""The types in which a run really computes, seen by hooks on its layers."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from train.flags import from_argv
from train.loop.trainer import Trainer
from train.world.environment import World
from train.world.signals import StopSignal


class Dtypes(NamedTuple):
    """Types of the layers' weights and outputs in the forwards of a run, and of the parameters between its steps."""

    weights: set[torch.dtype]
    outputs: set[torch.dtype]
    parameters: set[torch.dtype]


def dtypes_of_a_run(world: World, *flags: str) -> Dtypes:
    """Train as the flags say, and look at every nn.Linear that this rank computes."""
    config = from_argv([*flags])
    trainer = Trainer(config, world, StopSignal())
    seen = Dtypes(set(), set(), set())

    def before(layer: Any, inputs: Any) -> None:
        seen.weights.add(layer.weight.dtype)

    def after(layer: Any, inputs: Any, outputs: Tensor) -> None:
        seen.outputs.add(outputs.dtype)

    for layer in trainer.module.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_pre_hook(before)
            layer.register_forward_hook(after)
    trainer.fit()
    seen.parameters.update(param.dtype for param in trainer.module.parameters())
    return seen
