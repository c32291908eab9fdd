"""Random numbers for samples that differ each time they are read: a function of (seed, epoch, index) alone.

So augmented data depend neither on the number of ranks and workers nor on an interruption.
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


@dataclass(frozen=True)
class Keys:
    """The steps of a sampler with (epoch, index) in place of an index: a worker of a DataLoader outlives an epoch."""

    sampler: ShardSampler

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        return ([(self.sampler.epoch, index) for index in indices] for indices in self.sampler)


@dataclass(frozen=True)
class Augmented:
    """Reads a sample with the generators of torch, NumPy and Python seeded for it, and leaves them as they were."""

    samples: Samples
    seed: int

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, int | Tensor]:
        of_python, of_numpy, seed = random.getstate(), np.random.get_state(), seed_of(self.seed, *key)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed)
            sample = self.samples[key[1]]
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        return sample
