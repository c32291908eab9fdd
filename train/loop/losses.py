"""Losses as sums over samples, kept on the device and turned into means over all ranks: of many steps, of a dataset."""

import math
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from train.collectives import waiting
from train.collectives.agreement import StopAgreement, Stopped
from train.collectives.broadcast import broadcast_from_rank_0, of_all_ranks
from train.data.batches import pieces
from train.data.shard import share
from train.errors import SharedError, UserError
from train.loop.halving_step import is_out_of_memory
from train.loop.step import StepResult
from train.records.observer import StepRecord
from train.strategies import Context, autocast


def losses_of_samples(logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Return the cross entropy of each sample, float32 (n); a row of tokens has the mean of its tokens.

    logits, targets: (n, classes) and (n), or (n, T, vocabulary) and (n, T).
    """
    losses = F.cross_entropy(
        logits.float().flatten(0, -2), targets.flatten(), reduction="none", label_smoothing=label_smoothing
    )
    return losses.view(len(targets), math.prod(targets.shape[1:])).mean(dim=1)


def correct(logits: Tensor, targets: Tensor) -> Tensor:
    """Return 1 for each sample that is classified correctly, else 0; a row of tokens has its share of correct ones."""
    return (logits.argmax(dim=-1) == targets).view(len(targets), -1).double().mean(dim=1)


@dataclass
class Means:
    """Sums over the steps of an epoch that become means; a mean over ranks needs the sums, not the ranks' means.

    weight: what loss_sum is divided by; samples: how many samples it is of.
    """

    loss_sum: float = 0.0
    weight: float = 0.0
    samples: int = 0

    @property
    def loss(self) -> float:
        return self.loss_sum / self.weight


class PendingLosses:
    """Steps whose losses are still on the device, so that no step waits for the one before it."""

    def __init__(self) -> None:
        self._steps: list[tuple[StepResult, dict[str, Tensor], dict[str, Any]]] = []
        self.begin()

    def __len__(self) -> int:
        return len(self._steps)

    def steps(self) -> list[int]:
        return [known["step"] for *_, known in self._steps]

    def begin(self) -> None:
        """Start the clock of the next steps here, after an evaluation or a save."""
        self._since = time.monotonic()
        waiting.take_seconds()

    def add(self, result: StepResult, values: dict[str, Tensor], own: int, **known: Any) -> None:
        """Keep the result of a step.

        values: a metric's mean over this rank's `own` samples, by its name.
        known: epoch, step, lr and samples of the record.
        """
        sums = {"loss": result.loss_sum} | {name: value.double() * own for name, value in values.items()}
        self._steps.append((result, sums, {**known, "time": time.time()}))

    def reduce(self, epoch_means: Means) -> list[StepRecord]:
        """Read and forget the pending steps, add them to `epoch_means` and return their records.  A collective."""
        if not self._steps:
            return []
        summed = torch.stack([each for _, sums, _ in self._steps for each in sums.values()]).cpu()
        _refuse_other_names([name for _, sums, _ in self._steps for name in sums])
        dist.all_reduce(summed)
        norms = torch.stack([torch.as_tensor(result.grad_norm) for result, _, _ in self._steps]).tolist()
        now = time.monotonic()
        rates = self._rates(now - self._since)
        numbers, records = iter(summed.tolist()), []
        for (result, sums, known), norm in zip(self._steps, norms, strict=True):
            totals = {name: next(numbers) for name in sums}
            loss_sum, weight, samples = totals.pop("loss"), float(result.weight), known["samples"]
            epoch_means.loss_sum += loss_sum
            epoch_means.weight += weight
            epoch_means.samples += samples
            records.append(
                StepRecord(
                    **known,
                    loss=loss_sum / weight,
                    grad_norm=norm if math.isfinite(norm) else None,
                    values={name: total / samples for name, total in totals.items()},
                    **rates,
                )
            )
        self._steps, self._since = [], now
        return records

    def _rates(self, seconds: float) -> dict[str, Any]:
        """Return the speed of these steps, and the share of the time that this rank's host has seen itself wait."""
        waited = waiting.take_seconds()
        rates = {
            "seconds_per_step": round(seconds / len(self._steps), 6),
            "samples_per_second": round(sum(known["samples"] for *_, known in self._steps) / seconds, 3),
            "input_share": round(waited.get("input", 0.0) / seconds, 4),
        }
        if dist.get_world_size() == 1:
            rates["communication_share"] = 0.0
        elif "communication" in waited and self._steps[0][0].loss_sum.device.type == "cpu":
            # On CUDA the host does not wait: the stream does.
            rates["communication_share"] = round(waited["communication"] / seconds, 4)
        return rates


def _refuse_other_names(names: list[str]) -> None:
    """Raise SharedError unless all ranks have recorded the same metrics: their sums would get mixed up."""
    digest = float(zlib.crc32("\0".join(names).encode()))
    extremes = torch.tensor([digest, -digest], dtype=torch.float64)
    dist.all_reduce(extremes, op=dist.ReduceOp.MAX)
    if extremes.sum() != 0:
        raise SharedError("run.record() was not called with the same names on all ranks: call it on each, in any order")


class WorthlessWeights(SharedError):
    """Error for weights that give no finite loss, so saving them helps nobody."""


def refuse_if_not_finite(loss: float, what: str) -> None:
    """Raise WorthlessWeights for a loss that is not finite: on all ranks, because they have the same sums."""
    if not math.isfinite(loss):
        raise WorthlessWeights(
            f"the {what} is {loss}: training cannot continue. Try --clip-norm, --precision=fp32 or a lower --lr"
        )


@torch.no_grad()
def evaluate(
    function: Callable[[Any], Any],
    batches: Iterable[tuple[Any, list[int]]],
    modules: Sequence[nn.Module],
    context: Context,
    stop_agreement: StopAgreement | None,
) -> dict[str, float]:
    """Return means over the dataset by name, the same on every rank.  A collective.

    function: returns for a batch {name: the value of each sample, (n,), or their mean, or (sum, weight)}, or None on a
        rank that does not compute the outputs.
    batches: this rank's share, and the sizes of the parts of which a batch consists; all ranks have equally many
        batches.  Of a part of 0 samples the function is called, too: some models send messages in their forward.
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
    if stop_agreement is not None:
        stop_agreement.begin()
    num_pieces = 1
    try:
        for batch, nums in batches:
            while (found := _values(function, batch, nums, num_pieces, context)) is None:
                num_pieces *= 2
            for values, size in found:
                for name, value in (values or {}).items():
                    sums[name].append(_sum_and_weight(value, size))
            if stop_agreement is not None and stop_agreement.reached():
                raise Stopped
    finally:
        for part in training:
            part.training = True
    mine = {name: [*zip(*map(_numbers, zip(*pairs, strict=True)), strict=True)] for name, pairs in sums.items()}
    of_ranks, means = of_all_ranks(mine), {}
    for name in {name: None for of_rank in of_ranks for name in of_rank}:
        pairs = [pair for of_rank in of_ranks for pair in of_rank.get(name, [])]
        total, weight = (math.fsum(numbers) for numbers in zip(*pairs, strict=True))
        means[name] = total / weight if weight else math.nan
    return means


def _values(
    function: Callable[[Any], Any], batch: Any, nums: list[int], num_pieces: int, context: Context
) -> list[tuple[Any, int]] | None:
    """Return the function's values for each piece of the batch, and its samples; None to try it with more pieces."""
    sizes = [len(share(range(num), piece, num_pieces)) for num in nums for piece in range(num_pieces)]
    try:
        with autocast(context.config.precision, context.device):
            return [(function(piece), size) for piece, size in zip(pieces(batch, sizes), sizes, strict=True)]
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
    if isinstance(value, tuple):
        total, weight = value
        return _double(total) * bool(size), weight * bool(size)
    values = _double(value)
    if values.ndim > 1 or (values.ndim and size not in (len(values), 0)):
        raise UserError(
            f"the function of run.evaluate() returned a tensor of shape {tuple(values.shape)} for {size} samples: "
            "return the mean over the samples, or the value of each, or (sum, weight)"
        )
    return (values[:size].sum() if values.ndim else values * size), size


def _double(value: Tensor | float) -> Tensor:
    return value.double() if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
