"""CustomDDP's buckets: where they are, in which order, and when they are started, on real processes."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from tests.ranks import run_ranks
from tests.train.ddp.cases import SYNCS, syncs
from train.ddp.bucket import Bucket
from train.ddp.wrapper import CustomDDP
from train.world.environment import World


def test_gradients_are_aligned_to_16_bytes_and_only_a_large_one_moves_into_its_bucket_as_it_arrives() -> None:
    sync: Any = SimpleNamespace(
        allocate=lambda size, dtype, device: torch.zeros(size, dtype=dtype), prescale=lambda *of: 1.0
    )
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        sizes = (3, 2**18 // dtype.itemsize + 1, 5, 2**18 // dtype.itemsize)
        params = [nn.Parameter(torch.ones(size, dtype=dtype)) for size in sizes]
        bucket = Bucket(params, ["small", "large", "odd", "not quite large"], [1] * 4, sync)
        for slot, param in enumerate(params):
            param.grad = torch.ones_like(param)
            bucket.arrive(slot)
        moved = [param.grad is view for param, view in zip(params, bucket.views, strict=True)]
        assert moved == [False, True, False, False]
        assert {(view.data_ptr() - bucket.payload.flat.data_ptr()) % 16 for view in bucket.views} == {0}


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
