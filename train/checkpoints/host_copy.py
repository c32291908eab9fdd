"""Copies of a state from the GPU to the host."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor


def on_host(state: Any) -> Any:
    """Return nested dicts, lists and tuples with every CUDA tensor copied to the host; other objects stay the same.

    A copy to ordinary memory would make host and device wait for each tensor.  Copies to pinned memory run one after
    the other, and the host waits once.
    """
    copies: dict[int, Tensor] = {}
    moved = _moved(state, copies)
    if copies:
        torch.cuda.synchronize()
    return moved


def _moved(state: Any, copies: dict[int, Tensor]) -> Any:
    """copies: by the id of the tensor, because a state may hold a tensor twice."""
    if isinstance(state, Tensor) and state.is_cuda:
        if id(state) not in copies:
            pinned = torch.empty(state.shape, dtype=state.dtype, pin_memory=True)
            copies[id(state)] = pinned.copy_(state.detach(), non_blocking=True)
        return copies[id(state)]
    if isinstance(state, dict):
        moved = copy.copy(state)  # also copies an attribute of a module's state dict: the versions of layers
        moved.update({key: _moved(value, copies) for key, value in state.items()})
        return moved
    return type(state)(_moved(value, copies) for value in state) if isinstance(state, list | tuple) else state
