"""CustomDDP under autocast in both half precisions, on the CPU and on CUDA."""

import pytest
import torch
from torch import Tensor

from tests.ranks import run_ranks
from tests.train.ddp.cases import BATCH, data, plain
from tests.train.devices import device_of, devices
from train.data.shard import share
from train.ddp.wrapper import CustomDDP
from train.world.environment import World

_STEPS = 10
_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
# Half of the last bit of a type that has 8 or 11 of them, for each of the steps and layers.
_TOLERANCES = {"bf16": 2e-2, "fp16": 2e-3}


def _weights(world: World, precision: str, device_name: str) -> list[Tensor]:
    """Weights after some steps of SGD, with GradScaler where the type needs it."""
    device = device_of(device_name)
    torch.manual_seed(world.rank)
    model = plain().to(device)
    wrapped = CustomDDP(model, bucket_mib=0.001, first_bucket_mib=0.0005)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**10, enabled=precision == "fp16")
    mine = share(range(BATCH), world.rank, world.world_size)
    for step in range(_STEPS):
        inputs, targets = (part[mine.start : mine.stop].to(device) for part in data(step))
        with torch.autocast(device.type, _TYPES.get(precision), enabled=precision in _TYPES):
            outputs = wrapped(inputs)
        loss = (outputs.float() - targets).square().sum() * world.world_size / BATCH
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return [param.detach().cpu() for param in model.parameters()]


@pytest.mark.slow
@pytest.mark.parametrize("precision", _TYPES)
@devices
def test_two_ranks_under_autocast_hold_the_same_bits_and_are_near_float32(device: str, precision: str) -> None:
    [expected] = run_ranks(1, _weights, "fp32", "cpu")
    first, second = run_ranks(2, _weights, precision, device)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(first, second, strict=True))
    tolerance = _TOLERANCES[precision]
    torch.testing.assert_close(first, expected, rtol=tolerance, atol=tolerance)
    assert not all(torch.equal(ours, theirs) for ours, theirs in zip(first, expected, strict=True)), "no autocast"
