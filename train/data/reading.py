"""Reads samples by (epoch, index).  What they draw at random depends on the seed and these two alone."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import IterableDataset

from train.collectives.agreement import mistakes_shared_by_all_ranks
from train.collectives.broadcast import of_all_ranks, thing_of_rank_0
from train.data.generators import Generators
from train.errors import SharedError, UserError, differences
from train.world.environment import World


class LeftOut(str):
    """Stands for a batch of which collate has left no sample, and says so."""


@dataclass
class Augmented:
    """Reads samples as a batch; if they vary, with all generators seeded, then restored.

    What a sample draws follows from it alone, and what collate draws from the batch's first sample.  The generators
    that the dataset keeps are looked for in the first batch of each epoch.
    """

    samples: Any
    seed: int
    varies: bool = True
    collate: Callable[[list[Any]], Any] = list
    _epoch: int = -1  # of the last batch
    reads_again = True

    def __post_init__(self) -> None:
        self._generators = Generators(dataset=self.samples, collate=self.collate)

    def __getitems__(self, keys: list[tuple[int, int]]) -> Any:
        if not self.varies:
            return self.collate([self.read(*key) for key in keys])
        begins, self._epoch = self._epoch != keys[0][0], keys[0][0]
        if begins:
            self._generators.are_new()
        before = self._generators.states()
        found = [self.read(*key) for key in keys]
        if begins and self.reads_again and self._generators.are_new():  # a dataset may make them when it is read
            found = [self.read(*key) for key in keys]
        self.draw_for(*keys[0])
        batch = self.collate(found)
        for restore in before:
            restore()
        if batch is None:
            return LeftOut(f"collate returned None for samples {', '.join(str(index) for _, index in keys)}")
        return batch

    def read(self, epoch: int, index: int) -> Any:
        self.draw_for(epoch, index)
        return self.samples[index]

    def draw_for(self, epoch: int, index: int) -> None:
        if self.varies:
            self._generators.seed(self.seed, epoch, index)


@dataclass
class Stream(Augmented):
    """Reads samples that come one after the other; the index of a sample counts those before it.

    Each rank, and each new start, reads all that comes before the samples it keeps.
    If the stream has set_epoch(), as those of Hugging Face, that is called before each epoch.
    """

    _read_epoch: int = -1
    _next: int = 0
    _last: Any = None
    _left: Iterator[Any] = field(default_factory=lambda: iter(()))
    reads_again = False

    def read(self, epoch: int, index: int) -> Any:
        if epoch != self._read_epoch or index < self._next - 1:
            if hasattr(self.samples, "set_epoch"):
                self.samples.set_epoch(epoch)
            self._read_epoch, self._next, self._left = epoch, 0, iter(self.samples)
        while self._next <= index:
            self.draw_for(epoch, self._next)
            try:
                self._last = next(self._left)
            except StopIteration:
                raise UserError(
                    f"the stream ended after {self._next} of the {len(self.samples)} samples that its len() promises"
                ) from None
            self._next += 1
            if self._next == 1:
                self._generators.are_new()
            if self._next == len(self.samples) and next(self._left, self) is not self:
                text = f"the stream goes on after the {self._next} samples that its len() promises; they alone are read"
                print(f"warning: {text}", file=sys.stderr, flush=True)
        return self._last


def refuse_unreadable(dataset: Any, workers: int, seed: int, world: World) -> None:
    """Raise SharedError for a dataset that has no len(), is empty or differs between ranks.  A collective."""
    if not hasattr(dataset, "__len__"):
        raise SharedError(
            f"a {type(dataset).__name__} has no len(), which says how many samples an epoch has: give it a __len__()"
        )
    nums = of_all_ranks(len(dataset))
    if unlike := differences(dict(enumerate(nums))):
        what = "each rank gets the whole dataset, and run.batches() reads its share"
        raise SharedError(f"the numbers of samples differ: {unlike}: {what}")
    if not nums[0]:
        raise SharedError(f"the dataset, a {type(dataset).__name__}, has 0 samples: there is nothing to read")
    if not isinstance(dataset, IterableDataset):
        if not hasattr(dataset, "__getitem__"):
            raise SharedError(
                f"a {type(dataset).__name__} has no samples by index: give the dataset itself, and say by batch_size=, "
                "collate= and workers= what a DataLoader would do"
            )
        return
    if workers > 1:
        raise SharedError("each worker would read the whole stream: give workers=1")
    if world.world_size == 1:
        return
    own, again = _first_sample(dataset, seed), _first_sample(dataset, seed)
    of_rank_0 = thing_of_rank_0(own)
    with mistakes_shared_by_all_ranks():
        if own != again:
            raise UserError(
                "the stream gave another first sample at its second start: its __iter__() must start from the beginning"
            )
        if own != of_rank_0:
            raise UserError(
                "the stream has another len() or first sample than on rank 0: each rank reads the whole stream and "
                "keeps its samples, so the stream itself must leave none to other ranks"
            )


def _first_sample(dataset: Any, seed: int) -> str:
    leaves = tree_leaves(Stream(dataset, seed).__getitems__([(1, 0)]))
    numbers = [leaf.tolist() for leaf in leaves if isinstance(leaf, Tensor | np.ndarray)]
    return repr((len(dataset), numbers, [leaf for leaf in leaves if isinstance(leaf, str | float | int)]))
