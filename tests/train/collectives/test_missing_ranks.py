"""A rank that waits for another one in vain says where that one gave up; tests/faults has ranks that are killed."""

import functools
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.ranks import run_ranks
from train.collectives import missing_ranks
from train.ddp.wrapper import CustomDDP
from train.errors import UserError
from train.sync.all_reduce import AllReduce
from train.world.environment import World

pytestmark = pytest.mark.timeout(300)


def _told(function: Callable[[], object]) -> str:
    with pytest.raises(UserError) as told:
        function()
    return str(told.value)


def _wrapped(module: nn.Module, timeout_s: float) -> CustomDDP:
    """Over the network, in a group of its own, so that what is left of one failure does not disturb the next."""
    group = dist.new_group(timeout=timedelta(seconds=timeout_s))
    assert isinstance(group, dist.ProcessGroup)
    return CustomDDP(module, sync=partial(AllReduce, shared_memory=False), process_group=group)


def _apart(world: World) -> list[str]:
    """Rank 0 is alone in a first backward, rank 1 in a forward; then they go on, and rank 0 is alone again."""
    patch = pytest.MonkeyPatch()
    patch.setattr(missing_ranks, "_REPORTS_S", 2.0)
    x = torch.ones(2, 4)
    messages = []
    first, second = _wrapped(nn.Linear(4, 4), timeout_s=1), _wrapped(nn.BatchNorm1d(4), timeout_s=1)
    outputs = first(x).sum()
    if world.rank == 0:
        messages.append(_told(outputs.backward))
    else:
        messages.append(_told(lambda: second(x)))
    dist.barrier()
    third = _wrapped(nn.Linear(4, 4), timeout_s=1)
    third(x).sum().backward()
    outputs = third(x).sum()
    if world.rank == 0:
        messages.append(_told(outputs.backward))
    # Rank 1 stays alive until then.
    dist.barrier()
    return messages


@functools.cache
def apart() -> list[list[str]]:
    return run_ranks(2, _apart)


def test_a_rank_that_misses_the_first_backward_is_named() -> None:
    assert apart()[0][0].startswith("agreeing on the buckets failed: ")
    assert apart()[0][0].endswith("rank 1 gave up at another place: forward after backward 0")


def test_a_rank_that_misses_the_buffers_of_a_forward_is_named() -> None:
    assert apart()[1][0].startswith("sending rank 0's buffers failed: ")
    assert apart()[1][0].endswith("rank 0 gave up at another place: end of backward 1")


def test_a_later_failure_says_nothing_of_an_earlier_one_after_which_the_ranks_went_on() -> None:
    assert apart()[0][1].startswith("the gradients of bias, weight (backward 2, bucket 1) were not averaged: ")
    assert apart()[0][1].splitlines()[1:] == ["no report within 2 s from rank 1 (ended or still waiting): see its log"]
