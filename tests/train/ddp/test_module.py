"""CustomDDP as a module: buffers, groups, wrapping again, copies, state dicts and torch.compile, on real processes."""

import copy
import gc
import shutil
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


def _buffers(world: World) -> tuple[Tensor, ...]:
    model = nn.BatchNorm1d(8)
    wrapped = CustomDDP(model)
    wrapped(torch.full((4, 8), float(world.rank)) + torch.randn(4, 8)).sum().backward()
    own = model.running_mean
    assert own is not None
    own = own.clone()
    wrapped(torch.zeros(4, 8)).sum().backward()
    assert model.running_mean is not None
    second = model.running_mean.clone()
    # A buffer that was replaced or registered later is sent, too.
    model.register_buffer("later", torch.full((2,), world.rank))
    model.running_mean = torch.full((8,), float(world.rank + 1))
    wrapped(torch.zeros(4, 8)).sum().backward()
    # Each forward began from rank 0's statistics and added zeros.
    return own, second / (1 - 0.1), model.running_mean / (1 - 0.1), *model.buffers()


def test_buffers_are_those_of_rank_0_at_each_forward() -> None:
    results = run_ranks(2, _buffers)
    assert not torch.allclose(results[0][0], results[1][0])
    for _, second, third, *_, later in results:
        assert torch.equal(later, torch.zeros_like(later))
        torch.testing.assert_close(results[0][0], second)
        torch.testing.assert_close(third, torch.ones(8))


def _buffers_of_the_bare_module(world: World) -> list[float]:
    model = nn.BatchNorm1d(8).eval()
    wrapped = CustomDDP(model)
    # Past the wrapper, which goes on to say that it is in evaluation.
    model.train()
    results = []
    for _ in range(2):
        assert model.running_mean is not None
        model.running_mean.data = torch.full((8,), float(world.rank + 1))
        wrapped(torch.zeros(4, 8)).sum().backward()
        results.append(float(model.running_mean[0] / (1 - 0.1)))
    return results


def test_buffers_are_sent_in_the_mode_of_the_module_and_from_where_they_lie_now() -> None:
    assert run_ranks(2, _buffers_of_the_bare_module) == [pytest.approx([1.0, 1.0])] * 2


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
    pytest.MonkeyPatch().setattr(Reducer, "gradient_ready", lambda _, index: calls.append(index))
    again = CustomDDP(model)
    model(torch.ones(2, 8)).sum().backward()
    del again
    return [gone() is None, sorted(calls) == list(range(len(list(model.parameters()))))]


def test_a_module_can_be_wrapped_again_after_its_wrapper_is_gone() -> None:
    assert run_ranks(2, _wrapped_again) == [[True, True]] * 2


def _states_of_native_ddp(world: World) -> list[bool]:
    torch.manual_seed(world.rank)
    loaded = []
    # The names in the second one begin with `module.` without native DDP, too.
    for build in (
        lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)),
        lambda: nn.ModuleDict({"module": plain()}),
    ):
        native, ours = nn.parallel.DistributedDataParallel(build()), CustomDDP(build())
        for theirs in (native, native.module):
            for source, target in ((theirs, ours), (nn.ModuleDict({"a": theirs}), nn.ModuleDict({"a": ours}))):
                for param in ours.parameters():
                    param.data.fill_(7)
                before: Any = source.state_dict()
                target.load_state_dict(before)
                loaded += [torch.equal(a, b) for a, b in zip(ours.parameters(), native.parameters(), strict=True)]
                after: Any = source.state_dict()
                assert list(before) == list(after) and before._metadata == after._metadata
    return loaded


def test_states_of_native_ddp_and_of_the_bare_module_load_into_the_wrapper_and_a_module_that_holds_it() -> None:
    assert all(all(loaded) and len(loaded) > 30 for loaded in run_ranks(2, _states_of_native_ddp))


def _state_of_a_parent(world: World) -> list[bool | str]:
    torch.manual_seed(world.rank)
    # The second part has the names that torch gives to the first one.
    part = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    part.module = nn.Linear(8, 8)
    parent = nn.ModuleDict({"wrapped": CustomDDP(part), "other": nn.Linear(8, 8)})
    bare = copy.deepcopy(part)
    state = {name: torch.full_like(value, 7) for name, value in parent.state_dict().items()}
    parent.load_state_dict(state)
    loaded = all(torch.equal(value, state[name]) for name, value in parent.state_dict().items())
    bare.load_state_dict({n.removeprefix("wrapped."): v for n, v in state.items() if n.startswith("wrapped.")})
    try:
        parent.load_state_dict(state, assign=True)
    except Exception as error:
        return [loaded, str(error)]
    return [loaded, ""]


def test_a_module_that_holds_a_wrapper_loads_its_own_state() -> None:
    for loaded, refused in run_ranks(2, _state_of_a_parent):
        assert loaded and "before CustomDDP is made" in str(refused)


def _compiled(world: World, backend: str) -> list[Tensor]:
    results = []
    for compile_first in (True, False):
        torch.manual_seed(0)
        model = plain()
        if compile_first:
            wrapped = CustomDDP(torch.compile(model, backend=backend))  # type: ignore[arg-type]
        else:
            wrapped = torch.compile(CustomDDP(model), backend=backend)  # type: ignore[assignment]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.002)
        for step in range(20):
            wrapped(torch.full((2, 8), 1.0 + world.rank + step)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        results += [param.detach().clone() for param in model.parameters()]
    return results


# aot_eager traces and differentiates as any backend does, but needs no C++ compiler.
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_torch_compile_inside_and_around_the_wrapper_trains_as_without(backend: str) -> None:
    if backend == "inductor" and not shutil.which("g++"):
        pytest.skip("inductor compiles C++, and g++ is not installed (Debian package g++)")
    torch.manual_seed(0)
    model = plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.002)
    for step in range(20):
        losses = [model(torch.full((2, 8), 1.0 + rank + step)).square().sum() / 2 for rank in range(2)]
        torch.stack(losses).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    expected = [param.detach() for param in model.parameters()]
    for results in run_ranks(2, _compiled, backend, timeout_s=280):
        torch.testing.assert_close(results, [*expected, *expected], rtol=1e-4, atol=1e-5)
