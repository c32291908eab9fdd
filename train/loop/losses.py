"""Losses as sums over samples: kept on the device, and turned into means over all ranks many steps at a time."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from train.collectives import waiting
from train.errors import SharedError
from train.records.observer import StepRecord


def losses_of_samples(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Return the cross entropy of each sample, float32 (n); a row of tokens has the mean of its tokens.

    Args:
        logits, labels: (n, classes) and (n), or (n, T, vocabulary) and (n, T).
    """
    losses = F.cross_entropy(
        logits.float().flatten(0, -2), labels.flatten(), reduction="none", label_smoothing=label_smoothing
    )
    return losses.view(len(labels), math.prod(labels.shape[1:])).mean(dim=1)


def sum_of_correct(logits: Tensor, labels: Tensor) -> Tensor:
    """Return how many samples are classified correctly; a row of tokens counts by its share.  Shapes as above."""
    return (logits.argmax(dim=-1) == labels).sum() / math.prod(labels.shape[1:])


@dataclass(frozen=True)
class StepOutcome:
    """The result of one step.

    loss_sum: sum of this rank's losses, float64, on the device, so that the host need not wait for it.
    grad_norm: norm of the global gradient, before it was clipped, on its device; not finite if fp16 overflowed.
    skipped: why the optimizer did not use the gradient, the same on all ranks; None if it did.
    repeated: why the step took more than one attempt, the same on all ranks; None if it did not.
    """

    loss_sum: Tensor
    grad_norm: Tensor
    skipped: str | None
    repeated: str | None = None


@dataclass
class Means:
    """Sums over samples that become means; a mean over ranks needs the sums, not the ranks' means."""

    loss_sum: float = 0.0
    correct: float = 0.0
    samples: int = 0

    @property
    def loss(self) -> float:
        return self.loss_sum / self.samples

    @property
    def accuracy(self) -> float:
        return self.correct / self.samples


@dataclass(frozen=True)
class _Pending:
    outcome: StepOutcome
    epoch: int
    step: int
    lr: float
    samples: int
    time: float


class PendingLosses:
    """Steps whose losses are still on the device, so that no step waits for the one before it."""

    def __init__(self) -> None:
        self._steps: list[_Pending] = []
        self.begin()

    def __len__(self) -> int:
        return len(self._steps)

    def begin(self) -> None:
        """Start the clock of the next steps here, after an evaluation or a save."""
        self._since = time.monotonic()
        waiting.take_seconds()

    def add(self, outcome: StepOutcome, *, epoch: int, step: int, lr: float, samples: int) -> None:
        """Keep the result of this rank's share of a step; samples: how many the step has on all ranks together."""
        self._steps.append(_Pending(outcome, epoch, step, lr, samples, time.time()))

    def reduce(self, epoch_means: Means) -> list[StepRecord]:
        """Read and forget the pending steps, add them to `epoch_means` and return their records.  A collective.

        One message sums the losses of all these steps over the ranks; without pending steps none is sent.
        """
        if not self._steps:
            return []
        losses = torch.stack([pending.outcome.loss_sum for pending in self._steps]).cpu()
        dist.all_reduce(losses)
        norms = torch.stack([pending.outcome.grad_norm for pending in self._steps]).tolist()
        now = time.monotonic()
        seconds_per_step = (now - self._since) / len(self._steps)
        samples_per_second = sum(pending.samples for pending in self._steps) / (now - self._since)
        shares = self._shares(now - self._since)
        records = []
        for pending, loss_sum, norm in zip(self._steps, losses.tolist(), norms, strict=True):
            epoch_means.loss_sum += loss_sum
            epoch_means.samples += pending.samples
            records.append(
                StepRecord(
                    epoch=pending.epoch,
                    step=pending.step,
                    loss=loss_sum / pending.samples,
                    lr=pending.lr,
                    samples=pending.samples,
                    time=pending.time,
                    seconds_per_step=round(seconds_per_step, 6),
                    samples_per_second=round(samples_per_second, 3),
                    grad_norm=norm if math.isfinite(norm) else None,
                    **shares,
                )
            )
        self._steps, self._since = [], now
        return records

    def _shares(self, seconds: float) -> dict[str, float]:
        """Return the share of the time that this rank has waited, for each cause, as far as its host can see it."""
        waited = waiting.take_seconds()
        shares = {"input_share": round(waited.get("input", 0.0) / seconds, 4)}
        if dist.get_world_size() == 1:
            shares["communication_share"] = 0.0
        elif "communication" in waited and self._steps[0].outcome.loss_sum.device.type == "cpu":
            # On CUDA the host does not wait: the stream does.
            shares["communication_share"] = round(waited["communication"] / seconds, 4)
        return shares


class WorthlessWeights(SharedError):
    """Error for weights that give no finite loss, so saving them helps nobody."""


def refuse_if_not_finite(loss: float, what: str) -> None:
    """Raise WorthlessWeights for a loss that is not finite.

    All ranks have the same sums, so all of them end here.
    """
    if not math.isfinite(loss):
        raise WorthlessWeights(
            f"the {what} is {loss}: training cannot continue. Try --clip-norm, --precision=fp32 or a lower --lr"
        )
