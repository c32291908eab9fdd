"""The small convolutional network of PyTorch's MNIST example: 1,199,882 parameters for 1×28×28 and 10 classes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from train.dropout import Dropout


class _Flatten(nn.Flatten):
    """Flatten whose gradient is channels-last like its input, else max pool's backward takes five times as long."""

    def forward(self, input: Tensor) -> Tensor:
        if input.requires_grad:
            input.register_hook(lambda grad: grad.contiguous(memory_format=torch.channels_last))
        return super().forward(input)


def build(shape: tuple[int, int, int], num_classes: int, dropout: float | None) -> nn.Module:
    """Two 3×3 convolutions, 2×2 max pool, two linear layers; dropout 0.25 before and 0.5 between those.

    In channels-last layout, in which these convolutions take a sixth less time on a CPU.  The second ReLU comes after
    the pool: the maximum of rectified values is the rectified maximum, at a quarter of the work.
    """
    channels, height, width = shape
    layers = nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.MaxPool2d(2),
        nn.ReLU(),
        Dropout(0.25 if dropout is None else dropout),
        _Flatten(),
        nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128),
        nn.ReLU(),
        Dropout(0.5 if dropout is None else dropout),
        nn.Linear(128, num_classes),
    )
    return layers.to(memory_format=torch.channels_last)
