"""Images made from an index and a seed, no files: ten classes, each a fixed random pattern, under noise and shifts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from train.datasets import Samples, Split

_NUM_SAMPLES = {"train": 10_000, "validation": 2_000}
_SIZE = 28


@dataclass(frozen=True)
class SyntheticSamples:
    """Sample i is a function of (seed, split, i) alone, so any process can make any sample.

    Its class is i modulo 10.  Its image is the pattern of that class, rolled by up to two pixels, half hidden
    under uniform noise.
    """

    split: Split
    seed: int
    shape: tuple[int, int, int] = (1, _SIZE, _SIZE)
    num_classes: int = 10
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.2,)
    varies: ClassVar[bool] = False

    def __len__(self) -> int:
        return _NUM_SAMPLES[self.split]

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        label = index % self.num_classes
        pattern = _generator(self.seed, "pattern", label).random((_SIZE // 4, _SIZE // 4)).repeat(4, 0).repeat(4, 1)
        generator = _generator(self.seed, self.split, index)
        down, right = generator.integers(-2, 3, size=2)
        image = 0.5 * np.roll(pattern, (down, right), axis=(0, 1)) + 0.5 * generator.random((_SIZE, _SIZE))
        return torch.from_numpy((255 * image).astype(np.uint8)).unsqueeze(0), label

    def tensors(self) -> tuple[Tensor, Tensor]:
        images, labels = zip(*(self[index] for index in range(len(self))), strict=True)
        return torch.stack(images), torch.tensor(labels)


def load(data_root: Path, split: Split, seed: int) -> Samples:
    """The split that `seed` makes; `data_root` is not looked at."""
    return SyntheticSamples(split, seed)


def _generator(seed: int, what: str, index: int) -> np.random.Generator:
    return np.random.default_rng([seed, *what.encode(), index])
