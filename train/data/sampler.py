"""A torch Sampler on top of shard.py: for each step, the indices that one rank reads."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from traceback import walk_stack
from typing import NoReturn

import torch.distributed as dist
from torch.utils.data import Sampler

from train.data.shard import epoch_order, num_steps, share
from train.errors import UserError


def evaluation_parts(
    num_samples: int, batch_size: int, rank: int, world_size: int, logical_world: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Return what `rank` reads in each batch of an evaluation, and how many samples of it are each logical rank's.

    A logical rank reads a contiguous share of the samples, in order.  All ranks have the same number of batches, so
    that they can meet after each; the last one may be empty.
    """
    readers = share(range(logical_world), rank, world_size)
    of_readers = [share(range(num_samples), reader, logical_world) for reader in readers]
    longest = len(share(range(num_samples), 0, logical_world))
    size = max(1, batch_size // logical_world)
    steps = [[whole[start : start + size] for whole in of_readers] for start in range(0, longest, size)]
    return [[index for part in parts for index in part] for parts in steps], [[*map(len, parts)] for parts in steps]


@dataclass(eq=False)
class ShardSampler(Sampler[list[int]]):
    """Yields, for each step of the current epoch, this rank's list of sample indices.

    Give it to a DataLoader as `batch_sampler`, and call advance() after each step.  Unlike torch's it neither pads nor
    drops: an epoch reads each sample once over all ranks.  A checkpoint holds its state_dict(), the same on all ranks.

    Args:
        num_samples: size of the dataset.  batch_size: samples of one step over all ranks together.
        rank, world_size: whose share; those of the process group unless given.  If given, a rank for which a step has
            no sample left gets an empty list; otherwise such a batch_size is refused.
        seed: seed of the order; together with the epoch it decides the order completely.
        micro_batches: into how many parts a step is cut, before each part is shared among the ranks.
        least: samples that a part needs; a short step is cut into fewer parts.
        whole: give each part to one rank, a contiguous range of parts each, rather than a share of it to every rank.
        in_order: read the samples 0, 1, 2 … rather than in an order that the seed decides.

    >>> sampler = ShardSampler(num_samples=5, batch_size=4, rank=1, world_size=2)
    >>> [len(indices) for indices in sampler]  # of batches of 4 and 1
    [2, 0]
    """

    num_samples: int
    batch_size: int
    rank: int | None = None
    world_size: int | None = None
    seed: int = 0
    micro_batches: int = 1
    least: int = 1
    whole: bool = False
    in_order: bool = False

    def __post_init__(self) -> None:
        rank, world_size = self.rank or 0, 1 if self.world_size is None else self.world_size
        if not 0 <= rank < world_size or self.batch_size < 1 or self.num_samples < 0:
            raise UserError(
                f"ShardSampler: rank is {self.rank}, world_size {self.world_size}, batch_size {self.batch_size} and "
                f"num_samples {self.num_samples}; give 0 <= rank < world_size, batch_size of at least 1 and "
                "num_samples of at least 0"
            )
        self.epoch, self.step = 1, 0

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch; the present one keeps its position, because loops call this after a restart, too."""
        if epoch != self.epoch:
            self.epoch, self.step = epoch, 0

    def advance(self) -> None:
        """Count one step as used; after an epoch's last one the next epoch begins.

        Iterating does not count, because a DataLoader reads ahead of the training.
        """
        more, self.step = divmod(self.step + 1, len(self))
        self.epoch += more

    def __len__(self) -> int:
        """Steps of an epoch."""
        return num_steps(self.num_samples, self.batch_size)

    @property
    def drop_last(self) -> NoReturn:
        """Refuse to answer: accelerate and Lightning ask before they share out a sampler's batches."""
        raise UserError(
            "ShardSampler: its batches are this rank's share, and would be shared out again: leave this DataLoader "
            "out of accelerator.prepare(); in Lightning give Trainer(use_distributed_sampler=False)"
        )

    def reader(self) -> tuple[int, int]:
        """Return the rank and the world size that were given, or those of the process group."""
        if self.rank is not None and self.world_size is not None:
            return self.rank, self.world_size
        if not dist.is_initialized():
            if (launched := os.environ.get("WORLD_SIZE", "1")) != "1":
                raise UserError(f"ShardSampler: one of {launched} processes reads before init_process_group()")
            return 0, 1
        world_size = dist.get_world_size()
        last = (self.num_samples - 1) % self.batch_size + 1
        if last < world_size:
            raise UserError(
                f"ShardSampler: the last batch of an epoch has {last} of {self.num_samples} samples, too few for "
                f"{world_size} processes: choose another batch_size than {self.batch_size}"
            )
        return dist.get_rank(), world_size

    def stretch(self, step: int | None = None) -> range:
        """Positions in the epoch's order that all ranks read at a step (from 0) of it: the next one unless given."""
        start = (self.step if step is None else step) * self.batch_size
        return range(self.num_samples)[start : start + self.batch_size]

    def parts(self, step: int | None = None) -> list[range]:
        """The micro-batches of `stretch(step)`, over all ranks together."""
        stretch = self.stretch(step)
        parts = max(1, min(self.micro_batches, len(stretch) // self.least))
        return [share(stretch, part, parts) for part in range(parts)]

    def shares(self, step: int | None = None, rank: int | None = None) -> list[range]:
        """A rank's share, maybe empty, of each of `parts(step)`, or its whole parts; this rank's unless given."""
        parts, (own, world_size) = self.parts(step), self.reader()
        rank = own if rank is None else rank
        if self.whole:
            return [parts[number] for number in self.slices_of_ranks(step)[rank]]
        return [share(part, rank, world_size) for part in parts]

    def slices_of_ranks(self, step: int | None = None) -> list[range]:
        """The numbers of the parts that each rank has, if it has whole ones."""
        _, world_size = self.reader()
        return [share(range(len(self.parts(step))), rank, world_size) for rank in range(world_size)]

    def __iter__(self) -> "_Steps":
        # accelerate's dispatch_batches: rank 0 reads for all, which only its callers show.
        if any(
            type(frame.f_locals.get("self")).__name__ == "DataLoaderDispatcher"
            for frame, _ in walk_stack(sys._getframe())
        ):
            return self.drop_last
        return _Steps(self)

    def state_dict(self) -> dict[str, int]:
        """Return the position, and the settings with which it was counted; the world size is not one of them."""
        counted_with = {"seed": self.seed, "num_samples": self.num_samples, "batch_size": self.batch_size}
        slices = {"slices": self.micro_batches} if self.whole else {}
        order = {"in_order": True} if self.in_order else {}
        return {"epoch": self.epoch, "step": self.step, **counted_with, **slices, **order}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue at a saved position, on any world size; raise UserError if it was counted with other settings."""
        if changed := self.changed_since(state):
            raise UserError(
                f"the checkpoint cannot be continued: {changed}, so samples would be read twice or never; "
                "give the old values, or another checkpoint_dir for a new run"
            )
        self.epoch, self.step = state["epoch"], state["step"]

    def changed_since(self, state: dict[str, int]) -> str:
        """Return which settings were others when a position was saved; an empty text if none were."""
        now, position = self.state_dict(), ("epoch", "step")
        changed = [key for key in {**now, **state} if key not in position and state.get(key) != now.get(key)]
        return ", ".join(f"{key} was {state.get(key)} and is {now.get(key)}" for key in changed)


class _Steps(Iterator[list[int]]):
    """The steps that are left of an epoch; a StatefulDataLoader saves the position of what it has read."""

    def __init__(self, sampler: ShardSampler) -> None:
        self._sampler, self._epoch, self._step = sampler, sampler.epoch, sampler.step
        sampler.reader()  # may refuse
        num = sampler.num_samples
        self._order = range(num) if sampler.in_order else epoch_order(num, sampler.seed, self._epoch)

    def __next__(self) -> list[int]:
        if self._step == len(self._sampler):
            raise StopIteration
        self._step += 1
        return [self._order[position] for part in self._sampler.shares(self._step - 1) for position in part]

    def state_dict(self) -> dict[str, int]:
        more, step = divmod(self._step, len(self._sampler))
        return self._sampler.state_dict() | {"epoch": self._epoch + more, "step": step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._sampler.load_state_dict(state)
        _Steps.__init__(self, self._sampler)
