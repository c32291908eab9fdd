"""What a backward through CustomDDP does with gradients, on real processes."""

import copy
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.ranks import run_ranks
from tests.train.ddp.cases import SYNCS, Branches, large, plain, syncs
from tests.train.devices import device_of, devices
from train import models
from train.collectives.sync_batchnorm import SyncBatchNorm
from train.ddp.wrapper import CustomDDP
from train.world.environment import World


def _grads_of_different_branches(world: World, sync: str) -> dict[str, Tensor | None]:
    torch.manual_seed(0)
    model = Branches()
    wrapped = CustomDDP(model, sync=SYNCS[sync], bucket_mib=0.0005)
    for _ in range(3):  # the first before the buckets are laid out, the others after
        model.zero_grad()
        model.used = (0,) if world.rank == 0 else (1,)
        wrapped(torch.ones(1, 8)).sum().backward()
    return {name: param.grad for name, param in model.named_parameters()}


@syncs
def test_a_parameter_used_on_one_rank_gets_the_mean_and_one_used_on_none_gets_no_gradient(sync: str) -> None:
    torch.manual_seed(0)
    model = Branches()
    for used in (0, 1):
        model.used = (used,)
        (model(torch.ones(1, 8)).sum() / 2).backward()
    expected = {name: param.grad for name, param in model.named_parameters()}
    assert expected["branches.2.weight"] is None
    for grads in run_ranks(2, _grads_of_different_branches, sync):
        torch.testing.assert_close(grads, expected)


def _batchnorm_twice(called: nn.Module, rank: int) -> Tensor:
    real, fake = (torch.randn(4, 8, generator=torch.Generator().manual_seed(2 * rank + n)) for n in range(2))
    return cast(Tensor, called(real).square().mean() - called(fake).mean())


