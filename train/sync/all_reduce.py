"""The mean in the gradients' own type: over the network, or through shared memory where all ranks are on one host."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.distributed.nn  # early: docs/own-script.md, "SIGABRT after the last line"
from torch import Tensor

from train.bucket import Bucket
from train.shared_memory import SharedMemory
from train.sync import Sync, Waitable


class AllReduce(Sync):
    """Buckets in the memory of a CPU go through shared memory if all ranks can, others to the group's backend.

    NCCL averages by itself; gloo cannot, so there gradients are prescaled and summed.

    Args:
        shared_memory: False sends everything to the backend.
    """

    def __init__(self, group: dist.ProcessGroup, *, shared_memory: bool = True) -> None:
        super().__init__(group)
        self._try_shared_memory = shared_memory
        self._shared: SharedMemory | None = None

    def allocate(self, numel: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        if device.type == "cpu" and self._try_shared_memory:
            self._shared = self._shared or SharedMemory.of_one_host(self.group)
            self._try_shared_memory = self._shared is not None
        if device.type == "cpu" and self._shared is not None:
            return self._shared.allocate(numel, dtype)
        return super().allocate(numel, dtype, device)

    def prescale(self, device: torch.device) -> float:
        if device.type == "cpu" and self._shared is not None:
            return 1.0
        return prescale_of_backend(self.group, device)

    def reduce(self, bucket: Bucket) -> Iterator[Waitable]:
        if bucket.flat.device.type == "cpu" and self._shared is not None:
            yield self._shared.average(bucket.flat)
        else:
            yield all_reduce_mean(bucket.flat, self.group)


def prescale_of_backend(group: dist.ProcessGroup, device: torch.device) -> float:
    """What `all_reduce_mean` wants tensors on `device` to be multiplied by: 1 if the backend averages by itself."""
    return 1.0 if _averages(group, device) else 1.0 / dist.get_world_size(group)


def all_reduce_mean(prescaled: Tensor, group: dist.ProcessGroup) -> Waitable:
    """Start to replace the tensor by its mean over the ranks."""
    op = dist.ReduceOp.AVG if _averages(group, prescaled.device) else dist.ReduceOp.SUM
    work: Waitable = dist.all_reduce(prescaled, op, group, async_op=True)
    return work


def _averages(group: dist.ProcessGroup, device: torch.device) -> bool:
    name: str = group._get_backend(device).name()
    return name == "nccl"


make = AllReduce
