"""What a person sees of a run: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from train.records.observer import EpochRecord, RunEnd, StepRecord
from train.records.start import in_words

if TYPE_CHECKING:
    from tqdm import tqdm

# Lines an epoch at most where there is no terminal, so that a log of many epochs stays readable.
_LINES = 10


class Progress:
    """The observer that reports to a person.  Only rank 0 has one."""

    def __init__(self) -> None:
        self._epochs = self._steps_per_epoch = 0
        self._epoch: _Epoch | None = None

    def run_started(self, start: dict[str, Any]) -> None:
        """Say where the ranks are and what the global batch means."""
        self._epochs = start["config"]["epochs"]
        self._steps_per_epoch = start["arithmetic"]["steps_per_epoch"]
        say("\n".join([*start["world"]["ranks"], in_words(start["arithmetic"])]))

    def step_ended(self, step: int, known: Sequence[StepRecord]) -> None:
        """Show the position and the mean of the losses that are known now."""
        if self._epoch is None:
            epoch, done = divmod(step - 1, self._steps_per_epoch)
            self._epoch = _Epoch(f"epoch {epoch + 1}/{self._epochs}", self._steps_per_epoch, done)
        if known:
            self._epoch.show(known)
        if step % self._steps_per_epoch == 0:
            self._close()

    def epoch_ended(self, record: EpochRecord) -> None:
        """Say the losses of the epoch."""
        self._close()
        say(
            f"epoch {record.epoch}/{self._epochs}  train loss {record.train_loss:.4f}  "
            f"validation loss {record.val_loss:.4f}  accuracy {record.val_accuracy:.2%}  {record.seconds:.1f} s"
        )

    def run_ended(self, end: RunEnd) -> None:
        """Say where a signal has stopped the run.  Batch scripts look for this line."""
        self._close()
        if end.weights_sha256 is None:
            say(
                f"stopped by a signal at epoch {end.epoch}, step {end.step}; "
                + ("saved, --resume=auto continues there" if end.saved else "nothing is saved without --checkpoint-dir")
            )

    def _close(self) -> None:
        if self._epoch is not None:
            self._epoch.close()
            self._epoch = None


class _Epoch:
    """The steps of one epoch.

    Args:
        title: shown in front, `epoch 1/3`.
        total, done: steps of the epoch, and those that an interrupted run has done already.
    """

    def __init__(self, title: str, total: int, done: int) -> None:
        self.title, self.total, self.done = title, total, done
        self._printed = done
        self._bar: tqdm[Any] | None = None
        if sys.stderr.isatty():
            # Imported here: only a terminal needs it, and a user-chosen image may lack it.
            from tqdm import tqdm

            self._bar = tqdm(desc=title, total=total, initial=done, unit="step", leave=False)

    def show(self, known: Sequence[StepRecord]) -> None:
        """Count the steps in `known`, and show the mean of their losses."""
        self.done += len(known)
        loss = sum(record.loss * record.samples for record in known) / sum(record.samples for record in known)
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {loss:.4f}", refresh=False)
            self._bar.update(len(known))
        elif self.done - self._printed >= self.total / _LINES:
            say(f"{self.title}  step {self.done}/{self.total}  loss {loss:.4f}")
            self._printed = self.done

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def say(text: str) -> None:
    """Print a line for a person to read, out at once even into a pipe."""
    print(text, flush=True)
