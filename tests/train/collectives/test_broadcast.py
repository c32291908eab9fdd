"""Tensors of several types in one message."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.ranks import run_ranks
from train.collectives.broadcast import broadcast_from_rank_0
from train.world.environment import World

_TYPES = [torch.float32, torch.int64, torch.float32, torch.bool, torch.int64]


def _sent(world: World) -> tuple[list[Tensor], list[int]]:
    """Tensors after a broadcast, and how many types each call that copies them has had to deal with."""
    types: list[int] = []
    copy = torch._foreach_copy_

    def counting(targets: list[Tensor], sources: list[Tensor]) -> Any:
        types.append(len({tensor.dtype for tensor in [*targets, *sources]}))
        return copy(targets, sources)

    pytest.MonkeyPatch().setattr(torch, "_foreach_copy_", counting)
    tensors = [torch.full((3,), 1 + index - world.rank).to(dtype) for index, dtype in enumerate(_TYPES)]
    broadcast_from_rank_0(tensors, None)
    return tensors, types


def test_tensors_of_several_types_arrive_and_each_copy_is_of_one_type() -> None:
    for tensors, types in run_ranks(2, _sent):
        for index, (tensor, dtype) in enumerate(zip(tensors, _TYPES, strict=True)):
            assert torch.equal(tensor, torch.full((3,), 1 + index).to(dtype))
        assert types == [1, 1, 1]
