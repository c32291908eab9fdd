"""Two ranks on one GPU, over gloo and over NCCL, train as two ranks on the CPU do."""

import functools
import os
import time
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from tests.ranks import run_ranks
from tests.train.ddp.cases import Collective, recorded_collectives
from tests.train.devices import device_of, on_one_gpu, skip_if_refused
from train.collectives.sync_batchnorm import SyncBatchNorm
from train.ddp.wrapper import CustomDDP
from train.sync import named
from train.world.environment import World

STEPS = 10
# Samples of both ranks, step by step: only BatchNorm gets uneven shares, and rank 1 none in every third step.
SHARES = ((8, 8), (16, 0), (5, 11))
_DELAY_CYCLES = 30_000_000  # 20 ms at 1.5 GHz; long compared with a kernel


@dataclass(frozen=True)
class Case:
    """`tolerance` is the largest difference of a step's loss, as a share of the CPU's: 24 or 8 bits travel."""

    tolerance: float
    sync: str = "all_reduce"
    own_stream: bool = False
    batchnorm: bool = False
    autocast: bool = False


CASES = {
    f"{sync}, {'own' if own else 'default'} stream": Case(tolerance, sync, own)
    for sync, tolerance in [("all_reduce", 1e-4), ("bf16", 2e-2)]
    for own in (False, True)
}
CASES |= {"BatchNorm": Case(1e-3, batchnorm=True), "BatchNorm in bf16": Case(5e-2, batchnorm=True, autocast=True)}
PLACES = [
    ("cpu", "gloo"),
    pytest.param("cuda", "gloo", marks=pytest.mark.cuda),
    pytest.param("cuda", "nccl", marks=pytest.mark.cuda),
]
Outcome = tuple[list[float], list[Tensor], list[list[Collective]]]
"""The rank's part of each step's loss, the weights at the end, and the collectives of each step."""


def _all_cases(world: World, device: str, backend: str) -> dict[str, Outcome]:
    group = dist.group.WORLD
    if backend == "nccl":
        os.environ.update(on_one_gpu(world.rank))
        group = dist.new_group(backend="nccl")  # type: ignore[assignment]
    assert isinstance(group, dist.ProcessGroup)
    recorded = recorded_collectives()
    return {name: _train(world, device_of(device), group, case, recorded) for name, case in CASES.items()}


def _train(
    world: World, device: torch.device, group: dist.ProcessGroup, case: Case, recorded: list[Collective]
) -> Outcome:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d if case.batchnorm else nn.Identity
    model: nn.Module = nn.Sequential(
        nn.Linear(64, 256), norm(256), nn.ReLU(), nn.Linear(256, 256), norm(256), nn.ReLU(), nn.Linear(256, 10)
    ).to(device)
    model = SyncBatchNorm.convert_sync_batchnorm(model, group) if case.batchnorm else model
    stream = torch.cuda.Stream() if case.own_stream and device.type == "cuda" else None
    if stream is not None:
        stream.wait_stream(torch.cuda.current_stream())
    losses, collectives = [], []
    with nullcontext() if stream is None else torch.cuda.stream(stream):
        wrapped = CustomDDP(model, sync=named(case.sync), bucket_mib=0.1, process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for step in range(STEPS):
            recorded.clear()
            inputs, labels = _share(world.rank, step, case.batchnorm)
            with torch.autocast(device.type, torch.bfloat16, enabled=case.autocast):
                outputs = wrapped(inputs.to(device))
            outputs.register_hook(partial(_delay, world.rank))
            loss = F.cross_entropy(outputs.float(), labels.to(device), reduction="sum") / sum(SHARES[0])
            (loss * world.world_size).backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
            collectives.append([*recorded])
        weights = [param.detach().cpu() for param in model.parameters()]
        return [float(loss) for loss in losses], weights, collectives


def _share(rank: int, step: int, uneven: bool) -> tuple[Tensor, Tensor]:
    """This rank's samples of a step: points around ten centres."""
    generator = torch.Generator().manual_seed(step)
    centres = torch.randn(10, 64, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(10, (sum(SHARES[0]),), generator=generator)
    points = centres[labels] + 0.3 * torch.randn(len(labels), 64, generator=generator)
    counts = SHARES[step % len(SHARES) if uneven else 0]
    mine = slice(0, counts[0]) if rank == 0 else slice(counts[0], None)
    return points[mine], labels[mine]


def _delay(rank: int, grad: Tensor) -> None:
    """Make rank 1 late in its backward; on CUDA only the device waits, as for long kernels."""
    if rank == 1 and grad.is_cuda:
        torch.cuda._sleep(_DELAY_CYCLES)
    elif rank == 1:
        time.sleep(0.02)


@functools.cache
def trained(device: str, backend: str) -> list[dict[str, Outcome]]:
    return run_ranks(2, _all_cases, device, backend)


def _losses(of_ranks: list[dict[str, Outcome]], name: str) -> Any:
    return [sum(of_step) for of_step in zip(*(of_rank[name][0] for of_rank in of_ranks), strict=True)]


@pytest.mark.parametrize(("device", "backend"), PLACES)
@pytest.mark.parametrize("name", CASES)
def test_losses_are_those_of_the_cpu_and_both_ranks_hold_the_same_weights(name: str, device: str, backend: str) -> None:
    try:
        found = trained(device, backend)
    except RuntimeError as error:
        if backend == "nccl":
            skip_if_refused(str(error))
        raise
    losses = _losses(found, name)
    assert losses[-1] < losses[0], "something was learned, or equal losses would mean little"
    assert losses == pytest.approx(_losses(trained("cpu", "gloo"), name), rel=CASES[name].tolerance)
    (_, weights, collectives), (_, others, collectives_of_other) = (of_rank[name] for of_rank in found)
    assert all(map(torch.equal, weights, others))
    assert collectives == collectives_of_other
