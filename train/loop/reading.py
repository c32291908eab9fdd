"""What a run reads: its training set, batch by batch, and the sets that it evaluates."""

from collections.abc import Callable, Iterable, Iterator
from numbers import Integral
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset

from train.collectives.broadcast import of_all_ranks
from train.config import TrainConfig
from train.data.batches import Batches
from train.data.reading import LeftOut, refuse_unreadable
from train.data.sampler import ShardSampler, evaluation_parts
from train.errors import SharedError, UserError
from train.world.environment import World

Collate = Callable[[list[Any]], Any] | None

_KEPT = 8  # datasets for evaluation: a loop may make another one each epoch


class Reading:
    """The datasets of a run on this rank; those prepared last stay, with their workers and samples.

    least: samples that a micro-batch needs.
    """

    def __init__(self, config: TrainConfig, world: World, device: torch.device) -> None:
        self._config, self._world, self._device = config, world, device
        self.least = 1
        self.training: Iterable[Any] = ()
        self._training_key: tuple[Any, ...] = ()
        self._evaluated: dict[tuple[Any, ...], tuple[Iterable[Any], list[list[int]]]] = {}
        self._collates = False

    def sampler(
        self, dataset: Any, batch_size: int, micro_batches: int, collate: Collate, workers: int
    ) -> ShardSampler | None:
        """Prepare the training set, and return the sampler that it is read by; None if it is prepared already."""
        key = (*_identity(dataset), batch_size, micro_batches, collate, workers)
        if key == self._training_key:
            return None
        refuse_wrong_counts("batches", batch_size=batch_size, micro_batches=micro_batches, workers=workers)
        refuse_unreadable(dataset, workers, self._config.seed, self._world)
        slices, in_order = self._config.logical_world, isinstance(dataset, IterableDataset)
        reader = self._config.reader(self._world.rank, self._world.world_size)
        parts = micro_batches * (slices or 1)
        sampler = ShardSampler(
            len(dataset), batch_size, *reader, self._config.seed, parts, self.least, bool(slices), in_order
        )
        self.training, self._training_key = self._loaded(dataset, sampler, collate, workers), key
        self._collates = collate is not None
        return sampler

    def forget(self) -> None:
        """Let the next call of `sampler` prepare the training set anew."""
        self._training_key = ()

    def evaluation(
        self, dataset: Any, batch_size: int, collate: Collate, workers: int
    ) -> Iterator[tuple[Any, list[int]]]:
        """Return this rank's batches of a dataset, and the sizes of the parts of which each consists."""
        key = (*_identity(dataset), batch_size, collate, workers)
        if key not in self._evaluated:
            refuse_wrong_counts("evaluate", batch_size=batch_size, workers=workers)
            refuse_unreadable(dataset, workers, self._config.seed, self._world)
            rank, ranks = self._config.reader(self._world.rank, self._world.world_size)
            slices = self._config.logical_world or ranks
            steps, sizes = evaluation_parts(len(dataset), batch_size, rank, ranks, slices)
            if len(self._evaluated) == _KEPT:
                del self._evaluated[next(iter(self._evaluated))]
            self._evaluated[key] = self._loaded(dataset, steps, collate, workers), sizes
        return zip(*self._evaluated[key], strict=True)

    def left_out(self, batch: Any) -> str:
        """Return of which samples collate has left none on a rank, or "".  A collective if there is a collate."""
        own = batch if isinstance(batch, LeftOut) else ""
        length = torch.tensor(len(own))
        if self._collates:
            dist.all_reduce(length)
        of_ranks = enumerate(of_all_ranks(own) if length else ())
        why = "; ".join(f"rank {rank}: {text}" for rank, text in of_ranks if text)
        if why and self._config.logical_world:
            raise SharedError(f"{why}; with logical_world no batch can be left out: keep them, with a weight of 0 each")
        return why

    def close(self) -> None:
        """End the workers, which ignore multiprocessing's SIGTERM at the exit."""
        self.training, self._evaluated = (), {}

    def _loaded(self, dataset: Any, steps: Iterable[list[int]], collate: Collate, workers: int) -> Batches:
        return Batches(dataset, steps, self._device, self._config.input, workers, collate)


def refuse_wrong_counts(method: str, **counts: Any) -> None:
    """Raise UserError unless all are whole numbers of at least 1, and workers of at least 0."""
    for name, count in counts.items():
        least = int(name != "workers")
        if not isinstance(count, Integral) or int(count) < least:
            raise UserError(f"run.{method}(): {name} is {count!r}: give a whole number of at least {least}")


def _identity(dataset: Any) -> tuple[int, int | None]:
    """Return what tells a dataset from others, and from itself before it has grown."""
    return id(dataset), len(dataset) if hasattr(dataset, "__len__") else None
