"""CustomDDP against one process on the whole batch and against native DDP, on real processes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.ranks import run_ranks
from train.ddp import CustomDDP
from train.shard import share
from train.world import World

_STEPS = 20
_BATCH = 12


class Branches(nn.Module):
    """`used` says which of three branches a forward takes; `never` takes part in none."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.branches = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.never = nn.Linear(8, 8)
        self.used: Sequence[int] = (0, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for index in self.used:
            x = x + torch.tanh(self.branches[index](x)) / 4
        return x


class SharedWeights(nn.Module):
    """One layer under two names, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(8, 8)
        self.two = self.one
        self.last = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.two(torch.tanh(self.one(x))))
        return result


class MixedTypes(nn.Module):
    """Parameters of two types."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.Linear(8, 8)
        self.wide = nn.Linear(8, 8).double()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.wide(self.narrow(x).double()).float()
        return result


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 8))


def frozen() -> nn.Module:
    model = plain()
    assert isinstance(model, nn.Sequential)
    model[0].requires_grad_(False)
    return model


def channels_last() -> nn.Module:
    layers = nn.Sequential(nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 4, 2, padding=1), nn.Flatten(), nn.Linear(36, 8))
    return layers.to(memory_format=torch.channels_last)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "plain": plain,
    "frozen": frozen,
    "shared": SharedWeights,
    "mixed_types": MixedTypes,
    "unused": Branches,
    "channels_last": channels_last,
}


