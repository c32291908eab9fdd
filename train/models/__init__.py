"""Models, one file each: `build(shape, num_classes, dropout)` makes the module."""

from importlib import import_module

import torch
from torch import nn

from train.errors import UserError, first_line


def build(name: str, shape: tuple[int, ...], num_classes: int, dropout: float | None) -> nn.Module:
    """Return the model of the file `name`.py for inputs of `shape`: images (C, H, W), or rows of T tokens (T,).

    dropout: replaces every dropout rate of the model; None keeps its own.  Raises UserError for an impossible shape.
    """
    build_module = import_module(f"train.models.{name}").build
    try:
        # On the meta device a forward computes shapes only.
        with torch.device("meta"):
            dtype = torch.int64 if len(shape) == 1 else torch.float32
            logits = build_module(shape, num_classes, dropout)(torch.empty(2, *shape, dtype=dtype))
        wanted = (2, *shape, num_classes) if len(shape) == 1 else (2, num_classes)
        if logits.shape != wanted:
            raise ValueError(f"for a batch of two its output is {tuple(logits.shape)}, not {wanted}")
    except (RuntimeError, ValueError) as error:
        kind = "rows of tokens of shape {} (T,)" if len(shape) == 1 else "images of shape {} (C, H, W)"
        raise UserError(f"--model={name} cannot take {kind.format(shape)}: {first_line(error)}") from None
    module: nn.Module = build_module(shape, num_classes, dropout)
    return module
