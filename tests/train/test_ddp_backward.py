"""What a backward through CustomDDP does with gradients, buckets and buffers, on real processes."""

from __future__ import annotations

import copy
import gc
import pickle
import shutil
import threading
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.ranks import run_ranks
from tests.train.ddp_cases import Branches, large, plain
from train.bucket import Bucket
from train.ddp import CustomDDP
from train.sync import MakeSync, Waitable
from train.sync.all_reduce import AllReduce
from train.sync.powersgd import PowerSGD
from train.world import World

SYNCS: dict[str, MakeSync] = {"shared memory": AllReduce, "network": partial(AllReduce, shared_memory=False)}
syncs = pytest.mark.parametrize("sync", SYNCS)


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


def _place_of_grads(world: World, sync: str) -> list[bool]:
    model = plain()
    wrapped = CustomDDP(model, sync=SYNCS[sync])
    seen, objects = set(), []
    for _ in range(3):
        wrapped(torch.ones(2, 8)).sum().backward()
        grads = [param.grad for param in model.parameters()]
        seen |= {grad.untyped_storage().data_ptr() for grad in grads if grad is not None}
        objects.append(list(map(id, grads)))
        model.zero_grad(set_to_none=False)
    return [len(seen) == 1, objects[0] == objects[1] == objects[2]]


@syncs
def test_gradients_are_views_of_one_bucket_and_zero_grad_keeps_them(sync: str) -> None:
    assert run_ranks(2, _place_of_grads, sync) == [[True, True]] * 2


