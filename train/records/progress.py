"""The progress that a person sees: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from train.records.observer import EpochRecord, Incident, Observer, RunEnd, StepRecord
from train.records.start import in_words

if TYPE_CHECKING:
    from tqdm import tqdm


class Progress(Observer):
    """The observer that reports to a person.  Only rank 0 has one."""

    def __init__(self) -> None:
        self._epochs = self._steps_per_epoch = self._last_step = 0
        self._epoch: _Epoch | None = None
        self._seconds, self._steps = 0.0, 0  # of the steps of this start
        self._places = ""
        self._started = time.monotonic()

    def run_started(self, start: dict[str, Any]) -> None:
        config = start["config"]
        self._epochs = config["epochs"]
        self._steps_per_epoch = start["arithmetic"]["steps_per_epoch"]
        self._last_step = min(self._epochs * self._steps_per_epoch, config["max_steps"] or sys.maxsize)
        kept = {"records": config["run_dir"], "checkpoints": config["checkpoint_dir"]}
        self._places = ", ".join(f"{what} in {folder}" for what, folder in kept.items() if folder)
        say("\n".join([*start["world"]["ranks"], in_words(start["arithmetic"])]))

    def step_ended(self, step: int, known: Sequence[StepRecord]) -> None:
        """Show the position, the mean of the losses that are known now, and how long the rest will take."""
        if self._epoch is None:
            epoch, done = divmod(step - 1, self._steps_per_epoch)
            self._epoch = _Epoch(f"epoch {epoch + 1}/{self._epochs}", self._steps_per_epoch, done)
        if known:
            self._steps += len(known)
            self._seconds += sum(record.seconds_per_step for record in known)
            self._epoch.show(known, (self._last_step - step) * self._seconds / self._steps)
        if step % self._steps_per_epoch == 0:
            self._close()

    def incident(self, incident: Incident) -> None:
        if self._epoch is not None:
            self._epoch.clear()
        say(f"step {incident.step}: {incident.text}")

    def epoch_ended(self, record: EpochRecord) -> None:
        self._close()
        part = f" of {record.samples}/{record.samples_read} samples" if record.samples < record.samples_read else ""
        loss = "" if record.train_loss is None else f"train loss {record.train_loss:.4f}{part}  "
        values = "".join(_named(name, value) for name, value in record.values.items())
        say(f"epoch {record.epoch}/{self._epochs}  {loss}{values}{record.seconds:.1f} s")

    def run_ended(self, end: RunEnd) -> None:
        """Say how the run went, or where a signal has stopped it.  Batch scripts look for the line about a signal."""
        self._close()
        if end.weights_sha256 is None:
            say(
                f"stopped by a signal at epoch {end.epoch}, step {end.step}; "
                + ("saved, --resume=auto continues there" if end.saved else "nothing is saved without --checkpoint-dir")
            )
            return
        best = f"; best accuracy {end.best.accuracy:.2%} in epoch {end.best.epoch}" if end.best else ""
        places = f"; {self._places}" if self._places else ""
        say(f"done after {in_hours(time.monotonic() - self._started)}{best}{places}")

    def _close(self) -> None:
        if self._epoch is not None:
            self._epoch.close()
            self._epoch = None


class _Epoch:
    """The display of one epoch's steps.

    Args:
        title: shown in front, `epoch 1/3`.
        total, done: steps of the epoch, and those that an interrupted run has done already.
    """

    def __init__(self, title: str, total: int, done: int) -> None:
        self.title, self.total, self.done = title, total, done
        self._bar: tqdm[Any] | None = None
        if sys.stderr.isatty():
            # Imported here: only a terminal needs it, and a user-chosen image may lack it.
            from tqdm import tqdm

            self._bar = tqdm(desc=title, total=total, initial=done, unit="step", leave=False)

    def show(self, known: Sequence[StepRecord], seconds_left: float) -> None:
        """Count the steps in `known`; show the mean of their losses, and the last step's other values."""
        last = known[-1]
        self.done += len(known)
        loss = sum(record.loss * record.samples for record in known) / sum(record.samples for record in known)
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {loss:.4f}, lr {last.lr:.3g}", refresh=False)
            self._bar.update(len(known))
        else:
            say(
                f"{time.strftime('%H:%M:%S', time.localtime(last.time))}  {self.title}  step {self.done}/{self.total}  "
                f"loss {loss:.4f}  lr {last.lr:.3g}  {last.samples_per_second:.0f} samples/s  "
                f"{in_hours(seconds_left)} left"
            )

    def clear(self) -> None:
        if self._bar is not None:
            self._bar.clear()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def in_hours(seconds: float) -> str:
    """Return a duration as hours:minutes:seconds."""
    return str(timedelta(seconds=round(seconds)))


def say(text: str) -> None:
    """Print a line for a person to read, out at once even into a pipe."""
    print(text, flush=True)


def _named(name: str, value: float) -> str:
    words = {"val_loss": f"validation loss {value:.4f}", "val_accuracy": f"accuracy {value:.2%}"}
    return words.get(name, f"{name} {value:.4g}") + "  "
