"""Images that are computed from a seed, without files: ten fixed random patterns, shifted and noisy."""

from itertools import product
from pathlib import Path

import numpy as np
import torch

from train.datasets import Samples, Split
from train.datasets._torchvision import TensorSamples

_NUM_SAMPLES = {"train": 10_000, "validation": 2_000}
_SIZE, _CLASSES = 28, 10


def load(data_root: Path, split: Split, seed: int) -> Samples:
    """Return images, functions of (seed, split, index) alone: patterns of classes, rolled, half hidden under noise."""
    # Each class's pattern at half its brightness, rolled by -2 to 2 pixels down and to the right.
    rolled = np.empty((_CLASSES, 5, 5, _SIZE, _SIZE))
    for label in range(_CLASSES):
        pattern = _generator(seed, "pattern", label).random((_SIZE // 4, _SIZE // 4)).repeat(4, 0).repeat(4, 1)
        for down, right in product(range(-2, 3), repeat=2):
            rolled[label, down, right] = 0.5 * np.roll(pattern, (down, right), (0, 1))
    images = np.empty((_NUM_SAMPLES[split], 1, _SIZE, _SIZE), dtype=np.uint8)
    for index, image in enumerate(images):
        generator = _generator(seed, split, index)
        down, right = generator.integers(-2, 3, size=2)
        image[0] = 255 * (rolled[index % _CLASSES, down, right] + 0.5 * generator.random((_SIZE, _SIZE)))
    return TensorSamples(torch.from_numpy(images), torch.arange(len(images)) % _CLASSES, mean=(0.5,), std=(0.2,))


def _generator(seed: int, what: str, index: int) -> np.random.Generator:
    # As an array, which numpy takes as it is: a list would cost more than drawing the numbers.
    return np.random.default_rng(np.array([seed, *what.encode(), index], dtype=np.uint32))
