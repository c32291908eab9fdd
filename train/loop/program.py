"""The program around a Run in one's own loop: how it ends by itself, by an error and by a signal."""

import atexit
import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from types import TracebackType

import torch.distributed as dist

from train.collectives import missing_ranks
from train.errors import UserError, leave, report
from train.loop.batch_loop import BatchLoop
from train.records.progress import say
from train.world.signals import EXIT_STOPPED

_IDLE_S = 0.2


class Program:
    """The context in which Run() connects the processes; after it, the program ends as a run has to."""

    def __init__(self) -> None:
        if dist.is_initialized():
            message = "Run() connects the processes, but they are connected already: make one Run in a process, "
            raise UserError(f"{message}and leave out torch.distributed.init_process_group()")
        self._loop: BatchLoop | None = None

    def __enter__(self) -> "Program":
        return self

    def has(self, loop: BatchLoop, close: Callable[[], None]) -> None:
        """Take over the end of a run; close: ends all that it holds open."""
        self._loop, self._close = loop, close
        loop.on_stop = lambda: atexit.register(self._leave_stopped)  # runs before what was registered earlier

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        # Only now: torch wraps the hook that it finds, and ours must come outside of that.
        self._excepthook, sys.excepthook = sys.excepthook, self._fail
        if error is None:
            atexit.register(self._leave)

    def _leave(self) -> None:
        loop = self._loop
        assert loop is not None
        if loop.saving.world.rank == 0 and loop.records.epoch_began is not None:
            lost = "the loop over run.epochs() was left early, so its last epoch is neither recorded nor saved"
            say(f"{lost}: call run.end() on all ranks before `break`")
        loop.leave()
        self._close()
        # A thread of gloo that still freed a tensor while Python shuts down would abort the process.
        time.sleep(_IDLE_S)

    def _leave_stopped(self) -> None:
        assert self._loop is not None
        self._loop.saving.files.close()
        leave(EXIT_STOPPED)

    def _fail(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Report an uncaught error, save what can be saved, and end at once: other ranks may be gone."""
        sys.excepthook = self._excepthook
        if not isinstance(error, Exception):
            sys.excepthook(kind, error, trace)
            os._exit(130)
        connected = missing_ranks.naming_missing_ranks() if dist.is_initialized() else nullcontext()
        try:
            with connected if self._loop is None else self._loop.saved_after_failure():
                raise error
        except Exception as named:
            error = error.with_traceback(trace) if named is error else named
        report(error)
        leave(1)