def _two_forwards_with_batchnorm(world: World) -> list[list[Tensor | None]]:
    """The gradients of CustomDDP, and the mean of those of both ranks, computed here."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    wrapped, alone = CustomDDP(model), copy.deepcopy(model)
    for _ in range(2):
        wrapped.zero_grad()
        _batchnorm_twice(wrapped, world.rank).backward()
    for rank in range(2):
        (_batchnorm_twice(alone, rank) / 2).backward()
    return [[param.grad for param in each.parameters()] for each in (model, alone)]


def test_two_forwards_before_a_backward_work_with_batchnorm_too() -> None:
    for ours, expected in run_ranks(2, _two_forwards_with_batchnorm):
        torch.testing.assert_close(ours, expected)


class _NoGradient(torch.autograd.Function):
    """Its first argument; has no gradient for the second."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class _Table(nn.Module):
    """A small and a large parameter, of which an operator can hide the second from autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(300, 300))

    def forward(self, x: Tensor, hide: bool) -> Tensor:
        x = x * self.small
        return cast(Tensor, _NoGradient.apply(x, self.large)) if hide else x + self.large.sum()


def _hidden(world: World, sync: str) -> list[list[float | None]]:
    model = _Table()
    wrapped = CustomDDP(model, sync=SYNCS[sync])
    results = []
    for hides in [(False, False), (False, True), (True, True)]:
        model.zero_grad()
        wrapped(torch.ones(4), hides[world.rank]).sum().backward()
        results.append([None if p.grad is None else float(p.grad.flatten()[0]) for p in (model.small, model.large)])
    return results


@syncs
def test_a_parameter_for_which_an_operator_has_no_gradient_counts_as_unused(sync: str) -> None:
    assert run_ranks(2, _hidden, sync) == [[[1.0, 4.0], [1.0, 2.0], [1.0, None]]] * 2


def _freezes_between(called: nn.Module, model: nn.Module, rank: int, frozen: bool) -> Tensor:
    """The loss of a forward; the last layer is frozen after it or not."""
    loss = called(torch.full((2, 8), 1.0 + rank)).sum()
    list(model.children())[-1].requires_grad_(not frozen)
    return cast(Tensor, loss)


def _frozen_before_backward(world: World, sync: str) -> list[list[list[Tensor | None]]]:
    """The gradients of CustomDDP, and the mean of those of both ranks, computed here."""
    results = []
    for build in (plain, large):
        model = build()
        wrapped, alone = CustomDDP(model, sync=SYNCS[sync]), copy.deepcopy(model)
        for frozen_on in [(), (1,), (0, 1)]:
            for each in (model, alone):
                each.requires_grad_(True).zero_grad()
            _freezes_between(wrapped, model, world.rank, world.rank in frozen_on).backward()
            for rank in range(2):
                (_freezes_between(alone, alone, rank, rank in frozen_on) / 2).backward()
                alone.requires_grad_(True)
            both = [[param.grad for param in each.parameters()] for each in (model, alone)]
            results.append(copy.deepcopy(both))
    return results


@syncs
def test_parameters_frozen_between_forward_and_backward_count_as_unused_and_all_others_are_averaged(sync: str) -> None:
    for results in run_ranks(2, _frozen_before_backward, sync):
        for ours, expected in results:
            torch.testing.assert_close(ours, expected)


def _checkpointed_wrapper(world: World) -> list[Tensor]:
    results = []
    for reentrant in (False, True):
        torch.manual_seed(0)
        wrapped = CustomDDP(plain(), bucket_mib=0.001)
        for _ in range(2):  # the second one adds to the first
            x = torch.full((2, 8), 1.0 + world.rank, requires_grad=True)
            one = checkpoint(wrapped, x, use_reentrant=reentrant)
            two = checkpoint(wrapped, one, use_reentrant=reentrant)
            two.sum().backward()
        results += [param.grad for param in wrapped.parameters() if param.grad is not None]
    return results


def test_a_wrapper_inside_of_checkpointing_averages_as_without() -> None:
    torch.manual_seed(0)
    model = plain()
    for rank in range(2):
        model(model(torch.full((2, 8), 1.0 + rank))).sum().backward()
    expected = [param.grad for param in model.parameters()]
    for results in run_ranks(2, _checkpointed_wrapper):
        torch.testing.assert_close(results, [*expected, *expected])


def _gradient_of_inputs(world: World) -> Tensor:
    torch.manual_seed(0)
    wrapped = CustomDDP(plain())
    for _ in range(2):
        x = torch.full((2, 8), 1.0 + world.rank, requires_grad=True)
        if world.rank == 0:
            # No parameter gets a gradient here, so no other rank has to take part.
            torch.autograd.grad(wrapped(x).sum(), x)
        wrapped.module.zero_grad()
        [slope] = torch.autograd.grad(wrapped(x).sum(), x, create_graph=True)
        (wrapped(x).sum() + slope.square().sum()).backward()
    grad = next(wrapped.parameters()).grad
    assert grad is not None
    return grad


def test_autograd_grad_on_one_rank_waits_for_nobody_and_a_gradient_penalty_is_averaged() -> None:
    first, second = run_ranks(2, _gradient_of_inputs)
    assert torch.equal(first, second)
    torch.manual_seed(0)
    model = plain()
    for rank in range(2):
        x = torch.full((2, 8), 1.0 + rank, requires_grad=True)
        [slope] = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        ((model(x).sum() + slope.square().sum()) / 2).backward()
    torch.testing.assert_close(first, next(model.parameters()).grad)


def _collectives_of_resnet18(world: World, device_name: str) -> tuple[list[str], list[Tensor | None]]:
    """Collectives of three steps in which rank 1 has no samples, and the gradients of the last step."""
    device = device_of(device_name)
    torch.manual_seed(0)
    model = SyncBatchNorm.convert_sync_batchnorm(models.build("resnet18", (1, 28, 28), 10, None), None).to(device)
    # Buckets so small that some start between the statistics of two layers.
    wrapped = CustomDDP(model, sync=SYNCS["network"], bucket_mib=0.05)
    names: list[str] = []
    for name in ("all_reduce", "broadcast", "all_gather", "all_gather_into_tensor"):
        collective = getattr(dist, name)

        def noted(first: Any, *args: Any, collective: Any = collective, **kwargs: Any) -> Any:
            tensor = first[0] if isinstance(first, list) else first
            names.append(f"{collective.__name__} of {tensor.numel()} {tensor.dtype}")
            return collective(first, *args, **kwargs)

        setattr(dist, name, noted)
    for _ in range(3):
        wrapped.zero_grad()
        samples = 0 if world.rank == 1 else 2
        wrapped(torch.randn(samples, 1, 28, 28, device=device)).square().sum().backward()
    return names, [None if param.grad is None else param.grad.cpu() for param in wrapped.parameters()]


@devices
def test_collectives_of_a_rank_without_samples_are_those_of_the_others_one_by_one(device: str) -> None:
    (names, grads), (of_empty, grads_of_empty) = run_ranks(2, _collectives_of_resnet18, device)
    assert of_empty == names
    reductions = [name for name in names[len(names) // 2 :] if name.startswith("all_reduce")]
    assert len(reductions) > 5, "buckets and statistics take turns"
    torch.testing.assert_close(grads_of_empty, grads, rtol=0, atol=0)
