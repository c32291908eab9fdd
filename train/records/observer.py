"""What a run reports while it trains, and to whom: the one seam for records, progress and whatever else follows a run.

An observer is given to the Trainer in a list; a new one changes nothing in the training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step, once its loss is known.

    epoch, step: from 1; `step` counts over all epochs.
    loss: mean over the global batch; samples: how many it has.
    time: when the host had started all work of the step, in seconds since 1970.
    seconds_per_step, samples_per_second: means over the steps whose losses were read together.
    grad_norm: norm of the whole gradient before it was clipped; None if it is not finite.
    input_share, communication_share: parts of seconds_per_step in which rank 0's host waited for its batch, and for the
        gradients of other ranks.  None if they are unknown, as the second one is on CUDA and with native DDP.
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


@dataclass(frozen=True)
class EpochRecord:
    """One epoch and its evaluation: means over samples, each sample once, whatever the world size.

    step: steps of the run so far; samples: training samples read; train_seconds: `seconds` without the evaluation.
    """

    epoch: int
    step: int
    train_loss: float
    val_loss: float
    val_accuracy: float
    samples: int
    seconds: float
    train_seconds: float


@dataclass(frozen=True)
class Incident:
    """Something rare that changed the course of a run, all ranks together.

    step: the one it happened at; kind: one word for programs; text: a sentence for people.
    """

    step: int
    kind: str
    text: str


@dataclass(frozen=True)
class RunEnd:
    """Where a run has ended.

    saved: the run has --checkpoint-dir, so a checkpoint of this step is written.
    weights_sha256: hash of the final weights; None if a signal stopped the run before its end.
    measured: numbers that the strategy has measured, by name.
    """

    epoch: int
    step: int
    saved: bool
    weights_sha256: str | None
    measured: dict[str, float] = field(default_factory=dict)


class Observer(Protocol):
    """Follows a run on one rank.  No method may run collectives: other ranks may have other observers."""

    def run_started(self, start: dict[str, Any]) -> None:
        """The processes have met.  `start` is what train.records.start.start_record() returns."""
        ...

    def step_ended(self, step: int, known: Sequence[StepRecord]) -> None:
        """Step `step` has just ended on the host.

        `known` holds the steps, up to this one, whose losses have been read now.  Losses stay on the device until
        `--log-every` of them are read at once, so `known` is empty after most steps.  A skipped step has no record.
        """
        ...

    def incident(self, incident: Incident) -> None:
        """Something rare has happened at a step, before step_ended() of it."""
        ...

    def epoch_ended(self, record: EpochRecord) -> None:
        """An epoch has been trained and evaluated; its checkpoint is not yet saved."""
        ...

    def run_ended(self, end: RunEnd) -> None:
        """The run has reached its end or was stopped by a signal.  Not called after an error."""
        ...


class QuietObserver(Observer):
    """An observer that does nothing: the base of those that follow only some of what happens."""

    def run_started(self, start: dict[str, Any]) -> None:
        pass

    def step_ended(self, step: int, known: Sequence[StepRecord]) -> None:
        pass

    def incident(self, incident: Incident) -> None:
        pass

    def epoch_ended(self, record: EpochRecord) -> None:
        pass

    def run_ended(self, end: RunEnd) -> None:
        pass
