"""The types in which a run really computes, seen by hooks on its layers."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tests.ranks import make_trainer
from train.world.environment import World


class Dtypes(NamedTuple):
    """Types of the layers' weights and outputs in the forwards of a run, and of the parameters between its steps."""

    weights: set[torch.dtype]
    outputs: set[torch.dtype]
    parameters: set[torch.dtype]


def dtypes_of_a_run(world: World, *flags: str) -> Dtypes:
    """Train as the flags say, and look at every nn.Linear that this rank computes."""
    trainer = make_trainer(world, *flags)
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
