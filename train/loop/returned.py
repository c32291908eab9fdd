"""What a user's function returned for some samples; what no mean can be made of is refused in words."""

from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
from torch import Tensor

from train.errors import UserError

NOTHING = "the weights that all ranks returned sum to 0: the batch has no loss"
"""Why a step is skipped that has nothing to learn from, such as a batch with all tokens masked."""


def refuse_unlike_loss(returned: Any, size: int) -> None:
    """Raise UserError unless the function of run.step() returned a loss of `size` samples, with its graph."""
    loss = returned[0] if isinstance(returned, tuple) and returned else returned
    if (slip := _without_graph(loss)) or not _has_mean(returned, size):
        _refuse("step", returned, slip, size, "loss")


def refuse_unlike_mean(loss: Any) -> None:
    """Raise UserError unless run.backward() got one number, with its graph."""
    if (slip := _without_graph(loss)) or loss.numel() != 1:
        raise UserError(f"run.backward() got {described(loss)}{slip}: give the mean over this rank's samples")


def refuse_unlike_values(returned: Any, size: int, of_rows: bool) -> None:
    """Raise UserError unless the function of run.evaluate() returned {name: value}, or None; of_rows: {name: rows}."""
    if not isinstance(returned, Mapping | None):
        what = 'return a dict, such as {"val_loss": loss}'
        raise UserError(f"the function of run.evaluate() returned {described(returned)}: {what}")
    for name, value in (returned or {}).items():
        if of_rows:
            has_rows = isinstance(value, list) or (isinstance(value, Tensor) and value.ndim > 0)
            if not has_rows or len(value) != size > 0:
                what = f"{described(value)}{f' of {len(value)}' if isinstance(value, list) else ''} as {name}"
                raise UserError(
                    f"the function of run.evaluate(…, metrics=…) returned {what} for {size} samples: return a tensor "
                    "with one row, or a list with one element, for each sample"
                )
        elif not _has_mean(value, size):
            _refuse("evaluate", value, f" as {name}", size, "value")


def _refuse(method: str, value: Any, slip: str, size: int, what: str) -> None:
    raise UserError(
        f"the function of run.{method}() returned {described(value)}{slip} for {size} samples: "
        f"return the mean over the samples, or the {what} of each, or (sum, weight)"
    )


def _without_graph(loss: Any) -> str:
    if isinstance(loss, Tensor | Real) and not getattr(loss, "requires_grad", False):
        return " without a graph (after .item(), .detach() or no_grad, or of no parameter of the optimizer)"
    return "" if isinstance(loss, Tensor) else " (is a `return` missing?)" if loss is None else ", not a tensor,"


def _has_mean(value: Any, size: int) -> bool:
    if isinstance(value, tuple):
        return len(value) == 2 and all(_has_mean(each, 1) for each in value)
    if isinstance(value, Tensor | np.ndarray):
        return value.ndim == 0 or (value.ndim == 1 and size in (len(value), 0))
    return isinstance(value, Real)


def described(value: Any) -> str:
    """Return what a value is, such as "a tensor of shape (4, 2)" or "an int"."""
    if value is None:
        return "None"
    if isinstance(value, tuple):
        return f"({', '.join(map(described, value))})"
    name = f"tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
