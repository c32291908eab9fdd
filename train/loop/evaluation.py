"""Means over a dataset, each sample once, the same on every rank."""

import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from train.collectives.agreement import StopAgreement, Stopped
from train.collectives.broadcast import broadcast_from_rank_0, of_all_ranks, thing_of_rank_0
from train.data.batches import pieces
from train.data.reading import LeftOut
from train.data.shard import share
from train.errors import SharedError, UserError
from train.loop.halving_step import is_out_of_memory
from train.loop.returned import refuse_unlike_values
from train.strategies import Context, autocast


@torch.no_grad()
def evaluate(
    function: Callable[[Any], Any],
    batches: Iterable[tuple[Any, list[int]]],
    modules: Sequence[nn.Module],
    context: Context,
    stop_agreement: StopAgreement | None,
    metrics: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None,
) -> dict[str, float]:
    """Return means over the dataset, or what `metrics` returns, by name, as Run.evaluate() says.  A collective.

    function: returns None on a rank that does not compute the outputs.  Of a part of 0 samples it is called, too: some
        models send messages in their forward.
    batches: this rank's share, and the sizes of the parts of which a batch consists; all ranks have equally many.
    modules: are in evaluation mode meanwhile.
    With --on-oom=halve a batch that does not fit in memory is cut in two, again and again, and so are those after it.
    Raises Stopped if a signal asks for it and `stop_agreement` is given.
    """
    training = [part for module in modules for part in module.modules() if part.training]
    for part in training:
        part.training = False
    if context.ranks_have_own_buffers:
        broadcast_from_rank_0([buffer for module in modules for buffer in module.buffers()], context.group)
    sums = defaultdict[str, list[tuple[Any, Any]]](list)
    rows = defaultdict[tuple[str, int], list[Any]](list)  # by name and by part, whose samples are neighbours
    if stop_agreement is not None:
        stop_agreement.begin()
    num_pieces = 1
    try:
        for batch, nums in batches:
            while (found := _values(function, batch, nums, num_pieces, context, metrics is not None)) is None:
                num_pieces *= 2
            for number, (values, size) in enumerate(found):
                for name, value in (values or {}).items():
                    if metrics is None:
                        sums[name].append(_sum_and_weight(value, size))
                    else:
                        rows[name, number // num_pieces].append(tree_map_only(Tensor, Tensor.cpu, value[:size]))
            if stop_agreement is not None and stop_agreement.reached():
                raise Stopped
    finally:
        for part in training:
            part.training = True
    if metrics is not None:
        return thing_of_rank_0({name: float(value) for name, value in metrics(_of_all_samples(rows)).items()})
    mine = {name: [*zip(*map(_numbers, zip(*pairs, strict=True)), strict=True)] for name, pairs in sums.items()}
    of_ranks, means, without = of_all_ranks(mine), dict[str, float](), list[str]()
    for name in {name: None for of_rank in of_ranks for name in of_rank}:
        pairs = [pair for of_rank in of_ranks for pair in of_rank.get(name, [])]
        total, weight = (math.fsum(numbers) for numbers in zip(*pairs, strict=True))
        means[name] = total / weight if weight else math.nan
        if not weight:
            without.append(name)
    if without:
        text = f"run.evaluate(): the weights of {', '.join(without)} sum to 0 over the dataset, so there is no mean"
        if len(without) == len(means):
            raise SharedError(text)
        if dist.get_rank() == 0:
            warnings.warn(f"{text}: NaN is returned", stacklevel=4)  # of the loop; once for each place
    return means


def _of_all_samples(rows: Mapping[tuple[str, int], list[Any]]) -> dict[str, Any]:
    """Return the rows of all ranks by name, each a tensor or a list, in the order of the dataset.  A collective."""
    found = defaultdict[str, list[Any]](list)
    for of_rank in of_all_ranks({key: rows[key] for key in sorted(rows)}):
        for (name, _), of_batches in of_rank.items():
            found[name] += [each for each in of_batches if len(each)]
    whole = dict[str, Any]()
    for name, of_batches in found.items():
        if isinstance(of_batches[0], list):
            whole[name] = [row for each in of_batches for row in each]
        elif len(shapes := {tuple(each.shape[1:]) for each in of_batches}) == 1:
            whole[name] = torch.cat(of_batches)
        else:
            shown = ", ".join(map(str, sorted(shapes)[:3]))
            raise SharedError(f"run.evaluate(): rows of {name} have different shapes, {shown}: return them as a list")
    return whole


def _values(
    function: Callable[[Any], Any], batch: Any, nums: list[int], num_pieces: int, context: Context, of_rows: bool
) -> list[tuple[Any, int]] | None:
    """Return the function's values for each piece of the batch, and its samples; None to try it with more pieces."""
    if isinstance(batch, LeftOut):
        if context.config.spreads_model:
            raise UserError(f"{batch}: keep them, with a weight of 0 each, as a forward of fsdp needs all ranks")
        return []
    sizes = [len(share(range(num), piece, num_pieces)) for num in nums for piece in range(num_pieces)]
    try:
        with autocast(context.config.precision, context.device):
            found = [(function(piece), size) for piece, size in zip(pieces(batch, sizes), sizes, strict=True)]
        for values, size in found:
            refuse_unlike_values(values, size, of_rows)
        return found
    except Exception as error:
        if context.config.on_oom != "halve" or num_pieces >= max(nums) or not is_out_of_memory(error):
            raise
    if context.device.type == "cuda":
        torch.cuda.empty_cache()
    return None


def _numbers(values: Sequence[Any]) -> list[float]:
    """Return numbers, or tensors of one number each, whose device is waited for once."""
    return torch.stack([*values]).tolist() if isinstance(values[0], Tensor) else [*map(float, values)]


def _sum_and_weight(value: Any, size: int) -> tuple[Tensor, int | Tensor]:
    """Return a function's value for `size` samples as a sum in float64 and its weight.

    A number of samples stays on the host: a number sent to a GPU would wait for the batch.
    """
    total, weight = value if isinstance(value, tuple) else (value, size)
    weight = weight.sum() if isinstance(weight, Tensor) else weight
    values = total.double() if isinstance(total, Tensor) else torch.tensor(total, dtype=torch.float64)
    if not size:  # of samples that do not count, which may be NaN
        return 0.0 * values.nan_to_num().sum(), weight * 0
    return (values.sum() if values.ndim or isinstance(value, tuple) else values * size), weight
