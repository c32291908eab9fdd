"""CustomDDP's buckets: where they are, in which order, and when they are started, on real processes."""

from __future__ import annotations

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


def _odd_sizes(world: World, sync: str, dtype: torch.dtype) -> list[bool]:
    model = nn.Sequential(nn.Linear(8, 3), nn.Linear(3, 5), nn.Linear(5, 7), nn.Linear(7, 1)).to(dtype)
    wrapped = CustomDDP(model, sync=SYNCS[sync])
    for _ in range(2):
        wrapped(torch.full((2, 8), 1.0, dtype=dtype)).sum().backward()
    return [param.grad is not None and param.grad.data_ptr() % 16 == 0 for param in model.parameters()]


@syncs
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_gradients_of_odd_sizes_are_aligned_to_16_bytes(sync: str, dtype: torch.dtype) -> None:
    assert run_ranks(2, _odd_sizes, sync, dtype) == [[True] * 8] * 2


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
