"""Uneven inputs: ranks that run out shadow the others, as under native DDP's join(), on real processes."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from tests.ranks import run_ranks
from tests.train.ddp.cases import plain
from train.ddp.wrapper import CustomDDP
from train.sync.bf16 import Bf16
from train.world.environment import World


def _inputs(rank: int, number: int) -> Tensor:
    return torch.randn(3, 8, generator=torch.Generator().manual_seed(100 * rank + number))


def _train(world: World, wrapper: str, counts: tuple[int, ...], by_all: bool, accumulate: bool) -> dict[str, Tensor]:
    torch.manual_seed(world.rank)
    # In float64: BatchNorm over three samples makes much of the last digits of float32, which differ by the CPU.
    model = nn.Sequential(plain(), nn.BatchNorm1d(8)).double()
    wrapped: Any = (
        CustomDDP(model, bucket_mib=0.001, first_bucket_mib=0.0005)
        if wrapper == "custom"
        else DistributedDataParallel(model, bucket_cap_mb=0.001)
    )

    def backward(number: int) -> None:
        wrapped(_inputs(world.rank, number).double()).square().sum().backward()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with wrapped.join(divide_by_initial_world_size=by_all):
        for number in range(counts[world.rank]):
            if accumulate and number % 2 == 0:
                with wrapped.no_sync():
                    backward(number)
                continue
            backward(number)
            optimizer.step()
            optimizer.zero_grad()
    # And on with equal numbers.
    for number in range(2):
        optimizer.zero_grad()
        backward(50 + number)
        optimizer.step()
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def _train_both(world: World, counts: tuple[int, ...], by_all: bool) -> list[dict[str, Tensor]]:
    return [_train(world, wrapper, counts, by_all, False) for wrapper in ("native", "custom")]


@pytest.mark.parametrize("by_all", [True, False], ids=["mean over all ranks", "mean over those with inputs"])
@pytest.mark.parametrize(
    "counts",
    [(2, 5), (5, 3), (0, 4), *(pytest.param(counts, marks=pytest.mark.slow) for counts in ((1, 4, 3), (0, 0, 2)))],
    ids=str,
)
def test_weights_equal_those_of_native_ddp(counts: tuple[int, ...], by_all: bool) -> None:
    native, ours = zip(*run_ranks(len(counts), _train_both, counts, by_all), strict=True)
    for weights in ours:
        for name, value in weights.items():
            assert torch.equal(value, ours[0][name]) or "running" in name or "num_batches" in name
            if "running" not in name and "num_batches" not in name:
                torch.testing.assert_close(value, native[0][name], rtol=1e-9, atol=1e-12)


def test_a_rank_that_ran_out_shadows_steps_that_accumulate() -> None:
    first, second = run_ranks(2, _train, "custom", (2, 6), True, True)
    assert all(torch.equal(first[name], second[name]) for name in first if name.startswith("0."))


def _left_over(world: World, wrapper: str) -> tuple[list[float], float]:
    """p.grad after each of two joins in which rank 0 runs out with a sum that no_sync() left, and after a mean."""
    model = nn.Linear(4, 1, bias=False)
    wrapped: Any = CustomDDP(model) if wrapper == "custom" else DistributedDataParallel(model)
    sums = []

    def backward() -> None:
        wrapped(torch.full((1, 4), 1.0 + world.rank)).sum().backward()

    def grad() -> float:
        assert model.weight.grad is not None
        return float(model.weight.grad[0, 0])

    for keep in (False, True):
        backward()
        # The second time p.grad stays in the bucket, so the sum is there, too.
        wrapped.zero_grad(set_to_none=not keep)
        with wrapped.join():
            with wrapped.no_sync():
                backward()
            for _ in range(2 * world.rank):
                backward()
        sums.append(grad())
    backward()
    return sums, grad()


def test_a_rank_that_ran_out_keeps_its_sum_for_the_next_mean_as_under_native_ddp() -> None:
    native, ours = run_ranks(2, _left_over, "native"), run_ranks(2, _left_over, "custom")
    assert [sums for sums, _ in ours] == [sums for sums, _ in native]
    assert [mean for _, mean in ours] == [mean for _, mean in native]
    assert native[0][0] == [1.0, 1.0]


def _with_others(world: World) -> None:
    wrapped = CustomDDP(plain())
    with Join([wrapped], divide_by_initial_world_size=True, option_of_another=1):
        for number in range(1 + world.rank):
            wrapped(_inputs(world.rank, number)).sum().backward()


def test_options_of_others_that_join_together_are_ignored() -> None:
    run_ranks(2, _with_others)


def _early(world: World) -> str:
    wrapped = CustomDDP(plain())
    try:
        with wrapped.join(throw_on_early_termination=True):
            for number in range(2 + world.rank):
                wrapped(_inputs(world.rank, number)).sum().backward()
    except RuntimeError as error:
        return str(error)
    return "no error"


def test_early_termination_raises_on_all_ranks_if_asked_for() -> None:
    first, second = run_ranks(2, _early)
    assert "exhausted all inputs" in first
    assert "at least one rank that exhausted inputs" in second


def _narrow(world: World) -> list[Tensor]:
    torch.manual_seed(0)
    wrapped = CustomDDP(plain(), sync=Bf16)
    with wrapped.join():
        for number in range(2 + 2 * world.rank):
            wrapped(_inputs(world.rank, number)).sum().backward()
            wrapped.zero_grad()
    return [param.detach().clone() for param in wrapped.parameters()]


def test_other_wire_formats_can_be_shadowed_too() -> None:
    first, second = run_ranks(2, _narrow)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
