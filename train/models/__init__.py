"""Models, one file each: `build(shape, num_classes, dropout)` makes the module."""

from __future__ import annotations

from importlib import import_module

from torch import nn


def build(name: str, shape: tuple[int, int, int], num_classes: int, dropout: float | None) -> nn.Module:
    """The model of the file `name`.py for inputs of `shape` (C, H, W).

    Args:
        num_classes: number of outputs.
        dropout: replaces every dropout rate of the model; None keeps its own.
    Raises UserError if the model cannot take inputs of that shape.
    """
    module: nn.Module = import_module(f"train.models.{name}").build(shape, num_classes, dropout)
    return module