def _data(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(_BATCH, 8, generator=generator), torch.randn(_BATCH, 8, generator=generator)


def _train(
    model: nn.Module, wrapped: nn.Module, rank: int, world_size: int, accumulate: int = 1, set_to_none: bool = True
) -> dict[str, Tensor]:
    """Weights after some steps of SGD with momentum and weight decay on this rank's share of each batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    for step in range(_STEPS):
        inputs, targets = _data(step)
        mine = share(range(_BATCH), rank, world_size)
        pieces = [share(mine, piece, accumulate) for piece in range(accumulate)]
        for piece in pieces[:-1]:
            with wrapped.no_sync():  # type: ignore[operator]
                _loss(wrapped, inputs, targets, piece, world_size).backward()
        _loss(wrapped, inputs, targets, pieces[-1], world_size).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _loss(wrapped: nn.Module, inputs: Tensor, targets: Tensor, part: range, world_size: int) -> Tensor:
    rows = slice(part.start, part.stop)
    loss: Tensor = (wrapped(inputs[rows]) - targets[rows]).square().sum() * world_size / _BATCH
    return loss


# (strategy, model, accumulate, set_to_none)
Case = tuple[str, str, int, bool]
CASES: list[Case] = [
    *(("custom", model, accumulate, to_none) for model in MODELS for accumulate in (1, 3) for to_none in (True, False)),
    *(("native", model, 1, True) for model in MODELS),
]


def _train_all_cases(world: World) -> dict[Case, dict[str, Tensor]]:
    results = {}
    for case in CASES:
        strategy, model_name, accumulate, set_to_none = case
        # Different weights on each rank: rank 0's must win.
        torch.manual_seed(world.rank)
        model = MODELS[model_name]()
        wrapped: nn.Module
        if strategy == "custom":
            wrapped = CustomDDP(model, bucket_mib=0.001, first_bucket_mib=0.0005)
        else:
            wrapped = DistributedDataParallel(model, find_unused_parameters=True)
        results[case] = _train(model, wrapped, world.rank, world.world_size, accumulate, set_to_none)
    return results


@functools.cache
def trained(world_size: int) -> list[dict[Case, dict[str, Tensor]]]:
    """The weights of each case on each rank; one start of processes for all of them."""
    return run_ranks(world_size, _train_all_cases)


@pytest.mark.parametrize("world_size", [2, 3], ids=lambda n: f"world={n}")
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_weights_after_20_steps_equal_one_process_on_the_whole_batch(case: Case, world_size: int) -> None:
    _, model_name, _, set_to_none = case
    torch.manual_seed(0)
    alone = MODELS[model_name]()
    expected = _train(alone, alone, 0, 1, 1, set_to_none)
    results = [of_rank[case] for of_rank in trained(world_size)]
    for weights in results:
        torch.testing.assert_close(weights, expected, rtol=1e-4, atol=1e-5)
        assert all(torch.equal(weights[name], results[0][name]) for name in weights), "ranks hold different bits"


def _grads_of_different_branches(world: World) -> dict[str, Tensor | None]:
    torch.manual_seed(0)
    model = Branches()
    wrapped = CustomDDP(model, bucket_mib=0.0005)
    for _ in range(3):  # the first before the buckets are laid out anew, the others after
        model.zero_grad()
        model.used = (0,) if world.rank == 0 else (1,)
        wrapped(torch.ones(1, 8)).sum().backward()
    return {name: param.grad for name, param in model.named_parameters()}


def test_a_parameter_used_on_one_rank_gets_the_mean_and_one_used_on_none_gets_no_gradient() -> None:
    torch.manual_seed(0)
    model = Branches()
    for used in (0, 1):
        model.used = (used,)
        (model(torch.ones(1, 8)).sum() / 2).backward()
    expected = {name: param.grad for name, param in model.named_parameters()}
    assert expected["branches.2.weight"] is None
    for grads in run_ranks(2, _grads_of_different_branches):
        torch.testing.assert_close(grads, expected)


def _place_of_grads(world: World) -> bool:
    model = plain()
    wrapped = CustomDDP(model)
    for _ in range(2):
        wrapped(torch.ones(2, 8)).sum().backward()
        model.zero_grad(set_to_none=False)
    storages = {param.grad.untyped_storage().data_ptr() for param in model.parameters() if param.grad is not None}
    return len(storages) == 1


def test_gradients_are_views_of_one_bucket() -> None:
    assert run_ranks(2, _place_of_grads) == [True, True]


def _buffers(world: World) -> tuple[Tensor, Tensor]:
    model = nn.BatchNorm1d(8)
    wrapped = CustomDDP(model)
    wrapped(torch.full((4, 8), float(world.rank)) + torch.randn(4, 8)).sum().backward()
    own = model.running_mean
    assert own is not None
    own = own.clone()
    wrapped(torch.zeros(4, 8)).sum().backward()
    assert model.running_mean is not None
    # The second forward began from rank 0's statistics and added zeros.
    return own, model.running_mean / (1 - 0.1)


def test_buffers_are_those_of_rank_0_at_each_forward() -> None:
    results = run_ranks(2, _buffers)
    assert not torch.allclose(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][0], results[0][1])
    torch.testing.assert_close(results[0][0], results[1][1])


def _different_models(world: World) -> str:
    sizes = [8, 8, 9 if world.rank == 1 else 8]
    try:
        CustomDDP(nn.Sequential(*(nn.Linear(8, size) for size in sizes)))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def test_models_of_different_shape_are_refused_on_all_ranks_naming_the_first_difference() -> None:
    for message in run_ranks(3, _different_models):
        assert message.startswith("SharedError: ")
        assert "rank 0 has 2.weight (8, 8)" in message
        assert "rank 1 has 2.weight (9, 8)" in message


def _failed_backward(world: World) -> Tensor:
    torch.manual_seed(0)
    model = plain()
    wrapped = CustomDDP(model, bucket_mib=0.001)

    def fail(grad: Tensor) -> None:
        raise ArithmeticError

    x = torch.ones(2, 8, requires_grad=True)
    x.register_hook(fail)
    with pytest.raises(ArithmeticError):
        wrapped(x).sum().backward()
    dist.barrier()
    model.zero_grad()
    wrapped(torch.ones(2, 8) * (1 + world.rank)).sum().backward()
    grad = next(model.parameters()).grad
    assert grad is not None
    return grad


def test_a_step_after_a_backward_that_raised_averages_as_usual() -> None:
    first, second = run_ranks(2, _failed_backward)
    assert torch.equal(first, second)


def _sparse(world: World) -> str:
    try:
        CustomDDP(nn.Embedding(4, 4, sparse=True))
    except Exception as error:
        return str(error)
    return "accepted"


def test_sparse_gradients_are_refused_with_the_remedy() -> None:
    assert all("use sparse=False" in message for message in run_ranks(2, _sparse))
