"""Tensors of one rank, or of each rank, for all ranks: broadcasts of many in one message, and a gather."""

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Thing = TypeVar("Thing")

_MESSAGE_BYTES = 256 * 2**20


def broadcast_from(source: int, tensors: Sequence[Tensor], group: dist.ProcessGroup | None) -> None:
    """Overwrite `tensors` of all ranks with those of the group's rank `source`.  A collective."""
    for same in _cut(tensors):
        wholes = [tensor.contiguous() for tensor in same]
        # As bytes, so that all types travel in one message and are copied by one kernel.
        parts = [whole.view(-1).view(torch.uint8) for whole in wholes]
        message = torch.cat(parts)
        dist.broadcast(message, group=group, group_src=source)
        if dist.get_rank(group) != source:
            torch._foreach_copy_(parts, message.split([part.numel() for part in parts]))
            for tensor, whole in zip(same, wholes, strict=True):
                tensor.copy_(whole)  # does nothing if the tensor is contiguous, which is `whole` then


broadcast_from_rank_0 = partial(broadcast_from, 0)


def _cut(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return the lists of tensors that fit in one message: of one device, at most 256 MiB unless one is larger."""
    cut: list[list[Tensor]] = []
    num_bytes = 0
    for tensor in tensors:
        if not tensor.numel():
            continue
        num_bytes += tensor.nbytes
        if not cut or tensor.device != cut[-1][0].device or num_bytes > _MESSAGE_BYTES:
            cut.append([])
            num_bytes = tensor.nbytes
        # Not detach(): if a buffer is sent between two forwards, autograd must not see it as changed.
        cut[-1].append(tensor.data)
    return cut


def thing_of_rank_0(thing: Thing) -> Thing:
    """Return rank 0's thing, which can be pickled, on all ranks.  A collective."""
    things = [thing]
    dist.broadcast_object_list(things)
    return things[0]


def of_all_ranks(thing: Thing, group: dist.ProcessGroup | None = None) -> list[Thing]:
    """Return each rank's thing, which can be pickled, by rank, on all ranks of the group.  A collective."""
    things = [thing] * dist.get_world_size(group)
    dist.all_gather_object(things, thing, group)
    return things


def gather(rows: Tensor, sizes: Sequence[int], group: dist.ProcessGroup | None) -> Tensor:
    """Return the rows of all ranks, (sizes[rank], …); gradients flow back.  A collective, as is its backward."""
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
