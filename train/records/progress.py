"""The progress that a person sees: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from train.config import setting
from train.records.metrics import in_words
from train.records.observer import EpochRecord, Observer, RunEnd, StepRecord


class Progress(Observer):
    """The observer that reports to a person.  Only rank 0 has one."""

    def __init__(self) -> None:
        self._epochs = self._steps_per_epoch = self._last_step = self._done = 0
        self._title = ""
        self._bar: Any = None
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
        if not self._title:
            epoch, self._done = divmod(step - 1, self._steps_per_epoch)
            self._title = f"epoch {epoch + 1}/{self._epochs}"
            if sys.stderr.isatty():
                from tqdm import tqdm  # here, because only a terminal needs it, and a user-chosen image may lack it

                total = self._steps_per_epoch
                self._bar = tqdm(desc=self._title, total=total, initial=self._done, unit="step", leave=False)
        if known:
            self._show(known, self._last_step - step)
        if step % self._steps_per_epoch == 0:
            self._close()

    def _show(self, known: Sequence[StepRecord], steps_left: int) -> None:
        self._done += len(known)
        self._steps += len(known)
        self._seconds += sum(record.seconds_per_step for record in known)
        last, loss = known[-1], sum(r.loss * r.samples for r in known) / sum(r.samples for r in known)
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {loss:.4f}, lr {last.lr:.3g}", refresh=False)
            self._bar.update(len(known))
            return
        say(
            f"{time.strftime('%H:%M:%S', time.localtime(last.time))}  {self._title}  "
            f"step {self._done}/{self._steps_per_epoch}  loss {loss:.4f}  lr {last.lr:.3g}  "
            f"{last.samples_per_second:.0f} samples/s  {in_hours(steps_left * self._seconds / self._steps)} left"
        )

    def incident(self, step: int, kind: str, text: str) -> None:
        if self._bar is not None:
            self._bar.clear()
        say(f"step {step}: {text}")

    def epoch_ended(self, record: EpochRecord) -> None:
        self._close()
        part = f" of {record.samples}/{record.samples_read} samples" if record.samples < record.samples_read else ""
        loss = "" if record.train_loss is None else f"train loss {record.train_loss:.4f}{part}  "
        words = {"val_loss": "validation loss {:.4f}  ", "val_accuracy": "accuracy {:.2%}  "}
        values = "".join(words.get(name, f"{name} {{:.4g}}  ").format(x) for name, x in record.values.items())
        say(f"epoch {record.epoch}/{self._epochs}  {loss}{values}{record.seconds:.1f} s")

    def run_ended(self, end: RunEnd) -> None:
        """Say how the run went, or where a signal has stopped it."""
        self._close()
        if end.weights_sha256 is None:
            again, folder = setting("resume", "auto"), setting("checkpoint_dir")
            say(
                f"stopped by a signal at epoch {end.epoch}, step {end.step}; "
                + (f"saved, {again} continues there" if end.saved else f"nothing is saved without {folder}")
            )
            return
        places = f"; {self._places}" if self._places else ""
        say(f"done after {in_hours(time.monotonic() - self._started)}{places}")

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._title, self._bar = "", None


def in_hours(seconds: float) -> str:
    """Return a duration as hours:minutes:seconds."""
    return str(timedelta(seconds=round(seconds)))


def say(text: str) -> None:
    """Print a line for a person to read, out at once even into a pipe."""
    print(text, flush=True)
