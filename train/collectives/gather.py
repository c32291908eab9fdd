"""The rows of all ranks as one tensor, through which gradients flow back to the ranks that they come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def gather(rows: Tensor, sizes: Sequence[int], group: dist.ProcessGroup | None) -> Tensor:
    """Return the rows of all ranks, in the order of the ranks.  A collective, and so is its backward.

    Args:
        rows: (sizes[rank], …); the other dimensions are the same on all ranks.
    """
    gathered: Tensor = _Gather.apply(rows, sizes, group)
    return gathered


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: Sequence[int], group: Any) -> Tensor:
        ctx.start, ctx.num, ctx.group = sum(sizes[: dist.get_rank(group)]), len(rows), group
        # Of one size, as gloo and NCCL want it.
        padded = rows.new_zeros((max(sizes), *rows.shape[1:]))
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded, group=group)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        whole = grads[0].contiguous()
        dist.all_reduce(whole, group=ctx.group)
        return whole[ctx.start : ctx.start + ctx.num], None, None
