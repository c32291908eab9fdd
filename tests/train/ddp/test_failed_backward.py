"""What follows a backward through CustomDDP that raised, on real processes."""

from contextlib import nullcontext
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from tests.ranks import run_ranks
from tests.train.ddp.cases import SYNCS, syncs
from tests.train.devices import device_of, devices
from train.ddp.wrapper import CustomDDP
from train.world.environment import World


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


# Where a backward raises, in which step (the first makes the buckets), and on which ranks.
_FAILURES = [("after some", 0, (1,)), ("before any", 0, (1,)), ("before any", 2, (1,)), ("after some", 2, (0, 1))]


def _fails(world: World, sync: str, device_name: str) -> list[list[Tensor]]:
    """The gradient of each step, for each failure; empty if there is none."""
    device, results = device_of(device_name), []
    for where, failed_step, ranks in _FAILURES:
        torch.manual_seed(0)
        model = _MayRaise().to(device)
        wrapped = CustomDDP(model, sync=SYNCS[sync], bucket_mib=0.0002, first_bucket_mib=0.0001)
        grads = []
        for step in range(failed_step + 3):
            model.zero_grad()
            raises = where if step == failed_step and world.rank in ranks else ""
            with pytest.raises(ArithmeticError) if raises else nullcontext():
                inputs = torch.full((2, 8), 1.0 + step + world.rank, device=device)
                wrapped(inputs, raises).square().sum().backward()
            grad = model.first.weight.grad
            grads.append(torch.empty(0) if grad is None else grad.cpu())
        # Between the gradients, too: a sync may compute with all of it.
        assert all(bucket.payload.flat.isfinite().all() for bucket in wrapped.reducer.buckets)
        results.append(grads)
    return results


@syncs
@devices
def test_a_backward_that_raises_on_a_rank_is_no_mean_on_the_others_and_the_next_steps_are_right(
    device: str, sync: str
) -> None:
    for (_, failed_step, ranks), first, second in zip(_FAILURES, *run_ranks(2, _fails, sync, device), strict=True):
        torch.manual_seed(0)
        model = _MayRaise()
        for step, (ours, theirs) in enumerate(zip(first, second, strict=True)):
            if step == failed_step:
                assert ranks == (0, 1) or ours.isnan().all()
                continue
            model.zero_grad()
            for rank in range(2):
                (model(torch.full((2, 8), 1.0 + step + rank)).square().sum() / 2).backward()
            torch.testing.assert_close(ours, model.first.weight.grad)
            assert torch.equal(ours, theirs)
