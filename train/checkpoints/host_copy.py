"""Copies of a state from the GPU to the host, all into one buffer."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

# Tensors begin at multiples of this, so that each is aligned for its type.
_ALIGNMENT_BYTES = 64


def on_host(state: Any) -> Any:
    """Return nested dicts, lists and tuples with every CUDA tensor copied to the host; other objects stay the same.

    A copy per tensor from the device to ordinary memory would make host and device wait each time.  Here the copies run
    one after the other into pinned memory, and the host waits once.
    """
    tensors = [tensor for tensor in _tensors(state) if tensor.is_cuda]
    if not tensors:
        return state
    copies = copy_into_one_buffer(tensors, pinned=True)
    torch.cuda.synchronize(tensors[0].device)
    return _replaced(state, dict(zip(map(id, tensors), copies, strict=True)))


def copy_into_one_buffer(tensors: list[Tensor], pinned: bool) -> list[Tensor]:
    """Return dense copies that lie in one buffer of host memory; copies from a device are complete after a sync.

    Each copy has a separate torch storage on its part of the buffer, because torch.save refuses a storage that tensors
    of several types share.
    """
    starts, end = [], 0
    for tensor in tensors:
        starts.append(end)
        end += -(-tensor.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    buffer = torch.empty(end, dtype=torch.uint8, pin_memory=pinned).numpy()
    copies: list[Tensor] = []
    for tensor, start in zip(tensors, starts, strict=True):
        target = torch.empty(tensor.shape, dtype=tensor.dtype)
        if tensor.numel():
            target = torch.frombuffer(buffer, dtype=tensor.dtype, count=tensor.numel(), offset=start).view(tensor.shape)
        copies.append(target.copy_(tensor.detach(), non_blocking=True))
    return copies


def _tensors(state: Any) -> list[Tensor]:
    """Return each tensor once, however often it occurs in the state."""
    if isinstance(state, Tensor):
        return [state]
    children = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else ()
    return list({id(tensor): tensor for child in children for tensor in _tensors(child)}.values())


def _replaced(state: Any, copies: dict[int, Tensor]) -> Any:
    if isinstance(state, Tensor):
        return copies.get(id(state), state)
    if isinstance(state, dict):
        replaced = copy.copy(state)  # also copies an attribute of a module's state dict: the versions of layers
        replaced.update({key: _replaced(value, copies) for key, value in state.items()})
        return replaced
    if isinstance(state, list | tuple):
        return type(state)(_replaced(value, copies) for value in state)
    return state
