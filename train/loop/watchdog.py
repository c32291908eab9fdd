"""Signs of life of each rank during the steps, and a warning that names the rank for which the others wait.

A thread of each rank writes into the store what its main thread does.  Nothing is read as long as steps end in time.
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
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import torch.distributed as dist

from train.records.observer import Observer, RunEnd, StepRecord
from train.world.environment import World
from train.world.rendezvous import connect_to_store

_BEAT_S, _TICK_S = 3.0, 0.5
# A step is late after the longer of these.
_LATE_S, _LATE_STEPS = 15.0, 10
# While the main thread is in one of these functions, no step is expected.
_EXCUSED = {"save", "wait_until_saved", "save_after_failure", "convert_frame_assert", "_compile"}
# In these files a rank waits for other ranks.
_WAITING = ("/torch/distributed/", "/train/collectives/", "/train/cpu/shared_memory.py", "/train/ddp/reducer.py")
_SHOWN = 8


class Watchdog(Observer):
    """The observer, on each rank of several, that writes to stderr if no step ends for long.

    stacks_s: after this time, when the other ranks are about to give up, it also writes the stacks of this process.
    expects: returns False while no step is expected: between two loops over batches.
    """

    def __init__(self, world: World, stacks_s: float, expects: Callable[[], bool]) -> None:
        self._expects = expects
        self._world, self._stacks_s, self._main = world, stacks_s, threading.main_thread().ident
        self._step, self._durations = 0, deque[float](maxlen=50)
        self._since = self._answered = time.monotonic()
        self._stopped = threading.Event()
        for run in (self._beat, self._tick):
            threading.Thread(target=run, daemon=True).start()

    def step_ended(self, step: int, known: Sequence[StepRecord]) -> None:
        now = time.monotonic()
        self._durations.append(now - self._since)
        self._step, self._since = step, now

    def run_ended(self, end: RunEnd) -> None:
        self._stopped.set()

    def _late_s(self) -> float:
        """Return for how long a step is overdue, since the last one; 0 if it is not."""
        waited = time.monotonic() - self._since
        usual = statistics.median(self._durations) if self._durations else float("inf")
        return waited if waited > max(_LATE_S, _LATE_STEPS * usual) else 0.0

    def _tick(self) -> None:
        told = 0
        while not self._stopped.wait(_TICK_S):
            if self._is_excused(self._frames()):
                self._since = time.monotonic()
            late_s = self._late_s()
            if late_s and time.monotonic() - self._answered > 5 * _BEAT_S and told < 1:
                told = 1
                where = "the torchrun of rank 0's node" if self._world.launcher == "torchrun" else "rank 0"
                _warn(f"no step has ended for {late_s:.0f} s, and the store does not answer: it runs in {where}")
            if late_s > self._stacks_s and told < 2:
                told = 2
                _warn(f"rank {self._world.rank}: no step has ended for {late_s:.0f} s; the stacks of its threads:")
                with suppress(OSError, ValueError, AttributeError):
                    faulthandler.dump_traceback(sys.__stderr__ or 2)

    def _beat(self) -> None:
        before, told = dict[int, Any](), False
        with suppress(OSError, RuntimeError):  # the store is gone: the main thread says why
            world = replace(self._world, store_is_served=True)
            store = dist.PrefixStore(f"alive-{world.store_attempt}", connect_to_store(world, timedelta(seconds=60)))
            # At once, or others would wait for the key of a rank that stops now.
            store.set(str(world.rank), json.dumps(self._state()))
            while not self._stopped.wait(_BEAT_S):
                # A TCPStore without its server prints a page of stack; a plain socket does not.
                socket.create_connection((world.master_addr, world.master_port), _BEAT_S).close()
                store.set(str(world.rank), json.dumps(self._state()))
                late_s, now = self._late_s(), dict[int, Any]()
                if late_s:
                    # Only now: asking for an answer from a server that just ended prints the page, too.
                    store.check([str(world.rank)])
                if late_s and not told:
                    if before:  # compared only after two beats of all ranks
                        self._stopped.wait(_BEAT_S)
                    now = {rank: json.loads(store.get(str(rank))) for rank in range(world.world_size)}
                self._answered = time.monotonic()
                if any(state["excused"] for state in now.values()):
                    now = {}
                if before and now:
                    told = True
                    # The first rank of those that are alive speaks.
                    if world.rank == min(rank for rank in now if now[rank] != before[rank]):
                        _warn(f"no step has ended for {late_s:.0f} s. " + _judgement(before, now))
                before = now

    def _state(self) -> dict[str, Any]:
        frames = self._frames()
        # Where its own code or ours is: the line in torch says less.
        inner = next((frame for frame in frames if "/torch/" not in frame.f_code.co_filename), None)
        return {
            "time": time.monotonic(),
            "who": f"rank {self._world.rank} (node {self._world.node_rank}, {socket.gethostname()}, pid {os.getpid()})",
            "step": self._step + 1,
            "place": "" if inner is None else f"{Path(inner.f_code.co_filename).name}:{inner.f_lineno}",
            "waits": any(part in frame.f_code.co_filename for frame in frames for part in _WAITING),
            "excused": self._is_excused(frames),
        }

    def _is_excused(self, frames: Sequence[FrameType]) -> bool:
        return not self._expects() or any(frame.f_code.co_name in _EXCUSED for frame in frames)

    def _frames(self) -> list[FrameType]:
        """Return the frames of the main thread, the innermost first."""
        return [frame for frame, _ in traceback.walk_stack(sys._current_frames().get(self._main or 0))]


def _judgement(before: dict[int, Any], now: dict[int, Any]) -> str:
    silent = [state for rank, state in now.items() if state["time"] == before[rank]["time"]]
    busy = [state for state in now.values() if not state["waits"]]
    if silent:
        found = [f"{state['who']} has given no sign of life since step {state['step']}" for state in silent]
        advice = "its process is stopped, swapped out or gone, or its node is"
    else:
        found = [f"{state['who']} is in step {state['step']} at {state['place']}" for state in busy or now.values()]
        advice = "the other ranks wait for it" if len(busy) == 1 else "py-spy dump --pid PID shows more"
    return "; ".join(found[:_SHOWN]) + f"{' …' * (len(found) > _SHOWN)}: {advice}"


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)
