"""Images that are computed from an index and a seed, without files: ten fixed random patterns, shifted and noisy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
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
        return torch.from_numpy(self._image(index)).unsqueeze(0), index % self.num_classes

    def tensors(self) -> tuple[Tensor, Tensor]:
        images = np.stack([self._image(index) for index in range(len(self))])
        return torch.from_numpy(images).unsqueeze(1), torch.arange(len(self)) % self.num_classes

    def _image(self, index: int) -> npt.NDArray[np.uint8]:
        generator = _generator(self.seed, self.split, index)
        down, right = generator.integers(-2, 3, size=2)
        image: npt.NDArray[np.float64] = self._rolled[index % self.num_classes, down, right]
        return (255 * (image + 0.5 * generator.random((_SIZE, _SIZE)))).astype(np.uint8)

    @cached_property
    def _rolled(self) -> npt.NDArray[np.float64]:
        """Each class's pattern at half its brightness, rolled by -2 to 2 pixels down and to the right."""
        rolled = np.empty((self.num_classes, 5, 5, _SIZE, _SIZE))
        for label in range(self.num_classes):
            pattern = _generator(self.seed, "pattern", label).random((_SIZE // 4, _SIZE // 4)).repeat(4, 0).repeat(4, 1)
            for down, right in product(range(-2, 3), repeat=2):
                rolled[label, down, right] = 0.5 * np.roll(pattern, (down, right), (0, 1))
        return rolled


def load(data_root: Path, split: Split, seed: int) -> Samples:
    return SyntheticSamples(split, seed)


def _generator(seed: int, what: str, index: int) -> np.random.Generator:
    # As an array, which numpy takes as it is: a list would cost more than drawing the numbers.
    return np.random.default_rng(np.array([seed, *what.encode(), index], dtype=np.uint32))
