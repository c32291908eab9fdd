"""What the loops of `benchmarks.own_loop` train.  Each loop is a generator: it yields after each step."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, StackDataset

from train import models

SHAPES: dict[str, tuple[int, ...]] = {"mlp": (2,), "mnist_cnn": (1, 28, 28)}
BATCH_SIZE = 48  # samples of a step over all processes
Step = tuple[int, int, Any]  # epoch, steps done with this one, batch


@dataclass(frozen=True)
class Work:
    """A model, its samples (input, target, number), and a run."""

    model: nn.Module
    dataset: Dataset[Any]
    folder: Path
    epochs: int
    save_every: int
    batch_size: int = BATCH_SIZE

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.mse_loss(model(batch[0]), batch[1])


def begin(loop: str, model: str, num_samples: int, folder: Path, epochs: int, save_every: int) -> Iterator[Step]:
    """Return the steps of a loop.  Calls with the same arguments train the same."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    inputs = torch.randn(num_samples, *SHAPES[model])
    columns: list[Any] = [inputs, inputs.flatten(1)[:, :1].sin(), range(num_samples)]
    mlp = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 1))
    built = mlp if model == "mlp" else models.build(model, SHAPES[model], 1, None)
    steps: Iterator[Step] = import_module(f"benchmarks.peers.loop_{loop}").train(
        Work(built, StackDataset(*columns), folder, epochs, save_every)
    )
    return steps
