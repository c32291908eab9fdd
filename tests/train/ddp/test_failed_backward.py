"""What follows a backward through CustomDDP that raised, on real processes."""

from contextlib import nullcontext
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.ranks import run_ranks
from tests.train.ddp.cases import SYNCS, plain, syncs
from tests.train.devices import device_of, devices
from train.ddp.wrapper import CustomDDP
from train.world.environment import World


def _failed_backward(world: World, sync: str, device_name: str) -> Tensor:
    device = device_of(device_name)
    torch.manual_seed(0)
    model = plain().to(device)
    wrapped = CustomDDP(model, sync=SYNCS[sync], bucket_mib=0.001)

    def fail(grad: Tensor) -> None:
        raise ArithmeticError

    for _ in range(2):  # once before there are buckets, once after
        x = torch.ones(2, 8, device=device, requires_grad=True)
        x.register_hook(fail)
        with pytest.raises(ArithmeticError):
            wrapped(x).sum().backward()
        dist.barrier()
        model.zero_grad()
        wrapped(torch.ones(2, 8, device=device) * (1 + world.rank)).sum().backward()
    grad = next(model.parameters()).grad
    assert grad is not None
    return grad.cpu()


@syncs
@devices
def test_a_step_after_a_backward_that_raised_averages_as_usual(device: str, sync: str) -> None:
    first, second = run_ranks(2, _failed_backward, sync, device)
    assert torch.equal(first, second)
    torch.manual_seed(0)
    model = plain()
    for rank in range(2):
        (model(torch.ones(2, 8) * (1 + rank)).sum() / 2).backward()
    torch.testing.assert_close(first, next(model.parameters()).grad)


class _Raising(torch.autograd.Function):
    """Its argument; its backward raises if it is told to."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, raises: bool) -> Tensor:
        ctx.raises = raises
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        if ctx.raises:
            raise ArithmeticError
        return grads[0], None


class _MayRaise(nn.Module):
    """Backward raises before any gradient or after some; each forward changes a buffer."""

    num_forwards: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rest = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 7))
        self.register_buffer("num_forwards", torch.zeros(1))

    def forward(self, x: Tensor, raises: str = "") -> Tensor:
        self.num_forwards += 1
        x = _Raising.apply(self.first(x), raises == "after some")
        return cast(Tensor, _Raising.apply(self.rest(x), raises == "before any"))


def _failed_on_one_rank(world: World, sync: str, where: str, failed_step: int) -> list[Tensor]:
    torch.manual_seed(0)
    model = _MayRaise()
    wrapped = CustomDDP(model, sync=SYNCS[sync], bucket_mib=0.0002, first_bucket_mib=0.0001)
    results = []
    for step in range(failed_step + 3):
        model.zero_grad()
        raises = where if step == failed_step and world.rank == 1 else ""
        with pytest.raises(ArithmeticError) if raises else nullcontext():
            wrapped(torch.full((2, 8), 1.0 + step + world.rank), raises).square().sum().backward()
        grad = model.first.weight.grad
        results.append(torch.empty(0) if grad is None else grad.clone())
    # Between the gradients, too: a sync may compute with all of it.
    assert all(bucket.payload.flat.isfinite().all() for bucket in wrapped.reducer.buckets)
    return results


@pytest.mark.slow
@syncs
@pytest.mark.parametrize(("where", "step"), [("after some", 0), ("before any", 0), ("before any", 2)], ids=str)
def test_a_backward_that_raises_on_one_rank_is_no_mean_on_the_others_and_the_next_steps_are_right(
    sync: str, where: str, step: int
) -> None:
    first, second = run_ranks(2, _failed_on_one_rank, sync, where, step)
    torch.manual_seed(0)
    model = _MayRaise()
    for number, (ours, theirs) in enumerate(zip(first, second, strict=True)):
        if number == step:
            assert ours.isnan().all()
            continue
        model.zero_grad()
        for rank in range(2):
            (model(torch.full((2, 8), 1.0 + number + rank)).square().sum() / 2).backward()
        torch.testing.assert_close(ours, model.first.weight.grad)
        assert torch.equal(ours, theirs)
