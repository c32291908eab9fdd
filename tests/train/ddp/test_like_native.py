"""Uses of CustomDDP as a library, beside those in cases.py: weights and gradients equal those of native DDP."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.ranks import run_ranks
from tests.train.ddp.cases import plain
from train.ddp.wrapper import CustomDDP
from train.world.environment import World

pytestmark = pytest.mark.timeout(200)
_STEPS = 6
Wrap = Callable[..., nn.Module]


def _x(world: World, step: int, *shape: int) -> Tensor:
    return torch.randn(*(shape or (4, 8)), generator=torch.Generator().manual_seed(100 * world.rank + step))


def _gan(world: World, wrap: Wrap) -> list[nn.Module]:
    """Generator and discriminator with a group each; one backward goes through both."""
    made, judge = plain(), plain()
    generator = wrap(made, process_group=dist.new_group())
    discriminator = wrap(judge, process_group=dist.new_group())
    optimizers = [torch.optim.Adam(model.parameters(), 1e-3) for model in (made, judge)]
    for step in range(_STEPS):
        with torch.no_grad():
            made_up = generator(_x(world, 50 + step))
        real, fake = discriminator(_x(world, step)), discriminator(made_up)
        (fake.mean() - real.mean()).backward()
        optimizers[1].step()
        optimizers[1].zero_grad()
        (-discriminator(generator(_x(world, 70 + step))).mean()).backward()
        optimizers[0].step()
        for optimizer in optimizers:
            optimizer.zero_grad()
    return [made, judge]


def _lbfgs(world: World, wrap: Wrap) -> list[nn.Module]:
    """Several forwards and backwards in each step."""
    model = plain()
    wrapped = wrap(model)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    for step in range(_STEPS):

        def closure(step: int = step) -> float:
            optimizer.zero_grad()
            loss = wrapped(_x(world, step)).square().mean()
            loss.backward()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            return float(mean) / world.world_size

        optimizer.step(closure)
    return [model]


class _Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.experts = nn.Linear(8, 8), nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor, expert: int) -> Tensor:
        result: Tensor = self.experts[expert](torch.tanh(self.first(x)))
        return result


def _experts(world: World, wrap: Wrap) -> list[nn.Module]:
    """Each rank uses another expert in each step, and one is never used."""
    model = _Experts()
    wrapped = wrap(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for step in range(_STEPS):
        wrapped(_x(world, step), (world.rank + step) % 3).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert model.experts[3].weight.grad is None
    return [model]


def _experts_of_a_rank(world: World, wrap: Wrap) -> list[nn.Module]:
    """A shared part over all ranks, and an expert of each rank that only its own group averages."""
    shared, expert = nn.Linear(8, 8), nn.Linear(8, 8)
    groups = [dist.new_group([rank]) for rank in range(world.world_size)]
    first, second = wrap(shared), wrap(expert, process_group=groups[world.rank])
    optimizer = torch.optim.SGD([*shared.parameters(), *expert.parameters()], 0.05)
    for step in range(_STEPS):
        second(torch.tanh(first(_x(world, step)))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [shared, expert]


def _pcgrad(world: World, wrap: Wrap) -> list[nn.Module]:
    """The gradients of two losses are kept, and conflicts between them projected away (arXiv:2001.06782)."""
    model = plain()
    wrapped, optimizer = wrap(model), torch.optim.SGD(model.parameters(), 0.05)
    for step in range(_STEPS):
        kept = []
        for number in (1, 2):
            wrapped(_x(world, step)).pow(number).mean().backward()
            kept.append([parameter.grad for parameter in model.parameters()])
            optimizer.zero_grad()
        for parameter, first, second in zip(model.parameters(), *kept, strict=True):
            assert first is not None and second is not None
            conflict = (first * second).sum().clamp(max=0)
            parameter.grad = first + second - conflict * (first / first.square().sum() + second / second.square().sum())
        optimizer.step()
    return [model]


_USES = [_gan, _lbfgs, _experts, _experts_of_a_rank, _pcgrad]


def _custom(module: nn.Module, find_unused_parameters: bool = False, **options: object) -> nn.Module:
    return CustomDDP(module, **options)  # type: ignore[arg-type]


def _both(world: World, number: int) -> list[list[Tensor]]:
    trained = []
    for wrap in (_custom, DistributedDataParallel):
        torch.manual_seed(world.rank)  # the wrapper makes the ranks equal
        trained.append([tensor for model in _USES[number](world, wrap) for tensor in model.state_dict().values()])
    return trained


@pytest.mark.parametrize("number", range(len(_USES)), ids=[use.__name__.strip("_") for use in _USES])
def test_weights_equal_those_of_native_ddp(number: int) -> None:
    for ours, natives in run_ranks(3, _both, number, timeout_s=180):
        torch.testing.assert_close(ours, natives, rtol=1e-5, atol=1e-6)
