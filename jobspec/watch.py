"""Run any script, and name the rank that hangs: `python -m jobspec.watch 600 mine.py --lr 0.1`.

A rank makes progress if it calls a collective, or if its main thread has moved since a few seconds ago.  After 600 s
without progress on any rank the job ends, and its launcher may restart it.
"""

import faulthandler
import os
import runpy
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import jobspec.train  # noqa: F401  our package, also beside a train.py
from train.errors import record_for_torchrun
from train.loop.heartbeat import BEAT_S, BUFFERS, Heartbeat, Sign
from train.world.environment import World

# In these files Python waits in a loop: movements there are no progress.
_POLLING = ("/threading.py", "/queue.py", "/selectors.py", "/subprocess.py", "/multiprocessing/", "/torch/utils/data/")
_BACKWARD = "_engine_run_backward"  # runs a backward in C++, where DDP waits


class Watch(Heartbeat):
    """The thread of a rank.  limit_s: how long no rank may make progress."""

    what = "no rank has made progress"

    def __init__(self, world: World, limit_s: float) -> None:
        super().__init__(world, min(BEAT_S, limit_s / 10), float("inf"))
        self._limit_s = limit_s
        self._seen: object = None
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while "torch.distributed.distributed_c10d" not in sys.modules or not _dist().is_initialized():
            time.sleep(self._beat_s)
        super()._run()

    def _renew(self) -> None:
        """Look at the main thread for 0.2 s: a loop may spend most of its time at one line."""
        places = set()
        for _ in range(50):
            codes = [(frame.f_code, frame.f_lasti) for frame, _ in self._frames()]
            places.add(tuple(code for code in codes if not any(part in code[0].co_filename for part in _POLLING)))
            time.sleep(0.004)
        seen = _calls(), places
        if seen != self._seen or len(places) > 1:
            self._seen, self._since = seen, time.monotonic()

    def _late_s(self) -> float:
        waited = time.monotonic() - self._since
        return waited if waited > self._limit_s else 0.0

    def _sign(self) -> Sign:
        sign, calls, code = super()._sign(), _calls(), self._frames()[0][0].f_code
        waits = any(part in code.co_filename for part in ("/torch/distributed/", BUFFERS)) or code.co_name == _BACKWARD
        sign |= {"waits": waits, "calls": calls}
        sign["excused"] = sign["excused"] or not self._late_s()
        sign["since"] = f"collective call {sum(calls.values())}"
        sign["does"] = f"{'waits in' if sign['waits'] else 'is past'} {sign['since']}"
        sign["call"] = f" in {code.co_name.removeprefix('_engine_run_')}{sign['place']}"
        return sign

    def _busy(self, now: Sequence[Sign]) -> list[Sign]:
        """Return, if there are any, only those ranks that have called less than others of their group."""
        busy, most = super()._busy(now), dict[str, int]()
        for calls in (sign.get("calls", {}) for sign in now):
            most |= {group: max(number, most.get(group, 0)) for group, number in calls.items()}
        behind = [sign for sign in busy or now if sign.get("calls", {}).items() - most.items()]
        return behind or busy

    def _found(self, text: str, speaks: bool) -> None:
        super()._found(text, speaks)
        if not self._sign()["waits"]:
            with suppress(OSError, ValueError, AttributeError):
                faulthandler.dump_traceback(sys.__stderr__ or 2)
        time.sleep(2 * self._beat_s)  # until the others have written their stacks
        if speaks:
            record_for_torchrun(text)
            os._exit(1)


def _dist() -> Any:
    return sys.modules["torch.distributed"]


def _calls() -> dict[str, int]:
    """Return how many collectives this rank has called in each of its groups, as far as the backends count."""
    calls = {}
    for group in [*_dist().distributed_c10d._world.pg_map]:
        with suppress(RuntimeError):
            calls[group.group_name] = group._get_sequence_number_for_group()
    return calls


def main(limit_s: str, *words: str) -> None:
    """Run a script or, after -m, a module."""
    if (world := World.detect(os.environ)).world_size > 1:
        Watch(world, float(limit_s))
    for name in [name for name in sys.modules if name.partition(".")[0] == "train"]:
        del sys.modules[name]  # the script may have another one
    try:
        if words[0] == "-m":
            sys.argv = [*words[1:]]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = [*words]
            if not getattr(sys.flags, "safe_path", False):
                sys.path[0] = str(Path(words[0]).resolve().parent)
            runpy.run_path(words[0], run_name="__main__")
    except Exception as error:
        record_for_torchrun(f"{type(error).__name__}: {error}", traceback.format_exc())
        raise


if __name__ == "__main__":
    main(*sys.argv[1:])
