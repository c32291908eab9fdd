"""Losses of steps: kept on the device as sums over samples, then turned into means over all ranks."""

import math
import time
import zlib
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from train.collectives import waiting
from train.errors import SharedError
from train.loop.step import StepResult
from train.records.observer import StepRecord


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


@dataclass
class _Pending:
    """A step whose loss is still on the device; sums: of this rank, by name, and of `samples` over all ranks."""

    result: StepResult
    sums: dict[str, Tensor]
    epoch: int
    step: int
    lr: float
    samples: int
    time: float

    def record(self, totals: dict[str, float], norm: float, rates: dict[str, Any]) -> StepRecord:
        """Return the record of the step, from the sums over all ranks."""
        return StepRecord(
            epoch=self.epoch,
            step=self.step,
            lr=self.lr,
            samples=self.samples,
            time=self.time,
            loss=totals["loss"] / float(self.result.weight),
            grad_norm=norm if math.isfinite(norm) else None,
            values={name: total / self.samples for name, total in totals.items() if name != "loss"},
            **rates,
        )


class PendingLosses:
    """Steps whose losses are still on the device, so that no step waits for the one before it."""

    def __init__(self) -> None:
        self._steps: list[_Pending] = []
        self.begin()

    def __len__(self) -> int:
        return len(self._steps)

    def steps(self) -> list[int]:
        return [pending.step for pending in self._steps]

    def begin(self) -> None:
        """Start the clock of the next steps here, after an evaluation or a save."""
        self._since = time.monotonic()
        waiting.take_seconds()

    def add(
        self, result: StepResult, values: dict[str, Any], own: int, epoch: int, step: int, lr: float, samples: int
    ) -> None:
        """Keep the result of a step; values: a metric's mean over this rank's `own` samples, by its name."""
        device = result.loss_sum.device
        given = sorted(values.items())  # ranks may have given them in different orders
        sums = {name: torch.as_tensor(value, device=device).double() * own for name, value in given}
        sums = {"loss": result.loss_sum} | sums
        self._steps.append(_Pending(result, sums, epoch, step, lr, samples, time.time()))

    def reduce(self, epoch_means: Means) -> list[StepRecord]:
        """Read and forget the pending steps, add them to `epoch_means` and return their records.  A collective."""
        if not self._steps:
            return []
        summed = torch.stack([each for pending in self._steps for each in pending.sums.values()]).cpu()
        _refuse_other_names([name for pending in self._steps for name in pending.sums])
        dist.all_reduce(summed)
        norms = torch.stack([torch.as_tensor(pending.result.grad_norm) for pending in self._steps]).tolist()
        now = time.monotonic()
        rates = self._rates(now - self._since)
        numbers, records = iter(summed.tolist()), []
        for pending, norm in zip(self._steps, norms, strict=True):
            totals = {name: next(numbers) for name in pending.sums}
            if math.isfinite(totals["loss"]):
                epoch_means.loss_sum += totals["loss"]
                epoch_means.weight += float(pending.result.weight)
                epoch_means.samples += pending.samples
            records.append(pending.record(totals, norm, rates))
        self._steps, self._since = [], now
        return records

    def _rates(self, seconds: float) -> dict[str, Any]:
        """Return the speed of these steps, and the share of the time that this rank's host has seen itself wait."""
        waited = waiting.take_seconds()
        rates = {
            "seconds_per_step": round(seconds / len(self._steps), 6),
            "samples_per_second": round(sum(pending.samples for pending in self._steps) / seconds, 3),
            "input_share": round(waited.get("input", 0.0) / seconds, 4),
        }
        if dist.get_world_size() == 1:
            rates["communication_share"] = 0.0
        elif "communication" in waited and self._steps[0].result.loss_sum.device.type == "cpu":
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
