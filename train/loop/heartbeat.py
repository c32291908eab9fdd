"""The heartbeat of a rank: one thread that writes what the main thread does into the store of the job.

Nothing is read before a rank is late; then the first rank that is alive says who hangs.  `train.loop.watchdog` knows
steps, and `jobspec.watch` the collectives of a script that sets variables before torch is imported, so not here.
"""

from __future__ import annotations

import faulthandler
import json
import os
import socket
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from train.world.threads import in_thread

if TYPE_CHECKING:
    from torch.distributed import Store

    from train.world.environment import World

BEAT_S, _SILENCE_S, _CONNECT = 3.0, 20.0, timedelta(seconds=60)
# While the main thread is in this file, torch.compile compiles, and no progress is expected.
_COMPILES = "/torch/_dynamo/convert_frame.py"
# In these files a rank waits for other ranks, and in DDP's own lines for buffers.
BUFFERS = "/torch/nn/parallel/distributed.py"
_WAITING = ("/torch/distributed/", "/train/collectives/", "/train/cpu/shared_memory.py", "/train/ddp/reducer.py")
_SHOWN = 8  # ranks in one warning
Sign = dict[str, Any]


class Heartbeat(ABC):
    """The thread of a rank.  Subclasses say when a rank is late.

    beat_s: time between two signs.  stacks_s: after this time a late rank also writes the stacks of its threads.
    """

    what = "no step has ended"

    def __init__(self, world: World, beat_s: float, stacks_s: float) -> None:
        self._world, self._beat_s, self._stacks_s = world, beat_s, stacks_s
        self._main = threading.main_thread().ident
        self._since = time.monotonic()
        self._warned = set[str]()
        self._stopped = threading.Event()

    @abstractmethod
    def _late_s(self) -> float:
        """Return for how long this rank has made no progress; 0 if it is not late."""

    def _found(self, text: str, speaks: bool) -> None:
        """Report a hang; speaks: True on the first rank that is alive."""
        if speaks:
            self._warn_once(text, "rank")

    @abstractmethod
    def _renew(self) -> None:
        """Do what is due at each beat."""

    def _run(self) -> None:
        several = self._world.world_size > 1
        connecting = in_thread(self._store) if several else None
        store: Store | None = None
        looking: Future[bool] | None = None
        began = 0.0
        while True:
            self._renew()
            if connecting is not None and connecting.done():
                store, connecting = connecting.result(), None
                if store is None:
                    print("warning: no store at MASTER_ADDR:MASTER_PORT, so a hang is not reported", file=sys.stderr)
            try:
                if store is not None:
                    socket.create_connection((self._world.master_addr, self._world.master_port), BEAT_S).close()
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
                where = "the torchrun of rank 0's node" if self._world.store_is_served else "rank 0"
                text = f"{self.what} for {late_s:.0f} s, and the store does not answer: it runs in {where}"
                self._warn_once(text, "store")
            if late_s > self._stacks_s and self._warn_once(
                f"rank {self._world.rank}: {self.what} for {late_s:.0f} s; the stacks of its threads:", "stacks"
            ):
                with suppress(OSError, ValueError, AttributeError):
                    faulthandler.dump_traceback(sys.__stderr__ or 2)
            if self._stopped.wait(self._beat_s):
                return

    def _store(self) -> Store | None:
        """Return a connection that no other thread uses; None if there is no store any more."""
        import torch.distributed as dist

        address = (self._world.master_addr, self._world.master_port)
        with suppress(OSError, RuntimeError):
            # A TCPStore without its server prints a page of stack; a plain socket does not.
            socket.create_connection(address, BEAT_S).close()
            store = dist.TCPStore(*address, timeout=_CONNECT, wait_for_workers=False)
            return dist.PrefixStore(f"alive-{self._world.store_attempt}", store)
        return None

    def _look(self, late_s: float) -> bool:
        """Compare the signs of all ranks with those of three beats later; return False if one of them is excused."""
        with suppress(RuntimeError):
            if (store := self._store()) is None:
                return True
            before = self._signs(store)
            self._stopped.wait(3 * self._beat_s)
            now = self._signs(store)
            alive = [rank for rank, sign in enumerate(now) if sign != before[rank]]
            if any(now[rank]["excused"] for rank in alive):
                return False
            if self._late_s():
                text = f"{self.what} for {late_s:.0f} s. {self._judgement(before, now)}"
                self._found(text, speaks=alive[:1] == [self._world.rank])
        return True

    def _signs(self, store: Store) -> list[Sign]:
        """Return the last sign of each rank.  One may have stopped before its first: `get` would wait for that."""
        keys = [str(rank) for rank in range(self._world.world_size)]
        missing = set[str]() if store.check(keys) else {key for key in keys if not store.check([key])}
        none = {"since": "its start", "does": "has not begun", "place": "", "waits": False, "excused": False}
        given = iter(store.multi_get([key for key in keys if key not in missing]))
        of = f"of {self._world.world_size}"
        return [{"who": f"rank {key} {of}", **none} if key in missing else json.loads(next(given)) for key in keys]

    def _judgement(self, before: Sequence[Sign], now: Sequence[Sign]) -> str:
        """Return who hangs, from the signs of all ranks: those of three beats before, and the last ones."""
        silent = [sign for then, sign in zip(before, now, strict=True) if sign == then]
        busy, places = self._busy(now), [sign["place"] for sign in now]
        if silent:
            found = [f"{sign['who']} has given no sign of life since {sign['since']}" for sign in silent]
            advice = "its process is stopped, swapped out or gone, or its node is"
        else:
            all_wait = all(sign["waits"] for sign in now) and len(busy) != 1
            odd_ones_first = sorted(now if all_wait else busy, key=lambda sign: places.count(sign["place"]))
            found = [f"{sign['who']} {sign['does']}{sign['place']}" for sign in odd_ones_first]
            advice = "py-spy dump --pid PID shows more"
            if len(busy) == 1:
                calls = [sign.get("call", "") for sign in now if sign["waits"]]
                advice = f"the other ranks wait for it{''.join(calls[:1])}"
            elif all_wait and len(set(places)) > 1:
                advice = "each waits for the others, so all ranks have to make the same calls"
        return "; ".join(found[:_SHOWN]) + f"{' …' * (len(found) > _SHOWN)}: {advice}"

    def _busy(self, now: Sequence[Sign]) -> list[Sign]:
        """Return the signs of the ranks for which the others wait."""
        return [sign for sign in now if not sign["waits"]]

    def _warn_once(self, text: str, kind: str) -> bool:
        """Print a warning, once of each kind until there is progress; return True if it was printed."""
        if kind in self._warned:
            return False
        self._warned.add(kind)
        print(f"warning: {text}", file=sys.stderr, flush=True)
        return True

    def _sign(self) -> Sign:
        """Return what this rank does; `place` is where the user's code is: the line in torch says less."""
        frames = self._frames()
        inner = next(((frame, line) for frame, line in frames if "/torch/" not in frame.f_code.co_filename), None)
        return {
            "time": time.monotonic(),
            "who": f"rank {self._world.rank} (node {self._world.node_rank}, {socket.gethostname()}, pid {os.getpid()})",
            "place": "" if inner is None else f" at {Path(inner[0].f_code.co_filename).name}:{inner[1]}",
            "module": str(inner[0].f_globals.get("__name__")) if inner else "",
            "waits": BUFFERS in frames[0][0].f_code.co_filename
            or any(part in frame.f_code.co_filename for frame, _ in frames for part in _WAITING),
            "excused": any(_COMPILES in frame.f_code.co_filename for frame, _ in frames),
        }

    def _frames(self) -> list[tuple[FrameType, int]]:
        """Return the frames of the main thread and their lines, the innermost first."""
        return [*traceback.walk_stack(sys._current_frames().get(self._main or 0))]
