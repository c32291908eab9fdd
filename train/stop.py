"""Stopping on SIGTERM or SIGUSR1: one rank hears the signal, all ranks end after the same step.

A scheduler that takes a node back sends a signal and, some time later, SIGKILL.  Nothing is done inside the signal's
handler but to note it, so a second one in the middle of a save changes nothing.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""What schedulers and people send to ask for an end: Slurm the one that was asked for, all others SIGTERM."""

EXIT_STOPPED = 128 + signal.SIGTERM
"""Exit code of a run that was stopped: that of a program that a SIGTERM ended, whichever signal it was, and never 0,
so that whoever started it sees that there is more to do."""

# Between a signal and the next agreement of the ranks, as long as a step does not take longer itself.
_REACTION_S, _MOST_STEPS = 1.0, 32


class Stopped(Exception):
    """All ranks have raised this after the same step, because at least one of them was asked to stop."""


class StopSignal:
    """Whether this process was asked to stop.  Needs no torch: it is there before torch is imported."""

    def __init__(self) -> None:
        self.heard = False
        self._last: int | None = None

    def listen(self) -> None:
        """From now on the signals are noted and nothing else."""
        for number in SIGNALS:
            signal.signal(number, self._note)

    def let_through(self) -> None:
        """From now on the signals end the process at once; so does one that was noted before."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        if self._last is not None:
            os.kill(os.getpid(), self._last)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.heard, self._last = True, number


class StopAgreement:
    """Lets all ranks of a job learn after the same step that one of them has heard the signal.

    They ask each other once in `_REACTION_S`, not after each step: with the answer all hear how long the slowest
    rank's steps take, and so count the same number of steps until they ask again.  It is never more than
    `_MOST_STEPS`, because these may suddenly take longer.  What it costs is one all-reduce of two numbers.
    """

    def __init__(self, signal: StopSignal) -> None:
        self._signal = signal
        self.begin()

    def begin(self) -> None:
        """Steps of another length may follow: ask after the first one, then after two, four and so on."""
        self._interval = self._steps_left = 1
        self._since = time.monotonic()

    def reached(self) -> bool:
        """Whether all ranks stop here.  Call it on all of them, after each step."""
        self._steps_left -= 1
        if self._steps_left:
            return False
        # Here, because a signal is listened for before torch is imported.
        import torch
        import torch.distributed as dist

        step_s = (time.monotonic() - self._since) / self._interval
        told = torch.tensor([float(self._signal.heard), step_s], dtype=torch.float64)
        dist.all_reduce(told, op=dist.ReduceOp.MAX)
        stop, slowest_s = told.tolist()
        self._interval = max(1, min(2 * self._interval, _MOST_STEPS, int(_REACTION_S / slowest_s)))
        self._steps_left, self._since = self._interval, time.monotonic()
        return bool(stop)


def stop_with_parent() -> None:
    """Let Linux send this process a SIGTERM when its parent dies; elsewhere nothing happens.

    torchrun that is killed, or gets a signal it does not handle, leaves its processes training with no one to end them.
    """
    pr_set_pdeathsig = 1
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(pr_set_pdeathsig, signal.SIGTERM)
