"""A rank without samples starts the same collectives as the others, in the same order, on real processes."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules._functions import SyncBatchNorm as NativeFunction

from tests.ranks import run_ranks
from tests.train.ddp.cases import SYNCS, Collective, recorded_collectives
from tests.train.devices import device_of
from train import models
from train.collectives.sync_batchnorm import SyncBatchNorm
from train.ddp.wrapper import CustomDDP
from train.world.environment import World


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    return values.view(1, -1, *[1] * (x.dim() - 2))


def _write_native_kernels() -> None:
    """The five CUDA kernels of torch.nn.SyncBatchNorm as tensor code, so that its Function runs on the CPU."""
    patch = pytest.MonkeyPatch()

    def stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        rows = x.float().transpose(0, 1).flatten(1)
        return rows.mean(1), (rows.var(1, unbiased=False) + eps).rsqrt()

    def gather_stats(
        x: Tensor, means: Tensor, inverse_stds: Tensor, _m: Any, _v: Any, _momentum: Any, eps: float, counts: Tensor
    ) -> tuple[Tensor, Tensor]:
        shares = (counts / counts.sum()).unsqueeze(1)
        mean = (means * shares).sum(0)
        variance = ((inverse_stds**-2 - eps + (means - mean) ** 2) * shares).sum(0)
        return mean, (variance + eps).rsqrt()

    def normalise(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, inverse_std: Tensor, eps: float) -> Tensor:
        gain = inverse_std * weight
        return (x.float() * _per_channel(gain, x) + _per_channel(bias - mean * gain, x)).to(x.dtype)

    def backward_reduce(
        grad: Tensor, x: Tensor, mean: Tensor, inverse_std: Tensor, weight: Tensor, *_: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        dims = [0, *range(2, x.dim())]
        sum_grad = grad.float().sum(dims)
        product = (grad.float() * (x.float() - _per_channel(mean, x))).sum(dims)
        return sum_grad, product, (product * inverse_std).to(weight.dtype), sum_grad.to(weight.dtype)

    def backward_elementwise(
        grad: Tensor,
        x: Tensor,
        mean: Tensor,
        inverse_std: Tensor,
        weight: Tensor,
        sum_grad: Tensor,
        product: Tensor,
        counts: Tensor,
    ) -> Tensor:
        count = counts.sum()
        centred = (x.float() - _per_channel(mean, x)) * _per_channel(inverse_std**2 * product / count, x)
        gain = _per_channel(inverse_std * weight, x)
        return ((grad.float() - _per_channel(sum_grad / count, x) - centred) * gain).to(x.dtype)

    for name, kernel in {
        "batch_norm_stats": stats,
        "batch_norm_gather_stats_with_counts": gather_stats,
        "batch_norm_elemt": normalise,
        "batch_norm_backward_reduce": backward_reduce,
        "batch_norm_backward_elemt": backward_elementwise,
    }.items():
        patch.setattr(torch, name, kernel)


class _NativeNorm(nn.BatchNorm2d):
    """torch.nn.SyncBatchNorm, whose module refuses to run on the CPU."""

    def forward(self, input: Tensor) -> Tensor:
        world_size, group = dist.get_world_size(), dist.group.WORLD
        output: Tensor = NativeFunction.apply(
            input, self.weight, self.bias, None, None, self.eps, 0.1, group, world_size
        )
        return output


def _native_model() -> nn.Module:
    layers = [nn.Conv2d(1, 8, 3), _NativeNorm(8), nn.ReLU(), nn.Conv2d(8, 8, 3), _NativeNorm(8), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(8 * 24 * 24, 10))


def _resnet18() -> nn.Module:
    return SyncBatchNorm.convert_sync_batchnorm(models.build("resnet18", (1, 28, 28), 10, None), None)


# A model and the capacity of its buckets: so small that some are started between two layers' statistics.
MODELS = {"torch's SyncBatchNorm": (_native_model, 1e-5), "ours in resnet18": (_resnet18, 0.05)}
# On CUDA only ours: what the kernels of the other one are written as here is meant for the CPU.
CASES = [
    *((model, "cpu") for model in MODELS),
    pytest.param("ours in resnet18", "cuda", marks=pytest.mark.cuda),
]


def _steps(world: World, model: str, device_name: str) -> tuple[list[Collective], list[Tensor | None]]:
    """Collectives of three steps in which the last rank has no samples, and the gradients of the last step."""
    if model == "torch's SyncBatchNorm":
        _write_native_kernels()
    device = device_of(device_name)
    torch.manual_seed(0)
    build, bucket_mib = MODELS[model]
    wrapped = CustomDDP(build().to(device), sync=SYNCS["network"], bucket_mib=bucket_mib)
    recorded = recorded_collectives()
    for _ in range(3):
        wrapped.zero_grad()
        samples = 0 if world.rank == world.world_size - 1 else 2
        wrapped(torch.randn(samples, 1, 28, 28, device=device)).square().sum().backward()
    return recorded, [None if param.grad is None else param.grad.cpu() for param in wrapped.parameters()]


@pytest.mark.parametrize(("model", "device"), CASES)
def test_collectives_of_a_rank_without_samples_are_those_of_the_others_one_by_one(model: str, device: str) -> None:
    results = run_ranks(2, _steps, model, device)
    (first, grads), (empty, grads_of_empty) = results
    assert empty == first
    in_backward = [name for name, _, _ in first[len(first) // 2 :]]
    assert in_backward.count("all_reduce") > 5, "buckets and statistics take turns"
    torch.testing.assert_close(grads_of_empty, grads, rtol=0, atol=0)
