"""CustomDDP as a module: buffers, groups, wrapping again, copies, state dicts and torch.compile, on real processes."""

import gc
import weakref
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.ranks import run_ranks
from tests.train.ddp.cases import plain
from train.ddp.reducer import Reducer
from train.ddp.wrapper import CustomDDP
from train.world.environment import World


def _buffers(world: World) -> list[float]:
    """What the running mean was at the begin of each forward."""
    model = nn.BatchNorm1d(8).eval()
    wrapped = CustomDDP(model)
    # Past the wrapper, which goes on to say that it is in evaluation.
    model.train()
    begun_from = []
    for _ in range(2):
        # A buffer that was replaced is sent, too.
        model.running_mean = torch.full((8,), float(world.rank + 1))
        wrapped(torch.zeros(4, 8)).sum().backward()
        begun_from.append(float(model.running_mean[0] / (1 - 0.1)))
    return begun_from


def test_each_forward_begins_with_the_buffers_of_rank_0_in_the_mode_of_the_module() -> None:
    assert run_ranks(2, _buffers) == [pytest.approx([1.0, 1.0])] * 2


def _own_group(world: World) -> Tensor | None:
    group = dist.new_group([1, 2])
    if world.rank == 0:
        return None
    assert isinstance(group, dist.ProcessGroup)
    torch.manual_seed(world.rank)
    model = nn.Linear(2, 1, bias=False)
    wrapped = CustomDDP(model, process_group=group)
    for _ in range(2):
        model.zero_grad()
        wrapped(torch.full((1, 2), float(world.rank))).sum().backward()
    return model.weight.grad


def test_a_group_of_its_own_averages_over_its_ranks_alone() -> None:
    outsider, *members = run_ranks(3, _own_group)
    assert outsider is None
    for grad in members:
        torch.testing.assert_close(grad, torch.full((1, 2), 1.5))


def _wrapped_again(world: World) -> list[Any]:
    model = plain()
    wrapped = CustomDDP(model)
    wrapped(torch.ones(2, 8)).sum().backward()
    gone = weakref.ref(wrapped)
    del wrapped
    gc.collect()
    calls: list[int] = []
    pytest.MonkeyPatch().setattr(Reducer, "gradients_ready", lambda it: calls.append(it._arrivals.pop()))
    again = CustomDDP(model)
    model(torch.ones(2, 8)).sum().backward()
    del again
    return [gone() is None, sorted(calls) == list(range(len(list(model.parameters()))))]


def test_a_module_can_be_wrapped_again_after_its_wrapper_is_gone() -> None:
    assert run_ranks(2, _wrapped_again) == [[True, True]] * 2


def _states(world: World) -> list[bool | str]:
    """Whether states of native DDP and of the bare module load; the refusal of assign=True."""
    torch.manual_seed(world.rank)
    results: list[bool | str] = []
    # The names in the second one begin with `module.` without native DDP, too.
    for build in (
        lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)),
        lambda: nn.ModuleDict({"module": plain()}),
    ):
        native, ours = nn.parallel.DistributedDataParallel(build()), CustomDDP(build())
        for theirs in (native, native.module, ours):
            for source, target in ((theirs, ours), (nn.ModuleDict({"a": theirs}), nn.ModuleDict({"a": ours}))):
                before: Any = source.state_dict()
                for param in ours.parameters():
                    param.data.fill_(7)
                expected = [*ours.parameters()] if theirs is ours else [*native.parameters()]
                target.load_state_dict(before)
                results += [torch.equal(a, b) for a, b in zip(ours.parameters(), expected, strict=True)]
                after: Any = source.state_dict()
                results.append(list(before) == list(after) and before._metadata == after._metadata)
    try:
        ours.load_state_dict(ours.state_dict(), assign=True)
    except Exception as error:
        results.append(str(error))
    return results


def test_states_of_native_ddp_and_of_the_bare_module_load_into_the_wrapper_and_a_module_that_holds_it() -> None:
    for *loaded, refused in run_ranks(2, _states):
        assert all(loaded) and len(loaded) > 30
        assert "before CustomDDP is made" in str(refused)


def _compiled(world: World) -> list[list[Tensor]]:
    """Weights after training with torch.compile inside of the wrapper, around it, and without."""
    results = []
    for wrap in (
        lambda model: CustomDDP(torch.compile(model, backend="aot_eager")),  # type: ignore[arg-type]
        lambda model: torch.compile(CustomDDP(model), backend="aot_eager"),
        CustomDDP,
    ):
        torch.manual_seed(0)
        model = plain()
        wrapped: Any = wrap(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.002)
        for step in range(20):
            wrapped(torch.full((2, 8), 1.0 + world.rank + step)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append([param.detach().clone() for param in model.parameters()])
    return results


@pytest.mark.slow
def test_torch_compile_inside_and_around_the_wrapper_trains_as_without() -> None:
    for inside, around, without in run_ranks(2, _compiled):
        torch.testing.assert_close([*inside, *around], [*without, *without], rtol=1e-4, atol=1e-5)
