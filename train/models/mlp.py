"""A multi-layer perceptron: two hidden layers of 512."""

import math

from torch import nn


def build(shape: tuple[int, ...], num_classes: int, dropout: float | None) -> nn.Module:
    """Flattened input, two hidden layers of 512 with ReLU; no dropout unless a rate is given."""
    rate = dropout or 0.0
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), 512),
        nn.ReLU(),
        nn.Dropout(rate),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Dropout(rate),
        nn.Linear(512, num_classes),
    )
