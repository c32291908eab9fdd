"""Plain all-reduce in the gradients' own type."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist
from torch import Tensor


class AllReduce:
    """Mean over the ranks of `group`: AVG where the backend has it (NCCL), otherwise prescaled and summed (gloo)."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.averages = dist.get_backend(group) == "nccl"
        self.op = dist.ReduceOp.AVG if self.averages else dist.ReduceOp.SUM
        self.prescale = 1.0 if self.averages else 1.0 / dist.get_world_size(group)

    def start(self, flat: Tensor) -> Callable[[], object]:
        work = dist.all_reduce(flat, self.op, self.group, async_op=True)
        wait: Callable[[], object] = work.wait
        return wait
