"""The heartbeat of a rank: one thread that says what the rank does, and warns when the run hangs.

It writes what the main thread does into the store of the job.  Nothing is read as long as steps end in time.  On rank 0
it also shows that this run owns its folders.
"""

import faulthandler
import json
import os
import socket
import statistics
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, TimeoutError
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch.distributed as dist

from train.collectives.call_site import call_site
from train.errors import UserError
from train.records.observer import Observer, StepRecord
from train.world.environment import World
from train.world.owner import Owner
from train.world.rendezvous import connect_to_store
from train.world.threads import in_thread

_BEAT_S, _SILENCE_S, _CONNECT = 3.0, 20.0, timedelta(seconds=60)
# A step is late after the longer of these: seconds, or half of the time after which the ranks give up, and steps.
_LATE_S, _LATE_STEPS = 15.0, 10
# While the main thread is in this file, torch.compile compiles, and no step is expected.
_COMPILES = "/torch/_dynamo/convert_frame.py"
# In these files a rank waits for other ranks.
_WAITING = ("/torch/distributed/", "/train/collectives/", "/train/cpu/shared_memory.py", "/train/ddp/reducer.py")
_SHOWN = 8


class Watchdog(Observer):
    """The observer on each rank that writes to stderr if no step ends for long.

    timeout_s: after which ranks give up; shortly before, it also writes the stacks of this process.
    expects: returns False while no step is expected: between two loops over batches, and during a save.
    owners: of the folders that this rank owns.
    """

    def __init__(
        self, world: World, timeout_s: float, expects: Callable[[], bool], owners: Sequence[Owner] = ()
    ) -> None:
        self._world, self._expects, self._owners = world, expects, owners
        self._beat_s, self._late_after_s = min(_BEAT_S, timeout_s / 10), min(_LATE_S, timeout_s / 2)
        self._stacks_s = 0.8 * timeout_s
        self._client = replace(world, store_is_served=True)  # by now it is, perhaps by rank 0
        self._main = threading.main_thread().ident
        self._step, self._since, self._durations = 0, time.monotonic(), deque[float](maxlen=50)
        self._warned = set[str]()
        self._stopped, self._lock, self._renewing = threading.Event(), threading.Lock(), Future[None]()
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
            self._renewing.result(_BEAT_S)

    def _renew(self) -> None:
        """Renew the owners in another thread, because a disk that hangs would stop this one."""

        def renew() -> None:
            for owner in self._owners:
                owner.renew()

        with self._lock:
            if self._renewing.done() and not self._stopped.is_set():
                self._renewing = in_thread(renew)

    def _run(self) -> None:
        several = self._world.world_size > 1
        connecting = in_thread(self._store) if several else None
        store: dist.Store | None = None
        looking: Future[bool] | None = None
        began = 0.0
        while True:
            self._renew()
            if connecting is not None and connecting.done():
                store, connecting = connecting.result(), None
            try:
                if store is not None:
                    # A TCPStore without its server prints a page of stack; a plain socket does not.
                    socket.create_connection((self._world.master_addr, self._world.master_port), _BEAT_S).close()
                    store.set(str(self._world.rank), json.dumps(self._sign()))
            except OSError:
                pass  # a link may come back
            except RuntimeError:
                store = None  # the main thread says why
            late_s = self._late_s() if several else 0.0
            if not late_s:
                looking = None
                self._warned.clear()
            elif store is not None and (looking is None or (looking.done() and not looking.result())):
                # In another thread, because a store that hangs would stop this one.
                looking, began = in_thread(partial(self._look, late_s)), time.monotonic()
            elif looking is not None and not looking.done() and time.monotonic() > began + _SILENCE_S:
                where = "the torchrun of rank 0's node" if self._world.launcher == "torchrun" else "rank 0"
                text = f"no step has ended for {late_s:.0f} s, and the store does not answer: it runs in {where}"
                self._warn_once(text, "store")
            if late_s > self._stacks_s and self._warn_once(
                f"rank {self._world.rank}: no step has ended for {late_s:.0f} s; the stacks of its threads:", "stacks"
            ):
                with suppress(OSError, ValueError, AttributeError):
                    faulthandler.dump_traceback(sys.__stderr__ or 2)
            if self._stopped.wait(self._beat_s):
                return

    def _store(self) -> dist.Store | None:
        """Return a connection that no other thread uses; None if there is no store any more."""
        with suppress(UserError):
            return dist.PrefixStore(f"alive-{self._client.store_attempt}", connect_to_store(self._client, _CONNECT))
        return None

    def _look(self, late_s: float) -> bool:
        """Compare the signs of all ranks with those of two beats later; return False if one of them is excused."""
        with suppress(RuntimeError):
            if (store := self._store()) is None:
                return True
            before = self._signs(store)
            self._stopped.wait(2 * self._beat_s)
            now = self._signs(store)
            if any(sign["excused"] for sign in now):
                return False
            # The first rank of those that are alive speaks.
            alive = [rank for rank, sign in enumerate(now) if sign != before[rank]]
            if alive[:1] == [self._world.rank] and self._late_s():
                self._warn_once(f"no step has ended for {late_s:.0f} s. {_judgement(before, now)}", "rank")
        return True

    def _signs(self, store: dist.Store) -> list[dict[str, Any]]:
        """Return the last sign of each rank.  One may have stopped before its first: `get` would wait for that."""
        keys = [str(rank) for rank in range(self._world.world_size)]
        missing = set[str]() if store.check(keys) else {key for key in keys if not store.check([key])}
        none = {"step": 1, "place": "", "waits": False, "excused": False}
        given = iter(store.multi_get([key for key in keys if key not in missing]))
        of = f"of {self._world.world_size}"
        return [{"who": f"rank {key} {of}", **none} if key in missing else json.loads(next(given)) for key in keys]

    def _warn_once(self, text: str, kind: str) -> bool:
        """Print a warning, once of each kind until the next step ends; return True if it was printed."""
        if kind in self._warned:
            return False
        self._warned.add(kind)
        print(f"warning: {text}", file=sys.stderr, flush=True)
        return True

    def _late_s(self) -> float:
        """Return for how long a step is overdue, since the last one; 0 if it is not, and before the first."""
        if not self._step:
            return 0.0
        if self._is_excused(self._frames()):
            self._since = time.monotonic()
        waited = time.monotonic() - self._since
        return waited if waited > max(self._late_after_s, _LATE_STEPS * statistics.median(self._durations)) else 0.0

    def _sign(self) -> dict[str, Any]:
        frames = self._frames()
        # Where the user's code is: the line in torch or in ours says less.
        inner = next(((frame, line) for frame, line in frames if "/torch/" not in frame.f_code.co_filename), None)
        is_ours = inner is not None and str(inner[0].f_globals.get("__name__")).startswith("train.")
        if is_ours and (site := call_site(reversed(frames))):
            place = f", in {site}"
        else:
            place = "" if inner is None else f" at {Path(inner[0].f_code.co_filename).name}:{inner[1]}"
        return {
            "time": time.monotonic(),
            "who": f"rank {self._world.rank} (node {self._world.node_rank}, {socket.gethostname()}, pid {os.getpid()})",
            "step": self._step + 1,
            "place": place,
            "waits": any(part in frame.f_code.co_filename for frame, _ in frames for part in _WAITING),
            "excused": self._is_excused(frames),
        }

    def _is_excused(self, frames: Sequence[tuple[FrameType, int]]) -> bool:
        return not self._expects() or any(_COMPILES in frame.f_code.co_filename for frame, _ in frames)

    def _frames(self) -> list[tuple[FrameType, int]]:
        """Return the frames of the main thread and their lines, the innermost first."""
        return [*traceback.walk_stack(sys._current_frames().get(self._main or 0))]


def _judgement(before: Sequence[dict[str, Any]], now: Sequence[dict[str, Any]]) -> str:
    silent = [sign for then, sign in zip(before, now, strict=True) if sign == then]
    busy = [sign for sign in now if not sign["waits"]]
    if silent:
        found = [f"{sign['who']} has given no sign of life since step {sign['step']}" for sign in silent]
        advice = "its process is stopped, swapped out or gone, or its node is"
    else:
        found = [f"{sign['who']} is in step {sign['step']}{sign['place']}" for sign in busy or now]
        advice = "the other ranks wait for it" if len(busy) == 1 else "py-spy dump --pid PID shows more"
        if not busy and len({sign["place"] for sign in now}) > 1:
            advice = "each waits for the others, so all ranks have to make the same calls"
    return "; ".join(found[:_SHOWN]) + f"{' …' * (len(found) > _SHOWN)}: {advice}"
