"""Random numbers for samples that differ each time they are read: a function of (seed, epoch, index) alone.

So augmented data depend neither on the number of ranks and workers nor on an interruption, and no two samples are
augmented alike.  The generators of the process stay as they were.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from train.data.sampler import ShardSampler
from train.data.shard import seed_of
from train.datasets import Samples

Key = tuple[int, int]


@dataclass(frozen=True)
class Keys:
    """The steps of a sampler with (epoch, index) for each index: a worker of a DataLoader outlives an epoch."""

    steps: ShardSampler

    def __iter__(self) -> Iterator[list[Key]]:
        return ([(self.steps.epoch, index) for index in indices] for indices in self.steps)

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(frozen=True)
class Augmented:
    """Reads sample `index` of an epoch with the generators of torch, NumPy and Python seeded for it."""

    samples: Samples
    seed: int

    def __getitem__(self, key: Key) -> tuple[Tensor, int | Tensor]:
        former = random.getstate(), np.random.get_state()
        seed = seed_of(self.seed, *key)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed)
            try:
                return self.samples[key[1]]
            finally:
                random.setstate(former[0])
                np.random.set_state(former[1])
