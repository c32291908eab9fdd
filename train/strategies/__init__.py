"""How the processes share a model, one strategy a file: `wrap` returns what is called in training."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

import torch
import torch.distributed as dist
from torch import nn


@dataclass(frozen=True)
class Setting:
    """What a strategy may need to know.

    group: the ranks that share the model (None is the default group); world_size: how many they are.
    buffers_differ: ranks compute buffers of their own (BatchNorm that is not synchronised), so send rank 0's.
    sync: how gradients travel; a file in train/sync/.
    """

    device: torch.device
    group: dist.ProcessGroup | None
    world_size: int
    bucket_mib: float
    buffers_differ: bool
    sync: str = "all_reduce"


def wrap(name: str, model: nn.Module, setting: Setting) -> nn.Module:
    """`model` wrapped by the strategy in the file `name`.py; the same parameters, so the optimizer is not affected.

    The result averages gradients over the ranks during backward, except inside its `no_sync()` if it has one.
    Raises UserError if the strategy does not fit the setting or the ranks' models differ.
    """
    wrapped: nn.Module = import_module(f"train.strategies.{name}").wrap(model, setting)
    return wrapped
