"""A loss or gradient that is not finite: every rank learns at the same step which samples led to it."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from train.collectives.broadcast import of_all_ranks
from train.data.sampler import ShardSampler
from train.errors import SharedError

# At most this many samples of one rank are named; the others are only counted.
_MOST_NAMED = 10

MOST_SKIPPED_IN_A_ROW = 10
"""Limit of consecutive steps without a finite gradient: more of them are not the fault of single samples."""


class NonFinite(SharedError):
    """Error that all ranks raise at the same step, before the optimizer has used the gradient."""


def is_finite(norm: Tensor) -> bool:
    """Return True if a gradient with this norm is finite: the one thing for which the host waits in a step."""
    return math.isfinite(float(norm))


def marked(loss: Tensor) -> Tensor:
    """Return `loss`, with a gradient of NaN (an infinite loss may have a finite one) if the loss is not finite."""
    return loss * (1 + 0 * loss.detach())


def found(position: ShardSampler, batch: Any, losses: Tensor) -> str | None:
    """Return which ranks and samples have losses that are not finite, or None if all are finite.  A collective.

    position: where the step is; batch, losses: this rank's share of it, in the order of the sampler.
    """
    indices = next(iter(position))
    # With BatchNorm one bad input spoils the losses of all samples, so inputs are looked at first.
    inputs = [x for x in tree_leaves(batch) if isinstance(x, Tensor) and x.is_floating_point() and x.ndim]
    sums = [x.reshape(len(x), -1).sum(dim=1) for x in inputs if len(x) == len(indices)]
    bad_inputs = _not_finite(indices, torch.stack(sums).sum(dim=0)) if sums else []
    of_ranks = of_all_ranks({"input": bad_inputs, "loss": _not_finite(indices, losses)})
    for kind in ("input", "loss"):
        first_rank: dict[str, int] = {}  # all stages of a pipeline read the same samples
        for rank, bad in enumerate(of_ranks):
            if bad[kind]:
                first_rank.setdefault(_described(kind, bad[kind]), rank)
        if first_rank:
            return "; ".join(f"rank {rank}: {what}" for what, rank in first_rank.items())
    return None


def _not_finite(indices: list[int], values: Tensor) -> list[int]:
    # Of by-hand steps and of weighted losses, fewer or no losses are known.
    return [index for index, finite in zip(indices, torch.isfinite(values).tolist(), strict=False) if not finite]


def _described(kind: str, indices: list[int]) -> str:
    if len(indices) == 1:
        return f"the {kind} of sample {indices[0]} of the training set is not finite"
    listed = ", ".join(map(str, indices[:_MOST_NAMED]))
    more = f" and {len(indices) - _MOST_NAMED} more" if len(indices) > _MOST_NAMED else ""
    kinds = {"input": "inputs", "loss": "losses"}[kind]
    return f"the {kinds} of samples {listed}{more} of the training set are not finite"
