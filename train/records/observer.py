"""Observers of a run: the one interface for records, progress and whatever else follows a run."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step, once its loss is known.

    epoch, step: from 1; `step` counts over all epochs.
    loss: mean over the global batch; samples: how many it has.
    time: when the host had started all work of the step, in seconds since 1970.
    seconds_per_step, samples_per_second: means over the steps whose losses were read together.
    grad_norm: norm of the whole gradient before it was clipped; None if it is not finite.
    input_share, communication_share: parts of seconds_per_step in which rank 0's host waited for its batch, and for the
        gradients of other ranks.  None if unknown: communication_share is unknown on CUDA and with native DDP.
    values: what run.record() added, means over the global batch.
    """

    epoch: int
    step: int
    loss: float
    lr: float
    samples: int
    time: float
    seconds_per_step: float
    samples_per_second: float
    grad_norm: float | None
    input_share: float | None = None
    communication_share: float | None = None
    values: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class EpochRecord:
    """One epoch and its evaluation: means over samples, each sample once, whatever the world size.

    step: steps of the run so far; train_loss: None if no step had a loss; samples: training samples in train_loss.
    samples_read: all of the epoch so far, also of skipped steps and of steps whose losses a failure has lost.
    train_seconds: `seconds` without the evaluation after the steps; values: what run.record() added, such as val_loss.
    """

    epoch: int
    step: int
    train_loss: float | None
    values: dict[str, float]
    samples: int
    samples_read: int
    seconds: float
    train_seconds: float


def own_names(record: type[StepRecord] | type[EpochRecord]) -> set[str]:
    """Return the names in a line of metrics.jsonl that run.record() cannot add."""
    return {"event", "time", *(field.name for field in fields(record))} - {"values"}


@dataclass(frozen=True)
class RunEnd:
    """The point at which a run has ended; saved: a checkpoint of this step is written.

    weights_sha256: hash of the final weights; None if a signal stopped the run before its end.
    """

    epoch: int
    step: int
    saved: bool
    weights_sha256: str | None


class Observer:
    """Follows a run on one rank, as the methods say that a subclass has; the others do nothing.

    No method may run collectives: other ranks may have other observers.
    """

    def run_started(self, start: dict[str, Any]) -> None:
        """Called when the processes have met.  `start` is what train.records.metrics.start_record() returns."""

    def step_ended(self, step: int, known: Sequence[StepRecord]) -> None:
        """Called when a step has ended on the host; known: the steps, up to this one, whose losses were read now.

        Losses stay on the device until `--log-every` of them are read at once.  A skipped step has no record.
        """

    def incident(self, step: int, kind: str, text: str) -> None:
        """Called for a rare event on all ranks, before step_ended() of its step; kind: one word, for programs."""

    def epoch_ended(self, record: EpochRecord) -> None:
        """Called when an epoch has been trained and evaluated; its checkpoint is not yet saved."""

    def run_ended(self, end: RunEnd) -> None:
        """Called when the run has reached its end or was stopped by a signal, but not after an error."""
