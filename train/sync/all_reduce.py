"""The mean in the gradients' own type, by the backend of the group."""

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed.nn  # early: docs/troubleshooting.md, SIGABRT
from torch import Tensor

from train.collectives.tree_sum import Memory
from train.sync import Payload, Sync, Waitable


class AllReduce(Sync):
    """Averages buckets by the backend, and those of a CPU in memory that the ranks share, if there is some.

    NCCL averages float32 and wider types.  Everything else is prescaled and summed.
    share: returns this memory for a group; None if its ranks cannot share any.  A collective.
    """

    def __init__(
        self, group: dist.ProcessGroup, share: Callable[[dist.ProcessGroup], Memory | None] | None = None
    ) -> None:
        super().__init__(group)
        self._share = share  # until it was tried
        self._shared: Memory | None = None

    def allocate(self, numel: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        if device.type == "cpu" and self._share is not None:
            self._shared, self._share = self._share(self.group), None
        if device.type == "cpu" and self._shared is not None:
            return self._shared.allocate(numel, dtype)
        return super().allocate(numel, dtype, device)

    def renew(self, flat: Tensor) -> Tensor:
        if flat.device.type == "cpu" and self._shared is not None:
            return self._shared.renew(flat)
        return super().renew(flat)

    def prescale(self, dtype: torch.dtype, device: torch.device) -> float:
        if device.type == "cpu" and self._shared is not None:
            return 1.0
        return prescale_of_backend(self.group, dtype, device)

    def reduce(self, payload: Payload) -> Waitable:
        if payload.flat.device.type == "cpu" and self._shared is not None:
            pending: Waitable = self._shared.average(payload.flat)
            return pending
        return all_reduce_mean(payload.flat, self.group)


def prescale_of_backend(group: dist.ProcessGroup, dtype: torch.dtype, device: torch.device) -> float:
    """The factor by which tensors must be multiplied before `all_reduce_mean`: 1 if the backend averages."""
    return 1.0 if _averages(group, dtype, device) else 1.0 / dist.get_world_size(group)


def all_reduce_mean(prescaled: Tensor, group: dist.ProcessGroup) -> Waitable:
    """Start to replace the tensor by its mean over the ranks."""
    op = dist.ReduceOp.AVG if _averages(group, prescaled.dtype, prescaled.device) else dist.ReduceOp.SUM
    work: Waitable = dist.all_reduce(prescaled, op, group, async_op=True)
    return work


def _averages(group: dist.ProcessGroup, dtype: torch.dtype, device: torch.device) -> bool:
    # NCCL multiplies by 1/N in the type of the tensor, before the sum.  In 16 bits that factor is off by up to 0.4 %,
    # and so is every mean.  A mean of bfloat16 is off by 0.2 % for 6, 12 or 24 ranks.
    name: str = group._get_backend(device).name()
    return name == "nccl" and dtype.itemsize >= 4


make = AllReduce
