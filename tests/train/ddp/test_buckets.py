"""CustomDDP's buckets: where they are, in which order, and when they are started, on real processes."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.ranks import run_ranks
from tests.train.ddp.cases import SYNCS, plain, syncs
from train.ddp.bucket import Bucket
from train.ddp.wrapper import CustomDDP
from train.world.environment import World


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


def _odd_sizes(world: World, sync: str) -> list[bool]:
    aligned = []
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        model = nn.Sequential(nn.Linear(8, 3), nn.Linear(3, 5), nn.Linear(5, 7), nn.Linear(7, 1)).to(dtype)
        wrapped = CustomDDP(model, sync=SYNCS[sync])
        for _ in range(2):
            wrapped(torch.full((2, 8), 1.0, dtype=dtype)).sum().backward()
        aligned += [param.grad is not None and param.grad.data_ptr() % 16 == 0 for param in model.parameters()]
    return aligned


@syncs
def test_gradients_of_odd_sizes_are_aligned_to_16_bytes(sync: str) -> None:
    assert run_ranks(2, _odd_sizes, sync) == [[True] * 24] * 2


def test_only_a_large_gradient_moves_into_its_bucket_as_it_arrives() -> None:
    sync: Any = SimpleNamespace(allocate=lambda size, dtype, device: torch.zeros(size), prescale=lambda *of: 1.0)
    params = [nn.Parameter(torch.ones(size)) for size in (2**17, 2**16)]
    bucket = Bucket(params, ["large", "small"], [1, 1], sync)
    for slot, param in enumerate(params):
        param.grad = torch.ones_like(param)
        bucket.arrive(slot)
    assert [param.grad is view for param, view in zip(params, bucket.views, strict=True)] == [True, False]


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
        layouts.append([bucket.names for bucket in wrapped.reducer.buckets])
    return layouts


def _in_a_graph(grad: Tensor) -> Callable[[], Tensor]:
    x = torch.ones_like(grad, requires_grad=True)
    product = (grad * x).sum()
    return lambda: torch.autograd.grad(product, x)[0]


def _through_a_view(grad: Tensor) -> Callable[[], Tensor]:
    view = grad.detach().view(-1)
    return lambda: view.view(grad.shape)


# Ways to keep a gradient; each returns what gives its content later.
_KEEP: dict[str, Callable[[Tensor], Callable[[], Tensor]]] = {
    "not at all": lambda grad: grad.clone().clone,
    "itself": lambda grad: lambda: grad,
    "through a view": _through_a_view,
    "in a graph": _in_a_graph,
}


Kept = tuple[list[float], list[list[float]], int]


def _keep_in_each_way(world: World, sync: str) -> list[Kept]:
    return [_keep_on_rank_0(world, sync, how) for how in _KEEP]


def _keep_on_rank_0(world: World, sync: str, how: str) -> Kept:
    """The gradient's numbers after each backward; those that rank 0 has kept of two; how many places they had."""
    model = nn.Linear(8, 1)
    wrapped = CustomDDP(model, sync=SYNCS[sync])
    kept, means, places = [], [], set()
    for step in range(6):
        model.zero_grad()
        wrapped(torch.full((1, 8), float(step + world.rank))).sum().backward()
        grad = model.weight.grad
        assert grad is not None
        means.append(float(grad.mean()))
        places.add(grad.data_ptr())
        if world.rank == 0 and step in (2, 3):
            kept.append(_KEEP[how](grad))
        del grad
    return means, [sorted({*content().flatten().tolist()}) for content in kept], len(places)


@syncs
def test_a_gradient_that_one_rank_keeps_stays_as_it_was_and_costs_one_new_place(sync: str) -> None:
    means = [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]
    for how, first, second in zip(_KEEP, *run_ranks(2, _keep_in_each_way, sync), strict=True):
        assert first == (means, [[2.5], [3.5]], 1 if how == "not at all" else 3), how
        assert second == (means, [], 1)


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
        events.append(f"bucket {wrapped.reducer.buckets.index(bucket)}")
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


def _head_first(world: World) -> list[str]:
    model = _TwoOrders([0, 1, 2, 3])
    wrapped = CustomDDP(model, bucket_mib=0.0001)
    model.order = [3]
    wrapped(torch.ones(2, 8)).sum().backward()
    return [name.removeprefix("layers.") for bucket in wrapped.reducer.buckets for name in bucket.names]


def test_parameters_that_the_first_backward_leaves_out_are_laid_out_from_the_last_to_the_first() -> None:
    for names in run_ranks(2, _head_first):
        assert names[2:] == ["2.bias", "2.weight", "1.bias", "1.weight", "0.bias", "0.weight"]
