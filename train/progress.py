"""What a person sees of a run: a bar on a terminal, plain lines elsewhere, nothing on ranks other than 0."""

from __future__ import annotations

import sys

from tqdm import tqdm

# Lines an epoch at most where there is no terminal, so that a log of many epochs stays readable.
_LINES = 10


class Progress:
    """The steps of one epoch.

    Args:
        title: shown in front, `epoch 1/3`.
        total, done: steps of the epoch, and those that an interrupted run has done already.
        shown: False keeps it silent.
    """

    def __init__(self, title: str, total: int, done: int, shown: bool) -> None:
        self.title, self.total, self.done = title, total, done
        self._shown = shown
        self._printed = done
        self._bar = None
        if shown and sys.stderr.isatty():
            self._bar = tqdm(desc=title, total=total, initial=done, unit="step", leave=False)

    def update(self, steps: int, loss: float) -> None:
        """`steps` more are done; `loss` is the mean of their losses."""
        self.done += steps
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {loss:.4f}", refresh=False)
            self._bar.update(steps)
        elif self._shown and self.done - self._printed >= self.total / _LINES:
            say(f"{self.title}  step {self.done}/{self.total}  loss {loss:.4f}")
            self._printed = self.done

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def say(text: str) -> None:
    """A line for a person to read, out at once even into a pipe."""
    print(text, flush=True)
