"""SIGTERM, SIGUSR1 and Ctrl-C: requests to stop.  train/collectives/agreement.py passes them on to other ranks.

A scheduler that preempts a job sends a signal and, some time later, SIGKILL.  The handler of a signal only notes it,
so a second signal in the middle of a save changes nothing.  Only a second Ctrl-C ends the process at once, because a
person wants to end it now.
"""

import ctypes
import os
import signal
from collections.abc import Callable
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
"""Signals that ask for an end: Slurm sends the one that the job chose, a terminal SIGINT, and everyone else SIGTERM."""

EXIT_STOPPED = 128 + signal.SIGTERM
"""Exit code of a run that any signal has stopped: the same as if SIGTERM had ended the program.

Never 0, so that the program that started the run sees that there is more to do."""

_STDERR = 2


class StopSignal:
    """Notes whether this process was asked to stop.  Needs no torch, because it starts before torch is imported."""

    def __init__(self) -> None:
        self.heard = False
        self._last: int | None = None
        self._interrupted = self._answers = False

    def listen(self, answers: bool = False) -> None:
        """Only note the signals from now on; the first Ctrl-C is answered with a line if `answers`."""
        self._answers = answers
        self._handle(self._note)

    def let_through(self) -> None:
        """Let the signals end the process at once; one that was noted before ends it now."""
        self._handle(signal.SIG_DFL)
        if self._last is not None:
            os.kill(os.getpid(), self._last)

    def _handle(self, handler: signal.Handlers | Callable[[int, FrameType | None], None]) -> None:
        for number in SIGNALS:
            # A shell lets its background programs ignore Ctrl-C, which is meant for the program in the foreground.
            if number != signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.heard, self._last = True, number
        if number == signal.SIGINT:
            if self._interrupted:
                self.let_through()
            self._interrupted = True
            if self._answers:
                # Not print: the signal may have come in the middle of one.
                os.write(_STDERR, b"\nstopping after this step; Ctrl-C again ends at once\n")


def stop_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """Let Linux send this process a signal when its parent dies: processes outlive their torchrun."""
    pr_set_pdeathsig = 1
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(pr_set_pdeathsig, number)
