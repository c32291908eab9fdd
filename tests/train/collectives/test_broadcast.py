"""Tensors of several types and layouts in one message."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.ranks import run_ranks
from train.collectives.broadcast import broadcast_from
from train.world.environment import World

_TYPES = [torch.float32, torch.int16, torch.bool, torch.bfloat16, torch.complex64, torch.int64]


def _tensors(rank: int) -> list[Tensor]:
    of_types = [torch.full((3,), 1 + index - rank).to(dtype) for index, dtype in enumerate(_TYPES)]
    numbers = rank + torch.arange(120.0).view(2, 3, 4, 5)
    last = numbers.to(memory_format=torch.channels_last)
    return [*of_types, last, numbers[0, 0].t(), numbers[0, 0, 0, ::2], torch.tensor(rank), torch.empty(0)]


def _sent(world: World) -> tuple[list[Tensor], int]:
    """Tensors after a broadcast from rank 1, and how many messages it took."""
    sizes: list[int] = []
    broadcast = dist.broadcast

    def counting(message: Tensor, *args: object, **kwargs: object) -> object:
        sizes.append(message.numel())
        return broadcast(message, *args, **kwargs)  # type: ignore[arg-type]

    pytest.MonkeyPatch().setattr(dist, "broadcast", counting)
    tensors = _tensors(world.rank)
    broadcast_from(1, tensors, None)
    return tensors, len(sizes)


def test_tensors_of_all_types_and_layouts_arrive_in_one_message() -> None:
    for tensors, messages in run_ranks(2, _sent):
        assert messages == 1
        for tensor, expected in zip(tensors, _tensors(1), strict=True):
            assert torch.equal(tensor, expected) and tensor.stride() == expected.stride()
