"""SIGTERM and SIGUSR1, by which a process is asked to stop.  train/collectives/agreement.py tells the other ranks.

A scheduler that preempts a job sends a signal and, some time later, SIGKILL.  The handler of a signal only notes it,
so a second signal in the middle of a save changes nothing.
"""

from __future__ import annotations

import ctypes
import os
import signal
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""What asks for an end: Slurm sends the signal that the job chose, everything else SIGTERM."""

EXIT_STOPPED = 128 + signal.SIGTERM
"""Exit code of a run that was stopped, whichever the signal: as if SIGTERM had ended the program.

Never 0, so that whoever started the run sees that there is more to do."""


class StopSignal:
    """Notes whether this process was asked to stop.  Needs no torch, because it starts before torch is imported."""

    def __init__(self) -> None:
        self.heard = False
        self._last: int | None = None

    def listen(self) -> None:
        """Only note the signals from now on."""
        for number in SIGNALS:
            signal.signal(number, self._note)

    def let_through(self) -> None:
        """Let the signals end the process at once; one that was noted before ends it now."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        if self._last is not None:
            os.kill(os.getpid(), self._last)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.heard, self._last = True, number


def stop_with_parent() -> None:
    """Let Linux send this process a SIGTERM when its parent dies; elsewhere nothing happens.

    torchrun that is killed, or gets a signal it does not handle, leaves its processes training with no one to end them.
    """
    pr_set_pdeathsig = 1
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(pr_set_pdeathsig, signal.SIGTERM)
