"""Ranks hold identical bits after 100 steps of what the benchmarks train."""

import pytest
import torch
import torch.distributed as dist

from benchmarks.workloads import WORKLOADS, loss_of
from tests.ranks import run_ranks
from train.ddp.wrapper import CustomDDP
from train.records.metrics import weights_sha256
from train.world.environment import World

_STEPS = 100
# Smaller batches than the benchmarks': it is the gradients that travel, and these are of full size.
_SAMPLES = 2
# Three ranks add up in an order of their own; of the GPT, whose step is the longest, two are enough.
_CASES = [(workload, 2 if workload == "gpt" else 3) for workload in WORKLOADS]


def _train(world: World, workload: str) -> tuple[str, str]:
    model = WORKLOADS[workload].model()
    before = weights_sha256(dict(model.named_parameters()))
    wrapped = CustomDDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    batches = [(inputs[:_SAMPLES], targets[:_SAMPLES]) for inputs, targets in WORKLOADS[workload].batches(world.rank)]
    for step in range(_STEPS):
        loss_of(wrapped, batches[step % len(batches)]).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert all(bool(param.isfinite().all()) for param in model.parameters())
    dist.barrier()
    return before, weights_sha256(dict(model.named_parameters()))


@pytest.mark.parametrize(("workload", "world_size"), _CASES)
@pytest.mark.timeout(300)
def test_ranks_hold_identical_bits_after_100_steps(workload: str, world_size: int) -> None:
    results = run_ranks(world_size, _train, workload, timeout_s=280)
    [(start, end)] = set(results)
    assert start != end
