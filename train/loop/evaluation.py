"""Means over a dataset, each sample once, on all ranks together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from train.collectives.agreement import StopAgreement, Stopped
from train.collectives.broadcast import broadcast_from_rank_0
from train.data.batches import pieces
from train.data.shard import share
from train.strategies import Context, autocast


@torch.no_grad()
def evaluate(
    function: Callable[[Any], Any],
    batches: Iterable[tuple[Any, int]],
    modules: Sequence[nn.Module],
    context: Context,
    stop_agreement: StopAgreement,
    num_pieces: int = 1,
) -> dict[str, float]:
    """Return means over the dataset by name, the same on every rank.  A collective.

    Args:
        function: returns for a batch {name: the value of each sample, (n,), or their mean, or (sum, weight)}, or None
            on a rank that does not compute the outputs.
        batches: this rank's share, and of how many samples of a batch; all ranks have equally many batches.  Of a batch
            of 0 samples the function is called, too, because some models send messages in their forward.
        modules: are in evaluation mode meanwhile.
        num_pieces: into how many each batch is cut, because it would not fit in memory.
    Raises Stopped if a signal asks for it.
    """
    training = [part for module in modules for part in module.modules() if part.training]
    for part in training:
        part.training = False
    if context.ranks_have_own_buffers:
        broadcast_from_rank_0([buffer for module in modules for buffer in module.buffers()], context.group)
    sums: dict[str, tuple[Any, Any]] = {}
    stop_agreement.begin()
    for batch, num in batches:
        sizes = [len(share(range(num), piece, num_pieces)) for piece in range(num_pieces)]
        for piece, size in zip(pieces(batch, sizes), sizes, strict=True):
            with autocast(context.config.precision, context.device):
                values = function(piece)
            for name, value in (values or {}).items():
                total, weight = _sum_and_weight(value, size)
                before = sums.get(name, (0, 0))
                sums[name] = (before[0] + total, before[1] + weight)
        if stop_agreement.reached():
            raise Stopped
    for part in training:
        part.training = True
    mine = {name: (float(total), float(weight)) for name, (total, weight) in sums.items()}
    of_ranks: list[dict[str, tuple[float, float]]] = [{}] * dist.get_world_size()
    dist.all_gather_object(of_ranks, mine)
    means = {}
    for name in {name: None for of_rank in of_ranks for name in of_rank}:
        totals, weights = zip(*(of_rank[name] for of_rank in of_ranks if name in of_rank), strict=True)
        means[name] = sum(totals) / sum(weights) if sum(weights) else math.nan
    return means


def _sum_and_weight(value: Any, size: int) -> tuple[Tensor, int | Tensor]:
    """Return a function's value for `size` samples as a sum in float64 and its weight.

    A number of samples stays on the host: a number sent to a GPU would wait for the batch.
    """
    if isinstance(value, tuple):
        total, weight = value
        return total.double() * bool(size), weight * bool(size)
    return (value.double()[:size].sum() if value.ndim else value.double() * size), size
