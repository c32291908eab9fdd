"""Ways to average a full bucket of gradients, one file each; the name of the file is the value of --sync."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from train.collectives.broadcast import broadcast_from_rank_0


class Waitable(Protocol):
    def wait(self) -> object:
        """Return when it is done (on CUDA: when the current stream is made to wait for it)."""


@dataclass(frozen=True, eq=False)
class Payload:
    """The gradients that travel together.

    flat: all of it, in one dimension; zeros fill the gaps that align the gradients.
    views: each gradient, in its parameter's shape.  used: the numbers after the gradients, one for each
    parameter; the mean of a number is 0 if no rank used its parameter.  Both are parts of `flat`.
    """

    flat: Tensor
    views: Sequence[Tensor]
    used: Tensor


class Sync(ABC):
    """Replaces the gradients of each payload by their mean over the ranks of `group`, the same bits on all of them."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.world_size = dist.get_world_size(group)

    def prescale(self, dtype: torch.dtype, device: torch.device) -> float:
        """Return the factor by which a gradient is multiplied on its way into the bucket, where this costs nothing."""
        return 1.0

    def allocate(self, numel: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return zeroed memory for a bucket.  Called on all ranks in the same order with the same values."""
        return torch.zeros(numel, dtype=dtype, device=device)

    def renew(self, flat: Tensor) -> Tensor:
        """Return other memory in place of what `allocate` returned, because somebody holds that.  Not a collective."""
        return torch.zeros_like(flat)

    def of_rank_0(self, numbers: Sequence[int], device: torch.device) -> list[int]:
        """Return the numbers of rank 0; all ranks give equally many.  A collective, through memory of `device`."""
        shared = torch.tensor(numbers, device=device)
        broadcast_from_rank_0([shared], self.group)
        return [int(number) for number in shared.tolist()]

    @abstractmethod
    def reduce(self, payload: Payload) -> Waitable:
        """Start to replace `payload.flat`, which was prescaled, by its mean over the ranks.  A collective."""


# Makes a Sync for a group: one of the classes below train/sync/, or a partial() that sets its options.
MakeSync = Callable[[dist.ProcessGroup], Sync]


def named(name: str) -> MakeSync:
    make: MakeSync = import_module(f"train.sync.{name}").make
    return make
