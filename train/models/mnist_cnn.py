"""The small convolutional network of PyTorch's MNIST example: 1,199,882 parameters for 1×28×28 and 10 classes."""

from torch import nn


def build(shape: tuple[int, ...], num_classes: int, dropout: float | None) -> nn.Module:
    """Two 3×3 convolutions, 2×2 max pool, two linear layers; dropout 0.25 before and 0.5 between those.

    Source: github.com/pytorch/examples, mnist/main.py.
    """
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25 if dropout is None else dropout),
        nn.Flatten(),
        nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128),
        nn.ReLU(),
        nn.Dropout(0.5 if dropout is None else dropout),
        nn.Linear(128, num_classes),
    )
