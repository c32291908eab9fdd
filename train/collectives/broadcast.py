"""Tensors of one rank, or of each rank, for all ranks: broadcasts of many in one message, and a gather."""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

Thing = TypeVar("Thing")

_MESSAGE_BYTES = 256 * 2**20
# No element type needs a larger alignment, so a slice of a message can be viewed as any type.
_ALIGNMENT_BYTES = 16


class Message:
    """A buffer for the bytes of tensors of one device and any types, which can be sent as often as needed."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = list(tensors)
        self._slots: dict[torch.dtype, list[int]] = {}
        starts, end = [], 0
        for slot, tensor in enumerate(tensors):
            self._slots.setdefault(tensor.dtype, []).append(slot)
            starts.append(end)
            end += -(-tensor.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        self.bytes = torch.empty(end, dtype=torch.uint8, device=tensors[0].device)
        self.parts = [
            self.bytes[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            for start, tensor in zip(starts, tensors, strict=True)
        ]

    @torch.no_grad()
    def send(self, group: dist.ProcessGroup | None, source: int) -> None:
        """Overwrite the tensors with those of the group's rank `source`.  A collective."""
        sends = dist.get_rank(group) == source
        if sends:
            self._copy(self.parts, self.tensors)
        dist.broadcast(self.bytes, group=group, group_src=source)
        if not sends:
            self._copy(self.tensors, self.parts)

    def _copy(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        # Only tensors of one type are copied in one kernel.
        for same_type in self._slots.values():
            torch._foreach_copy_([targets[slot] for slot in same_type], [sources[slot] for slot in same_type])


def messages(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Cut `tensors` into lists that each fit in one message: of one device, at most 256 MiB unless one is larger."""
    cut: list[list[Tensor]] = []
    open_messages: dict[torch.device, tuple[list[Tensor], int]] = {}
    for tensor in tensors:
        if not tensor.numel():
            continue
        same, num_bytes = open_messages.get(tensor.device, ([], 0))
        if not same or num_bytes + tensor.nbytes > _MESSAGE_BYTES:
            same, num_bytes = [], 0
            cut.append(same)
        # Not detach(): if a buffer is sent between two forwards, autograd must not see it as changed.
        same.append(tensor.data)
        open_messages[tensor.device] = (same, num_bytes + tensor.nbytes)
    return cut


def broadcast_from(source: int, tensors: Sequence[Tensor], group: dist.ProcessGroup | None) -> None:
    """Overwrite `tensors` of all ranks with those of the group's rank `source`.  A collective."""
    for same in messages(tensors):
        Message(same).send(group, source)


def broadcast_from_rank_0(tensors: Sequence[Tensor], group: dist.ProcessGroup | None) -> None:
    broadcast_from(0, tensors, group)


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


class BufferBroadcast:
    """Sends the buffers that `module` has at each call; the memory for the messages is kept between calls."""

    def __init__(self, module: nn.Module, group: dist.ProcessGroup | None) -> None:
        self.group = group
        self._places = [
            (part, name) for part in module.modules() for name, buffer in part._buffers.items() if buffer is not None
        ]
        self._tensors: list[Tensor] = []
        self._addresses: list[int] = []
        self._messages: list[Message] = []

    def send(self, source: int) -> None:
        """Overwrite the buffers with those of the group's rank `source`.  A collective, unless there are none."""
        tensors = [tensor for part, name in self._places if (tensor := part._buffers[name]) is not None]
        # Different if a new buffer, or new memory of the same buffer (buffer.data = …), has replaced an old one.
        addresses = [tensor.data_ptr() for tensor in tensors]
        if addresses != self._addresses or any(a is not b for a, b in zip(tensors, self._tensors, strict=True)):
            self._tensors, self._addresses = tensors, addresses
            self._messages = [Message(same) for same in messages(tensors)]
        for message in self._messages:
            message.send(self.group, source)


def gather(rows: Tensor, sizes: Sequence[int], group: dist.ProcessGroup | None) -> Tensor:
    """Return the rows of all ranks, in the order of the ranks; gradients flow back.  A collective, as is its backward.

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
