"""Pieces of a batch, whatever the collate function has made of the samples: tensors in dicts, lists and tuples."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from train.errors import UserError


def on_device(batch: Any, device: torch.device) -> Any:
    return tree_map(lambda leaf: leaf.to(device, non_blocking=True) if isinstance(leaf, Tensor) else leaf, batch)


def pieces(batch: Any, sizes: Sequence[int], num_blanks: int = 2) -> list[Any]:
    """Return the batch cut along the first dimension of its tensors into as many samples as `sizes` say.

    A piece of size 0 has `num_blanks` samples of the batch that the caller must not count: a rank that takes part
    without samples needs inputs.
    Raises UserError if the batch holds something that cannot be cut, which matters only if there is something to cut.
    """
    if len(sizes) == 1 and (sizes[0] or num_blanks):
        return [batch]
    tensors = (leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim)
    num = sum(sizes) or len(next(tensors, ()))
    *starts, _ = accumulate(sizes, initial=0)
    blank = [at % max(1, num) for at in range(num_blanks)]
    cuts = [slice(at, at + size) if size else blank for at, size in zip(starts, sizes, strict=True)]
    leaves, form = tree_flatten(batch, is_leaf=lambda part: _is_column(part, num))
    columns = [[_taken(leaf, cut, num) for cut in cuts] for leaf in leaves]
    return [tree_unflatten(list(row), form) for row in zip(*columns, strict=True)]


def _is_column(part: Any, num: int) -> bool:
    """Return True for one word or number a sample, as torch's default_collate leaves words."""
    return isinstance(part, list | tuple) and len(part) == num and all(isinstance(x, str | int | float) for x in part)


def _taken(leaf: Any, cut: slice | list[int], num: int) -> Any:
    if isinstance(leaf, Tensor) and leaf.ndim and len(leaf) == num:
        return leaf[cut]
    if _is_column(leaf, num):
        return [leaf[at] for at in (range(num)[cut] if isinstance(cut, slice) else cut)]
    if leaf is None or isinstance(leaf, str | int | float) or (isinstance(leaf, Tensor) and not leaf.ndim):
        return leaf
    what = f"a tensor of shape {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else f"a {type(leaf).__name__}"
    raise UserError(
        f"a batch of {num} samples holds {what}, which cannot be cut into micro-batches: let the collate function make "
        f"tensors with {num} rows, in dicts, lists or tuples, or give no micro_batches"
    )
