"""A state that was copied through one buffer is saved and loaded as the state itself."""

from __future__ import annotations

import io
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from train.checkpoints.host_copy import _replaced, _tensors, copy_into_one_buffer, on_host

_TENSORS = [
    torch.arange(7, dtype=torch.int64),
    torch.tensor(3),
    torch.randn(5, 3).t(),
    torch.randn(4, 4)[1:, ::2],
    torch.empty(0, 3),
    torch.randn(3, dtype=torch.bfloat16),
    torch.tensor([True, False, True]),
    torch.randn(2, dtype=torch.float64),
]


def _loaded(value: object) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


def test_copies_of_every_type_and_layout_lie_in_one_buffer_and_can_be_saved() -> None:
    copies = copy_into_one_buffer(_TENSORS, pinned=False)
    addresses = [copy.data_ptr() for copy in copies if copy.numel()]
    assert max(addresses) - min(addresses) < 64 * len(_TENSORS) * 2
    for copy, loaded, tensor in zip(copies, _loaded(copies), _TENSORS, strict=True):
        for one in (copy, loaded):
            assert one.dtype == tensor.dtype
            assert torch.equal(one, tensor)


def test_a_copy_is_not_changed_with_its_tensor_and_outlives_the_others() -> None:
    tensor = torch.ones(1000)
    copy = copy_into_one_buffer([torch.zeros(9), tensor], pinned=False)[1]
    tensor.zero_()
    torch.randn(100_000)
    assert torch.equal(copy, torch.ones(1000))


def _state(device: str) -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).to(device)
    optimizer = optim.AdamW(model.parameters())
    model(torch.randn(5, 4, device=device)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3, "pair": (1, [None])}


def test_on_the_cpu_nothing_is_copied() -> None:
    state = _state("cpu")
    assert on_host(state) is state


def test_the_copies_stand_where_the_tensors_stood_and_all_else_stays() -> None:
    state = _state("cpu")
    tensors = _tensors(state)
    copies = copy_into_one_buffer(tensors, pinned=False)
    copy = _replaced(state, dict(zip(map(id, tensors), copies, strict=True)))
    _compare(state, copy)
    assert {id(tensor) for tensor in _tensors(copy)} == set(map(id, copies))
    assert (copy["step"], copy["pair"]) == (3, (1, [None]))
    assert copy["model"]._metadata == state["model"]._metadata
    _compare(state, _loaded(copy))


@pytest.mark.cuda
def test_from_cuda_everything_is_on_the_host_and_equal() -> None:
    state = _state("cuda")
    copy = on_host(state)
    assert isinstance(copy["model"], OrderedDict)
    assert copy["step"] == 3
    assert copy["pair"] == (1, [None])
    _compare(state, copy)
    _compare(state, _loaded(copy))


def _compare(state: Any, copy: Any) -> None:
    if isinstance(state, Tensor):
        assert copy.device.type == "cpu"
        assert torch.equal(state.cpu(), copy)
    elif isinstance(state, dict):
        assert list(state) == list(copy)
        for key in state:
            _compare(state[key], copy[key])
    elif isinstance(state, list):
        for one, other in zip(state, copy, strict=True):
            _compare(one, other)
