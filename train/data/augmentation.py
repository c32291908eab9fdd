"""Random numbers for samples that differ each time they are read: a function of (seed, epoch, index) alone.

So augmented data depend neither on the number of ranks and workers nor on an interruption.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from train.data.sampler import ShardSampler
from train.data.shard import seed_of


@dataclass(frozen=True)
class Keys:
    """The steps of a sampler with (epoch, index) in place of an index: a worker of a DataLoader outlives an epoch.

    A step without indices gets sample 0 twice.
    """

    steps: Iterable[list[int]]

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for indices in self.steps:
            epoch = self.steps.epoch if isinstance(self.steps, ShardSampler) else 0
            yield [(epoch, index) for index in indices or [0, 0]]


@dataclass(frozen=True)
class Augmented:
    """Reads samples with the generators of torch, NumPy and Python seeded for each, and leaves them as they were.

    varies: False reads the samples as they are.
    """

    samples: Any
    seed: int
    varies: bool = True

    def __getitems__(self, keys: list[tuple[int, int]]) -> list[Any]:
        if not self.varies:
            return [self.samples[index] for _, index in keys]
        of_python, of_numpy, found = random.getstate(), np.random.get_state(), []
        with torch.random.fork_rng(devices=[]):
            for epoch, index in keys:
                seed = seed_of(self.seed, epoch, index)
                torch.default_generator.manual_seed(seed)
                random.seed(seed)
                np.random.seed(seed)
                found.append(self.samples[index])
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        return found

    def __getitem__(self, key: tuple[int, int]) -> Any:
        return self.__getitems__([key])[0]
