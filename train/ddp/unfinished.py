"""Names the gradient buckets of a collective that hangs, on backends whose `wait()` returns at once.

On NCCL only the device waits, so no error ever reaches CustomDDP.  torch's watchdog ends the process; it knows ranks
but no parameters.  Before that, a thread here prints the parameters of the collectives that backward left unfinished.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
import torch.distributed as dist

from train.collectives.missing_ranks import reports
from train.ddp.refusals import bucket_in_words
from train.sync import Waitable

_POLL_S = 1.0


@dataclass
class _Unfinished:
    names: Sequence[str]
    position: str
    work: Waitable
    since: float


class UnfinishedBuckets:
    """Writes one paragraph to stderr if a collective has not ended within half of the timeout of `group`.

    The thread starts with the first collective that is still running when backward returns: never on gloo.  The
    thread only polls.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group
        self._waiting: deque[_Unfinished] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def watch(self, names: Sequence[str], position: str, work: Waitable | None) -> None:
        """Watch `work`, which averages the gradients of `names`; `position` says where in the training."""
        self._drop_finished()
        if work is None or work.is_completed():
            return
        self._waiting.append(_Unfinished(names, position, work, time.monotonic()))
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, args=(self._limit_s(),), daemon=True)
            self._thread.start()

    def _limit_s(self) -> float:
        assert self._group is not None
        for device in ("cuda", "cpu"):
            try:
                backend = self._group._get_backend(torch.device(device))
            except RuntimeError:
                continue
            return float(backend.options._timeout.total_seconds()) / 2
        return 150.0

    def _look(self, limit_s: float) -> None:
        while True:
            time.sleep(min(_POLL_S, limit_s / 4))
            self._drop_finished()
            with suppress(IndexError):
                if time.monotonic() - self._waiting[0].since > limit_s:
                    self._report(self._waiting[0])

    def _report(self, oldest: _Unfinished) -> None:
        waited_s = time.monotonic() - oldest.since
        what = f"{bucket_in_words(oldest.names, oldest.position)} are not averaged after {waited_s:.0f} s"
        print("\n".join([what, *reports(oldest.position, self._group)]), file=sys.stderr, flush=True)
        # Later collectives wait for this one.
        while not oldest.work.is_completed():
            time.sleep(_POLL_S)

    def _drop_finished(self) -> None:
        """Drop each work that is done, because it keeps its tensors alive."""
        with self._lock:
            while self._waiting and self._waiting[0].work.is_completed():
                self._waiting.popleft()
