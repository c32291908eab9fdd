"""What is done with a full bucket of gradients, one way a file; the name of the file is the value of --sync."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from train.bucket import Bucket


class Waitable(Protocol):
    """A collective that is under way."""

    def wait(self) -> object:
        """Return when it is done (on CUDA: when the current stream is made to wait for it)."""
        ...


class Sync(ABC):
    """Replaces the gradients in each bucket by their mean over the ranks of `group`, the same bits on all of them."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.world_size = dist.get_world_size(group)

    def prescale(self, device: torch.device) -> float:
        """What each gradient on `device` is multiplied by while it moves into its bucket, where that is free."""
        return 1.0

    def allocate(self, numel: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for a bucket, zeroed.  Called on all ranks in the same order with the same values."""
        return torch.zeros(numel, dtype=dtype, device=device)

    @abstractmethod
    def reduce(self, bucket: Bucket) -> Iterator[Waitable]:
        """Replace `bucket.flat` by its mean over the ranks, given that it was prescaled.

        A generator.  It starts a collective and yields it; it is resumed when that one is done, and may start another.
        All ranks run the generators of the same buckets and resume them in the same order.
        """


# Makes a Sync for a group: one of the classes below train/sync/, or a partial() that sets its options.
MakeSync = Callable[[dist.ProcessGroup], Sync]


def named(name: str) -> MakeSync:
    """The way in the file `name`.py."""
    make: MakeSync = import_module(f"train.sync.{name}").make
    return make
