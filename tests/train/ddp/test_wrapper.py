"""CustomDDP against one process on the whole batch and against native DDP, on real processes."""

import functools
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.ranks import run_ranks
from tests.train.ddp.cases import CASES, IN_MEMORY, Case, build, train
from tests.train.devices import device_of, devices
from train.ddp.wrapper import CustomDDP
from train.world.environment import World

# Small buckets, so that even these models have several.
_SMALL = partial(CustomDDP, bucket_mib=0.001, first_bucket_mib=0.0005)
WAYS: dict[str, Callable[[Case], Callable[[nn.Module], nn.Module]]] = {
    "shared memory": lambda case: partial(_SMALL, sync=IN_MEMORY),
    "network": lambda case: _SMALL,
    "one bucket": lambda case: CustomDDP,
    "native": lambda case: partial(DistributedDataParallel, bucket_cap_mb=0.001, **case.native),
}
Results = dict[tuple[str, str], dict[str, Tensor] | str]


def _train_all(world: World, device_name: str) -> Results:
    device = device_of(device_name)
    results: Results = {}
    for way, wrap in WAYS.items():
        for case in CASES:
            # Different weights on each rank: rank 0's must win.
            torch.manual_seed(world.rank)
            try:
                bare, called = build(case, wrap(case), device)
                results[way, case.name] = train(case, bare, called, world.rank, world.world_size, device)
            except RuntimeError as error:
                results[way, case.name] = str(error)
    return results


@functools.cache
def trained(world_size: int, device: str) -> list[Results]:
    """Weights or error of each case, by rank; one start of processes for all of them."""
    return run_ranks(world_size, _train_all, device)


@functools.cache
def trained_alone(case: Case) -> dict[str, Tensor]:
    torch.manual_seed(0)
    bare, called = build(case, lambda model: model)
    return train(case, bare, called)


@pytest.mark.parametrize("world_size", [2, 3], ids=lambda n: f"world={n}")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@devices
def test_weights_after_20_steps_equal_one_process_on_the_whole_batch(
    device: str, case: Case, way: str, world_size: int
) -> None:
    results = [of_rank[way, case.name] for of_rank in trained(world_size, device)]
    if way == "native" and case.native_raises is not None:
        # Native DDP cannot do it, and we can.
        assert all(isinstance(result, str) and case.native_raises in result for result in results)
        return
    first = results[0]
    assert isinstance(first, dict), first
    for weights in results:
        # Sums in another order: measured differences are below a hundredth of this.
        torch.testing.assert_close(weights, trained_alone(case), rtol=1e-4, atol=1e-5)
        assert isinstance(weights, dict)
        assert all(torch.equal(weights[name], first[name]) for name in weights), "ranks hold different bits"
