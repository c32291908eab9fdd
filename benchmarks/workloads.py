"""Workloads on which wrappers are compared: a model and random batches, the same for each variant."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from train import models

Batch = tuple[Tensor, Tensor]

NUM_SMALL_LAYERS = 200
_VOCABULARY, _CONTEXT = 256, 64
_NUM_BATCHES = 4


@dataclass(frozen=True)
class Workload:
    """A model and how a batch of it is drawn."""

    build: Callable[[], nn.Module]
    draw: Callable[[torch.Generator], Batch]
    batch_size: int
    lr: float = 0.01

    def model(self) -> nn.Module:
        """Build the model; its initial weights are the same at each call."""
        torch.manual_seed(0)
        return self.build()

    def batches(self, rank: int) -> list[Batch]:
        """Draw a few batches, which are different on each rank."""
        generator = torch.Generator().manual_seed(rank)
        return [self.draw(generator) for _ in range(_NUM_BATCHES)]


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """Return the cross entropy, mean over samples (images) or positions (tokens)."""
    inputs, targets = batch
    return F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())


def _images(*shape: int) -> Callable[[torch.Generator], Batch]:
    return lambda generator: (
        torch.randn(shape, generator=generator),
        torch.randint(10, shape[:1], generator=generator),
    )


def _tokens(batch_size: int) -> Callable[[torch.Generator], Batch]:
    def draw(generator: torch.Generator) -> Batch:
        text = torch.randint(_VOCABULARY, (batch_size, _CONTEXT + 1), generator=generator)
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()

    return draw


def _small_layers() -> nn.Module:
    """Build 200 linear layers, all but the last 64×64 and orthogonal, so that neither signal nor gradient vanishes."""
    layers = [nn.Linear(64, 64) for _ in range(NUM_SMALL_LAYERS - 1)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers, nn.Linear(64, 10))


WORKLOADS = {
    "resnet18": Workload(lambda: models.build("resnet18", (1, 28, 28), 10, None), _images(32, 1, 28, 28), 32),
    "mlp": Workload(lambda: models.build("mlp", (1, 28, 28), 10, None), _images(32, 1, 28, 28), 32),
    "small_layers": Workload(_small_layers, _images(32, 64), 32),
    "gpt": Workload(lambda: models.build("gpt", (_CONTEXT,), _VOCABULARY, None), _tokens(8), 8),
}
