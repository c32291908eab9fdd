"""A collective that hangs where wait() returns at once, as NCCL's does: its bucket is named all the same."""

from __future__ import annotations

import io
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.ranks import run_ranks
from train.ddp.unfinished import UnfinishedBuckets
from train.ddp.wrapper import CustomDDP
from train.sync import Payload, Sync, Waitable
from train.sync.all_reduce import all_reduce_mean
from train.world.environment import World


class _Work:
    """gloo's, but its wait() leaves the waiting to the device, as it were."""

    def __init__(self, work: Waitable) -> None:
        self.work = work

    def wait(self) -> None:
        pass

    def is_completed(self) -> bool:
        return self.work.is_completed()


class _LikeNccl(Sync):
    def reduce(self, payload: Payload) -> Iterator[Waitable]:
        yield _Work(all_reduce_mean(payload.flat, self.group))


def _told(world: World) -> tuple[float, str, str]:
    """Seconds of rank 0's second backward, to which rank 1 comes late; what rank 0 says before that and after."""
    stderr = io.StringIO()
    pytest.MonkeyPatch().setattr(sys, "stderr", stderr)
    group = dist.new_group(timeout=timedelta(seconds=20))
    assert isinstance(group, dist.ProcessGroup)
    wrapped = CustomDDP(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), sync=_LikeNccl, process_group=group)
    wrapped(torch.ones(2, 8)).sum().backward()
    dist.barrier()
    if world.rank == 1:
        time.sleep(13)
    started = time.monotonic()
    wrapped(torch.ones(2, 8)).sum().backward()
    took_s = time.monotonic() - started
    deadline = started + 40
    while world.rank == 0 and "rank 1" not in stderr.getvalue() and time.monotonic() < deadline:
        time.sleep(0.1)
    before = stderr.getvalue()
    dist.barrier()
    wrapped(torch.ones(2, 8)).sum().backward()
    time.sleep(1.5)
    return took_s, before, stderr.getvalue().removeprefix(before)


@pytest.mark.timeout(150)
def test_the_parameters_of_a_bucket_that_hangs_are_named_without_a_wait() -> None:
    (took_s, told, later), (_, of_late_rank, _) = run_ranks(2, _told, timeout_s=140)
    assert took_s < 5, "backward itself does not wait"
    assert told.startswith(
        "the gradients of 1.bias, 1.weight, 0.bias, 0.weight (backward 2, bucket 1) are not averaged"
    )
    assert "no report within 5 s from rank 1" in told
    assert later == of_late_rank == ""


class _Done:
    """A work that its owner ends."""

    done = False

    def wait(self) -> None:
        pass

    def is_completed(self) -> bool:
        return self.done


def _works_alive(world: World) -> list[bool]:
    unfinished, alive = UnfinishedBuckets(dist.group.WORLD), []
    for _ in range(2):
        work = _Done()
        gone = threading.Event()
        weakref.finalize(work, gone.set)
        unfinished.watch(["weight"], "backward 1, bucket 1", work)
        work.done = True
        del work
        alive.append(gone)
    return [gone.wait(20) for gone in alive]


def test_a_work_that_is_done_is_dropped_without_another_backward() -> None:
    assert run_ranks(1, _works_alive) == [[True, True]]
