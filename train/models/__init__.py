"""Models, one file each: `build(shape, num_classes, dropout)` makes the module."""

from __future__ import annotations

from importlib import import_module

import torch
from torch import nn

from train.errors import UserError


def build(name: str, shape: tuple[int, int, int], num_classes: int, dropout: float | None) -> nn.Module:
    """The model of the file `name`.py for inputs of `shape` (C, H, W).

    Args:
        num_classes: number of outputs.
        dropout: replaces every dropout rate of the model; None keeps its own.
    Raises UserError if the model cannot take inputs of that shape.
    """
    build_module = import_module(f"train.models.{name}").build
    try:
        # On the meta device a forward computes shapes only.
        with torch.device("meta"):
            build_module(shape, num_classes, dropout)(torch.empty(2, *shape))
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"--model={name} cannot take images of shape {shape} (C, H, W): {reason}") from None
    module: nn.Module = build_module(shape, num_classes, dropout)
    return module
