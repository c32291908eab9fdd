"""The heartbeat of a run: warns if no step ends for long; on rank 0 it also shows that this run owns its folders."""

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, TimeoutError
from contextlib import suppress

from train.collectives.call_site import call_site
from train.loop.heartbeat import BEAT_S, Heartbeat, Sign
from train.records.observer import Observer, StepRecord
from train.world.environment import World
from train.world.owner import Owner
from train.world.threads import in_thread

# A step is late after the longer of these: seconds, or half of the time after which the ranks give up, and steps.
_LATE_S, _LATE_STEPS = 15.0, 10


class Watchdog(Heartbeat, Observer):
    """The observer on each rank that writes to stderr if no step ends for long.

    timeout_s: after which ranks give up; shortly before, it also writes the stacks of this process.
    expects: returns False while no step is expected: between two loops over batches, and during a save.
    owners: of the folders that this rank owns.
    """

    def __init__(
        self, world: World, timeout_s: float, expects: Callable[[], bool], owners: Sequence[Owner] = ()
    ) -> None:
        super().__init__(world, min(BEAT_S, timeout_s / 10), 0.8 * timeout_s)
        self._expects, self._owners = expects, owners
        self._late_after_s = min(_LATE_S, timeout_s / 2)
        self._step, self._durations = 0, deque[float](maxlen=50)
        self._lock, self._renewing = threading.Lock(), Future[None]()
        self._renewing.set_result(None)
        if owners or world.world_size > 1:
            threading.Thread(target=self._run, daemon=True).start()

    def step_ended(self, step: int, known: Sequence[StepRecord]) -> None:
        now = time.monotonic()
        self._durations.append(now - self._since)
        self._step, self._since = step, now

    def stop(self) -> None:
        """End the thread; when this returns, no owner is being renewed, unless its disk does not answer."""
        with self._lock:
            self._stopped.set()
        with suppress(TimeoutError):
            self._renewing.result(BEAT_S)

    def _renew(self) -> None:
        """Renew the owners in another thread, because a disk that hangs would stop this one."""

        def renew() -> None:
            for owner in self._owners:
                owner.renew()

        with self._lock:
            if self._renewing.done() and not self._stopped.is_set():
                self._renewing = in_thread(renew)

    def _late_s(self) -> float:
        """Return for how long a step is overdue, since the last one; 0 if it is not, and before the first."""
        if not self._step:
            return 0.0
        if super()._sign()["excused"] or not self._expects():
            self._since = time.monotonic()
        waited = time.monotonic() - self._since
        return waited if waited > max(self._late_after_s, _LATE_STEPS * statistics.median(self._durations)) else 0.0

    def _sign(self) -> Sign:
        frames, sign = self._frames(), super()._sign()
        if sign["module"].startswith("train.") and (site := call_site(reversed(frames))):
            sign["place"] = f", in {site}"
        step = f"step {self._step + 1}"
        return {**sign, "since": step, "does": f"is in {step}", "excused": sign["excused"] or not self._expects()}
