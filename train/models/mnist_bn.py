"""A small convolutional network with BatchNorm: 1×28×28 inputs shrink to 1600 features."""

from torch import nn


def build(shape: tuple[int, ...], num_classes: int, dropout: float | None) -> nn.Module:
    """Two blocks of 3×3 convolution, BatchNorm, ReLU, 2×2 max pool; two linear layers with BatchNorm between.

    No dropout by default, as BatchNorm takes its place (arXiv:1502.03167, section 4.2.1); else before linear layers.
    """
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout or 0.0),
        nn.Linear(64 * (((height - 2) // 2 - 2) // 2) * (((width - 2) // 2 - 2) // 2), 128),
        nn.BatchNorm1d(128),
        nn.ReLU(),
        nn.Dropout(dropout or 0.0),
        nn.Linear(128, num_classes),
    )
