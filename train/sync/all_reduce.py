"""The mean in the gradients' own type: over the network, or through shared memory where all ranks are on one host."""

import torch
import torch.distributed as dist
import torch.distributed.nn  # early: docs/troubleshooting.md, SIGABRT
from torch import Tensor

from train.cpu.shared_memory import SharedMemory
from train.sync import Payload, Sync, Waitable


class AllReduce(Sync):
    """Averages buckets on a CPU through memory that all ranks share, if they can, and other buckets by the backend.

    NCCL averages float32 and wider types.  Everything else is prescaled and summed.
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
            return self._shared.average(payload.flat)
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
