"""A state that was copied to the host is saved and loaded as the state itself."""

import io
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.utils._pytree import tree_leaves

from tests.train.devices import device_of, devices
from train.checkpoints.folder import on_host


def _state(device: torch.device) -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).to(device)
    optimizer = optim.AdamW(model.parameters())
    model(torch.randn(5, 4, device=device)).sum().backward()
    optimizer.step()
    same = torch.randn(4, 4, device=device)[1:, ::2]
    others = (1, [None, same, same, torch.tensor([True, False], device=device), torch.empty(0, 3, device=device)])
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3, "pair": others}


@devices
def test_the_copies_stand_where_the_tensors_stood_and_all_else_stays(device: str) -> None:
    state: Any = _state(device_of(device))
    copy = on_host(state)
    assert isinstance(copy["model"], OrderedDict)
    assert copy["model"]._metadata == state["model"]._metadata  # type: ignore[attr-defined]
    assert copy["pair"][1][1] is copy["pair"][1][2]
    file = io.BytesIO()
    torch.save(copy, file)
    _compare(state, copy)
    _compare(state, torch.load(io.BytesIO(file.getvalue()), weights_only=True))


def _compare(state: Any, copy: Any) -> None:
    for one, other in zip(tree_leaves(state), tree_leaves(copy), strict=True):
        if isinstance(one, Tensor):
            assert (other.device.type, other.dtype) == ("cpu", one.dtype)
            assert torch.equal(one.cpu(), other)
        else:
            assert one == other