class _TwoOrders(nn.Module):
    """The order in which gradients arrive is the reverse of `order`."""

    def __init__(self, order: list[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in order)
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        for index in self.order:
            x = torch.tanh(self.layers[index](x))
        return x


def _bucket_names(world: World) -> list[list[list[str]]]:
    torch.manual_seed(0)
    model = _TwoOrders([2, 0, 1] if world.rank == 0 else [0, 1, 2])
    wrapped = CustomDDP(model, bucket_mib=0.00027, first_bucket_mib=0.0001)
    layouts = []
    for _ in range(3):
        wrapped(torch.ones(2, 8)).sum().backward()
        layouts.append([bucket.names for bucket in wrapped._buckets])
    return layouts


def test_buckets_are_built_once_in_the_order_in_which_gradients_arrived_on_rank_0() -> None:
    layouts = [layout for of_rank in run_ranks(2, _bucket_names) for layout in of_rank]
    assert all(layout == layouts[0] for layout in layouts)
    assert [sorted({name.split(".")[1] for name in bucket}) for bucket in layouts[0]] == [["1"], ["0"], ["2"]]


def _events(world: World) -> list[str]:
    """When each bucket is started, among the gradients that arrive."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    wrapped = CustomDDP(model, bucket_mib=0.00027, first_bucket_mib=0.0001)
    wrapped(torch.ones(2, 8)).sum().backward()
    events: list[str] = []
    start = Bucket.start

    def start_and_tell(bucket: Bucket) -> None:
        events.append(f"bucket {wrapped._buckets.index(bucket)}")
        start(bucket)

    pytest.MonkeyPatch().setattr(Bucket, "start", start_and_tell)
    for name, param in model.named_parameters():
        param.register_post_accumulate_grad_hook(lambda _, name=name: events.append(name))
    wrapped(torch.ones(2, 8)).sum().backward()
    return events


def test_a_full_bucket_is_started_while_backward_goes_on() -> None:
    for events in run_ranks(2, _events):
        starts = [events.index(f"bucket {number}") for number in range(4)]
        assert starts == sorted(starts)
        assert max(starts[:-1]) < events.index("0.weight"), "three buckets are in flight before the last gradient"


def _two_backwards(world: World) -> list[Tensor]:
    model = nn.Linear(2, 1, bias=False)
    nn.init.ones_(model.weight)
    wrapped = CustomDDP(model)
    results = []
    for _ in range(2):
        for _ in range(2):
            wrapped(torch.full((1, 2), 1.0 + world.rank)).sum().backward()
        assert model.weight.grad is not None
        results.append(model.weight.grad.clone())
        model.zero_grad()
    return results


def test_a_second_backward_adds_its_mean_to_that_of_the_first() -> None:
    for results in run_ranks(2, _two_backwards):
        for result in results:
            assert torch.equal(result, torch.full((1, 2), 3.0))


def _batchnorm_twice(called: nn.Module, rank: int) -> Tensor:
    real, fake = (torch.randn(4, 8, generator=torch.Generator().manual_seed(2 * rank + n)) for n in range(2))
    return cast(Tensor, called(real).square().mean() - called(fake).mean())


def _with_batchnorm() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))


def _two_forwards_with_batchnorm(world: World) -> list[Tensor]:
    wrapped = CustomDDP(_with_batchnorm())
    for _ in range(2):
        wrapped.zero_grad()
        _batchnorm_twice(wrapped, world.rank).backward()
    return [param.grad for param in wrapped.parameters() if param.grad is not None]


def test_two_forwards_before_a_backward_work_with_batchnorm_too() -> None:
    model = _with_batchnorm()
    for rank in range(2):
        (_batchnorm_twice(model, rank) / 2).backward()
    for grads in run_ranks(2, _two_forwards_with_batchnorm):
        torch.testing.assert_close(grads, [param.grad for param in model.parameters()])


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


def _frozen_before_backward(world: World, sync: str) -> list[list[Tensor | None]]:
    results = []
    for build in (plain, large):
        torch.manual_seed(0)
        model = build()
        wrapped = CustomDDP(model, sync=SYNCS[sync])
        head = list(model.children())[-1]
        for frozen_on in [(), (1,), (0, 1)]:
            model.zero_grad()
            loss = wrapped(torch.full((2, 8), 1.0 + world.rank)).sum()
            head.requires_grad_(world.rank not in frozen_on)
            loss.backward()
            head.requires_grad_(True)
            results.append([None if param.grad is None else param.grad.clone() for param in model.parameters()])
    return results


@syncs
def test_parameters_frozen_between_forward_and_backward_count_as_unused_and_all_others_are_averaged(sync: str) -> None:
    expected = []
    for build in (plain, large):
        torch.manual_seed(0)
        model = build()
        head = list(model.children())[-1]
        for frozen_on in [(), (1,), (0, 1)]:
            model.zero_grad()
            for rank in range(2):
                loss = model(torch.full((2, 8), 1.0 + rank)).sum() / 2
                head.requires_grad_(rank not in frozen_on)
                loss.backward()
                head.requires_grad_(True)
            expected.append([None if param.grad is None else param.grad.clone() for param in model.parameters()])
    for results in run_ranks(2, _frozen_before_backward, sync):
        torch.testing.assert_close(results, expected)


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


def _from_two_threads(world: World) -> int:
    """Gradients arrive from two threads, as from two devices; how often collectives began out of order."""
    # As large as may move when a bucket is started: meanwhile the other thread runs.
    model = nn.ParameterList(torch.ones(60_000) for _ in range(16))
    wrapped = CustomDDP(nn.ModuleList([model]), bucket_mib=0.1)
    cast(Tensor, sum(param.sum() for param in model)).backward()
    order: list[int] = []
    reduce = wrapped.sync.reduce

    def reduce_and_note(bucket: Bucket) -> Iterator[Waitable]:
        order.append(wrapped._buckets.index(bucket))
        return reduce(bucket)

    pytest.MonkeyPatch().setattr(wrapped.sync, "reduce", reduce_and_note)
    wrong = 0
    for _ in range(50):
        order.clear()
        losses = [cast(Tensor, sum(param.sum() for param in list(model)[part::2])) for part in (0, 1)]
        wrapped._begin()
        wrapped._graph_task = 0
        threads = [threading.Thread(target=loss.backward) for loss in losses]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wrapped._finish()
        wrong += order != list(range(len(wrapped._buckets)))
    return wrong


def test_gradients_may_arrive_from_the_threads_of_several_devices() -> None:
    assert run_ranks(2, _from_two_threads) == [0, 0]


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


def _buffers(world: World) -> tuple[Tensor, Tensor, Tensor]:
    model = nn.BatchNorm1d(8)
    wrapped = CustomDDP(model)
    wrapped(torch.full((4, 8), float(world.rank)) + torch.randn(4, 8)).sum().backward()
    own = model.running_mean
    assert own is not None
    own = own.clone()
    wrapped(torch.zeros(4, 8)).sum().backward()
    assert model.running_mean is not None
    second = model.running_mean.clone()
    # A buffer that was replaced is sent, too.
    model.running_mean = torch.full((8,), float(world.rank + 1))
    wrapped(torch.zeros(4, 8)).sum().backward()
    # Each forward began from rank 0's statistics and added zeros.
    return own, second / (1 - 0.1), model.running_mean / (1 - 0.1)


def test_buffers_are_those_of_rank_0_at_each_forward() -> None:
    results = run_ranks(2, _buffers)
    assert not torch.allclose(results[0][0], results[1][0])
    for _, second, third in results:
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


def _head_first(world: World) -> list[str]:
    model = _TwoOrders([0, 1, 2, 3])
    wrapped = CustomDDP(model, bucket_mib=0.0001)
    model.order = [3]
    wrapped(torch.ones(2, 8)).sum().backward()
    return [name.removeprefix("layers.") for bucket in wrapped._buckets for name in bucket.names]


def test_parameters_that_the_first_backward_leaves_out_are_laid_out_from_the_last_to_the_first() -> None:
    for names in run_ranks(2, _head_first):
        assert names[2:] == ["2.bias", "2.weight", "1.bias", "1.weight", "0.bias", "0.weight"]


def _failed_backward(world: World, sync: str) -> Tensor:
    torch.manual_seed(0)
    model = plain()
    wrapped = CustomDDP(model, sync=SYNCS[sync], bucket_mib=0.001)

    def fail(grad: Tensor) -> None:
        raise ArithmeticError

    for _ in range(2):  # once before there are buckets, once after
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


@syncs
def test_a_step_after_a_backward_that_raised_averages_as_usual(sync: str) -> None:
    first, second = run_ranks(2, _failed_backward, sync)
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
        self.first, self.rest = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
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
    return results


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
    again = CustomDDP(model)
    again.gradient_ready = lambda index: calls.append(index)  # type: ignore[method-assign]
    model(torch.ones(2, 8)).sum().backward()
    return [gone() is None, sorted(calls) == list(range(len(list(model.parameters()))))]


def test_a_module_can_be_wrapped_again_after_its_wrapper_is_gone() -> None:
    assert run_ranks(2, _wrapped_again) == [[True, True]] * 2


def _copies(world: World) -> list[bool]:
    torch.manual_seed(0)
    wrapped = CustomDDP(plain(), sync=partial(PowerSGD, matrix_rank=2), bucket_mib=0.001).eval()
    grads = []
    for each in (wrapped, pickle.loads(pickle.dumps(wrapped)), copy.deepcopy(wrapped)):
        assert isinstance(each.sync, PowerSGD) and each.sync.matrix_rank == 2
        assert not each.training
        each(torch.full((1, 8), 1.0 + world.rank)).sum().backward()
        grads.append([param.grad for param in each.parameters() if param.grad is not None])
    return [all(torch.equal(a, b) for a, b in zip(grads[0], other, strict=True)) for other in grads[1:]]


def test_a_pickled_and_a_copied_wrapper_average_like_the_first() -> None:
    assert run_ranks(2, _copies) == [[True, True]] * 2


def _states(world: World) -> list[bool]:
    torch.manual_seed(world.rank)
    bare, other = plain(), plain()
    wrapped = CustomDDP(plain())
    names_agree = list(wrapped.state_dict()) == list(bare.state_dict())
    bare.load_state_dict(wrapped.state_dict())
    wrapped.load_state_dict(other.state_dict())
    loaded = all(torch.equal(a, b) for a, b in zip(wrapped.parameters(), other.parameters(), strict=True))
    try:
        wrapped.load_state_dict(bare.state_dict(), assign=True)
    except Exception as error:
        return [names_agree, loaded, "before CustomDDP is made" in str(error)]
    return [names_agree, loaded, False]


def test_state_dicts_are_those_of_the_bare_module() -> None:
    assert run_ranks(2, _states) == [[True, True, True]] * 2


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
@pytest.mark.timeout(300)
def test_torch_compile_inside_and_around_the_wrapper_trains_as_without(backend: str) -> None:
    if backend == "inductor" and not shutil.which("g++"):
        pytest.skip("g++ is not installed: inductor compiles C++")
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
