"""Means through shared memory: exact, the same bits everywhere, nothing left behind, and only where it is possible."""

import os
import platform
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.ranks import run_ranks
from train.collectives.missing_ranks import MissingRanks
from train.cpu import shared_memory
from train.cpu.shared_memory import SharedMemory
from train.ddp.bucket import Bucket
from train.sync.all_reduce import AllReduce
from train.world.environment import World

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64]
# Less than one page, pieces that are not equal, several blocks, and some ranks without a piece.
NUMELS = [1, 5, 1000, 70_001, 300_000]


def _group() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group


def _values(rank: int, numel: int, dtype: torch.dtype, step: int) -> Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(10 * step + rank)).to(dtype)


def _means(world: World) -> list[list[Tensor]]:
    shared = SharedMemory.of_one_host(_group())
    assert shared is not None
    flats = [shared.allocate(numel, dtype) for dtype in DTYPES for numel in NUMELS]
    assert all(not flat.any() for flat in flats)
    results = []
    for step in range(3):
        for flat in flats:
            flat.copy_(_values(world.rank, flat.numel(), flat.dtype, step))
        for work in [shared.average(flat) for flat in flats]:
            work.wait()
        results.append([flat.clone() for flat in flats])
        for flat in flats:
            flat.zero_()  # what one rank does with its own does not reach the others
    return results


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_each_rank_holds_the_same_bits_of_the_mean(world_size: int) -> None:
    results = run_ranks(world_size, _means)
    for step, tensors in enumerate(results[0]):
        for number, tensor in enumerate(tensors):
            assert all(torch.equal(tensor, other[step][number]) for other in results)
            values = [_values(rank, tensor.numel(), tensor.dtype, step) for rank in range(world_size)]
            precise = torch.complex128 if tensor.is_complex() else torch.float64
            expected = torch.stack([value.to(precise) for value in values]).mean(0)
            epsilon = torch.finfo(tensor.dtype).eps
            torch.testing.assert_close(tensor.to(precise), expected, rtol=4 * epsilon, atol=8 * epsilon)


def _traces(world: World) -> list[bool]:
    shared = SharedMemory.of_one_host(_group())
    assert shared is not None
    shared.allocate(1000, torch.float32)
    descriptors = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return ["gradients" in " ".join(descriptors), any("gradients" in str(file) for file in Path("/dev/shm").iterdir())]


def test_no_descriptor_and_no_name_outlives_the_allocation() -> None:
    assert run_ranks(2, _traces) == [[False, False]] * 2


def _where_one_cannot(world: World) -> list[bool]:
    """Whether there is none: where all can; where rank 1 has another processor, no memory, or is on another host."""
    write = os.pwrite
    found = [SharedMemory.of_one_host(_group()) is None]
    for place, name, value in (
        (platform, "machine", lambda: "aarch64"),
        (shared_memory, "_new_memory", lambda num_bytes: None),
        # What is at the place that it names is not what it has written.
        (os, "pwrite", lambda fd, data, offset: write(fd, b"another host's!!", offset)),
    ):
        with pytest.MonkeyPatch.context() as patch:
            if world.rank == 1:
                patch.setattr(place, name, value)
            found.append(SharedMemory.of_one_host(_group()) is None)
    return found


def test_all_ranks_do_without_if_one_cannot() -> None:
    assert run_ranks(3, _where_one_cannot) == [[False, True, True, True]] * 3


def _late_in_a_group(world: World) -> str:
    group = dist.new_group([1, 2])
    message = ""
    if world.rank > 0:
        assert isinstance(group, dist.ProcessGroup)
        shared = SharedMemory.of_one_host(group)
        assert shared is not None
        flat = shared.allocate(10, torch.float32)
        shared.timeout_s = 1  # up to here the ranks may have waited for one another
        if world.rank == 1:
            with pytest.raises(MissingRanks) as missing:
                shared.average(flat).wait()
            message = str(missing.value)
    # Rank 2 stays alive until then.
    dist.barrier()
    return message


def test_a_missing_rank_of_a_group_has_its_number_in_the_job() -> None:
    assert run_ranks(3, _late_in_a_group)[1] == "rank 2 did not take part within 1 s"


def _times_given_back(world: World) -> int:
    """How often a bucket for gradients makes the process give freed memory back to the kernel."""
    large = nn.Parameter(torch.empty(2**21))
    with mock.patch.object(shared_memory._libc, "malloc_trim") as trim:
        Bucket([large], ["large"], [1], AllReduce(_group(), SharedMemory.of_one_host))
    times: int = trim.call_count
    return times


def test_freed_memory_is_given_back_before_a_large_bucket() -> None:
    assert run_ranks(2, _times_given_back) == [1, 1]
