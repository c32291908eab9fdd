"""A torch Sampler on top of shard.py: for each step, the indices that one rank reads."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch.utils.data import Sampler

from train.data.shard import epoch_order, num_steps, share
from train.errors import UserError


def evaluation_parts(
    num_samples: int, batch_size: int, rank: int, world_size: int, logical_world: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Return what `rank` reads in each batch of an evaluation, and how many samples of it are each logical rank's.

    A logical rank reads a contiguous share of the samples, in order, none twice.  batch_size counts samples over all
    ranks together, as in training.  All ranks have the same number of batches, so that they can meet after each; the
    last one may be empty.
    """
    readers = share(range(logical_world), rank, world_size)
    of_readers = [share(range(num_samples), reader, logical_world) for reader in readers]
    longest = len(share(range(num_samples), 0, logical_world))
    size = max(1, batch_size // logical_world)
    steps = [[whole[start : start + size] for whole in of_readers] for start in range(0, longest, size)]
    return [[index for part in parts for index in part] for parts in steps], [[*map(len, parts)] for parts in steps]


@dataclass(eq=False)
class ShardSampler(Sampler[list[int]]):
    """Yields, for each step of the current epoch, this rank's list of sample indices (empty if none are left for it).

    Give it to a DataLoader as `batch_sampler`, with a collate_fn that takes an empty list.  Unlike torch's it neither
    pads nor drops.  An epoch reads each sample once over all ranks, and `len()` is the same on every rank.

    Args:
        num_samples: size of the dataset.  batch_size: samples of one step over all ranks together.
        rank, world_size: whose share.
        seed: seed of the order; together with the epoch it decides the order completely.
        micro_batches: into how many parts a step is cut, before each part is shared among the ranks.
        least: samples that a part needs; a short step is cut into fewer parts.
        whole: give each part to one rank, a contiguous range of parts each, rather than a share of it to every rank.
        in_order: read the samples 0, 1, 2 … rather than in an order that the seed decides.

    >>> sampler = ShardSampler(num_samples=5, batch_size=4, rank=1, world_size=2, seed=0)
    >>> [len(indices) for indices in sampler]  # of batches of 4 and 1
    [2, 0]
    """

    num_samples: int
    batch_size: int
    rank: int
    world_size: int
    seed: int
    micro_batches: int = 1
    least: int = 1
    whole: bool = False
    in_order: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size or self.batch_size < 1 or self.num_samples < 0:
            raise UserError(
                f"ShardSampler: rank is {self.rank}, world_size {self.world_size}, batch_size {self.batch_size} and "
                f"num_samples {self.num_samples}; give 0 <= rank < world_size, batch_size of at least 1 and "
                "num_samples of at least 0"
            )
        self.epoch, self.step = 1, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch, self.step = epoch, 0

    def advance(self) -> None:
        """Count one step as used.  Iterating does not count, because a DataLoader reads ahead of the training."""
        self.step += 1

    def __len__(self) -> int:
        """Steps that are left in this epoch."""
        return num_steps(self.num_samples, self.batch_size) - self.step

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
        parts, rank = self.parts(step), self.rank if rank is None else rank
        if self.whole:
            return [parts[number] for number in self.slices_of_ranks(step)[rank]]
        return [share(part, rank, self.world_size) for part in parts]

    def slices_of_ranks(self, step: int | None = None) -> list[range]:
        """The numbers of the parts that each rank has, if it has whole ones."""
        return [share(range(len(self.parts(step))), rank, self.world_size) for rank in range(self.world_size)]

    def __iter__(self) -> Iterator[list[int]]:
        order = range(self.num_samples) if self.in_order else epoch_order(self.num_samples, self.seed, self.epoch)
        for step in range(self.step, num_steps(self.num_samples, self.batch_size)):
            yield [order[position] for part in self.shares(step) for position in part]

    def state_dict(self) -> dict[str, int]:
        """Return the position, and the settings with which it was counted; the world size is not one of them."""
        counted_with = {"seed": self.seed, "num_samples": self.num_samples, "batch_size": self.batch_size}
        slices = {"slices": self.micro_batches} if self.whole else {}
        order = {"in_order": True} if self.in_order else {}
        return {"epoch": self.epoch, "step": self.step, **counted_with, **slices, **order}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue at a saved position, on any world size.

        Raises UserError if seed, batch size or dataset size were different when it was saved: the samples after the
        position would then not be the unread ones.
        """
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
