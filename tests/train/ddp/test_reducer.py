"""The reducer in one process, with a stand-in for the other ranks."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from train.ddp.reducer import Reducer
from train.sync import Payload, Sync, Waitable


class _Done:
    def wait(self) -> None:
        pass


class _Doubling(Sync):
    """Every mean is twice what this rank has; notes what it is asked for."""

    def __init__(self, params: Sequence[nn.Parameter]) -> None:
        self.group = None  # type: ignore[assignment]
        self.events: list[str] = []
        # Elements of gradients that lie outside of buckets whenever memory for a bucket is asked for.
        self.outside: list[int] = []
        self._params, self._buckets = params, list[Tensor]()

    def allocate(self, numel: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        inside = {flat.untyped_storage().data_ptr() for flat in self._buckets}
        grads = [param.grad for param in self._params if param.grad is not None]
        self.outside.append(sum(g.numel() for g in grads if g.untyped_storage().data_ptr() not in inside))
        self.events.append("allocate")
        self._buckets.append(super().allocate(numel, dtype, device))
        return self._buckets[-1]

    def of_rank_0(self, numbers: Sequence[int], device: torch.device) -> list[int]:
        return list(numbers)

    def reduce(self, payload: Payload) -> Waitable:
        self.events.append("reduce")
        payload.flat.mul_(2)
        return _Done()


def _reducer(model: nn.Module, bucket_bytes: float = 1.0) -> tuple[Reducer, _Doubling]:
    sync = _Doubling([*model.parameters()])
    return Reducer(dict(model.named_parameters()), sync, bucket_bytes, bucket_bytes), sync


def _backward(reducer: Reducer, output: Tensor) -> None:
    output.register_hook(reducer.backward_begins)
    output.sum().backward()


def _grads(model: nn.Module) -> list[Tensor]:
    return [param.grad.clone() for param in model.parameters() if param.grad is not None]


def test_each_backward_is_shared_from_its_first_gradient_to_its_end_and_replaces_gradients() -> None:
    first = nn.Linear(4, 4)
    model = nn.Sequential(first, nn.Linear(4, 2))
    model(torch.ones(1, 4)).sum().backward()
    expected = [2 * grad for grad in _grads(model)]
    reducer, sync = _reducer(model)
    seen = []
    first.weight.register_hook(lambda _: seen.append(reducer._is_shared))
    for number in range(3):
        model.zero_grad()
        assert not reducer._is_shared and reducer.num_backwards == number
        _backward(reducer, model(torch.ones(1, 4)))
        torch.testing.assert_close(_grads(model), expected)
    assert seen == [True] * 3
    assert sync.events == ["allocate", "reduce"] * 4 + ["reduce"] * 8


def test_small_gradients_are_counted_once_for_each_bucket() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(8)))
    reducer, _ = _reducer(model, bucket_bytes=160.0)  # of two layers
    counted, count = list[int](), reducer.gradients_ready

    def note() -> None:
        counted.append(len(reducer._arrivals))
        count()

    _backward(reducer, model(torch.ones(1, 4)))
    reducer.gradients_ready = note  # type: ignore[method-assign]
    _backward(reducer, model(torch.ones(1, 4)))
    assert counted == [1, 3, 4, 4, 4], "the first of a backward at once"


def test_buckets_start_in_the_order_of_the_first_backward_also_when_gradients_arrive_in_another() -> None:
    model = nn.ParameterList([torch.ones(size) for size in (1, 2, 3)])
    reducer, sync = _reducer(model)
    started: list[int] = []
    reduce = sync.reduce

    def note(payload: Payload) -> Waitable:
        started.append(payload.views[0].numel())
        return reduce(payload)

    sync.reduce = note  # type: ignore[method-assign]
    arrived: list[int] = []
    for param in model:
        param.register_hook(lambda grad: arrived.append(grad.numel()))
    average = reducer._average

    def end() -> None:
        started.append(0)
        average()

    # The parameter that forward uses last has its gradient first.
    for order_of_use in ([2, 1, 0], [0, 1, 2]):
        _backward(reducer, torch.stack([model[index].sum() for index in order_of_use]))
        reducer._average = end  # type: ignore[method-assign]
    assert arrived == [1, 2, 3, 3, 2, 1]
    # All start as soon as the first is full, not only at the end of the backward.
    assert started == [1, 2, 3, 1, 2, 3, 0]


def test_parameters_that_the_first_backward_leaves_out_are_laid_out_from_the_last_to_the_first() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(4)))
    reducer, _ = _reducer(model)
    _backward(reducer, model[3](torch.ones(1, 4)))
    assert [bucket.names for bucket in reducer.buckets] == [[f"{layer}.weight"] for layer in (3, 2, 1, 0)]


def test_at_the_end_of_the_first_backward_no_more_than_one_bucket_is_held_twice() -> None:
    model = nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(4)))
    reducer, sync = _reducer(model)
    _backward(reducer, model(torch.ones(1, 16)))
    # What is still outside gets less with each bucket: 4, 3, 2 and 1 gradients.
    assert sync.outside == [4 * 256, 3 * 256, 2 * 256, 256]
